"""Rewards and advantages of Stage 2 (paper, Section 4.2 and its appendix): pure functions of tensors.

Nothing here knows what a trajectory is: the caller counts invocations and asks the grader for success.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tyler.config.loops import RewardScale


def budget_penalty(
    success: Bool[Tensor, "*batch"], num_invocations: Int[Tensor, "*batch"], budget: int
) -> Float[Tensor, "*batch"]:
    """P_bud(tau) = s(tau) (n_op(tau) - B_O)_+, Eq. app-budget-penalty: invocations over the budget, on successes only.

    A failed trajectory pays nothing however much it spends, and a success within the budget pays nothing either.
    Raises ValueError when `budget` is negative.
    """
    if budget < 0:
        raise ValueError(f"budget must be 0 or more invocations per trajectory, got {budget}")
    over_budget = (num_invocations - budget).clamp(min=0).to(torch.get_default_dtype())
    return over_budget * success


def trajectory_reward(
    task_reward: Float[Tensor, "*batch"],
    success: Bool[Tensor, "*batch"],
    num_invocations: Int[Tensor, "*batch"],
    *,
    budget: int,
    budget_weight: float,
) -> Float[Tensor, "*batch"]:
    """R(tau) = R_task(tau) - lambda P_bud(tau), Eq. trajectory-reward.

    `budget_weight` is lambda; 0 turns the budget off. Raises ValueError when `budget` or `budget_weight` is negative
    (a negative weight would pay for overspending).
    """
    if budget_weight < 0:
        raise ValueError(f"budget_weight (lambda) must be 0 or more, got {budget_weight}")
    return task_reward - budget_weight * budget_penalty(success, num_invocations, budget).to(task_reward.dtype)


def group_advantages(
    rewards: Float[Tensor, "batch group"],
    epsilon: float = 1e-4,
    *,
    scale: RewardScale = "group",
    batch: Float[Tensor, " all"] | None = None,
) -> Float[Tensor, "batch group"]:
    """A_i = (R(tau_i) - mean) / (std + epsilon) within each group, Eq. app-grpo-advantage.

    The paper leaves the standard deviation and its epsilon open (and reuses the letter for the clip range): we take
    the unbiased one and 1e-4, as TRL does. A degenerate group's advantages are exactly 0.

    `scale` is TRL's `scale_rewards`: "group" is the paper's; "batch" divides by the deviation of all rewards of the
    step, which are `batch` where `rewards` are one process's share of them; "none" does not divide.
    Raises ValueError when the group has fewer than 2 trajectories: there is nothing to compare.
    """
    if rewards.shape[1] < 2:
        raise ValueError(f"a group needs at least 2 trajectories, got rewards of shape {tuple(rewards.shape)}")
    # Counted from the group's first reward, equal rewards are exactly 0: a rounded mean would leave each of them an
    # advantage near 1e-3 in float32, which Adam then scales up.
    shifted = rewards - rewards[:, :1]
    centred = shifted - shifted.mean(dim=1, keepdim=True)
    if scale == "none":
        return centred
    if scale == "batch":
        return centred / ((rewards if batch is None else batch).std(correction=1) + epsilon)
    return centred / (shifted.std(dim=1, keepdim=True, correction=1) + epsilon)


def degenerate_groups(rewards: Float[Tensor, "batch group"]) -> Bool[Tensor, " batch"]:
    """Which groups have equal rewards throughout, so that all their advantages are 0 and only the KL term teaches."""
    return (rewards == rewards[:, :1]).all(dim=1)
