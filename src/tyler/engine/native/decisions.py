"""A decision of some rows: p(a_t | x_t) as each row may choose, and what it chose, is told, or repeats."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from tyler.engine.logits import adjusted
from tyler.engine.native.packing import fits_twice, packed_weight
from tyler.engine.request_state import RequestState
from tyler.engine.sampling import choose, constants, logprobs_of, masked_logits, operator_probs
from tyler.modeling.policy import Policy


class LmHead:
    """The policy's logits as decoding computes them: those over V by a packed weight where there is one."""

    def __init__(self, policy: Policy) -> None:
        self._policy, weight = policy, policy.head
        self._packed = packed_weight(weight.detach(), [weight]) if fits_twice([weight]) else None

    def token_logits(self, hidden: Float[Tensor, "rows dim"]) -> Float[Tensor, "rows vocab"]:
        """Logits over V in float32."""
        return self._policy.token_logits(hidden) if self._packed is None else self._packed.wide_product(hidden)

    def logits(self, hidden: Float[Tensor, "rows dim"]) -> Float[Tensor, "rows actions"]:
        """Logits over V' in float32."""
        return self._policy.with_operators(self.token_logits(hidden), hidden)


def logits_of(
    lm_head: LmHead, hidden: Float[Tensor, "rows dim"], rows: Sequence[RequestState]
) -> Float[Tensor, "rows actions"]:
    """Logits over V' at each row's temperature; operators only where the row's policy may invoke them.

    Where no row may, logits over V: the rest would be -inf.
    """
    allowed = tuple(row.allowed for row in rows)
    scales = tuple(row.request.sampling.scale for row in rows)
    if any(map(any, allowed)):
        device = hidden.device
        return masked_logits(lm_head.logits(hidden), constants(allowed, device), constants(scales, device))
    logits = lm_head.token_logits(hidden)
    return logits if set(scales) == {1.0} else logits / constants(scales, hidden.device)[:, None]


def decide(
    logits: Float[Tensor, "rows actions"], rows: Sequence[RequestState], vocab_size: int
) -> tuple[list[int], list[float]]:
    """a_t and log p(a_t | x_t) of each row, noted where it is on a branch or wants to be told p(operator)."""
    chosen_by = adjusted(logits, [row.logit_state for row in rows])
    actions, logprobs = choose(chosen_by, [row.request.sampling for row in rows], [row.uniforms.take() for row in rows])
    repeated = [None if row.branch is None else row.branch.next for row in rows]
    if any(action is not None for action in repeated):
        chosen = zip(repeated, actions.tolist(), strict=True)
        actions = torch.tensor([own if other is None else other for other, own in chosen], device=logits.device)
    if chosen_by is not logits or any(action is not None for action in repeated):
        logprobs = logprobs_of(logits, actions)
    if any(row.reports for row in rows):
        table = operator_probs(logits, logits.shape[-1] - vocab_size).tolist()
        for row, probs in zip(rows, table, strict=True):
            row.report(probs)
    note_alternatives(logits, rows, vocab_size)
    for row in rows:
        if row.branch is not None:
            row.branch.advance()
    return actions.tolist(), logprobs.tolist()


def note_alternatives(logits: Float[Tensor, "rows actions"], rows: Sequence[RequestState], vocab_size: int) -> None:
    """Note the most probable tokens where rows ask for them, with log p under what they are drawn from."""
    if most := max(row.request.top_logprobs for row in rows):
        found = logits.log_softmax(dim=-1)[:, :vocab_size].topk(min(most, vocab_size), dim=-1)
        for row, ids, values in zip(rows, found.indices.tolist(), found.values.tolist(), strict=True):
            row.top = tuple(zip(ids, values, strict=True))[: row.request.top_logprobs]
