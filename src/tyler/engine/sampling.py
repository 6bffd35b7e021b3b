"""How an action is drawn from p(. | x_t): greedy or sampled, from one random stream per request, or by its own rule."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tyler.engine.checks import ABOVE_ZERO, FINITE, check_real, check_whole

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
        if self.temperature != 0 or isinstance(self.temperature, bool):
            allowed = f"it must be 0 (greedy) or a finite number from {COLDEST} on"
            check_real("temperature", self.temperature, allowed, COLDEST, FINITE)
        check_whole("top_k", self.top_k, 0, "it must be a whole number, 0 (off) or more")
        check_real("top_p", self.top_p, "it must be above 0 and at most 1 (off)", ABOVE_ZERO, 1)
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


Top = tuple[tuple[int, float], ...]
"""The most probable tokens, with their log-probabilities."""


@dataclass(frozen=True, slots=True)
class Choice:
    """One row's step: the action to record, whether the vector read is another (`soft`), whether the answer ends after
    it, and what is read next where it is not the token itself.

    Besides, log p of the action, and, where they are asked for, the most probable tokens and p(operator) of each.
    """

    action: int
    soft: bool = False
    ended: bool = False
    embed: Float[Tensor, " dim"] | None = None
    logprob: float = 0.0
    top: Top = ()
    operator_probs: tuple[float, ...] = ()


class Sampler(Protocol):
    """Another rule for a step than "draw a token and read it", which a request may bring; `reasoners/` has two.

    It is hashable: rows with the same sampler choose together. What it remembers of a request starts with the request,
    so that an answer never depends on what is decoded beside it.
    """

    def start(self, prompt_ids: Sequence[int], sampling: Sampling, max_new_tokens: int) -> Any:
        """What the rule remembers of one request: `choose` gets it back at every step and may change it."""

    def choose(
        self, logits: Float[Tensor, "rows vocab"], memories: Sequence[Any], drawn: Sequence[int]
    ) -> list[Choice]:
        """One step of some rows, from their logits at temperature 1 and the tokens that plain decoding has drawn."""


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
    greedy = [sampling.greedy for sampling in samplings]
    if all(greedy):
        actions = logits.argmax(dim=-1)
        return actions, logprobs_of(logits, actions)
    probabilities = logits.softmax(dim=-1)
    filters = any(sampling.filters for sampling in samplings)
    kept = filter_logits(logits, samplings).softmax(dim=-1) if filters else probabilities
    draws = torch.tensor(uniforms, dtype=torch.float64, device=float64_device(logits.device))
    actions = invert(kept, draws)
    logprobs = probabilities.gather(-1, actions[:, None]).squeeze(-1).log()
    if any(greedy):
        likeliest_is_taken = torch.tensor(greedy, device=logits.device)
        actions = torch.where(likeliest_is_taken, logits.argmax(dim=-1), actions)
        logprobs = torch.where(likeliest_is_taken, logprobs_of(logits, actions), logprobs)
    return actions, logprobs


def logprobs_of(logits: Float[Tensor, "batch actions"], actions: Int[Tensor, "batch"]) -> Float[Tensor, "batch"]:
    """log p(a_t | x_t)."""
    return logits.log_softmax(dim=-1).gather(-1, actions[:, None]).squeeze(-1)


def float64_device(device: torch.device) -> torch.device:
    """Where numbers of a device are computed with in float64: there, or on the CPU, since MPS has no float64."""
    return torch.device("cpu") if device.type == "mps" else device


BLOCK = 512
"""Probabilities that are summed at once: a draw is looked up among the sums, and then within one of them."""
TOP = 1024
"""The likeliest actions, among which a filter looks first: sorting all takes longer than everything else."""


def invert(probabilities: Float[Tensor, "batch actions"], uniforms: Float[Tensor, "batch"]) -> Int[Tensor, "batch"]:
    """The action at each uniform number of the cumulative distribution; never one of probability zero.

    Sums of blocks are added up in float64, and so are the probabilities within one: on the device of the uniform
    numbers (`float64_device`).
    """
    size = probabilities.shape[-1]
    whole = size - size % BLOCK
    sums = [probabilities[:, :whole].unflatten(-1, (-1, BLOCK)).sum(dim=-1)] if whole else []
    sums += [probabilities[:, whole:].sum(dim=-1, keepdim=True)] if whole < size else []
    ends = torch.cat(sums, dim=-1).to(uniforms.device).double().cumsum(dim=-1)
    target = uniforms[:, None] * ends[:, -1:]
    block = found_in(ends, target)
    first = block.to(probabilities.device) * BLOCK
    places = (first + torch.arange(BLOCK, device=first.device)).clamp_max(size - 1)
    within = probabilities.gather(-1, places).to(uniforms.device).double()
    within = within.masked_fill_(block * BLOCK + torch.arange(BLOCK, device=block.device) >= size, 0).cumsum(dim=-1)
    before = torch.where(block > 0, ends.gather(-1, (block - 1).clamp_min(0)), 0)
    actions = block * BLOCK + found_in(within, target - before)
    # A row that is not finite finds no place; its answer ends with an error, and its neighbours' go on.
    return actions.clamp_max(size - 1).squeeze(-1).to(probabilities.device)


def found_in(cumulative: Float[Tensor, "batch sums"], target: Float[Tensor, "batch 1"]) -> Int[Tensor, "batch 1"]:
    """The first sum above the target; the last that grew where rounding left the target above all."""
    last = torch.searchsorted(cumulative, cumulative[:, -1:].contiguous())
    return torch.minimum(torch.searchsorted(cumulative, target, right=True), last)


def filter_logits(
    logits: Float[Tensor, "batch actions"], samplings: Sequence[Sampling]
) -> Float[Tensor, "batch actions"]:
    """Top-k, then top-p of what remains; rows without a filter are untouched."""
    count, found = logits.shape[-1], logits.clone()
    rows = [row for row, one in enumerate(samplings) if 0 < one.top_k < count or one.top_p < 1]
    for most in sorted({min(TOP, count), count}):
        if rows:
            kept, settled = _filtered(logits[rows], [samplings[row] for row in rows], most)
            found[rows] = kept
            rows = [row for row, one in zip(rows, settled, strict=True) if not one]
    return found


def _filtered(
    logits: Float[Tensor, "batch actions"], samplings: Sequence[Sampling], most: int
) -> tuple[Float[Tensor, "batch actions"], list[bool]]:
    """What the filters leave of each row, found among its `most` likeliest actions; and for which rows these were
    enough: where all of them are kept, or the last one ties, others might be. Of equal logits the first come first.
    """
    count, device = logits.shape[-1], logits.device
    top_k = torch.tensor([min(one.top_k or count, count) for one in samplings], device=device)[:, None]
    top_p = torch.tensor([one.top_p for one in samplings], dtype=torch.float32, device=device)[:, None]
    ordered, order = logits.topk(most, dim=-1) if most < count else logits.sort(dim=-1, descending=True, stable=True)
    rank = torch.arange(most, device=device)
    kept = ordered.masked_fill(rank >= top_k, NEVER)
    mass = torch.where(top_k >= count, logits.logsumexp(dim=-1, keepdim=True), kept.logsumexp(dim=-1, keepdim=True))
    probabilities = (kept - mass).exp()
    before = probabilities.cumsum(dim=-1) - probabilities
    kept = kept.masked_fill_((before >= top_p) & (rank > 0) & (top_p < 1), NEVER)  # by rounding the sum is 1 early
    number = (kept > NEVER).sum(dim=-1, keepdim=True)
    last, following = (ordered.gather(-1, place.clamp(0, most - 1)) for place in (number - 1, number))
    settled = ((top_k <= most) | (top_k >= count)) & (number < most) & (following < last) | (most == count)
    return torch.full_like(logits, NEVER).scatter_(-1, order, kept), settled.squeeze(-1).tolist()
