"""How an action is drawn from p(. | x_t): greedy or sampled, from one random stream per request, or by its own rule."""

import functools
import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from jaxtyping import Float, Int
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
    def scale(self) -> float:
        """The temperature that log-probabilities are recorded under: 1 for greedy decoding."""
        return self.temperature or 1.0

    def stream(self, purpose: int) -> np.random.Generator:
        """The request's random stream for one purpose (0: actions, 1: router), counter-based and so replayable."""
        return np.random.Generator(np.random.Philox(np.random.SeedSequence([self.seed, purpose])))


Top = tuple[tuple[int, float], ...]
"""The most probable tokens, with their log-probabilities."""


@dataclass(slots=True)  # one for every row and step: a frozen one takes three times as long to make
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
    vocab_size: int,
    allowed: tuple[tuple[bool, ...], ...],
    temperatures: tuple[float, ...],
    out: Tensor | None = None,
) -> Float[Tensor, "batch actions"]:
    """logits / temperature over V', with operators at -inf in the rows that may not invoke them; over V where none may.

    What changes nothing is not copied, nor is anything where `out` is `logits`.
    """
    scales = constants(temperatures, logits.device)[:, None]
    scaled = logits if set(temperatures) == {1.0} else torch.div(logits, scales, out=out)
    if not any(map(any, allowed)):
        return scaled[:, :vocab_size]
    if all(map(all, allowed)):
        return scaled
    masked = scaled.clone() if scaled is logits and out is None else scaled
    masked[:, vocab_size:].masked_fill_(~constants(allowed, logits.device), NEVER)
    return masked


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
        actions = likeliest_of(logits)
        return actions, logprobs_of(logits, actions)
    probabilities = logits.softmax(dim=-1)
    kept = filter_logits(logits, samplings)
    wide = "cpu" if logits.device.type == "mps" else logits.device  # MPS has no float64
    draws = torch.tensor(uniforms, dtype=torch.float64, device=wide)
    actions = invert(probabilities if kept is logits else kept.softmax(dim=-1), draws)
    logprobs = probabilities.gather(-1, actions[:, None]).squeeze(-1).log()
    if any(greedy):
        likeliest_is_taken = torch.tensor(greedy, device=logits.device)
        actions = torch.where(likeliest_is_taken, likeliest_of(logits), actions)
        logprobs = torch.where(likeliest_is_taken, logprobs_of(logits, actions), logprobs)
    return actions, logprobs


def likeliest_of(logits: Float[Tensor, "batch actions"]) -> Int[Tensor, "batch"]:
    """The first of the most probable actions. On a CPU by numpy: torch takes thirteen times as long."""
    if logits.device.type == "cpu":
        return torch.from_numpy(logits.numpy().argmax(axis=-1))
    return logits.argmax(dim=-1)


def logprobs_of(logits: Float[Tensor, "batch actions"], actions: Int[Tensor, "batch"]) -> Float[Tensor, "batch"]:
    """log p(a_t | x_t)."""
    return logits.log_softmax(dim=-1).gather(-1, actions[:, None]).squeeze(-1)


BLOCK = 512
"""Probabilities that are summed at once: a draw is looked up among the sums, and then within one of them."""
BINS, RANGE = 4096, 16.0
"""A filter counts logits by their distance from the largest, up to RANGE, and sorts those of one bin."""
AT_ONCE = 2**18
"""Numbers that are filtered at once, so that they stay in a processor's cache."""


def invert(probabilities: Float[Tensor, "batch actions"], uniforms: Float[Tensor, "batch"]) -> Int[Tensor, "batch"]:
    """The action at each uniform number of the cumulative distribution; never one of probability zero.

    Sums of blocks are added up in float64, and so are the probabilities within one: on the uniform numbers' device.
    """
    size = probabilities.shape[-1]
    whole = size - size % BLOCK
    blocks, rest = probabilities[:, :whole].unflatten(-1, (whole // BLOCK, BLOCK)), probabilities[:, whole:]
    sums = torch.cat([blocks.sum(dim=-1), rest.sum(dim=-1, keepdim=True)], dim=-1)
    ends = sums.to(uniforms.device).double().cumsum(dim=-1)
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
    count = logits.shape[-1]
    rows = [row for row, one in enumerate(samplings) if 0 < one.top_k < count or one.top_p < 1]
    found, size = logits.clone() if rows else logits, max(1, AT_ONCE // count)
    for own in (rows[first : first + size] for first in range(0, len(rows), size)):
        kept = logits[own]
        top_k = [samplings[row].top_k or count for row in own]
        top_p = [samplings[row].top_p for row in own]
        top_p = [one if one < 1 else math.inf for one in top_p]  # by rounding all sum to 1 early
        if min(top_k) < count:
            kept = likeliest(kept, torch.ones_like(kept), top_k)
        if min(top_p) < 1:
            kept = likeliest(kept, kept.softmax(dim=-1), top_p)
        found[own] = kept
    return found


def likeliest(
    logits: Float[Tensor, "batch actions"], weights: Float[Tensor, "batch actions"], most: Sequence[float]
) -> Float[Tensor, "batch actions"]:
    """Of each row the likeliest, as long as those before weigh less than `most`; the rest is -inf.

    Bins are weighed, and only the one in which that much is reached is sorted; of equal logits the first come first.
    """
    limit = torch.tensor(most, dtype=weights.dtype, device=logits.device).clamp_min_(1e-38)  # a double may become 0
    distance = logits.amax(dim=-1, keepdim=True) - logits
    bins = distance.mul_(BINS / RANGE).clamp_(max=BINS - 1).nan_to_num_().long()
    sums = weights.new_zeros(len(logits), BINS).scatter_add_(-1, bins, weights)
    before = sums.cumsum(dim=-1) - sums
    edge = (before < limit[:, None]).sum(dim=-1, keepdim=True) - 1
    rows, columns = (bins == edge).nonzero(as_tuple=True)
    order = logits[rows, columns].argsort(descending=True, stable=True)
    order = order[rows[order].argsort(stable=True)]
    rows, columns = rows[order], columns[order]
    weight = weights[rows, columns]
    within = weight.cumsum(dim=0) - weight
    reached = before.gather(-1, edge).squeeze(-1)[rows] + within - within[torch.searchsorted(rows, rows)]
    kept, dropped = logits.masked_fill(bins > edge, NEVER), reached >= limit[rows]
    kept[rows[dropped], columns[dropped]] = NEVER
    return kept
