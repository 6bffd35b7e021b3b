"""What is done to the latents of a model that is measured: controls that tell what its latents carry.

Each makes other heads for the same operators at the same places, with as many latents as before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from tyler.engine.routing import AtBoundaries
from tyler.engine.trajectory import Trajectory
from tyler.model import Tyler
from tyler.modeling.interventions import fix, remove, share, swap, zero
from tyler.modeling.synthesis import Heads, LatentHead

INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}
"""By the bytes of a number. (Widened first, half of the bits of a narrow one are zeros, and draw few entries.)"""

Blocks = dict[str, list[Float[Tensor, "latents dim"]]]
"""Latents by operator, one entry for each call."""


class PooledHead(nn.Module):
    """Latents of other problems: each call takes the pool's entry that its own hidden states point to.

    Which entry follows from the bits of the hidden states, so that neighbouring contexts get unrelated entries and the
    same context gets the same one.
    """

    def __init__(self, head: LatentHead, pool: Sequence[Float[Tensor, "latents dim"]]) -> None:
        super().__init__()
        self.queries, self._pool = head.queries, torch.stack(list(pool))

    @property
    def num_latents(self) -> int:
        return self._pool.shape[1]

    def forward(self, hidden: Float[Tensor, "latents dim"]) -> Float[Tensor, "latents dim"]:
        bits = hidden[-1, :8].contiguous().view(INTEGERS[hidden.element_size()])
        drawn = int(bits.sum().abs()) % len(self._pool)
        return self._pool[drawn].to(hidden.dtype)


def zeroed(model: Tyler, blocks: Blocks) -> Heads:
    """All latents are zeros."""
    heads = model.heads
    for name in heads:
        heads = zero(heads, name)
    return heads


def averaged(model: Tyler, blocks: Blocks) -> Heads:
    """All latents are their operator's mean, slot by slot: nothing of the problem is left."""
    heads = model.heads
    for name, found in blocks.items():
        heads = fix(heads, name, torch.stack(found).mean(dim=0))
    return heads


def shuffled(model: Tyler, blocks: Blocks) -> Heads:
    """Latents of the right operator and of another problem."""
    pooled = {name: PooledHead(model.synthesizer.mapping()[name], found) for name, found in blocks.items()}
    return {**model.heads, **pooled}


def noise(model: Tyler, blocks: Blocks) -> Heads:
    """Normal vectors with the norm of the latents they stand for, one block for each that was seen."""
    source = torch.Generator().manual_seed(0)
    heads = dict(model.heads)
    for name, found in blocks.items():
        drawn = [torch.randn(one.shape, generator=source).to(one) for one in found]
        pool = [
            new * one.norm(dim=-1, keepdim=True) / new.norm(dim=-1, keepdim=True)
            for new, one in zip(drawn, found, strict=True)
        ]
        heads[name] = PooledHead(model.synthesizer.mapping()[name], pool)
    return heads


NAMED: dict[str, Callable[[Tyler, Blocks], Heads]] = {
    "zeros": zeroed,
    "means": averaged,
    "shuffled": shuffled,
    "noise": noise,
}
"""Interventions on all operators, which may need the latents that the model itself computes."""


def intervene(
    model: Tyler, name: str, problems: Sequence[str], max_new_tokens: int, memory: int | None = None
) -> Tyler:
    """The model under an intervention: one of NAMED, or "remove global", "zero state", "share procedure", "swap a b".

    `problems` are answered at all boundaries, within `memory` bytes of contexts and caches, to see the model's own
    latents, where the intervention needs them. Raises
    ValueError for an intervention that does not exist.
    """
    if not name:
        return model
    verb, *operators = name.split()
    match verb, operators:
        case ("remove", [one]):
            heads: Heads = remove(model.heads, one)
        case ("zero", [one]):
            heads = zero(model.heads, one)
        case ("share", [one]):
            heads = share(model.heads, one)
        case ("swap", [one, other]):
            heads = swap(model.heads, one, other)
        case _ if name in NAMED:
            heads = NAMED[name](model, own_blocks(model, problems, max_new_tokens, memory) if name != "zeros" else {})
        case _:
            raise ValueError(
                f"there is no intervention {name!r}; allowed: {', '.join(NAMED)}, remove K, zero K, share K, swap K L"
            )
    return model.with_heads(heads)


def own_blocks(model: Tyler, problems: Sequence[str], max_new_tokens: int, memory: int | None = None) -> Blocks:
    """The latents of the model's own answers to some problems, with operators at all boundaries."""
    answers = model.solve(list(problems), router=AtBoundaries(), max_new_tokens=max_new_tokens, slots=32, memory=memory)
    return blocks_of(answers)


def blocks_of(answers: Sequence[Trajectory]) -> Blocks:
    """All latents of some answers."""
    found: Blocks = {}
    for answer in answers:
        for call, latents in zip(answer.invocations, answer.latents, strict=True):
            found.setdefault(call.operator, []).append(latents)
    return found
