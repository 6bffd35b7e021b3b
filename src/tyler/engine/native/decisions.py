"""The decision of a step: p(a_t | x_t) as each row may choose, and what it draws, repeats, and is told."""

from __future__ import annotations

from collections.abc import Sequence

from jaxtyping import Float
from torch import Tensor

from tyler.engine.logits import drawn
from tyler.engine.native.packing import fits_twice, packed_weight
from tyler.engine.native.row import Decision
from tyler.engine.sampling import constants, masked_logits, operator_probs
from tyler.engine.soft_sampling import Choice, Sampler, Top
from tyler.modeling.policy import Policy


class LmHead:
    """The policy's logits as decoding computes them: those over V by a packed weight where there is one."""

    def __init__(self, policy: Policy) -> None:
        self._policy, weight = policy, policy.head
        self.vocab_size = len(weight)
        self._packed = packed_weight(weight.detach(), [weight]) if fits_twice([weight]) else None

    def token_logits(self, hidden: Float[Tensor, "rows dim"]) -> Float[Tensor, "rows vocab"]:
        """Logits over V in float32."""
        return self._policy.token_logits(hidden) if self._packed is None else self._packed.wide_product(hidden)

    def logits(self, hidden: Float[Tensor, "rows dim"]) -> Float[Tensor, "rows actions"]:
        """Logits over V' in float32."""
        return self._policy.with_operators(self.token_logits(hidden), hidden)


def decide(lm_head: LmHead, hidden: Float[Tensor, "rows dim"], decisions: Sequence[Decision]) -> list[Choice]:
    """a_t and log p(a_t | x_t) of every decision; a request's own sampler chooses by its own rule."""
    groups: dict[Sampler | None, list[int]] = {}
    for place, decision in enumerate(decisions):
        groups.setdefault(decision.row.request.sampler, []).append(place)
    found: dict[int, Choice] = {}
    for sampler, places in groups.items():
        own, states = [decisions[place] for place in places], hidden if len(groups) == 1 else hidden[places]
        if sampler is None:
            choices = chosen(lm_head, states, own)
        else:
            rows, logits = [one.row for one in own], lm_head.token_logits(states)
            memories, numbers = [row.sampler_state for row in rows], [row.uniforms.take() for row in rows]
            choices = sampler.choose(logits, memories, numbers)
        found.update(zip(places, choices, strict=True))
    return [found[place] for place in range(len(decisions))]


def chosen(lm_head: LmHead, hidden: Float[Tensor, "rows dim"], decisions: Sequence[Decision]) -> list[Choice]:
    """An action in V' each, greedy or sampled, from masked logits at the row's temperature.

    Among its alternatives an action has the very number that it has alone, which may be rounded otherwise.
    """
    logits, rows = logits_of(lm_head, hidden, decisions), [decision.row for decision in decisions]
    taken = [decision.taken for decision in decisions]
    states = [row.logit_state if one is None else None for row, one in zip(rows, taken, strict=True)]
    numbers = [row.uniforms.take() if one is None else 0.0 for row, one in zip(rows, taken, strict=True)]
    actions, logprobs = drawn(logits, states, [row.request.sampling for row in rows], numbers, taken)
    if any(row.reports for row in rows):
        table = operator_probs(logits, logits.shape[-1] - lm_head.vocab_size).tolist()
        for row, probs in zip(rows, table, strict=True):
            row.report(probs)
    tops = alternatives(logits, lm_head.vocab_size, [row.request.top_logprobs for row in rows])
    return [
        Choice(action, logprob, top=tuple((id, logprob if id == action else other) for id, other in top))
        for action, logprob, top in zip(actions.tolist(), logprobs.tolist(), tops, strict=True)
    ]


def alternatives(logits: Float[Tensor, "rows actions"], vocab_size: int, wanted: Sequence[int]) -> list[Top]:
    """So many of the most probable tokens as each row asks for, with log p under what they are drawn from."""
    if not (most := max(wanted)):
        return [()] * len(wanted)
    found = logits.log_softmax(dim=-1)[:, :vocab_size].topk(min(most, vocab_size), dim=-1)
    pairs = zip(wanted, found.indices.tolist(), found.values.tolist(), strict=True)
    return [tuple(zip(ids, values, strict=True))[:count] for count, ids, values in pairs]


def logits_of(
    lm_head: LmHead, hidden: Float[Tensor, "rows dim"], decisions: Sequence[Decision]
) -> Float[Tensor, "rows actions"]:
    """Logits over V' at each row's temperature; operators only where the row's policy may invoke them.

    Where no row may, logits over V: the rest would be -inf.
    """
    allowed = tuple(decision.allowed for decision in decisions)
    scales = tuple(decision.row.request.sampling.scale for decision in decisions)
    if any(map(any, allowed)):
        device = hidden.device
        return masked_logits(lm_head.logits(hidden), constants(allowed, device), constants(scales, device))
    logits = lm_head.token_logits(hidden)
    return logits if set(scales) == {1.0} else logits / constants(scales, hidden.device)[:, None]
