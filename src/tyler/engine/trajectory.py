"""What happened in one answer."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Self

import torch
from jaxtyping import Bool, Float
from rich.text import Text
from torch import Tensor

from tyler.engine.sampling import Sampling
from tyler.presentation import as_html, as_text, counted

TIMES = ("seconds", "engine_seconds", "synthesis_seconds", "queue_seconds")
"""Fields of a trajectory that differ from one decoding of the same answer to the next."""
COUNTS = ("num_visible", "num_latents", "num_invocations")
"""What `Trajectory.to_dict` tells besides the fields."""
SHOWN_CHARACTERS = 60
"""Of an answer's text in its `repr`."""


@dataclass(frozen=True)
class Invocation:
    """One operator call: who, after how many visible tokens, how many latents, and which action of the trajectory.

    `offset` is the number of characters of the trajectory's text before it.
    """

    operator: str
    position: int
    num_latents: int
    action: int
    offset: int = 0


@dataclass(eq=False, repr=False)
class Trajectory:
    """tau: a prompt, the actions a_t in V' and everything needed to audit or replay them.

    `actions` are ids in V', operators as V + k. `logprobs` are log p(a_t | x_t) under the sampling's temperature and
    the operators allowed at that step; an operator that a fixed router placed was not drawn, and has 0. `latents` are
    those of each invocation in order, on the CPU. `offered` says which operators were actions of the policy (none under
    a fixed router). `finish_reason` is "eos", "stop" (a stop string, or a sampler's own end), "length" or "abort";
    `limited_by` says which length: "max_new_tokens", "max_generated", "context" where the model's context was full, or
    "memory" where the engine's slot was: with a larger `memory`, or fewer `slots`, the answer goes on.
    `seconds` is wall time in the engine, from the answer's start to its end. `engine_seconds` is the time of the passes
    that served it, each split evenly over the rows it served, and `synthesis_seconds` the operator calls' part of that;
    `queue_seconds` is the wait before the start. `is_soft` says which actions of a sampler only record a token whose
    place in the context another vector took (empty: none); `num_soft_prompt` counts the prompt's positions of that
    kind. `operator_probs` are, for a request that asked, p(operator) of each operator at each action (0 where it could
    not be drawn); else empty. `thought_open` says that the prompt ends in an open thought (`<think>`), so that the text
    begins within it.
    """

    prompt_ids: list[int]
    actions: list[int]
    logprobs: list[float]
    is_operator: list[bool]
    invocations: tuple[Invocation, ...]
    latents: list[Float[Tensor, "latents dim"]]
    text: str
    finish_reason: str
    vocab_size: int
    offered: tuple[bool, ...]
    budget: int | None = None
    sampling: Sampling = field(default_factory=Sampling)
    seconds: float = 0.0
    engine_seconds: float = 0.0
    synthesis_seconds: float = 0.0
    queue_seconds: float = 0.0
    is_soft: list[bool] = field(default_factory=list)
    num_soft_prompt: int = 0
    limited_by: str | None = None
    operator_probs: list[tuple[float, ...]] = field(default_factory=list)
    thought_open: bool = False

    def __repr__(self) -> str:
        text = self.text if len(self.text) <= SHOWN_CHARACTERS else self.text[: SHOWN_CHARACTERS - 1] + "…"
        return f"Trajectory({text!r}, {self.summary()})"

    def __eq__(self, other: object) -> bool:
        """Whether the same happened in both: all but the times, latents and log-probabilities to the last bit."""
        if not isinstance(other, Trajectory):
            return NotImplemented
        mine, theirs = self.to_dict(latents=True), other.to_dict(latents=True)
        return all(mine[name] == theirs[name] for name in mine if name not in TIMES)

    def __rich__(self) -> Text:
        """The text with every operator where it was invoked, for `rich.print`."""
        return as_text(self.text, self.invocations)

    def _repr_html_(self) -> str:
        """The same for a notebook."""
        chip = "color:#fff;border-radius:3px;padding:0 .35em;margin:0 .15em;font-size:85%;white-space:nowrap"
        return (
            f"<div class='tyler'><style>.tyler .op{{{chip}}}</style>"
            f"<div style='white-space:pre-wrap'>{as_html(self.text, self.invocations)}</div>"
            f"<small>{self.summary()}</small></div>"
        )

    def summary(self) -> str:
        """Tokens, latents, invocations and why it ended, in a line."""
        calls = counted(self.num_invocations, "invocation")
        remedy = ": raise memory, or lower slots" if self.limited_by == "memory" else ""
        limit = f" ({self.limited_by}{remedy})" if self.limited_by else ""
        tokens, latents = counted(self.num_visible, "visible token"), counted(self.num_latents, "latent")
        return f"{tokens}, {latents} in {calls}; finished by {self.finish_reason}{limit}"

    def to_dict(self, *, latents: bool = False) -> dict[str, Any]:
        """Everything, in JSON's types, and the counts; `latents` are many numbers, and null unless they are wanted."""
        kept: dict[str, Any] = {"text": self.text, **{name: getattr(self, name) for name in COUNTS}}
        kept |= {field.name: getattr(self, field.name) for field in fields(self) if field.name != "latents"}
        kept["invocations"] = [asdict(invocation) for invocation in self.invocations]
        kept["sampling"], kept["offered"] = asdict(self.sampling), list(self.offered)
        kept["operator_probs"] = [list(probs) for probs in self.operator_probs]
        told = ({"dtype": str(one.dtype).removeprefix("torch."), "values": one.tolist()} for one in self.latents)
        kept["latents"] = list(told) if latents else None
        return kept

    def to_json(self, *, latents: bool = False) -> str:
        """The same as one line of JSON."""
        return json.dumps(self.to_dict(latents=latents), ensure_ascii=False, allow_nan=False)

    @classmethod
    def from_dict(cls, kept: Mapping[str, Any]) -> Self:
        """What `to_dict` told. Raises ValueError for a key that is missing or unknown."""
        names = {field.name for field in fields(cls)} | set(COUNTS)
        if differing := sorted(set(kept) ^ names):
            raise ValueError(f"this is not a trajectory of this version of tyler; keys that differ: {differing}")
        values = {name: value for name, value in kept.items() if name not in COUNTS}
        values["invocations"] = tuple(Invocation(**invocation) for invocation in kept["invocations"])
        values["sampling"], values["offered"] = Sampling(**kept["sampling"]), tuple(kept["offered"])
        blocks = kept["latents"] or []
        values["latents"] = [torch.tensor(one["values"], dtype=getattr(torch, one["dtype"])) for one in blocks]
        values["operator_probs"] = [tuple(probs) for probs in kept["operator_probs"]]
        return cls(**values)

    @classmethod
    def from_json(cls, line: str) -> Self:
        """What `to_json` told. Raises ValueError for text that is no JSON, and as `from_dict` does."""
        return cls.from_dict(json.loads(line))

    @property
    def num_invocations(self) -> int:
        """n_op(tau)."""
        return len(self.invocations)

    @property
    def num_visible(self) -> int:
        """Tokens that were chosen and read as themselves; the token that a soft step records is not one."""
        return len(self.actions) - self.num_invocations - sum(self.is_soft)

    @property
    def visible_ids(self) -> list[int]:
        """The tokens of the answer, without its operator calls."""
        return [action for action in self.actions if action < self.vocab_size]

    @property
    def num_latents(self) -> int:
        """Everything in the context except tokens: the operators' latents, soft steps and soft prompt."""
        return sum(call.num_latents for call in self.invocations) + sum(self.is_soft) + self.num_soft_prompt

    @property
    def truncated(self) -> bool:
        return self.finish_reason == "length"

    def allowed(self) -> Bool[Tensor, "actions operators"]:
        """Which operators could be drawn at each action: those offered to the policy, until the budget was spent."""
        spent = torch.tensor([False, *self.is_operator[:-1]][: len(self.actions)]).cumsum(0)
        open_budget = torch.ones(len(self.actions), dtype=torch.bool) if self.budget is None else spent < self.budget
        return open_budget[:, None] & torch.tensor(self.offered, dtype=torch.bool)[None, :]

    def drawn(self) -> list[bool]:
        """Which actions were drawn from p: all but the operators that a fixed router placed."""
        return [action < self.vocab_size or self.offered[action - self.vocab_size] for action in self.actions]
