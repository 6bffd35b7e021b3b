"""Tyler: a backbone, its operators and its policy, as one object that answers problems."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Self, TypedDict, Unpack, overload

import torch

from tyler.boundaries.rules import check_rules
from tyler.config.engine_choice import NATIVE, EngineChoice, EngineName
from tyler.engine.checks import check_whole
from tyler.engine.native.engine import Engine
from tyler.engine.request import A_SAMPLING, Event, PromptTooLong, Request
from tyler.engine.routing import AtBoundaries, Learned, Never, Router, router_named
from tyler.engine.sampling import Sampler, Sampling, seed_of
from tyler.engine.shared_engine import Build, SharedEngine
from tyler.engine.trajectory import Trajectory
from tyler.modeling import checkpoint
from tyler.modeling.architectures import shipped
from tyler.modeling.backbone import Backbone
from tyler.modeling.fingerprint import fingerprint_with
from tyler.modeling.hub import checkpoint_on_hub, with_revision
from tyler.modeling.independent import Independent
from tyler.modeling.loading import load_recorded
from tyler.modeling.lora import LoraSettings
from tyler.modeling.manifest import BackboneRecord, CheckpointError
from tyler.modeling.operators import PAPER_OPERATORS, Operator, check_operators
from tyler.modeling.policy import Policy
from tyler.modeling.synthesis import Heads, Synthesizer
from tyler.runs.checkpoints import latest_checkpoint
from tyler.tasks.problem import Problem
from tyler.tasks.prompts import Message, Prompt, Question, as_questions, is_conversation, prompt_ids

DEFAULT_ROUTERS: dict[str, Router] = {
    "backbone": Never(),
    "stage1": AtBoundaries(),
    "stage2": Learned(),
    "sft": Never(),
    "grpo": Never(),
}
"""The router by default: what the model's last stage was trained for."""

OneQuestion = str | Problem | list[Message]
Questions = list[str] | list[Problem] | list[list[Message]]


class Common(TypedDict, total=False):
    """What `Tyler.solve` takes besides problems and `num_samples`."""

    budget: int | None
    router: Router | str | None
    sampling: Sampling | Sequence[Sampling] | None
    max_new_tokens: int
    stop: str | Sequence[str]
    slots: int
    memory: int | None


@dataclass(frozen=True, eq=False)
class Tyler(Independent):
    """A language model that can invoke typed latent operators while it decodes.

    `heads` says which head answers for which operator; the interventions (remove, zero, swap, share)
    are other mappings: `model.with_heads(swap(model.heads, "state", "global"))`.
    """

    backbone: Backbone
    operators: tuple[Operator, ...]
    synthesizer: Synthesizer
    policy: Policy
    heads: Heads
    prompt: Prompt
    stage: str
    decoder: EngineChoice = NATIVE
    """Which engine answers."""
    shared_engine: SharedEngine = field(init=False, repr=False, compare=False)
    """The engine that this object's calls share and that lives as long as it does (`engine/shared_engine.py`)."""

    def __post_init__(self) -> None:
        parts = (self.backbone, self.operators, self.policy, self.synthesizer, self.heads)
        build: Build = partial(Engine, *parts)
        if self.decoder.name == "vllm":
            from tyler.engine.vllm.engine import VllmEngine

            build = partial(VllmEngine, *parts, arguments=self.decoder.arguments)
        object.__setattr__(self, "shared_engine", SharedEngine(build))

    def __repr__(self) -> str:
        operators = ", ".join(f"{operator.name} ×{operator.num_latents}" for operator in self.operators)
        return f"Tyler({self.backbone!r}, stage={self.stage!r}, operators=({operators}))"

    @classmethod
    def start(
        cls,
        backbone: Backbone,
        operators: Sequence[Operator] = PAPER_OPERATORS,
        lora: LoraSettings | None = None,
        prompt: Prompt | None = None,
    ) -> Self:
        """Untrained operators on a backbone; draws their start from torch's global generator."""
        operators = check_operators(operators)
        check_rules(operators)
        synthesizer = Synthesizer.start(backbone, operators, lora or LoraSettings())
        policy = Policy(backbone, len(operators)).eval()
        prompt = prompt or Prompt.of(backbone.tokenizer)
        return cls(backbone, operators, synthesizer, policy, synthesizer.mapping(), prompt, "backbone")

    @classmethod
    @torch.inference_mode(False)  # weights outlive the caller's inference mode
    def from_pretrained(
        cls,
        location: str | Path,
        *,
        revision: str | None = None,
        backbone: str | Path | None = None,
        dtype: str | torch.dtype = "auto",
        device: str | torch.device | None = None,
    ) -> Self:
        """Load a Tyler checkpoint, the newest one of a run, or a plain backbone, which then answers without operators.

        A backbone is "mini", "smollm2" once it is fetched, a folder, a GGUF file or a Hub id; "mini-tyler" and
        "smollm2-tyler" are trained Tylers that ship inside the package. On the Hub both are found by their id,
        "user/name", at the branch, tag or commit that `revision` or "user/name@revision" names.

        `backbone` is where a checkpoint's backbone is found, if not where it was. `dtype` is "auto" (bfloat16 on a GPU
        that has it, else float32), "float32", "bfloat16", "float16" or torch's own; `device` by default a GPU where
        there is one. Raises CheckpointError (a ValueError) for a checkpoint that does not fit, and FileNotFoundError
        for a model that is not there.
        """
        name, revision = with_revision(str(location), revision)
        if not isinstance(location, str | Path):
            raise ValueError(f"a model is {location!r}, a {type(location).__name__}; give its folder, name or Hub id")
        folder = shipped(name) or latest_checkpoint(name) or Path(name)
        if not checkpoint.is_checkpoint(folder):
            folder = checkpoint_on_hub(name, revision, checkpoint.MANIFEST) or folder
        if not checkpoint.is_checkpoint(folder):
            if backbone is not None:
                raise ValueError(f"{location} is not a checkpoint and has no other backbone; omit backbone=")
            return cls.start(Backbone.load(name, revision=revision, dtype=dtype, device=device))
        manifest = checkpoint.Manifest.read(folder)
        try:
            check_rules(manifest.operators)
        except ValueError as error:
            raise CheckpointError(f"{folder / checkpoint.MANIFEST}: {error}") from error
        loaded = load_recorded(manifest.backbone, folder, instead=backbone, dtype=dtype, device=device)
        synthesizer, policy = checkpoint.load(folder, manifest, loaded)
        heads = synthesizer.mapping()
        return cls(loaded, manifest.operators, synthesizer, policy, heads, manifest.prompt, manifest.stage)

    def save_pretrained(self, folder: str | Path, *, half: bool = False) -> None:
        """Write a checkpoint (layout in `checkpoint.py`) that reloads to bit-equal outputs.

        With `half` every trained number is rounded to float16: half the size, to publish. What is loaded from it
        computes in float32 as any other. Raises ValueError where a number is too large for float16, and for a model
        under an intervention (`with_heads`), of which a checkpoint has no record.
        """
        if self.heads != self.synthesizer.mapping():
            raise ValueError("a model under an intervention (with_heads) cannot be saved; save the model it is of")
        manifest = checkpoint.Manifest(
            backbone=BackboneRecord.of(self.backbone, Path(folder)),
            operators=self.operators,
            prompt=self.prompt,
            stage=self.stage,
        )
        checkpoint.save(Path(folder), manifest, self.synthesizer, self.policy, half=half)

    def saved_bytes(self) -> int:
        """The size of the tensors that `save_pretrained` writes."""
        return sum(tensor.nbytes for tensor in checkpoint.trained_tensors(self.synthesizer, self.policy).values())

    def fingerprint(self) -> str:
        """A short hash that names the weights: the backbone's, and those of every adapter and head once trained."""
        untrained = self.stage == "backbone"  # its operators start at random and are never called
        tensors = {} if untrained else checkpoint.trained_tensors(self.synthesizer, self.policy)
        return fingerprint_with(self.backbone.fingerprint(), tensors)

    def with_heads(self, heads: Heads) -> Self:
        """The same model under an intervention: another mapping from operator to head."""
        return replace(self, heads=dict(heads))

    def with_engine(self, name: EngineName, **arguments: object) -> Self:
        """The same model on another engine: "native", or "vllm" with arguments of vLLM's own.

        model.with_engine("vllm", tensor_parallel_size=2, quantization="fp8"). The engine starts with the first answer;
        `shared_engine.close()` ends it. Raises ValueError for an engine or an argument that there is not.
        """
        return replace(self, decoder=EngineChoice(name, arguments))

    def at_stage(self, stage: str) -> Self:
        """The same weights as the outcome of another stage. Raises ValueError for an unknown stage.

        One that comes before the policy's LoRA is saved without it.
        """
        if stage not in checkpoint.STAGES:
            raise ValueError(f"unknown stage {stage!r}; choose from {', '.join(checkpoint.STAGES)}")
        return replace(self, stage=stage)

    def engine(self, *, slots: int = 8, memory: int | None = None, positions: int | None = None) -> Engine:
        """A new decoding engine over this model's present weights, with the settings of `Engine`."""
        parts = (self.backbone, self.operators, self.policy, self.synthesizer, self.heads)
        return Engine(*parts, slots=slots, memory=memory, positions=positions)

    def request(
        self,
        problem: Question,
        *,
        budget: int | None = None,
        router: Router | str | None = None,
        sampling: Sampling | None = None,
        max_new_tokens: int = 2048,
        stop: str | Sequence[str] = (),
        sampler: Sampler | None = None,
    ) -> Request:
        """What the engine is asked for one problem: its text, a task's, which may have an instruction of its own, or a
        conversation, [{"role": "user", "content": "..."}, ...].

        Raises ValueError for an empty problem and for invalid messages.
        """
        return Request(
            prompt_ids=prompt_ids(self.backbone.tokenizer, problem, self.prompt),
            router=self.routed(router),
            sampling=Sampling() if sampling is None else sampling,
            budget=budget,
            max_new_tokens=max_new_tokens,
            stop=stop,
            sampler=sampler,
        )

    def routed(self, router: Router | str | None) -> Router:
        """Who decides about operators: a router, one by its name ("never", "boundaries:0.25"), or by default the one
        that the last stage trained for. Raises ValueError for an unknown name."""
        if router is None:
            return DEFAULT_ROUTERS[self.stage]
        return router_named(router) if isinstance(router, str) else router

    @overload
    def solve(self, problems: OneQuestion, *, num_samples: None = ..., **rest: Unpack[Common]) -> Trajectory: ...

    @overload
    def solve(self, problems: OneQuestion, *, num_samples: int, **rest: Unpack[Common]) -> list[Trajectory]: ...

    @overload
    def solve(self, problems: Questions, *, num_samples: None = ..., **rest: Unpack[Common]) -> list[Trajectory]: ...

    @overload
    def solve(self, problems: Questions, *, num_samples: int, **rest: Unpack[Common]) -> list[list[Trajectory]]: ...

    def solve(
        self,
        problems: Question | Sequence[Question],
        *,
        budget: int | None = None,
        router: Router | str | None = None,
        sampling: Sampling | Sequence[Sampling] | None = None,
        max_new_tokens: int = 2048,
        stop: str | Sequence[str] = (),
        slots: int = 32,
        memory: int | None = None,
        num_samples: int | None = None,
    ) -> Trajectory | list[Trajectory] | list[list[Trajectory]]:
        """Answer one problem, or a list in one batch; in float32 no answer depends on what is answered beside it.

        A problem is a text, a task's problem, or a conversation: a list of messages.
        `budget` caps the operator calls of each answer; `router` decides about them (by default the policy after Stage
        2, every boundary after Stage 1, never on a plain backbone), or is the name of one, "boundaries:0.25";
        `sampling` is greedy by default, and may be one for each problem of a list; `stop` is a string or several that
        end an answer; `max_new_tokens` counts actions; `slots` is how many of these answers are decoded at once, and
        `memory` bounds the bytes of context and caches of all that is being answered.
        With `num_samples` each problem has a list of that many answers, each from a random stream of its own: its seed
        is that of (the sampling's seed, the problem's place in the list, the sample's). Without it equal problems
        under one seed have equal answers. Raises ValueError for samplings that are not one for each problem and,
        by its place in the list, for a problem that cannot be asked; PromptTooLong (a ValueError) for one that is too
        long.
        """
        alone = isinstance(problems, str | Problem) or is_conversation(problems)
        questions = as_questions(problems)
        if not questions:
            return []
        if not alone:
            check_each(self.prompt, questions)
        requests = [
            self.request(question, budget=budget, router=router, sampling=its, max_new_tokens=max_new_tokens, stop=stop)
            for question, its in spread(questions, sampling, num_samples)
        ]
        try:
            trajectories = self.shared_engine.run(requests, slots=slots, memory=memory)
        except PromptTooLong as error:
            which = "" if alone else f"{named(questions, error.places[0] // (num_samples or 1))}: "
            raise PromptTooLong(f"{which}{error}", error.places) from error
        if num_samples is None:
            return trajectories[0] if alone else trajectories
        groups = [trajectories[first : first + num_samples] for first in range(0, len(trajectories), num_samples)]
        return groups[0] if alone else groups

    def stream(
        self,
        problem: Question,
        *,
        budget: int | None = None,
        router: Router | str | None = None,
        sampling: Sampling | None = None,
        max_new_tokens: int = 2048,
        stop: str | Sequence[str] = (),
        memory: int | None = None,
    ) -> Iterator[Event]:
        """Answer one problem, yielding a TokenEvent or InvocationEvent as each happens and a FinishEvent at the end."""
        request = self.request(
            problem, budget=budget, router=router, sampling=sampling, max_new_tokens=max_new_tokens, stop=stop
        )
        return self.shared_engine.events([request], memory=memory)


def check_each(prompt: Prompt, problems: Sequence[Question]) -> None:
    """Raises ValueError for a problem that cannot be asked, by its place."""
    for index, problem in enumerate(problems):
        try:
            prompt.turns(problem)
        except ValueError as error:
            raise ValueError(f"{named(problems, index)}: {error}") from error


def named(problems: Sequence[Question], index: int) -> str:
    """A problem of a list by its place, and by its id where it is a task's."""
    problem = problems[index]
    return f"problems[{index}]" + (f" ({problem.id})" if isinstance(problem, Problem) else "")


def spread(
    problems: Sequence[Question], sampling: Sampling | Sequence[Sampling] | None, num_samples: int | None
) -> Iterator[tuple[Question, Sampling]]:
    """Each problem with the sampling of its answer, or `num_samples` times with those of its samples, in order.

    Raises ValueError for samplings that are not one for each problem, and for fewer samples than one.
    """
    if isinstance(sampling, str) or not isinstance(sampling, Sampling | Sequence | None):
        raise ValueError(f"sampling={sampling!r}; {A_SAMPLING}")
    samplings = [sampling or Sampling()] * len(problems) if isinstance(sampling, Sampling | None) else list(sampling)
    if len(samplings) != len(problems):
        raise ValueError(f"{len(samplings)} samplings for {len(problems)} problems; give one for all, or one for each")
    if num_samples is not None:
        check_whole("num_samples", num_samples, 1, "it must be at least 1, or None for one answer instead of a list")
    for index, (problem, sampling) in enumerate(zip(problems, samplings, strict=True)):
        if num_samples is None:
            yield problem, sampling
        for sample in range(num_samples or 0):
            yield problem, replace(sampling, seed=seed_of(sampling.seed, index, sample))
