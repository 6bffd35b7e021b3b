"""Replay without one invocation: the answer is the same up to it, and the model's own after it."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from tests import tiny

from tyler.boundaries.placement import Call, Schedule
from tyler.engine.request import Request
from tyler.engine.routing import AtBoundaries, Forced, Learned, Router
from tyler.engine.sampling import Sampling
from tyler.engine.trajectory import Trajectory
from tyler.model import Tyler
from tyler.modeling.operators import Operator

ROUTERS = (Learned(), AtBoundaries(), AtBoundaries(rate=0.5))


@pytest.fixture(scope="module")
def model() -> Tyler:
    return tiny.build("smollm3", tiny.SEEDS["smollm3"], psi_scale=0.7)


def request_of(model: Tyler, router: Router, sampling: Sampling, **more: object) -> Request:
    return Request(model.request(tiny.ODD).prompt_ids, router, sampling, max_new_tokens=24, **more)  # type: ignore[arg-type]


def branches(model: Tyler, answer: Trajectory, router: Router) -> list[Trajectory]:
    """The answer without each of its invocations, decoded beside each other."""
    starts = [tuple(answer.actions[: call.action]) for call in answer.invocations]
    return model.engine().run([request_of(model, router, answer.sampling, branch=start) for start in starts])


@pytest.mark.parametrize("router", ROUTERS, ids=repr)
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_branch_is_the_answer_up_to_the_call_and_then_has_no_such_call(
    router: Router, temperature: float, model: Tyler
) -> None:
    (answer,) = model.engine().run([request_of(model, router, Sampling(temperature, seed=1))])
    assert answer.invocations, "or the test shows nothing"
    for number, (call, branch) in enumerate(zip(answer.invocations, branches(model, answer, router), strict=True)):
        assert branch.actions[: call.action] == answer.actions[: call.action]
        assert branch.invocations[:number] == answer.invocations[:number]
        assert not router.learned or not branch.is_operator[call.action]
        assert call not in branch.invocations
        torch.testing.assert_close(branch.logprobs[: call.action], answer.logprobs[: call.action], rtol=0, atol=1e-4)
        for mine, its in zip(branch.latents, answer.latents[:number], strict=False):
            torch.testing.assert_close(mine, its, rtol=1e-4, atol=1e-4)


@dataclass(frozen=True)
class Without:
    """A fixed router whose call of one number is not made: what a branch under it should be."""

    router: Router
    number: int
    learned: bool = field(default=False, init=False)

    def start(self, operators: Sequence[Operator], random: np.random.Generator) -> Schedule:
        schedule, calls = self.router.start(operators, random), itertools.count()
        plain = schedule.due

        def kept() -> Call | None:
            call = plain()
            return kept() if call is not None and next(calls) == self.number else call

        schedule.due = kept  # type: ignore[method-assign]
        return schedule


@pytest.mark.parametrize("router", ROUTERS[1:], ids=repr)
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_behind_the_call_a_fixed_router_does_what_it_would_without_it(
    router: Router, temperature: float, model: Tyler
) -> None:
    (answer,) = model.engine().run([request_of(model, router, Sampling(temperature, seed=1))])
    for number, branch in enumerate(branches(model, answer, router)):
        (plain,) = model.engine().run([request_of(model, Without(router, number), answer.sampling)])
        assert plain.actions == branch.actions and plain.invocations == branch.invocations


def test_behind_the_call_a_policy_says_what_it_would_with_the_calls_that_are_left(model: Tyler) -> None:
    (answer,) = model.engine().run([request_of(model, Learned(), Sampling())])
    for branch in branches(model, answer, Learned()):
        calls: dict[int, tuple[str, ...]] = {}
        for call in branch.invocations:
            calls[call.position] = (*calls.get(call.position, ()), call.operator)
        (plain,) = model.engine().run([request_of(model, Forced(calls), Sampling())])
        assert plain.visible_ids == branch.visible_ids


def test_a_whole_answer_repeated_has_the_same_latents(model: Tyler) -> None:
    (answer,) = model.engine().run([request_of(model, AtBoundaries(), Sampling(0.8, seed=1))])
    actions = tuple(action for action in answer.actions if action not in model.backbone.eos_ids)
    (again,) = model.engine().run([Request(answer.prompt_ids, branch=actions, max_new_tokens=len(actions))])
    assert again.actions == list(actions) and again.invocations == answer.invocations
    for mine, its in zip(again.latents, answer.latents, strict=True):
        torch.testing.assert_close(mine, its, rtol=1e-4, atol=1e-4)


def test_a_branch_that_no_answer_can_have_is_refused(model: Tyler) -> None:
    engine, vocab = model.engine(), model.backbone.vocab_size
    for actions in ((vocab + 3,), (-1,), (next(iter(model.backbone.eos_ids)),)):
        with pytest.raises(ValueError, match="branch holds"):
            engine.add_request(request_of(model, Learned(), Sampling(), branch=actions))
    removed = model.with_heads({name: head for name, head in model.heads.items() if name != "global"})
    with pytest.raises(ValueError, match=f"branch holds {vocab};.* that this model offers"):
        removed.engine().add_request(request_of(removed, Learned(), Sampling(), branch=(vocab,)))
    with pytest.raises(ValueError, match="branch invokes 2 operators, and budget=1"):
        engine.add_request(request_of(model, Learned(), Sampling(), branch=(vocab, vocab), budget=1))
