"""The loss of Stage 1 and the log-probabilities of both stages (paper, Section 4 and its appendix), torch only.

An action is a token or an operator invocation; its id lies in V' = V + K. Latents are neither actions nor targets.
The losses of Stage 2 are in `policy_losses.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from tyler.config.sizes import positions_at_once
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
    found: Tensor = _TokenLogprobs.apply(hidden, tokens, head_weight, temperature, size)
    return found


class _TokenLogprobs(torch.autograd.Function):
    """`token_logprobs`, whose gradient to each position is known up to a factor when its logits are: they exist once,
    for one chunk at a time, and nothing of them is kept.
    """

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, tokens: Tensor, head: Tensor, temperature: float, size: int) -> Tensor:
        wanted, chosen, slopes = ctx.needs_input_grad[0], [], []
        for part, token in zip(hidden.split(size), tokens.split(size), strict=True):
            logprobs = torch.log_softmax(wide_product(part, head).div_(temperature), dim=1)
            token = token[:, None]
            chosen.append(logprobs.gather(1, token).squeeze(1))
            if wanted:
                slope = logprobs.exp_().neg_()
                slope.scatter_add_(1, token, torch.ones_like(token, dtype=slope.dtype))
                slopes.append(slope.to(head.dtype) @ head)
        if wanted:
            ctx.save_for_backward(torch.cat(slopes).div_(temperature))
        return torch.cat(chosen)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None, None]:
        (slopes,), (gradient,) = ctx.saved_tensors, gradients
        return (gradient[:, None] * slopes).to(slopes.dtype), None, None, None, None


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
