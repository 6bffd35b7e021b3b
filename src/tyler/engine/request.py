"""A request to the engine, and the events it gives rise to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from jaxtyping import Float
from torch import Tensor

from tyler.engine.routing import Learned, Never, Router
from tyler.engine.sampling import Sampling
from tyler.engine.soft_sampling import Sampler
from tyler.engine.trajectory import Invocation, Trajectory


class PromptTooLong(ValueError):
    """A prompt does not fit the model's context."""


@dataclass(frozen=True)
class SoftPrompt:
    """Vectors that stand in for the embeddings of some prompt positions."""

    positions: tuple[int, ...]
    embeds: Float[Tensor, "positions dim"]


@dataclass(frozen=True)
class Request:
    """One answer to decode. `budget` caps operator calls (None: no cap); `max_new_tokens` counts actions.

    `sampler` replaces the rule by which tokens and their embeddings are chosen (`soft_sampling.py`), and goes without
    operators; `soft_prompt` replaces embeddings of the prompt.
    """

    prompt_ids: Sequence[int]
    router: Router = field(default_factory=Learned)
    sampling: Sampling = field(default_factory=Sampling)
    budget: int | None = None
    max_new_tokens: int = 2048
    stop: tuple[str, ...] = ()
    sampler: Sampler | None = None
    soft_prompt: SoftPrompt | None = None

    def __post_init__(self) -> None:
        if not self.prompt_ids:
            raise ValueError("the prompt is empty; give at least one token")
        if self.max_new_tokens < 1:
            raise ValueError(f"max_new_tokens={self.max_new_tokens}; it must be at least 1")
        if self.budget is not None and self.budget < 0:
            raise ValueError(f"budget={self.budget}; it must be 0 or more, or None for no cap")
        if "" in self.stop:
            raise ValueError("a stop string is empty; remove it")
        if self.sampler is not None and not isinstance(self.router, Never):
            raise ValueError(f"a request with a sampler has no operators; give router=Never(), not {self.router!r}")


@dataclass(frozen=True)
class TokenEvent:
    """A visible token of request `index`, and the text it completed (empty inside a multi-byte character)."""

    index: int
    token: int
    text: str


@dataclass(frozen=True)
class InvocationEvent:
    """An operator call of request `index` was served, in `seconds`: its share of a pass over several calls."""

    index: int
    invocation: Invocation
    seconds: float = field(default=0.0, compare=False)


@dataclass(frozen=True)
class FinishEvent:
    """Request `index` is done."""

    index: int
    trajectory: Trajectory


Event = TokenEvent | InvocationEvent | FinishEvent
