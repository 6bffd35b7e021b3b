"""The losses of both stages (paper, Section 4 and its appendix): one equation, one function, torch only.

An action is a token or an operator invocation; its id lies in V' = V + K. Latents are neither actions nor targets.
Every loss here is a weighted sum over actions whose weights come from masks over the *whole* batch, so the losses of
micro-batches add up to the loss of the batch, and their gradients to its gradient:

    weights = action_weights(mask, operator_mask, group_ids)              # once, on the whole batch
    for rows in micro_batches:
        terms = stage2_loss(..., advantages[rows], weights.rows(rows), ...)
        terms.loss.backward()                                             # no further division
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, TypeVar, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from tyler.engine.sizes import positions_at_once
from tyler.modeling.products import wide_product

# ---------------------------------------------------------------------------------------------------------- Stage 1


def stage1_sum(logprobs: Float[Tensor, "*batch seq"], mask: Bool[Tensor, "*batch seq"]) -> Float[Tensor, ""]:
    """L_stage1 = -sum_t log p(y_t | c_t), Eq. app-operator-sft: summed over the visible targets that `mask` marks.

    `logprobs` holds log p of each target; what it holds where `mask` is False (question, latents, padding) is ignored.
    """
    return -torch.where(mask, logprobs, 0).sum()


def stage1_loss(
    logprobs: Float[Tensor, "*batch seq"], mask: Bool[Tensor, "*batch seq"], num_targets: int
) -> Float[Tensor, ""]:
    """L_stage1 as optimised and reported: Eq. operator-sft per visible target, in nats.

    `num_targets` counts the visible targets of the whole batch, over all its micro-batches, whose losses then add up to
    the batch mean. Raises ValueError when it is below 1.
    """
    # Deviation: the paper sums over t, so long traces weigh more and the loss grows with the batch; we divide by the
    # number of targets in the batch, which keeps every target's weight equal and the learning rate comparable.
    if num_targets < 1:
        raise ValueError(f"num_targets must be the number of visible targets in the batch, got {num_targets}")
    return stage1_sum(logprobs, mask) / num_targets


# ---------------------------------------------------------------------------------------------------------- Stage 2


def trajectory_weights(
    mask: Bool[Tensor, "batch actions"], group_ids: Int[Tensor, " batch"], dtype: torch.dtype = torch.float32
) -> Float[Tensor, "batch actions"]:
    """1 / (num_groups G |tau_i|) on the actions of tau_i: the double mean of Eq. app-grpo-objective, then over groups.

    `mask` marks the actions of each trajectory (row); rows with equal `group_ids` answer one prompt, and groups may
    differ in size. A trajectory without actions weighs nothing but still counts in G.
    """
    _, group, group_sizes = torch.unique(group_ids, return_inverse=True, return_counts=True)
    num_actions = mask.sum(dim=1, keepdim=True)
    share = 1 / (len(group_sizes) * group_sizes[group].unsqueeze(1) * num_actions).to(dtype)
    return torch.where(mask, share, 0)


def anchor_weights(
    operator_mask: Bool[Tensor, "batch actions"], group_ids: Int[Tensor, " batch"], dtype: torch.dtype = torch.float32
) -> Float[Tensor, "batch actions"]:
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
    """How much each action of a batch counts: `grpo` in the GRPO loss and the KL, `anchor` in the anchor loss.

    `mask` marks the actions; everywhere else both weights are 0. Weights are shares of the whole batch, so a
    micro-batch takes its rows of them and never computes its own.
    """

    mask: Bool[Tensor, "batch actions"]
    grpo: Float[Tensor, "batch actions"]
    anchor: Float[Tensor, "batch actions"]

    def rows(self, index: slice | Int[Tensor, " rows"]) -> ActionWeights:
        """The weights of some trajectories, unchanged: those of a micro-batch."""
        return ActionWeights(self.mask[index], self.grpo[index], self.anchor[index])


def action_weights(
    mask: Bool[Tensor, "batch actions"],
    operator_mask: Bool[Tensor, "batch actions"],
    group_ids: Int[Tensor, " batch"],
    dtype: torch.dtype = torch.float32,
) -> ActionWeights:
    """The weights of all actions of a batch; call it once per optimizer step, before splitting into micro-batches.

    Raises ValueError when an invocation lies outside `mask`: it would enter the anchor loss without being an action.
    """
    if bool((operator_mask & ~mask).any()):
        strays = int((operator_mask & ~mask).sum())
        raise ValueError(f"operator_mask marks {strays} positions that mask does not; an invocation is an action")
    return ActionWeights(
        mask,
        grpo=trajectory_weights(mask, group_ids, dtype),
        anchor=anchor_weights(operator_mask, group_ids, dtype),
    )


def importance_ratio(
    logprobs: Float[Tensor, "batch actions"], old_logprobs: Float[Tensor, "batch actions"]
) -> Float[Tensor, "batch actions"]:
    """r_ij = p(a_ij | x_ij) / p_old(a_ij | x_ij), Eq. app-grpo-ratio; p_old is the policy that sampled the action."""
    return torch.exp(logprobs - old_logprobs)


def clipped_surrogate(
    ratio: Float[Tensor, "batch actions"], advantages: Float[Tensor, " batch"], clip_range: float
) -> Float[Tensor, "batch actions"]:
    """l_ij = min(r_ij A_i, clip(r_ij, 1 - epsilon, 1 + epsilon) A_i), Eq. app-grpo-token; `clip_range` is epsilon."""
    advantage = advantages.unsqueeze(1)
    return torch.minimum(ratio * advantage, ratio.clamp(1 - clip_range, 1 + clip_range) * advantage)


def clipped_actions(
    ratio: Float[Tensor, "batch actions"], advantages: Float[Tensor, " batch"], clip_range: float
) -> Bool[Tensor, "batch actions"]:
    """Where the clip of Eq. app-grpo-token binds, so that the action gives no gradient."""
    advantage = advantages.unsqueeze(1)
    too_likely = (ratio > 1 + clip_range) & (advantage > 0)
    too_unlikely = (ratio < 1 - clip_range) & (advantage < 0)
    return too_likely | too_unlikely


def kl_k3(
    logprobs: Float[Tensor, "batch actions"], reference_logprobs: Float[Tensor, "batch actions"]
) -> Float[Tensor, "batch actions"]:
    """k3 estimate of D_KL(p || p_ref) in Eq. app-grpo-objective, per action: p_ref/p - log(p_ref/p) - 1, at least 0.

    The paper leaves the estimator open. The reference is the policy at the start of Stage 2, psi included.
    """
    log_ratio = reference_logprobs - logprobs
    return torch.expm1(log_ratio) - log_ratio


def grpo_loss(
    surrogate: Float[Tensor, "batch actions"],
    kl: Float[Tensor, "batch actions"],
    weights: Float[Tensor, "batch actions"],
    kl_weight: float,
) -> Float[Tensor, ""]:
    """L_GRPO(R) = -J_GRPO(R), Eq. app-grpo-objective, with `weights` from `trajectory_weights` and beta as `kl_weight`.

    The KL is averaged like the surrogate, over the actions of each trajectory and then over trajectories, which the
    paper leaves open and TRL's `loss_type="grpo"` does.
    """
    return -(weights * surrogate).sum() + kl_weight * (weights * kl).sum()


def anchor_loss(
    surrogate: Float[Tensor, "batch actions"], weights: Float[Tensor, "batch actions"]
) -> Float[Tensor, ""]:
    """L_anch, Eq. app-operator-anchor-loss, with `weights` from `anchor_weights`; 0 when no operator was invoked."""
    return -(weights * surrogate).sum()


@dataclass(frozen=True)
class Stage2Terms:
    """L_stage2 and its parts; `loss` carries the gradient, the others are detached.

    Every field is a weighted sum over actions: over the micro-batches of a batch, add them up.
    `kl` is the unweighted KL (nats per action) and `clip_share` the share of actions where the clip binds, both
    averaged like the loss; `operator_clip_share` averages over operator invocations like the anchor loss.
    """

    loss: Float[Tensor, ""]
    grpo: Float[Tensor, ""]
    anchor: Float[Tensor, ""]
    kl: Float[Tensor, ""]
    clip_share: Float[Tensor, ""]
    operator_clip_share: Float[Tensor, ""]


def stage2_loss(
    logprobs: Float[Tensor, "batch actions"],
    old_logprobs: Float[Tensor, "batch actions"],
    reference_logprobs: Float[Tensor, "batch actions"],
    advantages: Float[Tensor, " batch"],
    weights: ActionWeights,
    *,
    clip_range: float,
    kl_weight: float,
    anchor_weight: float,
) -> Stage2Terms:
    """L_stage2 = L_GRPO(R) + alpha L_anch, Eq. app-stage2-control-loss, with alpha as `anchor_weight`.

    Log-probabilities are of the chosen actions under the policy (with gradient), the sampling policy and the reference;
    what they hold outside `weights.mask` is ignored. With `kl_weight` 0 the reference does not matter: pass
    `old_logprobs` and save its forward pass.
    """
    logprobs = torch.where(weights.mask, logprobs, 0)
    ratio = importance_ratio(logprobs, torch.where(weights.mask, old_logprobs, 0))
    kl = kl_k3(logprobs, torch.where(weights.mask, reference_logprobs, 0))
    surrogate = clipped_surrogate(ratio, advantages, clip_range)
    grpo = grpo_loss(surrogate, kl, weights.grpo, kl_weight)
    anchor = anchor_loss(surrogate, weights.anchor)
    clipped = clipped_actions(ratio.detach(), advantages, clip_range)
    return Stage2Terms(
        loss=grpo + anchor_weight * anchor,
        grpo=grpo.detach(),
        anchor=anchor.detach(),
        kl=(weights.grpo * kl.detach()).sum(),
        clip_share=(weights.grpo * clipped).sum(),
        operator_clip_share=(weights.anchor * clipped).sum(),
    )


# ------------------------------------------------------------------------------------------------ log-probabilities


Chunk = TypeVar("Chunk")
"""What is computed of one chunk of positions."""


class ChosenLogprobs(NamedTuple):
    """log p of each chosen action over V' (with gradient), and the entropy of its distribution (detached), in nats."""

    logprobs: Float[Tensor, " positions"]
    entropy: Float[Tensor, " positions"]


def chosen_logprobs(
    hidden: Float[Tensor, "positions dim"],
    head_weight: Float[Tensor, "vocab dim"],
    operator_rows: Float[Tensor, "operators dim"] | None,
    actions: Int[Tensor, " positions"],
    allowed: Bool[Tensor, "positions operators"] | None,
    *,
    temperature: float = 1.0,
    chunk_size: int | None = None,
) -> ChosenLogprobs:
    """log p_{theta,psi}(a_t | x_t) over V' = V + K without ever holding all logits (Section 3.3, Eq. app-grpo-ratio).

    `hidden` is the state that predicts the action, after the final norm; the head must have no bias. `operator_rows` is
    psi: operator k has action id V + k. `allowed` says which operators each position could choose; the others get -inf
    before the softmax, as in the rollout. Both are None where there are no operators (Stage 1, plain baselines).
    An action that was not allowed comes back as -inf: the masks of replay and rollout differ.

    Logits exist for `chunk_size` positions at a time (None: `positions_at_once`), forward and backward (each chunk but
    the last is recomputed in the backward pass). As in `Policy.logits`, the head's product is of numbers in its stored
    dtype (under autocast in that of autocast) and never rounded to it (`wide_product`), and psi's is in float32 or
    wider, so that a replayed log-probability is the sampled one. Gradients reach `hidden` and psi exactly as without
    chunks; psi's is accumulated in float32 or wider.
    Raises ValueError for a temperature or chunk size that is not positive, and for psi without masks or the reverse.
    """
    _check(temperature, chunk_size)
    if (operator_rows is None) != (allowed is None):
        raise ValueError("operator_rows (psi) and allowed go together: give both, or None for both where V' is V")
    hidden, head_weight = _in_autocast(hidden, head_weight)
    dtype = torch.promote_types(hidden.dtype, torch.float32)
    if operator_rows is None or allowed is None:
        operator_rows = head_weight.new_empty(0, head_weight.shape[1])
        allowed = torch.empty(len(actions), 0, dtype=torch.bool, device=hidden.device)
    rows = operator_rows.to(dtype)
    size = chunk_size or positions_at_once(len(head_weight) + len(rows))
    pieces = _in_chunks(_chunk_logprobs, (hidden, actions, allowed), size, head_weight, rows, temperature)
    return ChosenLogprobs(*(torch.cat(parts) for parts in zip(*pieces, strict=True)))


def token_logprobs(
    hidden: Float[Tensor, "positions dim"],
    head_weight: Float[Tensor, "vocab dim"],
    tokens: Int[Tensor, " positions"],
    *,
    temperature: float = 1.0,
    chunk_size: int | None = None,
) -> Float[Tensor, " positions"]:
    """log p_theta(y_t) over V, in float32 or wider: `chosen_logprobs` without operators, bit by bit, and no entropy.

    Raises ValueError for a temperature or chunk size that is not positive.
    """
    _check(temperature, chunk_size)
    hidden, head_weight = _in_autocast(hidden, head_weight)
    size = chunk_size or positions_at_once(len(head_weight))
    return torch.cat(_in_chunks(_chunk_token_logprobs, (hidden, tokens), size, head_weight, temperature))


def _check(temperature: float, chunk_size: int | None) -> None:
    """Raise ValueError for a temperature or a chunk size that is not positive."""
    if temperature <= 0:
        raise ValueError(f"temperature must be above 0, got {temperature}; greedy decoding has no log-probabilities")
    if chunk_size is not None and chunk_size < 1:
        raise ValueError(f"chunk_size must be at least 1 position, got {chunk_size}")


def _in_autocast(hidden: Tensor, head_weight: Tensor) -> tuple[Tensor, Tensor]:
    """Both in the dtype of autocast, where that is on: once, and not in every chunk."""
    if not torch.is_autocast_enabled(hidden.device.type):
        return hidden, head_weight
    lower = torch.get_autocast_dtype(hidden.device.type)
    return hidden.to(lower), head_weight.to(lower)


def _in_chunks(compute: Callable[..., Chunk], wholes: tuple[Tensor, ...], size: int, *shared: object) -> list[Chunk]:
    """What `compute` gives of `size` positions at a time. Each chunk is computed again in the backward pass, but the
    last: that pass begins with it, when no other logits exist.
    """
    *chunks, last = zip(*(torch.split(whole, size) for whole in wholes), strict=True)
    recomputed = [
        cast(Chunk, checkpoint(compute, *chunk, *shared, use_reentrant=False, preserve_rng_state=False))
        for chunk in chunks
    ]
    return [*recomputed, compute(*last, *shared)]


def _chunk_token_logprobs(
    hidden: Float[Tensor, "chunk dim"],
    tokens: Int[Tensor, " chunk"],
    head_weight: Float[Tensor, "vocab dim"],
    temperature: float,
) -> Float[Tensor, " chunk"]:
    """Log-probability of the token at each position of one chunk."""
    logits = wide_product(hidden, head_weight)
    logprobs = torch.log_softmax(logits.div_(temperature), dim=1)
    del logits
    return logprobs.gather(1, tokens.unsqueeze(1)).squeeze(1)


def _chunk_logprobs(
    hidden: Float[Tensor, "chunk dim"],
    actions: Int[Tensor, " chunk"],
    allowed: Bool[Tensor, "chunk operators"],
    head_weight: Float[Tensor, "vocab dim"],
    operator_rows: Float[Tensor, "operators dim"],
    temperature: float,
) -> tuple[Float[Tensor, " chunk"], Float[Tensor, " chunk"]]:
    """Log-probability of the action and entropy at each position of one chunk."""
    tokens = wide_product(hidden, head_weight)
    operators = (hidden.to(operator_rows.dtype) @ operator_rows.T).masked_fill(~allowed, -torch.inf)
    logits = torch.cat((tokens.to(operators.dtype), operators), dim=1)
    del tokens
    logprobs = torch.log_softmax(logits.div_(temperature), dim=1)
    del logits
    chosen = logprobs.gather(1, actions.unsqueeze(1)).squeeze(1)
    # Last, because checkpointing recomputes only up to the last tensor that the backward pass needs; and in place,
    # because these tensors are the largest of a training step. 0 log 0, of an operator that was not allowed, is 0.
    probabilities = logprobs.detach().exp()
    entropy = -probabilities.mul_(logprobs.detach()).nan_to_num_(0.0).sum(dim=1)
    return chosen, entropy
