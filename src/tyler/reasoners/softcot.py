"""SoftCoT (Xu et al., 2025): a frozen assistant writes N soft thoughts for a frozen backbone; one Linear is trained.

The assistant is asked for N tokens that help another model with the problem, and its turn is N placeholder tokens. Its
last hidden states there go through the Linear (d_assistant to d_backbone, with bias) and stand in for the embeddings of
N placeholders that close the backbone's user turn, between a begin and an end marker. The loss is the cross-entropy of
the solution and, as in the release, of the header of the assistant's turn in front of it (`learn_header`). N is 32 in
training and 4 at evaluation, as the authors have it.

Prompts are joined from ids, so the places of the thoughts are known and never searched for.

# Deviation: the solutions are the traces that SFT learns, not the release's "## Step i" lines, and the assistant is the
backbone itself unless another is named, so that the comparison is one of methods. The wording of both prompts is ours.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import cast

import torch
from jaxtyping import Float
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedTokenizerBase

from tyler.config.loops import SoftCotConfig
from tyler.config.schema import Config
from tyler.engine.engine import Engine
from tyler.engine.request import Event, Request, SoftPrompt
from tyler.engine.routing import Never
from tyler.engine.sampling import Sampling
from tyler.engine.shared_engine import SharedEngine
from tyler.engine.trajectory import Trajectory
from tyler.model import Tyler
from tyler.modeling.backbone import Backbone
from tyler.modeling.manifest import BackboneRecord, check_files, read_sections, write_manifest
from tyler.modeling.tensor_files import read_tensors
from tyler.reasoners.knobs import Knob, check_at_least
from tyler.reasoners.reasoner import AnswerSettings, Finished, ignore
from tyler.reasoners.tyler import of_its_own
from tyler.runs.checkpoints import latest_checkpoint
from tyler.runs.trackers import check_tracker
from tyler.tasks.decontamination import load_training
from tyler.tasks.problem import Problem
from tyler.tasks.prompts import Prompt, Question, opened_turn, prompt_ids, target_ids
from tyler.training import distributed
from tyler.training.gradient_checkpointing import recomputing
from tyler.training.loop import Passes, development_problems, opened_run, origin_of
from tyler.training.objectives import token_logprobs
from tyler.training.supervised import SupervisedSpec, train

logger = logging.getLogger(__name__)

MANIFEST, WEIGHTS = "softcot.json", "softcot.safetensors"

MARKERS = (
    ("<|box_start|>", "<|box_end|>"),
    ("<|reserved_special_token_0|>", "<|reserved_special_token_1|>"),
)
"""Pairs of tokens around the thoughts, in the order of preference; a tokenizer without them has its placeholder."""

PLACEHOLDERS = ("<|endoftext|>", "<|end_of_text|>")
"""What holds the places of the thoughts, as in the release: the first for Qwen, the second for Llama."""

HERE = "\ue000"
"""Where the thoughts go in a rendered prompt: a character that Unicode leaves to private use."""

KNOBS = (Knob("thoughts", lowest=1),)


@dataclass(frozen=True)
class Settings:
    """What can be changed at evaluation. `thoughts` None is the number in the checkpoint."""

    thoughts: int | None = None

    def __post_init__(self) -> None:
        if self.thoughts is not None:
            check_at_least(1, thoughts=self.thoughts)


@dataclass(frozen=True)
class Wording:
    """What the assistant is asked ({n} and {problem} are filled in), what the backbone reads, and N at evaluation."""

    request: str
    hint: str
    thoughts: int

    def __post_init__(self) -> None:
        check_at_least(1, thoughts=self.thoughts)


@dataclass(frozen=True)
class Placeholders:
    """The tokens in the places of the thoughts: in the backbone's prompt, and in the assistant's turn."""

    backbone: int
    assistant: int

    def __post_init__(self) -> None:
        check_at_least(0, backbone=self.backbone, assistant=self.assistant)


@dataclass(frozen=True)
class SoftCot:
    """Two frozen models (which may be one) and the Linear between them."""

    backbone: Backbone
    assistant: Backbone
    projection: nn.Linear
    prompt: Prompt
    wording: Wording
    placeholders: Placeholders
    shared_engine: SharedEngine = field(init=False, repr=False, compare=False)
    """The engine that this object's calls share and that lives as long as it does."""

    def __repr__(self) -> str:
        return f"SoftCot({self.backbone!r}, assistant={self.assistant!r})"

    def __post_init__(self) -> None:
        object.__setattr__(self, "shared_engine", SharedEngine(partial(plain_engine, self.backbone)))

    @classmethod
    def start(cls, backbone: Backbone, assistant: Backbone, prompt: Prompt, wording: Wording) -> SoftCot:
        """A Linear as torch starts it, from the global generator."""
        linear = nn.Linear(assistant.dim, backbone.dim).to(backbone.device)
        holders = Placeholders(placeholder(backbone.tokenizer), placeholder(assistant.tokenizer))
        return cls(backbone, assistant, linear, prompt, wording, holders)

    def thoughts(self, problem: Question, number: int) -> Float[Tensor, "number dim"]:
        """The soft thoughts on a problem, in float32; only the Linear has a gradient.

        Of a conversation the assistant is told the last turn.
        """
        text = Prompt(instruction="").turns(problem)[-1]["content"]
        asked = self.wording.request.replace("{n}", str(number)).replace("{problem}", text)
        tokenizer = self.assistant.tokenizer
        question = prompt_ids(tokenizer, asked, Prompt(instruction=""))
        ids = torch.tensor([question + [self.placeholders.assistant] * number], device=self.assistant.device)
        with torch.no_grad():
            states = self.assistant.decoder(input_ids=ids, use_cache=False).last_hidden_state[0, len(question) :]
        return cast(Tensor, self.projection(states.to(self.projection.weight)))

    def prompt_with_places(self, problem: Question, number: int) -> tuple[list[int], tuple[int, ...]]:
        """The backbone's prompt with `number` placeholders, and their positions."""
        turns = self.prompt.turns(problem)
        hint, tokenizer = f"\n\n{self.wording.hint}" if self.wording.hint else "", self.backbone.tokenizer
        turns[-1] = turns[-1] | {"content": f"{turns[-1]['content']}{hint}\n{HERE}"}
        rendered = opened_turn(tokenizer, turns, self.prompt.thinking)
        before, _, after = rendered.rpartition(HERE)
        held = self.placeholders.backbone
        begin, end = markers(tokenizer, held)
        left = list(tokenizer.encode(before, add_special_tokens=tokenizer.chat_template is None))
        right = tokenizer.encode(after, add_special_tokens=False)
        places = range(len(left) + 1, len(left) + 1 + number)
        return [*left, begin, *[held] * number, end, *right], tuple(places)

    @torch.no_grad()
    def request(
        self, problem: Question, number: int, *, sampling: Sampling | None = None, max_new_tokens: int = 2048
    ) -> Request:
        """What the engine is asked for one problem, with `number` thoughts. Raises ValueError for an empty one."""
        ids, places = self.prompt_with_places(problem, number)
        return Request(
            ids,
            router=Never(),
            sampling=sampling or Sampling(),
            max_new_tokens=max_new_tokens,
            soft_prompt=SoftPrompt(places, self.thoughts(problem, number)),
        )

    def engine(self, *, slots: int = 8, memory: int | None = None) -> Engine:
        """A decoding engine of one's own over the backbone."""
        return plain_engine(self.backbone, slots=slots, memory=memory)

    def stream(
        self,
        problem: Question,
        *,
        sampling: Sampling | None = None,
        max_new_tokens: int = 2048,
        memory: int | None = None,
    ) -> Iterator[Event]:
        """Answer one problem, yielding a TokenEvent as each token happens and a FinishEvent at the end."""
        request = self.request(problem, self.wording.thoughts, sampling=sampling, max_new_tokens=max_new_tokens)
        return self.shared_engine.events([request], memory=memory)

    def fingerprint(self) -> str:
        """A short hash that names both models and the Linear."""
        digest = hashlib.sha256((self.backbone.fingerprint() + self.assistant.fingerprint()).encode())
        for tensor in tensors_of(self.projection).values():
            digest.update(tensor.float().numpy().tobytes())
        return digest.hexdigest()[:16]

    def saved_bytes(self) -> int:
        """The size of the tensors that `save_pretrained` writes."""
        return sum(tensor.nbytes for tensor in self.projection.parameters())

    def save_pretrained(self, folder: str | Path) -> None:
        """Write softcot.json and softcot.safetensors, which reload to bit-equal outputs."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        content = {
            "backbone": asdict(BackboneRecord.of(self.backbone)),
            "assistant": asdict(BackboneRecord.of(self.assistant)),
            "prompt": asdict(self.prompt),
            "wording": asdict(self.wording),
            "placeholders": asdict(self.placeholders),
        }
        save_file(tensors_of(self.projection), folder / WEIGHTS)
        write_manifest(folder / MANIFEST, content, [WEIGHTS])

    @classmethod
    def from_pretrained(
        cls,
        location: str | Path,
        *,
        backbone: str | None = None,
        dtype: str | torch.dtype = "auto",
        device: str | torch.device | None = None,
    ) -> SoftCot:
        """Load a checkpoint, or the newest one of a run. `backbone` is where its backbone is found, if elsewhere now.

        Raises CheckpointError for one that does not fit.
        """
        folder = folder_of(location)
        told, sealed = read_sections(folder / MANIFEST, SECTIONS, {"placeholders": 2})
        theta = told["backbone"].load(folder, instead=backbone, dtype=dtype, device=device)
        alone, record = told["assistant"] == told["backbone"], told["assistant"]
        assistant = theta if alone else record.load(folder, instead=None, dtype=dtype, device=device)
        holders = told.get("placeholders") or paddings(theta, assistant)
        projection = nn.Linear(assistant.dim, theta.dim).to(theta.device)
        model = cls(theta, assistant, projection, told["prompt"], told["wording"], holders)
        expected = {name: tensor.shape for name, tensor in tensors_of(projection).items()}
        found = read_tensors(folder / WEIGHTS, expected)
        check_files(folder / MANIFEST, sealed, [WEIGHTS])
        projection.load_state_dict(found)
        return model


def plain_engine(backbone: Backbone, *, slots: int, memory: int | None) -> Engine:
    """A decoding engine over a backbone without operators."""
    return Tyler.start(backbone, ()).engine(slots=slots, memory=memory)


def placeholder(tokenizer: PreTrainedTokenizerBase) -> int:
    """The token whose embedding the thoughts stand in for: the release's where the tokenizer has it.

    Raises ValueError where no candidate exists.
    """
    vocabulary = tokenizer.get_vocab()
    for name in PLACEHOLDERS:
        if name in vocabulary:
            return int(vocabulary[name])
    return padding(tokenizer)


def padding(tokenizer: PreTrainedTokenizerBase) -> int:
    """What pads, else the unknown or the end token; the placeholder of checkpoints of format 1. Raises ValueError."""
    for id in (tokenizer.pad_token_id, tokenizer.unk_token_id, tokenizer.eos_token_id):
        if id is not None:
            return int(id)
    raise ValueError(f"the tokenizer {tokenizer.name_or_path!r} has no pad, unk or eos token to hold a place with")


def markers(tokenizer: PreTrainedTokenizerBase, placeholder: int) -> tuple[int, int]:
    """The tokens in front of and behind the thoughts; the placeholder where the tokenizer has no such pair."""
    vocabulary = tokenizer.get_vocab()
    for begin, end in MARKERS:
        if begin in vocabulary and end in vocabulary:
            return vocabulary[begin], vocabulary[end]
    return placeholder, placeholder


# --- the checkpoint -------------------------------------------------------------------------------------------------


SECTIONS = {
    "backbone": BackboneRecord,
    "assistant": BackboneRecord,
    "prompt": Prompt,
    "wording": Wording,
    "placeholders": Placeholders,
}
"""What softcot.json holds; format 1 had no placeholders, and held places with what pads."""


def folder_of(location: str | Path) -> Path:
    """The folder of a checkpoint: the newest of a run, or the location itself."""
    return latest_checkpoint(location) or Path(location)


def is_checkpoint(location: str | Path) -> bool:
    """Whether a location claims to be a SoftCoT checkpoint, or a run with one."""
    return (folder_of(location) / MANIFEST).is_file()


def tensors_of(projection: nn.Linear) -> dict[str, Tensor]:
    """The content of softcot.safetensors."""
    return {name: tensor.detach().cpu().contiguous() for name, tensor in projection.state_dict().items()}


def paddings(backbone: Backbone, assistant: Backbone) -> Placeholders:
    """What held places in checkpoints of format 1."""
    return Placeholders(padding(backbone.tokenizer), padding(assistant.tokenizer))


# --- answering ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SoftCotReasoner:
    """SoftCoT with everything about decoding decided. Its thoughts count as latents, their time as synthesis."""

    name: str
    model: SoftCot
    thoughts: int
    sampling: Sampling
    max_new_tokens: int = 2048
    slots: int = 32
    memory: int | None = None

    def request(self, question: Question, settings: AnswerSettings) -> Request:
        """What the engine is asked for a question. Raises ValueError for one that cannot be asked."""
        settings.check_without_operators(self.name)
        request = self.model.request(
            question, self.thoughts, sampling=settings.sampling, max_new_tokens=settings.max_new_tokens
        )
        return replace(request, stop=settings.stop)

    def continuation(self, prompt_ids: Sequence[int], settings: AnswerSettings) -> Request:
        """Raises ValueError: soft thoughts have their place in the user's turn."""
        raise ValueError(f"{self.name} puts soft thoughts into a question and continues no text; ask it in a chat")

    def solve(self, problems: Sequence[Problem], finished: Finished = ignore) -> list[Trajectory]:
        requests, spent = [], []
        for problem in problems:
            started = time.perf_counter()
            sampling = of_its_own(self.sampling, problem)
            requests.append(
                self.model.request(problem, self.thoughts, sampling=sampling, max_new_tokens=self.max_new_tokens)
            )
            spent.append(time.perf_counter() - started)

        def done(index: int, trajectory: Trajectory) -> None:
            trajectory.seconds += spent[index]
            trajectory.engine_seconds += spent[index]
            trajectory.synthesis_seconds += spent[index]
            finished(index, trajectory)

        return self.model.shared_engine.run(requests, slots=self.slots, memory=self.memory, finished=done)


def reasoner(
    model: SoftCot, settings: Settings, *, name: str, sampling: Sampling, max_new_tokens: int, slots: int
) -> SoftCotReasoner:
    """A trained SoftCoT."""
    thoughts = settings.thoughts or model.wording.thoughts
    return SoftCotReasoner(name, model, thoughts, sampling, max_new_tokens, slots)


# --- training -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Example:
    """A problem with its tokenized prompt, which has places for thoughts, and the tokens that are learned behind it."""

    problem: Problem
    prompt_ids: list[int]
    places: tuple[int, ...]
    target_ids: list[int]

    def __len__(self) -> int:
        return len(self.prompt_ids) + len(self.target_ids)


def tokenize(model: SoftCot, problem: Problem, number: int, *, learn_header: bool) -> Example:
    """A problem as a training example. With `learn_header` its targets begin where the release's labels do: behind the
    end marker and the token that ends the user's turn, so with the header of the assistant's turn.

    Raises ValueError for a problem without a solution.
    """
    if problem.solution is None:
        raise ValueError(f"problem {problem.id!r} has no solution trace; SoftCoT learns from traces")
    ids, places = model.prompt_with_places(problem, number)
    first = min(places[-1] + 3, len(ids)) if learn_header else len(ids)
    targets = ids[first:] + target_ids(model.backbone.tokenizer, problem.solution)
    return Example(problem, ids[:first], places, targets)


def batch_loss(
    model: SoftCot, examples: Sequence[Example], num_targets: int, gradient_checkpointing: bool = False
) -> Float[Tensor, ""]:
    """Cross-entropy of some examples' target tokens, over the batch's `num_targets`."""
    backbone = model.backbone
    rows = []
    for example in examples:
        embeds = backbone.embed(torch.tensor(example.prompt_ids + example.target_ids[:-1], device=backbone.device))
        places = torch.tensor(example.places, device=backbone.device)
        thoughts = model.thoughts(example.problem, len(places)).to(embeds.dtype)
        rows.append(embeds.index_copy(0, places, thoughts))
    embeds = pad_sequence(rows, batch_first=True)  # on the right, so a causal pass needs no mask
    decoder = recomputing(backbone.decoder, gradient_checkpointing)
    hidden = decoder(inputs_embeds=embeds, use_cache=False).last_hidden_state
    states = [hidden[row, len(one.prompt_ids) - 1 : len(one) - 1] for row, one in enumerate(examples)]
    targets = torch.tensor([token for one in examples for token in one.target_ids], device=backbone.device)
    return -token_logprobs(torch.cat(states), backbone.head, targets).sum() / num_targets


def spec(model: SoftCot, config: SoftCotConfig) -> SupervisedSpec[Example]:
    """What SoftCoT brings to the supervised loop: the Linear learns from the solutions' tokens."""
    return SupervisedSpec(
        title="SoftCoT",
        metrics="softcot",
        module=model.projection,
        model=model,
        passes=Passes.of(config, model.backbone, model.projection),
        batch_loss=lambda part, num_targets: batch_loss(model, part, num_targets, config.gradient_checkpointing),
        num_targets=lambda example: len(example.target_ids),
        num_tokens=len,
        name=lambda example: example.problem.id,
        describe=lambda batch, seconds: {"tokens_per_second": sum(map(len, batch)) / seconds},
    )


def examples_of(problems: Sequence[Problem], config: Config, model: SoftCot) -> list[Example]:
    """The problems as traces. Raises ValueError when none is left after those over `stage1.max_length`."""
    settings = config.softcot
    examples = [
        tokenize(model, problem, settings.num_thoughts, learn_header=settings.learn_header) for problem in problems
    ]
    limit = min(config.stage1.max_length, model.backbone.max_positions)
    kept = [example for example in examples if len(example) <= limit]
    if len(kept) < len(examples):
        logger.warning("left out %d of %d traces: over %d tokens", len(examples) - len(kept), len(examples), limit)
    if not kept:
        raise ValueError(f"none of the {len(examples)} traces fits stage1.max_length={limit}; raise it")
    return kept


@distributed.on_all_devices
def run(config: Config, *, output: Path, resume: bool = False, replace: bool = False) -> SoftCot:
    """`tyler train softcot`: load, train, save. Returns the trained model.

    `resume` continues from the newest checkpoint in `output`; `replace` drops an earlier run there.
    """
    check_tracker(config.tracking)
    settings, theta = config.softcot, config.backbone
    backbone = Backbone.load(theta.id, revision=theta.revision, dtype=theta.dtype)
    assistant = Backbone.load(settings.assistant, dtype=theta.dtype) if settings.assistant else backbone
    torch.manual_seed(settings.seed)
    wording = Wording(settings.request, settings.hint, settings.eval_thoughts)
    model = SoftCot.start(backbone, assistant, config.prompt, wording)
    problems = load_training(config.training_set, config.held_out_sets, config.data.on_overlap)
    examples, unseen = examples_of(problems, config, model), development_problems(config, settings)
    development = examples_of(unseen, config, model) if unseen else []
    models = f"{backbone.fingerprint()} {assistant.fingerprint()}"
    origin = origin_of(models, map(Problem.content, problems))
    with opened_run(config, output, resume=resume, replace=replace, origin=origin) as directory:
        train(spec(model, settings), examples, settings, directory, development)
    return model
