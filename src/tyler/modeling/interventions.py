"""Interventions on the heads: remove, swap, share, zero or fix what an operator computes."""

import torch
from jaxtyping import Float
from torch import Tensor

from tyler.modeling.synthesis import ConstantHead, Heads, LatentHead


def remove(heads: Heads, operator: str) -> dict[str, LatentHead]:
    """Without `operator`: the policy can no longer invoke it."""
    check_names(heads, operator)
    return {name: head for name, head in heads.items() if name != operator}


def swap(heads: Heads, first: str, second: str) -> dict[str, LatentHead]:
    """Exchange the synthesis paths of two operators: queries, length and projection (Table unified-ablation, row g)."""
    check_names(heads, first, second)
    return {**heads, first: heads[second], second: heads[first]}


def share(heads: Heads, operator: str) -> dict[str, LatentHead]:
    """Let one operator's head answer for all (row f)."""
    check_names(heads, operator)
    return dict.fromkeys(heads, heads[operator])


def zero(heads: Heads, operator: str) -> dict[str, LatentHead]:
    """Replace the latents of `operator` by zeros of the same number."""
    check_names(heads, operator)
    return fix(heads, operator, torch.zeros_like(heads[operator].queries))


def fix(heads: Heads, operator: str, latents: Float[Tensor, "latents dim"]) -> dict[str, LatentHead]:
    """Give `operator` the same latents in every context.

    Their mean over many answers keeps what an operator always says and drops what it says of this problem.
    """
    check_names(heads, operator)
    return {**heads, operator: ConstantHead(latents).requires_grad_(False)}


def check_names(heads: Heads, *names: str) -> None:
    """Raise ValueError for an operator that is not there."""
    for name in names:
        if name not in heads:
            raise ValueError(f"no operator {name!r} here; there are {', '.join(heads) or 'none'}")
