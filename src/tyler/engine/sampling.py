"""How an action is drawn from p(. | x_t): greedy or sampled, from one random stream per request."""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tyler.engine.checks import check_real, check_whole

NEVER = float("-inf")
COLDEST = 1e-6
"""The lowest temperature but 0: what is divided by less overflows, and is greedy anyway."""


@dataclass(frozen=True)
class Sampling:
    """How one request is decoded. The default is greedy, the paper's evaluation.

    temperature 0 is greedy. `top_k` 0 and `top_p` 1 filter nothing. `seed` starts the request's own random stream: its
    answer never depends on what else is decoded beside it.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        allowed = f"it must be 0 (greedy) or a finite number from {COLDEST} on"
        check_real("temperature", self.temperature, allowed)
        if self.temperature != 0 and not COLDEST <= self.temperature < math.inf:
            raise ValueError(f"temperature={self.temperature}; {allowed}")
        check_whole("top_k", self.top_k, 0, "it must be a whole number, 0 (off) or more")
        check_real("top_p", self.top_p, "it must be above 0 and at most 1 (off)")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p={self.top_p}; it must be above 0 and at most 1 (off)")
        check_whole("seed", self.seed, 0, "it must be a whole number, 0 or more")
        for name, plain in (("temperature", float), ("top_k", int), ("top_p", float), ("seed", int)):
            object.__setattr__(self, name, plain(getattr(self, name)))  # numpy's numbers are written otherwise

    @property
    def greedy(self) -> bool:
        return self.temperature == 0

    @property
    def filters(self) -> bool:
        return self.top_k > 0 or self.top_p < 1

    @property
    def scale(self) -> float:
        """The temperature that log-probabilities are recorded under: 1 for greedy decoding."""
        return self.temperature or 1.0

    def stream(self, purpose: int) -> np.random.Generator:
        """The request's random stream for one purpose (0: actions, 1: router), counter-based and so replayable."""
        return np.random.Generator(np.random.Philox(np.random.SeedSequence([self.seed, purpose])))


class Uniforms:
    """A stream's uniform numbers in their order."""

    def __init__(self, stream: np.random.Generator) -> None:
        self._stream = stream

    def take(self) -> float:
        return self._stream.random()


def seed_of(*parts: object) -> int:
    """A seed that depends on all its parts, the same on every machine."""
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:6], "big")


def masked_logits(
    logits: Float[Tensor, "batch actions"],
    allowed: Bool[Tensor, "batch operators"],
    temperature: Float[Tensor, "batch"],
) -> Float[Tensor, "batch actions"]:
    """logits / temperature over V', with the operators that may not be invoked at -inf."""
    num_operators = allowed.shape[-1]
    logits = logits / temperature[:, None]
    if num_operators:
        logits[:, -num_operators:].masked_fill_(~allowed, NEVER)
    return logits


@functools.lru_cache(maxsize=1024)
def constants(values: tuple[float, ...] | tuple[tuple[bool, ...], ...], device: torch.device) -> Tensor:
    """A tensor of settings that repeat from step to step. Do not change it."""
    return torch.tensor(values, device=device)


def choose(
    logits: Float[Tensor, "batch actions"], samplings: list[Sampling], uniforms: list[float]
) -> tuple[Int[Tensor, "batch"], Float[Tensor, "batch"]]:
    """a_t and log p(a_t | x_t) for each row of masked, temperature-scaled logits.

    Sampled rows invert the cumulative distribution at the row's own uniform number, so a row's choice depends on its
    logits and its stream alone. Log-probabilities are of the distribution before top-k and top-p.
    """
    actions = logits.argmax(dim=-1)
    sampled = [row for row, sampling in enumerate(samplings) if not sampling.greedy]
    if sampled:
        rows = torch.tensor(sampled, device=logits.device)
        numbers = [uniforms[row] for row in sampled]
        draws = torch.tensor(numbers, dtype=torch.float64, device=float64_device(logits.device))
        actions[rows] = invert(filter_logits(logits[rows], [samplings[row] for row in sampled]), draws)
    return actions, logprobs_of(logits, actions)


def logprobs_of(logits: Float[Tensor, "batch actions"], actions: Int[Tensor, "batch"]) -> Float[Tensor, "batch"]:
    """log p(a_t | x_t)."""
    return logits.log_softmax(dim=-1).gather(-1, actions[:, None]).squeeze(-1)


def operator_probs(logits: Float[Tensor, "batch actions"], num_operators: int) -> Float[Tensor, "batch operators"]:
    """p(operator) of each operator under masked, temperature-scaled logits over V'; 0 for those that are masked."""
    return logits.softmax(dim=-1)[:, logits.shape[-1] - num_operators :]


def float64_device(device: torch.device) -> torch.device:
    """Where numbers of a device are computed with in float64: there, or on the CPU, since MPS has no float64."""
    return torch.device("cpu") if device.type == "mps" else device


def invert(logits: Float[Tensor, "batch actions"], uniforms: Float[Tensor, "batch"]) -> Int[Tensor, "batch"]:
    """The action at each uniform number of the cumulative distribution; never one of probability zero.

    In float64, and so on the device of the uniform numbers (`float64_device`).
    """
    cumulative = logits.to(uniforms.device).double().softmax(dim=-1).cumsum(dim=-1)
    target = uniforms * cumulative[:, -1]
    found = torch.searchsorted(cumulative, target[:, None], right=True).squeeze(-1).clamp_max(logits.shape[-1] - 1)
    return found.to(logits.device)


def filter_logits(
    logits: Float[Tensor, "batch actions"], samplings: Sequence[Sampling]
) -> Float[Tensor, "batch actions"]:
    """Top-k, then top-p of what remains; rows without a filter are untouched."""
    if not any(sampling.filters for sampling in samplings):
        return logits
    return filtered(logits, *limits(samplings, logits.shape[-1], logits.device))


def limits(
    samplings: Sequence[Sampling], num_actions: int, device: torch.device
) -> tuple[Int[Tensor, "batch"], Float[Tensor, "batch"]]:
    """top_k and top_p of each row; all actions where there is no top_k."""
    top_k = torch.tensor([min(sampling.top_k or num_actions, num_actions) for sampling in samplings], device=device)
    return top_k, torch.tensor([sampling.top_p for sampling in samplings], dtype=torch.float32, device=device)


def filtered(
    logits: Float[Tensor, "batch actions"], top_k: Int[Tensor, "batch"], top_p: Float[Tensor, "batch"]
) -> Float[Tensor, "batch actions"]:
    """What top_k and top_p of each row leave; the rest is -inf."""
    ordered, order = logits.sort(dim=-1, descending=True, stable=True)
    rank = torch.arange(logits.shape[-1], device=logits.device)
    ordered = ordered.masked_fill(rank >= top_k[:, None], NEVER)
    probabilities = ordered.softmax(dim=-1)
    before = probabilities.cumsum(dim=-1) - probabilities
    beyond = (before >= top_p[:, None]) & (rank > 0) & (top_p < 1)[:, None]  # rounding lets the sum reach 1 early
    ordered = ordered.masked_fill(beyond, NEVER)
    return torch.empty_like(logits).scatter_(-1, order, ordered)
