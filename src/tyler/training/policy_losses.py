"""The losses of policies that learn from rewards (paper, Section 4.2 and its appendix), one equation a function.

Every loss is a weighted sum over actions whose weights come from masks over the *whole* batch, so the losses of
micro-batches add up to the loss of the batch, and their gradients to its gradient:

    weights = loss.weights(mask, operator_mask, group_ids, counted)       # once, on the whole batch
    for rows in micro_batches:
        terms = loss(..., advantages[rows], weights.rows(rows))
        terms["loss"].backward()                                          # no further division

Where this says TRL, its value on the same numbers is an oracle of the tests.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tyler.config.loops import Correction, ObjectiveConfig, RewardScale

PerAction = Float[Tensor, "batch actions"]
"""A number for each action of each answer, padded to the longest."""

# ----------------------------------------------------------------------------------------------------------- advantages


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
    """
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


# ------------------------------------------------------------------------------------------------- weights of actions


def trajectory_weights(
    mask: Bool[Tensor, "batch actions"], group_ids: Int[Tensor, " batch"], dtype: torch.dtype = torch.float32
) -> PerAction:
    """1 / (num_groups G |tau_i|) on the actions of tau_i: the double mean of Eq. app-grpo-objective, then over groups.

    `mask` marks the actions of each trajectory (row); rows with equal `group_ids` answer one prompt, and groups may
    differ in size. A trajectory without actions weighs nothing but still counts in G.
    """
    _, group, group_sizes = torch.unique(group_ids, return_inverse=True, return_counts=True)
    num_actions = mask.sum(dim=1, keepdim=True)
    share = 1 / (len(group_sizes) * group_sizes[group].unsqueeze(1) * num_actions).to(dtype)
    return torch.where(mask, share, 0)


def token_weights(mask: Bool[Tensor, "batch actions"], dtype: torch.dtype = torch.float32) -> Tensor:
    """1 / (all actions): each action of the batch counts the same, however long its answer (DAPO, arXiv 2503.14476)."""
    return mask.to(dtype) / mask.sum().clamp(min=1)


def constant_weights(
    mask: Bool[Tensor, "batch actions"], max_actions: int, dtype: torch.dtype = torch.float32
) -> PerAction:
    """1 / (answers times the most actions of one): no division by a length that was sampled (Dr. GRPO, 2503.20783)."""
    return mask.to(dtype) / (len(mask) * max_actions)


def anchor_weights(
    operator_mask: Bool[Tensor, "batch actions"], group_ids: Int[Tensor, " batch"], dtype: torch.dtype = torch.float32
) -> PerAction:
    """1 / (num_groups N_O) on the operator invocations of a group, Eqs. app-operator-mask, app-operator-anchor-loss.

    `operator_mask` marks the invocations M_O(tau_i) and N_O counts them over the group. A group without invocations
    contributes 0 and still counts among the groups: the paper writes one group; several are averaged.
    """
    _, group, group_sizes = torch.unique(group_ids, return_inverse=True, return_counts=True)
    per_trajectory = operator_mask.sum(dim=1)
    per_group = torch.zeros_like(group_sizes).index_add(0, group, per_trajectory)
    num_invocations = per_group[group].unsqueeze(1)
    share = 1 / (len(group_sizes) * num_invocations).to(dtype)
    return torch.where(operator_mask, share, 0)


@dataclass(frozen=True)
class ActionWeights:
    """How much each action of a batch counts: `grpo` in the policy loss and the KL, `anchor` in the anchor loss.

    `mask` marks the actions; everywhere else both weights are 0. Weights are shares of the whole batch, so a
    micro-batch takes its rows of them and never computes its own.
    """

    mask: Bool[Tensor, "batch actions"]
    grpo: PerAction
    anchor: PerAction

    def rows(self, index: slice | Int[Tensor, " rows"], length: int | None = None) -> ActionWeights:
        """The weights of some trajectories, unchanged: those of a micro-batch, of its first `length` actions."""
        return ActionWeights(self.mask[index, :length], self.grpo[index, :length], self.anchor[index, :length])


# ------------------------------------------------------------------------------------------------------ the equations


def importance_ratio(logprobs: PerAction, old_logprobs: PerAction) -> PerAction:
    """r_ij = p(a_ij | x_ij) / p_old(a_ij | x_ij), Eq. app-grpo-ratio; p_old is the learner at the rollout's start."""
    return torch.exp(logprobs - old_logprobs)


def sequence_ratio(logprobs: PerAction, old_logprobs: PerAction, mask: Bool[Tensor, "batch actions"]) -> PerAction:
    """The geometric mean of an answer's ratios, at each of its actions (GSPO, arXiv 2507.18071, Eq. 7)."""
    log_ratio = torch.where(mask, logprobs - old_logprobs, 0).sum(dim=1, keepdim=True)
    return torch.exp(log_ratio / mask.sum(dim=1, keepdim=True).clamp(min=1)).expand_as(logprobs)


def truncated_importance(
    old_logprobs: PerAction,
    behaviour_logprobs: PerAction,
    mask: Bool[Tensor, "batch actions"],
    correction: Correction,
    cap: float,
) -> PerAction:
    """min(p_old / p_behaviour, cap) of each action or of the whole answer; 1 where the correction is off.

    The engine that answered rounds otherwise than the learner; this weighs its answers as the learner's own. TRL's
    `token_truncate` and `sequence_truncate`.
    """
    gap = torch.where(mask, old_logprobs - behaviour_logprobs, 0)
    if correction == "none":
        return torch.ones_like(gap)
    if correction == "sequence":
        gap = gap.sum(dim=1, keepdim=True).expand_as(gap)
    return gap.exp().clamp(max=cap)


def clipped_surrogate(
    ratio: PerAction, advantages: Float[Tensor, " batch"], clip_range: float, clip_range_high: float | None = None
) -> PerAction:
    """l_ij = min(r_ij A_i, clip(r_ij, 1 - epsilon, 1 + epsilon) A_i), Eq. app-grpo-token; `clip_range` is epsilon.

    `clip_range_high` is an epsilon of its own for the upper bound (DAPO's clip-higher); None is the same.
    """
    advantage = advantages.unsqueeze(1)
    high = clip_range if clip_range_high is None else clip_range_high
    return torch.minimum(ratio * advantage, ratio.clamp(1 - clip_range, 1 + high) * advantage)


def clipped_actions(
    surrogate: PerAction, ratio: PerAction, advantages: Float[Tensor, " batch"]
) -> Bool[Tensor, "batch actions"]:
    """Where the clip of Eq. app-grpo-token binds in a `clipped_surrogate`, so that the action gives no gradient."""
    return surrogate < ratio * advantages.unsqueeze(1)


def kl_k3(logprobs: PerAction, reference_logprobs: PerAction) -> PerAction:
    """k3 estimate of D_KL(p || p_ref) in Eq. app-grpo-objective, per action: p_ref/p - log(p_ref/p) - 1, at least 0.

    The paper leaves the estimator open. The reference is the policy at the start of Stage 2, psi included.
    """
    log_ratio = reference_logprobs - logprobs
    return torch.expm1(log_ratio) - log_ratio


def grpo_loss(surrogate: PerAction, kl: PerAction, weights: PerAction, kl_weight: float) -> Float[Tensor, ""]:
    """L_GRPO(R) = -J_GRPO(R), Eq. app-grpo-objective, with `weights` from `trajectory_weights` and beta as `kl_weight`.

    The KL is averaged like the surrogate, over the actions of each trajectory and then over trajectories, which the
    paper leaves open and TRL's `loss_type="grpo"` does.
    """
    return -(weights * surrogate).sum() + kl_weight * (weights * kl).sum()


def anchor_loss(surrogate: PerAction, weights: PerAction) -> Float[Tensor, ""]:
    """L_anch, Eq. app-operator-anchor-loss, with `weights` from `anchor_weights`; 0 when no operator was invoked."""
    return -(weights * surrogate).sum()


# --------------------------------------------------------------------------------------------------------- the losses


class PolicyLoss(Protocol):
    """What a policy descends on: how its actions are weighed over a whole batch, and the terms of some of its rows."""

    def weights(
        self,
        mask: Bool[Tensor, "batch actions"],
        operator_mask: Bool[Tensor, "batch actions"],
        group_ids: Int[Tensor, " batch"],
        counted: Bool[Tensor, " batch"],
        local_fraction: Callable[[int], float],
    ) -> ActionWeights:
        """The weights of a process's answers. `counted` marks those with a reward, and `local_fraction` gives the
        process's part of a count over all of them (`distributed.local_fraction`)."""

    def __call__(
        self,
        logprobs: PerAction,
        old_logprobs: PerAction,
        behaviour_logprobs: PerAction,
        reference_logprobs: PerAction,
        advantages: Float[Tensor, " batch"],
        weights: ActionWeights,
    ) -> dict[str, Float[Tensor, ""]]:
        """The terms of some answers by name; "loss" carries the gradient. Each is a weighted sum: parts add up."""


@dataclass(frozen=True)
class AnchoredLoss:
    """L_stage2 = L_GRPO(R) + alpha L_anch, Eq. app-stage2-control-loss, in the paper's form or a later one.

    `objective.loss` says what an action counts in L_GRPO: as in the paper (`grpo`), the same for all actions of the
    batch (`dapo`) or of each process's share of it (`bnpo`), or 1 over `max_actions` (`dr_grpo`). Its `importance` is
    that of a token or of the whole answer (GSPO) in L_GRPO; the anchored loss keeps a token's, as its equation has it.
    """

    objective: ObjectiveConfig
    max_actions: int = 1
    kl_weight: float = 0.0
    anchor_weight: float = 0.0

    def weights(
        self,
        mask: Bool[Tensor, "batch actions"],
        operator_mask: Bool[Tensor, "batch actions"],
        group_ids: Int[Tensor, " batch"],
        counted: Bool[Tensor, " batch"],
        local_fraction: Callable[[int], float] = lambda count: 1.0,
        dtype: torch.dtype = torch.float32,
    ) -> ActionWeights:
        """The weights of all actions of a batch; answers that are not `counted` weigh nothing and are in no mean."""
        groups = group_ids[counted]
        counts = {"grpo": len(groups.unique()), "dapo": int(mask[counted].sum()), "bnpo": 1, "dr_grpo": len(groups)}
        of_groups, of_policy = local_fraction(counts["grpo"]), local_fraction(counts[self.objective.loss])
        policy, anchor = torch.zeros(mask.shape, dtype=dtype, device=mask.device), torch.zeros_like(mask, dtype=dtype)
        if len(groups):
            policy[counted] = of_policy * self._of_policy(mask[counted], groups, dtype)
            anchor[counted] = of_groups * anchor_weights(operator_mask[counted], groups, dtype)
        return ActionWeights(mask & counted[:, None], policy, anchor)

    def _of_policy(self, mask: Tensor, groups: Tensor, dtype: torch.dtype) -> Tensor:
        if self.objective.loss == "grpo":
            return trajectory_weights(mask, groups, dtype)
        if self.objective.loss == "dr_grpo":
            return constant_weights(mask, self.max_actions, dtype)
        return token_weights(mask, dtype)

    def __call__(
        self,
        logprobs: PerAction,
        old_logprobs: PerAction,
        behaviour_logprobs: PerAction,
        reference_logprobs: PerAction,
        advantages: Float[Tensor, " batch"],
        weights: ActionWeights,
    ) -> dict[str, Float[Tensor, ""]]:
        """The terms of some answers; `loss` carries the gradient, the others are detached, and all add up.

        Log-probabilities are of the chosen actions under the policy (with gradient), the learner at the rollout's
        start, the engine that answered, and the reference; what they hold outside `weights.mask` is ignored. `kl` is
        the unweighted KL (nats per action) and `clip_share` the share of actions where the clip binds, both averaged
        like the loss; `operator_clip_share` averages over operator invocations like the anchor loss. `cut_share` is
        the share of actions whose importance weight reaches the cap.
        """
        mask, objective = weights.mask, self.objective
        clips, cap = (objective.clip_range, objective.clip_range_high), objective.correction_cap
        logprobs, old, behaviour, reference = (
            torch.where(mask, one, 0) for one in (logprobs, old_logprobs, behaviour_logprobs, reference_logprobs)
        )
        truncated = truncated_importance(old, behaviour, mask, objective.correction, cap)
        ratio = importance_ratio(logprobs, old)
        surrogate = clipped_surrogate(ratio, advantages, *clips)
        whole = ratio if objective.importance == "token" else sequence_ratio(logprobs, old, mask)
        policy = clipped_surrogate(whole, advantages, *clips)
        kl = kl_k3(logprobs, reference)
        grpo = grpo_loss(truncated * policy, kl, weights.grpo, self.kl_weight)
        anchor = anchor_loss(truncated * surrogate, weights.anchor)
        return {
            "loss": grpo + self.anchor_weight * anchor,
            "grpo": grpo.detach(),
            "anchor": anchor.detach(),
            "kl": (weights.grpo * kl.detach()).sum(),
            "clip_share": (weights.grpo * clipped_actions(policy, whole, advantages)).sum(),
            "operator_clip_share": (weights.anchor * clipped_actions(surrogate, ratio, advantages)).sum(),
            "cut_share": (weights.grpo * (truncated >= cap)).sum(),
        }
