"""Another rule for a step than "draw a token and read it": which token is recorded, and which vector is read next.

A sampler is what a request may bring to the engine instead of the plain rule of `sampling.choose`. Methods that think
in soft tokens (`reasoners/soft_thinking.py`, `reasoners/swireasoning.py`) are choosers; the engine knows none of them.
What a sampler remembers of a request it keeps in an object that starts with the request, so that an answer never
depends on what is decoded beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from jaxtyping import Float
from torch import Tensor

from tyler.engine.sampling import Sampling, choose

Top = tuple[tuple[int, float], ...]
"""The most probable tokens, with their log-probabilities."""


@dataclass(frozen=True)
class Choice:
    """One row's step: the action to record, its log-probability, whether the vector read is another (`soft`), whether
    the answer ends after it, what is read next where it is not the token itself, and what else was probable."""

    action: int
    logprob: float
    soft: bool = False
    ended: bool = False
    embed: Float[Tensor, " dim"] | None = None
    top: Top = ()


class Sampler(Protocol):
    """A rule that the rows of one request, or of many, follow. Hashable: rows with the same sampler choose together."""

    def start(self, prompt_ids: Sequence[int], sampling: Sampling, max_new_tokens: int) -> Any:
        """What the rule remembers of one request: `choose` gets it back at every step and may change it."""

    def choose(
        self, logits: Float[Tensor, "rows vocab"], memories: Sequence[Any], uniforms: list[float]
    ) -> list[Choice]:
        """One step of some rows, from their logits at temperature 1 and one uniform number each."""


def draw(
    logits: Float[Tensor, "rows vocab"], samplings: list[Sampling], uniforms: list[float]
) -> tuple[list[int], Float[Tensor, "rows vocab"]]:
    """The token that plain decoding would take in each row, and log p over V at each row's temperature."""
    temperature = torch.tensor([sampling.scale for sampling in samplings], device=logits.device)
    logits = logits / temperature[:, None]
    tokens, _ = choose(logits, samplings, uniforms)
    return tokens.tolist(), logits.log_softmax(dim=-1)


def entropy(probabilities: Float[Tensor, "rows vocab"]) -> list[float]:
    """H in nats."""
    return torch.special.entr(probabilities).sum(dim=-1).tolist()
