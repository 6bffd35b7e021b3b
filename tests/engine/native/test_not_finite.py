"""Logits that are not finite end the answer they are of, by name and step, and nothing else."""

import math

import pytest
import torch

import tiny
from tyler.engine.native.engine import Engine
from tyler.engine.request import FinishEvent, Request, SoftPrompt
from tyler.engine.routing import Forced, Learned, Never
from tyler.engine.sampling import Sampling
from tyler.engine.trajectory import Trajectory
from tyler.model import Tyler
from tyler.reasoners.memgen.model import MemGen, MemGenReasoner
from tyler.reasoners.memgen.model import Settings as MemGenSettings
from tyler.reasoners.soft_thinking import SoftThinking, SoftThinkingSettings

LENGTH = 12


@pytest.fixture
def model() -> Tyler:
    return tiny.build("qwen3", tiny.SEEDS["qwen3"])


def ends(engine: Engine, requests: list[Request]) -> list[FinishEvent]:
    """How each request ends, whatever becomes of it."""
    for request in requests:
        engine.add_request(request)
    ended: dict[int, FinishEvent] = {}
    while engine.waiting or engine.rows:
        ended |= {event.index: event for event in engine.step() if isinstance(event, FinishEvent)}
    return [ended[index] for index in sorted(ended)][-len(requests) :]


def plain(text: str = tiny.MEDIUM, temperature: float = 0.0) -> Request:
    return Request(tiny.ids(text), router=Never(), sampling=Sampling(temperature, seed=4), max_new_tokens=LENGTH)


def essence(trajectory: Trajectory) -> tuple[list[int], list[float], str]:
    return trajectory.actions, trajectory.logprobs, trajectory.finish_reason


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_the_row_with_such_logits_ends_and_its_neighbours_answer(temperature: float, model: Tyler) -> None:
    requests = [plain(temperature=temperature), plain(tiny.SHORT, temperature)]
    whole = [event.trajectory for event in ends(model.engine(slots=3), requests)]
    with torch.no_grad():
        model.policy.psi[1, 3] = math.nan
    lost = Request(tiny.ids(tiny.ODD), router=Learned(), sampling=Sampling(temperature, seed=4), max_new_tokens=LENGTH)
    ended = ends(model.engine(slots=3), [requests[0], lost, requests[1]])
    assert ended[1].error is not None and "the logits of step 1 are not finite" in ended[1].error
    assert (ended[1].trajectory.finish_reason, ended[1].trajectory.actions) == ("error", [])
    for event, expected in zip((ended[0], ended[2]), whole, strict=True):
        assert event.error is None
        assert event.trajectory.actions == expected.actions and event.trajectory.text == expected.text
        assert event.trajectory.logprobs == pytest.approx(expected.logprobs, abs=1e-5)


def test_latents_that_are_the_last_action_are_looked_at_as_well(model: Tyler) -> None:
    with torch.no_grad():
        model.synthesizer.mapping()["state"].proj.bias.fill_(math.nan)
    request = Request(tiny.ids(tiny.MEDIUM), router=Forced({0: ("state",)}), max_new_tokens=1)
    (event,) = ends(model.engine(), [request])
    assert event.error is not None and "hidden states after a call are not finite" in event.error


def test_the_step_is_counted_in_actions(model: Tyler) -> None:
    with torch.no_grad():
        model.synthesizer.mapping()["state"].queries[0, 0] = math.inf
    request = Request(tiny.ids(tiny.MEDIUM), router=Forced({3: ("state",)}), max_new_tokens=LENGTH)
    (event,) = ends(model.engine(slots=2), [request])
    assert event.error is not None and "the logits of step 5 are not finite" in event.error
    assert len(event.trajectory.actions) == 4 and event.trajectory.num_invocations == 1


def test_who_comes_into_the_place_of_such_a_row_is_answered_as_ever(model: Tyler) -> None:
    engine = model.engine(slots=1)
    (expected,) = ends(engine, [plain()])
    long = tiny.ids(tiny.LONG)
    nothing = SoftPrompt((2,), torch.full((1, model.backbone.dim), math.nan))
    lost = Request(long, router=Never(), max_new_tokens=LENGTH, soft_prompt=nothing)
    first, again = ends(engine, [lost, plain()])
    assert first.error is not None and again.error is None
    assert essence(again.trajectory) == essence(expected.trajectory)


def test_solving_and_streaming_say_which_answer_and_the_model_answers_on(model: Tyler) -> None:
    before = model.solve(tiny.SHORT, router=Never(), max_new_tokens=LENGTH)
    psi = model.policy.psi.detach().clone()
    with torch.no_grad():
        model.policy.psi.fill_(math.nan)
    with pytest.raises(FloatingPointError, match=r"answer [01]: the logits of step 1 are not finite .* is nan"):
        model.solve([tiny.MEDIUM, tiny.ODD], router=Learned(), max_new_tokens=LENGTH)
    with pytest.raises(FloatingPointError, match="answer 0: the logits of step 1 are not finite"):
        list(model.stream(tiny.MEDIUM, router=Learned(), max_new_tokens=LENGTH))
    with pytest.raises(FloatingPointError, match="Check the weights; instead of float16"):
        model.engine().run([Request(tiny.ids(tiny.SHORT), router=Learned())])
    assert essence(model.solve(tiny.SHORT, router=Never(), max_new_tokens=LENGTH)) == essence(before)
    with torch.no_grad():
        model.policy.psi.copy_(psi)
    assert model.solve(tiny.SHORT, max_new_tokens=LENGTH).actions


def test_a_sampler_of_soft_tokens_ends_so_too(model: Tyler) -> None:
    nothing = SoftPrompt((0,), torch.full((1, model.backbone.dim), math.inf))
    sampler = SoftThinking(model.backbone, SoftThinkingSettings(soft_steps=4))
    request = Request(tiny.ids(tiny.SHORT), router=Never(), sampler=sampler, soft_prompt=nothing, max_new_tokens=LENGTH)
    (event,) = ends(model.engine(slots=1), [request])
    assert event.error is not None and "the logits of step 1 are not finite" in event.error


def test_a_trigger_whose_logits_are_not_finite_is_named() -> None:
    settings = MemGenSettings(trigger_at_prompt=True)
    model = MemGen.start(tiny.build_backbone("qwen2"), settings).with_new_trigger()
    assert model.trigger is not None
    with torch.no_grad():
        model.trigger.output.bias[0] = math.nan
    with pytest.raises(FloatingPointError, match="the trigger's logits after 0 visible tokens are not finite"):
        MemGenReasoner("memgen", model, max_new_tokens=LENGTH).solve([tiny.SHORT])
