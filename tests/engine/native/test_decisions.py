"""p(operator) of every decision, as the engine tells it where it is asked."""

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
    with_probs = [
        Request(prompt, Learned(), sampling, budget=2, max_new_tokens=30, operator_probs=True) for sampling in samplings
    ]
    return [*with_probs, Request(prompt, Learned(), Sampling(), max_new_tokens=30)]


@torch.no_grad()
def teacher_forced(model: Tyler, answer: Trajectory) -> torch.Tensor:
    """p(operator) at every action, from one plain pass over the finished answer."""
    embeds, decided_at = replay_context(answer, model.backbone.embed, model.backbone.device)
    hidden = model.policy.decoder(inputs_embeds=embeds[None], use_cache=False).last_hidden_state[0, decided_at]
    allowed, scales = map(tuple, answer.allowed().tolist()), (answer.sampling.scale,) * len(decided_at)
    logits = masked_logits(model.policy.logits(hidden), answer.vocab_size, tuple(allowed), scales)
    return logits.softmax(dim=-1)[:, answer.vocab_size :]


def test_the_probabilities_are_those_of_a_plain_pass(model: Tyler) -> None:
    *with_probs, untold = model.engine().run(requests(model))
    assert untold.operator_probs == []
    for answer in with_probs:
        probs = torch.tensor(answer.operator_probs)
        torch.testing.assert_close(probs, teacher_forced(model, answer), rtol=0, atol=2e-5)
        assert probs.max() > 0.05 and answer.num_invocations == 2, "or the test shows little"
        assert (probs[answer.invocations[-1].action + 1 :] == 0).all(), "the budget is spent"


def test_events_tell_what_the_trajectory_keeps(model: Tyler) -> None:
    heard: dict[int, list[Event]] = {}
    for event in model.engine().stream(requests(model)):
        heard.setdefault(event.index, []).append(event)
    for events in heard.values():
        *events, end = events
        assert isinstance(end, FinishEvent)
        probs = [event.operator_probs for event in events if isinstance(event, TokenEvent | InvocationEvent)]
        kept = end.trajectory.operator_probs or [()] * len(probs)
        assert probs == kept[: len(probs)]


def test_asking_changes_no_answer(model: Tyler) -> None:
    request = requests(model)[1]
    silent = Request(request.prompt_ids, request.router, request.sampling, request.budget, request.max_new_tokens)
    (with_probs,), (untold,) = model.engine().run([request]), model.engine().run([silent])
    assert with_probs.actions == untold.actions and with_probs.logprobs == untold.logprobs


def test_a_fixed_router_decides_and_so_nothing_is_told(model: Tyler) -> None:
    prompt = model.request(tiny.MEDIUM).prompt_ids
    (answer,) = model.engine().run([Request(prompt, AtBoundaries(), max_new_tokens=20, operator_probs=True)])
    assert answer.invocations and answer.operator_probs == []
