"""The loss of Stage 1 and the log-probabilities of both stages (paper, Section 4 and its appendix), torch only.

An action is a token or an operator invocation; its id lies in V' = V + K. Latents are neither actions nor targets.
The losses of Stage 2 are in `policy_losses.py`.
"""

from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tyler.config.sizes import positions_at_once
from tyler.modeling.products import wide_product


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
    the batch mean.
    """
    # Deviation: the paper sums over t, so long traces weigh more and the loss grows with the batch; we divide by the
    # number of targets in the batch, which keeps every target's weight equal and the learning rate comparable.
    return stage1_sum(logprobs, mask) / num_targets


def chosen_logprobs(
    hidden: Float[Tensor, "positions dim"],
    head_weight: Float[Tensor, "vocab dim"],
    operator_rows: Float[Tensor, "operators dim"],
    actions: Int[Tensor, " positions"],
    allowed: Bool[Tensor, "positions operators"],
    *,
    temperature: float = 1.0,
    chunk_size: int | None = None,
) -> tuple[Float[Tensor, " positions"], Float[Tensor, " positions"]]:
    """log p_{theta,psi}(a_t | x_t) over V' = V + K without ever holding all logits (Section 3.3, Eq. app-grpo-ratio),
    with gradient, and the entropy of the distribution, detached; in nats.

    `hidden` is the state that predicts the action, after the final norm; the head must have no bias. `operator_rows` is
    psi: operator k has action id V + k. `allowed` says which operators each position could choose; the others get -inf
    before the softmax, as in the rollout. An action that was not allowed comes back as -inf: the masks of replay and
    rollout differ.

    Logits exist for `chunk_size` positions at a time (None: `positions_at_once`), and once: a position's gradient is
    known up to a factor when its logits are. As in `Policy.logits`, the head's product is of numbers in its stored
    dtype (under autocast in that of autocast) and never rounded to it (`wide_product`), and psi's is in float32 or
    wider, so that a replayed log-probability is the sampled one. Gradients reach `hidden` and psi.
    """
    if torch.is_autocast_enabled(hidden.device.type):  # once, and not in every chunk
        lower = torch.get_autocast_dtype(hidden.device.type)
        hidden, head_weight = hidden.to(lower), head_weight.to(lower)
    rows = operator_rows.to(torch.promote_types(hidden.dtype, torch.float32))
    size = chunk_size or positions_at_once(len(head_weight) + len(rows))
    return _ChosenLogprobs.apply(hidden, rows, actions, allowed, head_weight, temperature, size)


def token_logprobs(
    hidden: Float[Tensor, "positions dim"],
    head_weight: Float[Tensor, "vocab dim"],
    tokens: Int[Tensor, " positions"],
    *,
    temperature: float = 1.0,
) -> Float[Tensor, " positions"]:
    """log p_theta(y_t) over V, in float32 or wider: `chosen_logprobs` without operators."""
    psi, allowed = head_weight.new_empty(0, head_weight.shape[1]), tokens.new_empty(len(tokens), 0, dtype=torch.bool)
    return chosen_logprobs(hidden, head_weight, psi, tokens, allowed, temperature=temperature)[0]


class _ChosenLogprobs(torch.autograd.Function):
    """`chosen_logprobs` in chunks, with every position's gradient by its state and by the operators' logits."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        rows: Tensor,
        actions: Tensor,
        allowed: Tensor,
        head: Tensor,
        temperature: float,
        size: int,
    ) -> tuple[Tensor, Tensor]:
        learns = any(ctx.needs_input_grad[:2])
        parts = [
            _of_chunk(*chunk, head, rows, temperature, learns)
            for chunk in zip(hidden.split(size), actions.split(size), allowed.split(size), strict=True)
        ]
        logprobs, entropy, *slopes = (torch.cat(part) for part in zip(*parts, strict=True))
        ctx.save_for_backward(hidden, *slopes)
        ctx.mark_non_differentiable(entropy)
        return logprobs, entropy

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        hidden, by_state, by_operator = ctx.saved_tensors
        gradient = gradients[0][:, None]
        of_rows = (gradient * by_operator).T @ hidden.to(by_operator.dtype)
        return (gradient * by_state).to(hidden.dtype), of_rows, *[None] * 5


def _of_chunk(
    hidden: Float[Tensor, "chunk dim"],
    actions: Int[Tensor, " chunk"],
    allowed: Bool[Tensor, "chunk operators"],
    head: Float[Tensor, "vocab dim"],
    rows: Float[Tensor, "operators dim"],
    temperature: float,
    learns: bool,
) -> tuple[Tensor, ...]:
    """Log-probability and entropy at each position and, where something `learns`, the slopes of the first by the state
    and by the operators' logits; in place, for these are the largest tensors of a training step."""
    logits, vocab = wide_product(hidden, head), len(head)
    if len(rows):
        operators = (hidden.to(rows.dtype) @ rows.T).masked_fill_(~allowed, -torch.inf)
        logits = torch.cat((logits.to(rows.dtype), operators), dim=1)
    logprobs = torch.log_softmax(logits.div_(temperature), dim=1)
    del logits
    chosen = logprobs.gather(1, actions[:, None])
    slope = logprobs.exp()
    entropy = -logprobs.mul_(slope).nan_to_num_(0.0).sum(dim=1)  # 0 log 0, of an operator that is not allowed, is 0
    if not learns:
        return chosen.squeeze(1), entropy
    slope.neg_().scatter_add_(1, actions[:, None], torch.ones_like(chosen)).div_(temperature)
    by_operator = slope[:, vocab:].masked_fill(~allowed, 0.0)
    by_state = (slope[:, :vocab].to(head.dtype) @ head).to(rows.dtype) + by_operator @ rows
    return chosen.squeeze(1), entropy, by_state, by_operator
