"""The decision of a step: p(a_t | x_t) as each row may choose, and what it draws, repeats, and is told."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from tyler.engine.logits import drawn
from tyler.engine.native.packing import fits_twice, packed_weight
from tyler.engine.native.row import Decision
from tyler.engine.sampling import Choice, Top, logprobs_of, masked_logits
from tyler.modeling.policy import Policy


class LmHead:
    """The policy's logits as decoding computes them: those over V by a packed weight where there is one."""

    def __init__(self, policy: Policy) -> None:
        self.policy, weight = policy, policy.head
        self.vocab_size = len(weight)
        self._packed = packed_weight(weight.detach(), [weight]) if fits_twice([weight]) else None

    def token_logits(self, hidden: Float[Tensor, "rows dim"]) -> Float[Tensor, "rows vocab"]:
        return self.policy.token_logits(hidden) if self._packed is None else self._packed.wide_product(hidden)


def decide(lm_head: LmHead, hidden: Float[Tensor, "rows dim"], decisions: Sequence[Decision]) -> list[Choice]:
    """a_t and log p(a_t | x_t) of every decision: an action in V', greedy or sampled, at the row's temperature, among
    tokens and the operators that its policy may invoke. A request's own sampler may choose otherwise.

    Among its alternatives an action has the very number that it has alone, which may be rounded otherwise.
    """
    rows, taken = [one.row for one in decisions], [one.taken for one in decisions]
    logits, scaled = logits_of(lm_head, hidden, decisions)
    states = [row.logit_state if one is None else None for row, one in zip(rows, taken, strict=True)]
    numbers = [row.random.random() if one is None else 0.0 for row, one in zip(rows, taken, strict=True)]
    actions, logprobs = drawn(scaled, states, [row.request.sampling for row in rows], numbers, taken)
    tops = alternatives(scaled, lm_head.vocab_size, [row.request.top_logprobs for row in rows])
    choices = [
        Choice(action, logprob=logprob, top=tuple((id, logprob if id == action else other) for id, other in top))
        for action, logprob, top in zip(actions.tolist(), logprobs.tolist(), tops, strict=True)
    ]
    if any(row.reports for row in rows):
        table = scaled.softmax(dim=-1)[:, lm_head.vocab_size :].tolist()  # 0 for those that are masked
        told = zip(choices, rows, table, strict=True)
        choices = [replace(choice, operator_probs=row.reported(probs)) for choice, row, probs in told]
    for sampler in {one for row in rows if (one := row.request.sampler) is not None}:
        places = [place for place, row in enumerate(rows) if row.request.sampler == sampler]
        memories, plain = [rows[place].sampler_state for place in places], [choices[place].action for place in places]
        own = sampler.choose(logits[places, : lm_head.vocab_size], memories, plain)
        found = logprobs_of(scaled[places], torch.tensor([one.action for one in own], device=logits.device))
        for place, choice, logprob in zip(places, own, found.tolist(), strict=True):
            choices[place] = replace(choice, logprob=logprob)
    return choices


def logits_of(
    lm_head: LmHead, hidden: Float[Tensor, "rows dim"], decisions: Sequence[Decision]
) -> tuple[Float[Tensor, "rows actions"], Float[Tensor, "rows actions"]]:
    """Logits over V' at temperature 1, for samplers, and at each row's; over V where no policy may invoke operators."""
    allowed = tuple(decision.allowed for decision in decisions)
    scales = tuple(decision.row.request.sampling.scale for decision in decisions)
    logits = lm_head.token_logits(hidden)
    if any(map(any, allowed)):
        logits = lm_head.policy.with_operators(logits, hidden)
    kept = any(decision.row.request.sampler for decision in decisions)
    return logits, masked_logits(logits, lm_head.vocab_size, allowed, scales, None if kept else logits)


def alternatives(logits: Float[Tensor, "rows actions"], vocab_size: int, wanted: Sequence[int]) -> list[Top]:
    """So many of the most probable tokens as each row asks for, with log p under what they are drawn from."""
    if not (most := max(wanted)):
        return [()] * len(wanted)
    found = logits.log_softmax(dim=-1)[:, :vocab_size].topk(min(most, vocab_size), dim=-1)
    pairs = zip(wanted, found.indices.tolist(), found.values.tolist(), strict=True)
    return [tuple(zip(ids, values, strict=True))[:count] for count, ids, values in pairs]
