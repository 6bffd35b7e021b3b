"""p(operator) of every decision, as the engine tells it where it is asked."""

from __future__ import annotations

import pytest
import torch
from tests import tiny

from tyler.engine.request import Event, FinishEvent, InvocationEvent, Request, TokenEvent
from tyler.engine.routing import AtBoundaries, Learned
from tyler.engine.sampling import Sampling, masked_logits
from tyler.engine.trajectory import Trajectory
from tyler.model import Tyler
from tyler.training.replay import replay_context


@pytest.fixture(scope="module")
def model() -> Tyler:
    return tiny.build("qwen3", tiny.SEEDS["qwen3"], psi_scale=0.7)


def requests(model: Tyler) -> list[Request]:
    """Some that ask to be told, of every kind, and one that does not."""
    samplings = (Sampling(), Sampling(0.8, seed=1), Sampling(1.3, top_p=0.9, seed=2))
    prompt = model.request(tiny.MEDIUM).prompt_ids
    told = [Request(prompt, Learned(), one, budget=2, max_new_tokens=30, operator_probs=True) for one in samplings]
    return [*told, Request(prompt, Learned(), Sampling(), max_new_tokens=30)]


@torch.no_grad()
def teacher_forced(model: Tyler, answer: Trajectory) -> torch.Tensor:
    """p(operator) at every action, from one plain pass over the finished answer."""
    embeds, decided_at = replay_context(answer, model.backbone.embed, model.backbone.device)
    hidden = model.policy.decoder(inputs_embeds=embeds[None], use_cache=False).last_hidden_state[0, decided_at]
    allowed, scales = map(tuple, answer.allowed().tolist()), (answer.sampling.scale,) * len(decided_at)
    logits = masked_logits(model.policy.logits(hidden), answer.vocab_size, tuple(allowed), scales)
    return logits.softmax(dim=-1)[:, answer.vocab_size :]


def test_the_probabilities_are_those_of_a_plain_pass(model: Tyler) -> None:
    *told, untold = model.engine().run(requests(model))
    assert untold.operator_probs == []
    for answer in told:
        found = torch.tensor(answer.operator_probs)
        torch.testing.assert_close(found, teacher_forced(model, answer), rtol=0, atol=2e-5)
        assert found.max() > 0.05 and answer.num_invocations == 2, "or the test shows little"
        assert (found[answer.invocations[-1].action + 1 :] == 0).all(), "the budget is spent"


def test_an_invocation_has_the_probability_that_it_was_drawn_with(model: Tyler) -> None:
    for answer in model.engine().run(requests(model)[:3]):
        for call in answer.invocations:
            probability = answer.operator_probs[call.action][answer.actions[call.action] - answer.vocab_size]
            assert probability == pytest.approx(torch.tensor(answer.logprobs[call.action]).exp().item(), rel=1e-4)


def test_events_tell_what_the_trajectory_keeps(model: Tyler) -> None:
    heard: dict[int, list[Event]] = {}
    for event in model.engine().stream(requests(model)):
        heard.setdefault(event.index, []).append(event)
    for events in heard.values():
        *events, end = events
        assert isinstance(end, FinishEvent)
        told = [event.operator_probs for event in events if isinstance(event, TokenEvent | InvocationEvent)]
        kept = end.trajectory.operator_probs or [()] * len(told)
        assert told == kept[: len(told)]


def test_asking_changes_no_answer(model: Tyler) -> None:
    asked = requests(model)[1]
    silent = Request(asked.prompt_ids, asked.router, asked.sampling, asked.budget, asked.max_new_tokens)
    (told,), (untold,) = model.engine().run([asked]), model.engine().run([silent])
    assert told.actions == untold.actions and told.logprobs == untold.logprobs


def test_a_fixed_router_decides_and_so_nothing_is_told(model: Tyler) -> None:
    prompt = model.request(tiny.MEDIUM).prompt_ids
    (answer,) = model.engine().run([Request(prompt, AtBoundaries(), max_new_tokens=20, operator_probs=True)])
    assert answer.invocations and answer.operator_probs == []
