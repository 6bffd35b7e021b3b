"""What a request may ask besides its answer, and the limit on tokens and latents together."""

from typing import Any

import pytest

import reference
import tiny
from tyler.engine.request import FinishEvent, InvocationEvent, Request, TokenEvent
from tyler.engine.routing import AtBoundaries, Forced, Learned, Never
from tyler.engine.sampling import Sampling


def request(**given: Any) -> Request:
    plain: dict[str, Any] = {"max_new_tokens": 40, "router": Learned(), "sampling": Sampling(1.0, seed=2)}
    return Request(tiny.ids(tiny.MEDIUM), **plain | given)


@pytest.mark.parametrize("router", [Learned(), AtBoundaries(), Forced({0: ("global",), 4: ("state", "state")})])
@pytest.mark.parametrize("most", [1, 3, 7, 12])
def test_tokens_and_latents_together_stay_within_the_limit(router: Any, most: int) -> None:
    engine = tiny.tyler("qwen3").engine(slots=8)
    requests = [request(router=router, max_generated=most, sampling=Sampling(1.0, seed=seed)) for seed in range(8)]
    for answer, alone in zip(engine.run(requests), engine.run([request(router=router)] * 8), strict=True):
        used = answer.num_visible + answer.num_latents
        assert used <= most
        assert answer.finish_reason == "length"
        assert answer.limited_by == "max_generated"
        assert most - used < 5  # a call of five latents did not fit, or nothing is left
        assert alone.num_visible + alone.num_latents > most


def test_an_answer_that_ends_within_the_limit_is_the_same() -> None:
    engine = tiny.tyler("qwen3").engine()
    plain, bounded = engine.run([request(), request(max_generated=1000)])
    assert (plain.actions, plain.finish_reason) == (bounded.actions, bounded.finish_reason)


def outcome_of(question: Request) -> tuple[list[TokenEvent], list[InvocationEvent], Any]:
    events = list(tiny.tyler("qwen3").engine().stream([question]))
    (end,) = [event for event in events if isinstance(event, FinishEvent)]
    tokens = [event for event in events if isinstance(event, TokenEvent)]
    return tokens, [event for event in events if isinstance(event, InvocationEvent)], end.trajectory


@pytest.mark.parametrize("router", [Never(), AtBoundaries()])
def test_events_have_the_log_probability_and_the_most_probable_tokens(router: Any) -> None:
    """Where a token was held back for a call, those of its place after the latents."""
    model = tiny.tyler("qwen3")
    tokens, calls, answer = outcome_of(request(router=router, top_logprobs=4, budget=3))
    assert bool(calls) is not isinstance(router, Never)
    visible = [index for index, is_operator in enumerate(answer.is_operator) if not is_operator]
    assert [event.logprob for event in tokens] == [answer.logprobs[index] for index in visible][: len(tokens)]
    x, latents, at = reference.embed(model, answer.prompt_ids), iter(answer.latents), 0
    for action, is_operator in zip(answer.actions, answer.is_operator, strict=True):
        if is_operator:
            x = reference.torch.cat([x, next(latents)])
            continue
        if at < len(tokens):
            logprobs = reference.action_logprobs(model, x, [False] * 3, 1.0)[-1]
            values, ids = logprobs[: model.backbone.vocab_size].topk(4)
            assert [token for token, _ in tokens[at].top] == ids.tolist()
            assert [value for _, value in tokens[at].top] == pytest.approx(values.tolist(), abs=1e-4)
        x, at = reference.torch.cat([x, reference.embed(model, [action])]), at + 1


def test_a_stop_string_cuts_the_tokens_that_it_reaches_into() -> None:
    plain = outcome_of(request(router=Never()))[2]
    stop = plain.text[9:12]
    tokens, _, answer = outcome_of(request(router=Never(), stop=stop))
    assert answer.finish_reason == "stop"
    assert "".join(event.text for event in tokens) == answer.text
    cuts = [event.cut for event in tokens]
    assert any(cuts)
    assert cuts == sorted(cuts)


def test_others_of_a_batch_are_told_nothing() -> None:
    engine = tiny.tyler("qwen3").engine()
    events = list(engine.stream([request(top_logprobs=3), request(top_logprobs=1), request()]))
    sizes = {event.index: len(event.top) for event in events if isinstance(event, TokenEvent)}
    assert list(sizes.values()) == [3, 1, 0]


@pytest.mark.parametrize(("name", "value"), [("top_logprobs", -1), ("max_generated", 0)])
def test_a_number_that_is_none_is_refused(name: str, value: int) -> None:
    with pytest.raises(ValueError, match=f"{name}={value}"):
        request(**{name: value})
