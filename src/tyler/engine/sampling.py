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
        self._kept: list[float] = []

    def at(self, place: int) -> float:
        """The number of a place, however often it is asked for."""
        while len(self._kept) <= place:
            self._kept.append(self.take())
        return self._kept[place]

    def take(self) -> float:
        return self._stream.random()

    def skip(self, count: int) -> None:
        """Leave out as many as decisions have taken that are only repeated."""
        self._stream.random(count)


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
    kept = filter_logits(logits, samplings)
    draws = torch.tensor(uniforms, dtype=torch.float64, device=float64_device(logits.device))
    actions = invert(probabilities if kept is logits else kept.softmax(dim=-1), draws)
    logprobs = probabilities.gather(-1, actions[:, None]).squeeze(-1).log()
    if any(greedy):
        likeliest_is_taken = torch.tensor(greedy, device=logits.device)
        actions = torch.where(likeliest_is_taken, logits.argmax(dim=-1), actions)
        logprobs = torch.where(likeliest_is_taken, logprobs_of(logits, actions), logprobs)
    return actions, logprobs


def logprobs_of(logits: Float[Tensor, "batch actions"], actions: Int[Tensor, "batch"]) -> Float[Tensor, "batch"]:
    """log p(a_t | x_t)."""
    return logits.log_softmax(dim=-1).gather(-1, actions[:, None]).squeeze(-1)


def operator_probs(logits: Float[Tensor, "batch actions"], num_operators: int) -> Float[Tensor, "batch operators"]:
    """p(operator) of each operator under masked, temperature-scaled logits over V'; 0 for those that are masked."""
    return logits.softmax(dim=-1)[:, logits.shape[-1] - num_operators :]


def float64_device(device: torch.device) -> torch.device:
    """Where numbers of a device are computed with in float64: there, or on the CPU, since MPS has no float64."""
    return torch.device("cpu") if device.type == "mps" else device


BLOCK = 512
"""Probabilities that are summed at once: a draw is looked up among the sums, and then within one of them."""
TOP = 1024
"""The likeliest actions, among which a filter looks first: sorting all takes longer than everything else."""
BINS, RANGE = 4096, 16.0
"""Where these do not settle it, logits are counted by their distance from the largest, up to RANGE."""


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
    count, device = logits.shape[-1], logits.device
    rows = [row for row, one in enumerate(samplings) if 0 < one.top_k < count or one.top_p < 1]
    if not rows:
        return logits
    own = logits if len(rows) == len(samplings) else logits[rows]
    top_k = torch.tensor([min(samplings[row].top_k or count, count) for row in rows], device=device)[:, None]
    top_p = torch.tensor([samplings[row].top_p for row in rows], dtype=torch.float32, device=device)[:, None]
    found, left, mass = torch.empty_like(own), list(range(len(own))), own.logsumexp(dim=-1, keepdim=True)
    likeliest_probability = (own.amax(dim=-1, keepdim=True) - mass).exp()
    hopeful = (top_k <= TOP) | (TOP * likeliest_probability >= top_p)  # else so few never hold enough
    if places := hopeful.squeeze(-1).nonzero().flatten().tolist():
        among = own if len(places) == len(own) else own[places]
        found[places], enough = _filtered_among_top(among, mass[places], top_k[places], top_p[places])
        left = sorted({*left} - {place for place, one in zip(places, enough, strict=True) if one})
    if left:
        kept = own[left]
        if bool((top_k[left] < count).any()):
            kept = likeliest(kept, torch.ones_like(kept), top_k[left])
        found[left] = likeliest(kept, kept.softmax(dim=-1), top_p[left]) if bool((top_p[left] < 1).any()) else kept
    if own is logits:
        return found
    whole = logits.clone()
    whole[rows] = found
    return whole


def _filtered_among_top(
    logits: Float[Tensor, "batch actions"],
    mass: Float[Tensor, "batch 1"],
    top_k: Int[Tensor, "batch 1"],
    top_p: Float[Tensor, "batch 1"],
) -> tuple[Float[Tensor, "batch actions"], list[bool]]:
    """What the filters leave of each row, found among its TOP likeliest actions; and for which rows these were enough:
    where all of them are kept, or the last one ties, others might be. `mass` is the logits' logsumexp."""
    count = logits.shape[-1]
    ordered, order = logits.topk(min(TOP, count), dim=-1)
    rank = torch.arange(ordered.shape[-1], device=logits.device)
    kept = ordered.masked_fill(rank >= top_k, NEVER)
    whole = torch.where(top_k >= count, mass, kept.logsumexp(dim=-1, keepdim=True))
    probabilities = (kept - whole).exp()
    before = probabilities.cumsum(dim=-1) - probabilities
    kept = kept.masked_fill_((before >= top_p) & (rank > 0) & (top_p < 1), NEVER)  # by rounding the sum is 1 early
    number = (kept > NEVER).sum(dim=-1, keepdim=True)
    last, following = (ordered.gather(-1, place.clamp(0, len(rank) - 1)) for place in (number - 1, number))
    enough = ((top_k <= len(rank)) | (top_k >= count)) & (number < len(rank)) & (following < last)
    return torch.full_like(logits, NEVER).scatter_(-1, order, kept), enough.squeeze(-1).tolist()


def likeliest(
    logits: Float[Tensor, "batch actions"], weights: Float[Tensor, "batch actions"], most: Tensor
) -> Float[Tensor, "batch actions"]:
    """Of each row the likeliest, as long as those before weigh less than `most` [batch, 1]; the rest is -inf.

    Only the bin in which that much is reached is sorted; of equal logits the first come first.
    """
    distance = logits.amax(dim=-1, keepdim=True) - logits
    bins = distance.mul_(BINS / RANGE).clamp_(max=BINS - 1).nan_to_num_().long()
    sums = weights.new_zeros(len(logits), BINS).scatter_add_(-1, bins, weights)
    before = sums.cumsum(dim=-1) - sums
    edge = (before < most).sum(dim=-1, keepdim=True) - 1
    kept = logits.masked_fill(bins > edge, NEVER)
    rows, columns = (bins == edge).nonzero(as_tuple=True)
    for row, own in enumerate(columns.split(torch.bincount(rows, minlength=len(logits)).tolist())):
        own = own[logits[row, own].argsort(descending=True, stable=True)]
        weight = weights[row, own]
        kept[row, own[before[row, edge[row]] + weight.cumsum(dim=0) - weight >= most[row]]] = NEVER
    return kept
