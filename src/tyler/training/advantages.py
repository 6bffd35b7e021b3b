"""Advantages of rewards within their groups (paper, Section 4.2 and its appendix): pure functions of tensors."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from tyler.config.loops import RewardScale


def group_advantages(
    rewards: Float[Tensor, "batch group"],
    epsilon: float = 1e-4,
    *,
    scale: RewardScale = "group",
    batch: Float[Tensor, " all"] | None = None,
) -> Float[Tensor, "batch group"]:
    """A_i = (R(tau_i) - mean) / (std + epsilon) within each group, Eq. app-grpo-advantage.

    The paper leaves the standard deviation and its epsilon open (and reuses the letter for the clip range): we take
    the unbiased one and 1e-4, as TRL does. A degenerate group's advantages are exactly 0. An
    answer whose reward is NaN is left out of its group and has advantage 0, as one that is left alone has.

    `scale` is TRL's `scale_rewards`: "group" is the paper's; "batch" divides by the deviation of all rewards of the
    step, which are `batch` where `rewards` are one process's share of them; "none" does not divide.
    Raises ValueError when the group has fewer than 2 trajectories: there is nothing to compare.
    """
    if rewards.shape[1] < 2:
        raise ValueError(f"a group needs at least 2 trajectories, got rewards of shape {tuple(rewards.shape)}")
    counted = ~rewards.isnan()
    # Counted from the group's first reward, equal rewards are exactly 0: a rounded mean would leave each of them an
    # advantage near 1e-3 in float32, which Adam then scales up.
    first = rewards.gather(1, counted.float().argmax(dim=1, keepdim=True))
    shifted = torch.where(counted, rewards - first, 0)
    size = counted.sum(dim=1, keepdim=True)
    centred = torch.where(counted, shifted - shifted.sum(dim=1, keepdim=True) / size.clamp(min=1), 0)
    if scale == "none":
        return centred
    if scale == "batch":
        everything = (rewards if batch is None else batch).flatten()
        return centred / (everything[~everything.isnan()].std(correction=1).nan_to_num(0.0) + epsilon)
    return centred / ((centred.square().sum(dim=1, keepdim=True) / (size - 1).clamp(min=1)).sqrt() + epsilon)


def degenerate_groups(rewards: Float[Tensor, "batch group"]) -> Bool[Tensor, " batch"]:
    """Which groups have equal rewards throughout, so that all their advantages are 0 and only the KL term teaches."""
    lowest = rewards.nan_to_num(torch.inf).amin(dim=1)
    return rewards.nan_to_num(-torch.inf).amax(dim=1) <= lowest
