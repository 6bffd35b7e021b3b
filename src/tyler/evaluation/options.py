"""The options of an evaluation: declared here, read by `tyler eval`, by configs and by Python alike. Without torch.

`tyro`'s notes beside a field say how the command line shows it; the text below a field is its help.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import UseAppendAction, arg

from tyler.config.engine_choice import EngineChoice, EngineName
from tyler.tasks.problem import GradeOptions

if TYPE_CHECKING:
    from tyler.config.schema import Config
    from tyler.config.sections import EvaluationConfig
    from tyler.engine.routing import Router
    from tyler.engine.sampling import Sampling
    from tyler.reasoners.registry import Loaded
    from tyler.tasks import Problem

OptionalFolder = Annotated[Path | None, arg(metavar="DIR", help_behavior_hint="")]
OptionalFile = Annotated[Path | None, arg(metavar="FILE", help_behavior_hint="")]
OptionalNumber = Annotated[int | None, arg(metavar="N", help_behavior_hint="")]
Count = Annotated[int, arg(metavar="N")]
OptionalBytes = Annotated[str | None, arg(metavar="BYTES", help_behavior_hint="")]
MOVED = "Where the backbone of a checkpoint is, if it is not where it was: a folder, a GGUF file or a Hub id."
OptionalBackbone = Annotated[str | None, arg(metavar="MODEL", help=MOVED, help_behavior_hint="")]
DEVICES = "cpu, cuda, cuda:1 or mps; by default a CUDA device where there is one."
OptionalDevice = Annotated[str | None, arg(metavar="DEVICE", help=DEVICES, help_behavior_hint="")]
COMPUTED = "What the model computes in; auto is bfloat16 on a GPU that has it, else float32."
Dtype = Annotated[Literal["auto", "float32", "bfloat16", "float16"], arg(help=COMPUTED)]
RouterName = Annotated[str | None, arg(metavar="ROUTER", help_behavior_hint="")]


@dataclass(frozen=True)
class Questions:
    """What is asked."""

    task: Annotated[tuple[str, ...], arg(metavar="TASK [TASK ...]", help_behavior_hint="")] = ()
    """One or more of: mini, gsm8k, math500, gpqa, theoremqa, humaneval, svamp, mawps, jsonl; by default what the config
    of the model's run says under `evaluation`, or mini."""
    split: Annotated[str | None, arg(metavar="SPLIT", help_behavior_hint="")] = None
    """Which split; by default the one that is reported."""
    data: OptionalFolder = None
    """A file, or the folder with the tasks' official files; by default they come from the Hub."""
    count: OptionalNumber = None
    """How many problems of each task, drawn from the split; by default all."""
    revision: Annotated[str | None, arg(metavar="COMMIT", help_behavior_hint="")] = None
    """The branch, tag or commit of the Hub's copy; by default its newest."""
    ids: Annotated[tuple[str, ...], arg(metavar="ID [ID ...]")] = ()
    """Only the problems of these ids."""
    instruction: Annotated[str | None, arg(metavar="TEXT", help_behavior_hint="")] = None
    """What follows every problem, in the place of the model's or the task's own; '' for nothing."""

    def check(self) -> None:
        """Raise ValueError for a task that does not exist, a count below 1, and ids beside a count."""
        from tyler.tasks import find_task

        for task in self.task:
            find_task(task)
        if self.count is not None and self.count < 1:
            raise ValueError(f"--count {self.count}: at least 1 problem is needed")
        if self.ids and self.count is not None:
            raise ValueError("--ids names the problems, and --count draws some; omit one")

    @classmethod
    def of(cls, config: EvaluationConfig) -> Questions:
        """What the `evaluation` section of a config asks."""
        path = None if config.path is None else Path(config.path)
        return cls((config.task,), config.split, path, config.count, config.revision)

    def of_model(self, model: str) -> Questions:
        """What is asked of a model: where no task is named, what its run was to be evaluated on, with what is named."""
        if self.task:
            return self
        if (config := config_of_run(Path(model))) is None:
            return replace(self, task=("mini",))
        named = {field.name: value for field in fields(self) if (value := getattr(self, field.name)) != field.default}
        return replace(Questions.of(config.evaluation), **named)

    def problems(self) -> dict[str, list[Problem]]:
        """The problems of each task, by its name. Raises ValueError as `load_problems` does."""
        from tyler.tasks import task_name

        return {task_name(task): self.chosen(self.load(task, self.count)) for task in self.task}

    def load(self, task: str, count: int | None = None) -> list[Problem]:
        """The problems of a task, `count` of them or all."""
        from tyler.tasks import load_problems

        return load_problems(task, self.split, path=self.data, count=count, revision=self.revision)

    def chosen(self, problems: list[Problem]) -> list[Problem]:
        """The problems of the ids that are asked, with the instruction. Raises ValueError for an id that no problem
        has."""
        if unknown := sorted({*self.ids} - {problem.id for problem in problems}):
            raise ValueError(
                f"--ids {unknown[0]!r} is not a problem of {problems[0].task}; an id is {problems[0].id!r}"
            )
        kept = [problem for problem in problems if not self.ids or problem.id in self.ids]
        if self.instruction is None:
            return kept
        return [replace(problem, instruction=self.instruction) for problem in kept]

    def split_of(self, task: str) -> str:
        """The split of a task that is asked."""
        from tyler.tasks.decontamination import splits_of

        return self.split or next(iter(splits_of(task)), "the whole file")

    def description(self, sets: Mapping[str, Sequence[Problem]]) -> str:
        """Which problems these are, and of how many, as in "GSM8K, test: 100 of 1,319"."""
        from tyler.tasks import find_task

        return "; ".join(
            f"{find_task(task).title}, {self.split_of(task)}: {len(problems):,} of {len(self.load(task)):,}"
            for task, problems in sets.items()
        )


def config_of_run(model: Path) -> Config | None:
    """The config of the run that a model is, or is a checkpoint of; None for another model."""
    from tyler.config.files import load_run_config

    run = model.parent.parent if model.parent.name == "checkpoints" else model
    return load_run_config(run / "config.yaml") if (run / "config.yaml").is_file() else None


@dataclass(frozen=True)
class Limits:
    """Who decides about operators, and how long an answer may be."""

    budget: OptionalNumber = None
    """At most this many invocations in an answer; 0 is the model without operators; by default no limit."""
    router: RouterName = None
    """learned, never, boundaries or boundaries:0.25 (a share); by default what its last stage trained for."""
    max_new_tokens: int = 2048
    """At most this many actions in an answer."""

    @property
    def routed(self) -> Router | None:
        """The router that is named; None where none is. Raises ValueError for a name that there is not."""
        return router_of(self.router)


@dataclass(frozen=True)
class Decoding(Limits):
    """How an answer is decoded."""

    temperature: float = 0.0
    """0 is greedy."""
    top_p: float = 1.0
    """Sample among the likeliest tokens that together have this probability; 1 is all."""
    top_k: int = 0
    """Sample among this many of the likeliest tokens; 0 is all."""
    seed: int = 0
    """Seed of sampling."""

    @property
    def sampling(self) -> Sampling:
        """How actions are drawn. Raises ValueError for invalid values."""
        from tyler.engine.sampling import Sampling

        return Sampling(self.temperature, self.top_k, self.top_p, self.seed)


@dataclass(frozen=True)
class EngineOptions:
    """Which engine decodes."""

    engine: EngineName = "native"
    """native runs everything and is exact; vllm is for GPUs, many answers at once and models on several cards."""
    engine_args: Annotated[tuple[str, ...], arg(metavar="KEY=VALUE ...")] = ()
    """Arguments of vLLM's own: `--engine-args quantization=fp8 max_model_len=8192`."""
    tensor_parallel_size: OptionalNumber = None
    """GPUs that share a model on vllm."""

    @property
    def engine_choice(self) -> EngineChoice:
        """The engine and its arguments. Raises ValueError for one that is not there, and for unreadable arguments."""
        cards = () if self.tensor_parallel_size is None else (f"tensor_parallel_size={self.tensor_parallel_size}",)
        return EngineChoice.of(self.engine, (*self.engine_args, *cards))


@dataclass(frozen=True)
class Placement:
    """Where a model computes, in what, and what it may hold."""

    device: OptionalDevice = None
    dtype: Dtype = "auto"
    memory: OptionalBytes = None
    """At most this much context and cache, such as 4GB; answers wait for room, and what can never fit is refused."""
    backbone: OptionalBackbone = None

    @property
    def bytes(self) -> int | None:
        """The bound on memory in bytes. Raises ValueError for an invalid size."""
        return memory_of(self.memory)


@dataclass(frozen=True)
class Loading(Placement, EngineOptions):
    """Under which method a model answers, and where."""

    method: Annotated[str | None, arg(metavar="METHOD", help_behavior_hint="")] = None
    """tyler (with its operators), cot, or a baseline such as softcot; by default what the model was trained for."""
    method_set: Annotated[UseAppendAction[tuple[str, ...]], arg(metavar="KEY=VALUE")] = ()
    """Change one setting of the method: `--method-set min_p=0.01`."""

    def load(
        self,
        model: str,
        limits: Limits,
        *,
        name: str = "",
        sampling: Sampling | None = None,
        slots: int = 32,
        device: str | None = None,
    ) -> Loaded:
        """The model as it is to answer, on another `device` where one is given. Raises ValueError as `registry.load`
        does."""
        from tyler.reasoners import registry

        return registry.load(
            model,
            self.method,
            self.method_set,
            name=name or last_part(model),
            router=limits.routed,
            budget=limits.budget,
            max_new_tokens=limits.max_new_tokens,
            sampling=sampling,
            slots=slots,
            backbone=self.backbone,
            device=device or self.device,
            dtype=self.dtype,
            memory=self.bytes,
            engine=self.engine_choice,
        )


@dataclass(frozen=True)
class Answering(Loading, Decoding):
    """How the model answers."""

    samples: Annotated[int, arg(aliases=["-n"], metavar="N")] = 1
    """Answers to each problem, each with a random stream of its own; of 2 or more an evaluation shows pass@k and a
    majority vote."""
    slots: int = 32
    """Answers decoded at once; changes speed and memory, not the answers."""

    def check(self) -> None:
        """Raise ValueError for invalid options."""
        _ = self.routed, self.bytes, self.sampling, self.engine_choice
        if self.sampling.greedy and (self.top_k or self.top_p < 1):
            raise ValueError(
                "--top-p and --top-k need a --temperature above 0: greedy answers are the likeliest tokens"
            )
        if min(self.samples, self.slots) < 1:
            raise ValueError(f"--samples {self.samples} and --slots {self.slots}: each must be at least 1")
        if self.samples > 1 and self.sampling.greedy:
            raise ValueError(
                f"--samples {self.samples} greedy answers would all be the same; give a --temperature above 0"
            )


@dataclass(frozen=True)
class EndpointOptions:
    """A model behind an OpenAI-compatible server, in the place of MODEL; the key is read from OPENAI_API_KEY."""

    endpoint: Annotated[str, arg(metavar="URL", help_behavior_hint="")] = ""
    """The address of the API, such as http://localhost:8000/v1."""
    model: Annotated[str, arg(metavar="NAME", help_behavior_hint="")] = ""
    """The model's name on that server."""
    few_shot: OptionalFile = None
    """A file of worked examples, each with problem and solution, that are put before every problem."""
    concurrency: Count = 16
    """Requests under way at once."""
    retries: Count = 5
    """Times that a request is sent again after an error of the server or of the network, with growing pauses."""
    timeout: Annotated[float, arg(metavar="SECONDS")] = 600.0
    """The longest wait for one answer."""
    retry_failed: bool = False
    """Ask again what the server refused to answer in an earlier run of the same command."""

    def check(self) -> None:
        """Raise ValueError for options that do not go together."""
        if self.endpoint and not self.model:
            raise ValueError("--endpoint needs --model NAME, the model's name on that server")
        if not self.endpoint and (given := flags_of(self)):
            raise ValueError(f"{given[0]} belongs to --endpoint URL")
        if self.endpoint and not self.endpoint.startswith(("http://", "https://")):
            raise ValueError(
                f"--endpoint {self.endpoint!r} is not an address; give one such as http://localhost:8000/v1"
            )
        if self.concurrency < 1 or self.retries < 0 or self.timeout <= 0:
            raise ValueError("--concurrency must be at least 1, --retries at least 0 and --timeout above 0")


@dataclass(frozen=True)
class Matching:
    """At what cost the model answers."""

    match: OptionalFolder = None
    """The directory of another evaluation: look for the setting of the method at which an answer has as many tokens,
    visible and latent, as there."""
    match_split: Annotated[str, arg(metavar="SPLIT")] = "dev"
    """The split on whose problems the setting is looked for."""
    match_data: OptionalFolder = None
    """The file of that split, or the folder that holds it; by default that of the evaluation."""

    def check(self) -> None:
        """Raise ValueError for options that do nothing without `--match`."""
        if self.match is None and (given := flags_of(self)):
            raise ValueError(f"{given[0]} belongs to --match DIR")


ASKED_OF_A_SERVER = ("temperature", "top_p", "top_k", "seed", "max_new_tokens", "samples")
"""The options of answering that a server gets; all others are of a model that is loaded here."""


@dataclass(frozen=True)
class EvaluationRequest:
    """Everything that an evaluation is asked for, besides the model."""

    questions: Annotated[Questions, arg(name="")] = Questions()
    answering: Annotated[Answering, arg(name="")] = Answering()
    grading: Annotated[GradeOptions, arg(name="")] = GradeOptions()  # noqa: RUF009 - it is frozen
    matching: Annotated[Matching, arg(name="")] = Matching()
    server: Annotated[EndpointOptions, arg(name="")] = EndpointOptions()

    def check(self) -> None:
        """Raise ValueError for invalid options; to be called before anything is loaded."""
        self.questions.check()  # before torch is loaded, which takes seconds
        self.server.check()
        self.matching.check()
        ignored = [*flags_of(self.answering, but=ASKED_OF_A_SERVER), *flags_of(self.matching)]
        if self.server.endpoint and ignored:
            raise ValueError(f"{ignored[0]} needs a MODEL that is loaded here; omit it with --endpoint")
        self.answering.check()


def flags_of(options: Any, but: Sequence[str] = ()) -> list[str]:
    """The options of a group that are not at their defaults, as they are typed; without some."""
    changed = (option.name for option in fields(options) if getattr(options, option.name) != option.default)
    return [f"--{name.replace('_', '-')}" for name in changed if name not in but]


def memory_of(text: str | None) -> int | None:
    """The bytes that `--memory` names; None without one. Raises ValueError for an invalid size."""
    from tyler.config.sizes import bytes_of

    try:
        return None if text is None else bytes_of(text)
    except ValueError as error:
        raise ValueError(f"--memory {error}") from None


def router_of(text: str | None) -> Router | None:
    """The router that `--router` names; None where it names none. Raises ValueError for a name that there is not."""
    from tyler.engine.routing import router_named

    try:
        return None if text is None else router_named(text)
    except ValueError as error:
        raise ValueError(f"--{error}") from error


def last_part(model: str) -> str:
    """What a model is called where no name is given: the last part of its folder or Hub id, of "." too."""
    return os.path.basename(os.path.abspath(model))
