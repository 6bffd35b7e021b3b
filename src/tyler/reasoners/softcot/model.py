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

import hashlib
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Self, cast

import torch
from jaxtyping import Float
from pydantic.dataclasses import dataclass as pydantic_dataclass
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from tyler.config.sections import Count, NonNegative
from tyler.engine.native.engine import Engine
from tyler.engine.request import Request, SoftPrompt
from tyler.engine.routing import Never
from tyler.engine.shared_engine import SharedEngine
from tyler.engine.trajectory import Trajectory
from tyler.model import Tyler
from tyler.modeling.backbone import Backbone
from tyler.modeling.independent import Independent
from tyler.modeling.loading import load_recorded
from tyler.modeling.manifest import DIGESTS, BackboneRecord, check_files, read_manifest, write_manifest
from tyler.modeling.tensor_files import read_tensors
from tyler.reasoners.method import LengthSetting, Method
from tyler.reasoners.reasoner import AnswerSettings, Finished, Servable, ignore
from tyler.runs.checkpoints import latest_checkpoint
from tyler.tasks.problem import Problem
from tyler.tasks.prompts import Prompt, Question, encode_parts, opened_turn, prompt_ids

MANIFEST, WEIGHTS = "softcot.json", "softcot.safetensors"

MARKERS = (("<|box_start|>", "<|box_end|>"), ("<|reserved_special_token_0|>", "<|reserved_special_token_1|>"))
"""Pairs of tokens around the thoughts, in the order of preference; a tokenizer without them has its placeholder."""

PLACEHOLDERS = ("<|endoftext|>", "<|end_of_text|>")
"""What holds the places of the thoughts, as in the release: the first for Qwen, the second for Llama."""

HERE = "\ue000"
"""Where the thoughts go in a rendered prompt: a character that Unicode leaves to private use."""


@pydantic_dataclass(frozen=True)
class Wording:
    """What the assistant is asked ({n} and {problem} are filled in), what the backbone reads, and N at evaluation."""

    request: str
    hint: str
    thoughts: Count


@pydantic_dataclass(frozen=True)
class Placeholders:
    """The tokens in the places of the thoughts: in the backbone's prompt, and in the assistant's turn."""

    backbone: NonNegative
    assistant: NonNegative


@dataclass(frozen=True, eq=False)
class SoftCot(Independent):
    """Two frozen models (which may be one) and the Linear between them."""

    backbone: Backbone
    assistant: Backbone
    projection: nn.Linear
    prompt: Prompt
    wording: Wording
    placeholders: Placeholders
    shared_engine: SharedEngine = field(init=False, repr=False, compare=False)
    """The engine that this object's calls share and that lives as long as it does."""
    manifest: ClassVar[str] = MANIFEST

    def __repr__(self) -> str:
        return f"SoftCot({self.backbone!r}, assistant={self.assistant!r})"

    def __post_init__(self) -> None:
        object.__setattr__(self, "shared_engine", SharedEngine(partial(plain_engine, self.backbone)))

    @classmethod
    def start(cls, backbone: Backbone, assistant: Backbone, prompt: Prompt, wording: Wording) -> Self:
        """A Linear as torch starts it, from the global generator."""
        linear = nn.Linear(assistant.dim, backbone.dim).to(backbone.device)
        holders = Placeholders(placeholder(backbone.tokenizer), placeholder(assistant.tokenizer))
        return cls(backbone, assistant, linear, prompt, wording, holders)

    def thoughts(self, problem: Question, number: int) -> Float[Tensor, "number dim"]:
        """The soft thoughts on a problem, in float32; only the Linear has a gradient.

        Of a conversation the assistant reads the last turn.
        """
        text = Prompt(instruction="").turns(problem)[-1]["content"]
        asked = self.wording.request.replace("{n}", str(number)).replace("{problem}", text)
        question = prompt_ids(self.assistant.tokenizer, asked, Prompt(instruction=""))
        ids = torch.tensor([question + [self.placeholders.assistant] * number], device=self.assistant.device)
        with torch.no_grad():
            states = self.assistant.decoder(input_ids=ids, use_cache=False).last_hidden_state[0, len(question) :]
        return cast(Tensor, self.projection(states.to(self.projection.weight)))

    def prompt_with_places(self, problem: Question, number: int) -> tuple[list[int], tuple[int, ...]]:
        """The backbone's prompt with `number` placeholders, and their positions."""
        turns = self.prompt.turns(problem)
        hint, tokenizer = f"\n\n{self.wording.hint}" if self.wording.hint else "", self.backbone.tokenizer
        turns[-1] = turns[-1] | {"content": f"{turns[-1]['content']}{hint}\n{HERE}"}
        *earlier, last = opened_turn(tokenizer, turns, self.prompt.thinking)
        before, _, after = last.rpartition(HERE)
        held = self.placeholders.backbone
        begin, end = markers(tokenizer, held)
        left = encode_parts(tokenizer, [*earlier, before])
        right = tokenizer.encode(after, add_special_tokens=False)
        places = range(len(left) + 1, len(left) + 1 + number)
        return [*left, begin, *[held] * number, end, *right], tuple(places)

    def fingerprint(self) -> str:
        """A short hash that names both models and the Linear."""
        digest = hashlib.sha256((self.backbone.fingerprint() + self.assistant.fingerprint()).encode())
        for tensor in tensors_of(self.projection).values():
            digest.update(tensor.float().numpy().tobytes())
        return digest.hexdigest()[:16]

    def saved_bytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.projection.parameters())

    def save_pretrained(self, folder: str | Path) -> None:
        """Write softcot.json and softcot.safetensors, which reload to bit-equal outputs."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        backbone, assistant = (BackboneRecord.of(model, folder) for model in (self.backbone, self.assistant))
        sections: list[Any] = [backbone, assistant, self.prompt, self.wording, self.placeholders]
        content = {name: asdict(section) for name, section in zip(SECTIONS, sections, strict=True)}
        save_file(tensors_of(self.projection), folder / WEIGHTS)
        write_manifest(folder / MANIFEST, content, [WEIGHTS, *backbone.files])

    @classmethod
    def from_pretrained(
        cls,
        location: str | Path,
        *,
        backbone: str | None = None,
        dtype: str | torch.dtype = "auto",
        device: str | torch.device | None = None,
    ) -> Self:
        """Load a checkpoint, or the newest one of a run. `backbone` is where its backbone is found, if elsewhere now.

        Raises CheckpointError for one that does not fit.
        """
        folder = latest_checkpoint(location) or Path(location)
        told = read_manifest(folder / MANIFEST, SECTIONS)
        theta = load_recorded(told["backbone"], folder, instead=backbone, dtype=dtype, device=device)
        alone, record = told["assistant"] == told["backbone"], told["assistant"]
        assistant = theta if alone else load_recorded(record, folder, instead=None, dtype=dtype, device=device)
        projection = nn.Linear(assistant.dim, theta.dim).to(theta.device)
        found = read_tensors(folder / WEIGHTS, {name: one.shape for name, one in tensors_of(projection).items()})
        check_files(folder / MANIFEST, told[DIGESTS], [WEIGHTS, *told["backbone"].files])
        projection.load_state_dict(found)
        return cls(theta, assistant, projection, told["prompt"], told["wording"], told["placeholders"])


def plain_engine(backbone: Backbone, *, slots: int, memory: int | None, positions: int | None) -> Engine:
    """A decoding engine over a backbone without operators."""
    return Tyler.start(backbone, ()).engine(slots=slots, memory=memory, positions=positions)


def placeholder(tokenizer: PreTrainedTokenizerBase) -> int:
    """The token whose embedding the thoughts stand in for: the release's where the tokenizer has it, else what pads,
    the unknown or the end token. Raises ValueError where it has none of them.
    """
    vocabulary = tokenizer.get_vocab()
    named = [vocabulary.get(name) for name in PLACEHOLDERS]
    for id in (*named, tokenizer.pad_token_id, tokenizer.unk_token_id, tokenizer.eos_token_id):
        if id is not None:
            return int(id)
    raise ValueError(f"the tokenizer {tokenizer.name_or_path!r} has no pad, unk or eos token to hold a place with")


def markers(tokenizer: PreTrainedTokenizerBase, placeholder: int) -> tuple[int, int]:
    """The tokens before and after the thoughts; the placeholder where the tokenizer has no such pair."""
    vocabulary = tokenizer.get_vocab()
    for begin, end in MARKERS:
        if begin in vocabulary and end in vocabulary:
            return vocabulary[begin], vocabulary[end]
    return placeholder, placeholder


SECTIONS = {
    "backbone": BackboneRecord,
    "assistant": BackboneRecord,
    "prompt": Prompt,
    "wording": Wording,
    "placeholders": Placeholders,
}
"""What softcot.json holds, in this order."""


def tensors_of(projection: nn.Linear) -> dict[str, Tensor]:
    """The content of softcot.safetensors."""
    return {name: tensor.detach().cpu().contiguous() for name, tensor in projection.state_dict().items()}


# --- as a method that an evaluation can name --------------------------------------------------------------------------


@pydantic_dataclass(frozen=True)
class SoftCotSettings:
    """What can be changed at evaluation. `thoughts` None is the number in the checkpoint."""

    thoughts: Count | None = None


@dataclass(frozen=True)
class SoftCotReasoner(Servable):
    """SoftCoT with everything about decoding decided. Its thoughts count as latents, their time as synthesis."""

    model: SoftCot
    thoughts: int = field(kw_only=True)

    @torch.no_grad()
    def request(self, question: Question, settings: AnswerSettings) -> Request:
        settings.check_without_operators(self.name)
        ids, places = self.model.prompt_with_places(question, self.thoughts)
        request = Request(
            ids,
            router=Never(),
            sampling=settings.sampling,
            max_new_tokens=settings.max_new_tokens,
            soft_prompt=SoftPrompt(places, self.model.thoughts(question, self.thoughts)),
        )
        return settings.completed(request)

    def continuation(self, prompt_ids: Sequence[int], settings: AnswerSettings) -> Request:
        """Raises ValueError: soft thoughts have their place in the user's turn."""
        raise ValueError(f"{self.name} puts soft thoughts into a question and continues no text; ask it in a chat")

    def solve(self, problems: Sequence[str | Problem], finished: Finished = ignore) -> list[Trajectory]:
        requests, spent = [], []
        for problem in problems:
            started = time.perf_counter()
            requests.append(self.problem_request(problem))
            spent.append(time.perf_counter() - started)

        def done(index: int, trajectory: Trajectory) -> None:
            trajectory.seconds += spent[index]
            trajectory.engine_seconds += spent[index]
            trajectory.synthesis_seconds += spent[index]
            finished(index, trajectory)

        return self.model.shared_engine.run(requests, slots=self.slots, memory=self.memory, finished=done)


def reasoner(model: SoftCot, settings: SoftCotSettings) -> SoftCotReasoner:
    """A trained SoftCoT."""
    return SoftCotReasoner("softcot", model, thoughts=settings.thoughts or model.wording.thoughts)


METHOD = Method(SoftCotSettings, reasoner, (LengthSetting("thoughts", lowest=1),), SoftCot)
