"""The engine against the paper's transcription (`reference.py`), and everything it promises besides."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from tests import reference, tiny
from tests.asking import CASES, ask, differences, expected, run, same

from tyler.engine.request import Event, FinishEvent, InvocationEvent, Request, TokenEvent
from tyler.engine.routing import AtBoundaries, Forced, Learned, Never
from tyler.engine.sampling import Sampling
from tyler.engine.trajectory import Trajectory
from tyler.model import Tyler

ENGINES = [1, 2, 3, 8, 32]
"""Slots: alone, fewer than requests, and one for each."""


def events_of(model: Tyler, requests: Sequence[Request], slots: int = 8) -> list[Event]:
    return list(model.engine(slots=slots).stream(requests))


# -------------------------------------------------------------------------- equal to the transcription


@pytest.mark.parametrize("family, slots", tiny.by_family([(slots,) for slots in ENGINES], often=[(1,), (3,), (32,)]))
def test_the_engine_decides_what_the_transcription_decides(family: str, slots: int) -> None:
    trajectories = run(tiny.tyler(family), list(CASES.values()), slots)
    faults = {}
    for case, trajectory in zip(CASES, trajectories, strict=True):
        if differing := differences(trajectory, expected(family, case)):
            faults[case] = differing
    assert not faults


def test_the_cases_exercise_what_they_are_meant_to() -> None:
    answers = {(family, case): expected(family, case) for family in tiny.FAMILIES for case in CASES}
    by_policy = [a for (_, case), a in answers.items() if CASES[case].router.learned]
    for name in ("global", "state", "procedure"):
        assert sum(call[0] == name for answer in by_policy for call in answer.invocations) >= 3
    assert sum(len(answer.invocations) >= 2 for answer in by_policy) >= 8
    assert sum(len(expected(family, "greedy").invocations) for family in tiny.FAMILIES) >= 2
    assert all(len(expected(family, "sampled, budget 3").invocations) <= 3 for family in tiny.FAMILIES)
    assert any(len(expected(family, "greedy, long prompt, budget 1").invocations) == 1 for family in tiny.FAMILIES)
    assert {answer.finish_reason for answer in answers.values()} == {"eos", "length"}
    at_boundaries = [answer for (_, case), answer in answers.items() if "boundaries" in case]
    held = [count for answer in at_boundaries for count in answer.held]
    assert sum(count > 0 for count in held) >= 15 and sum(count > 1 for count in held) >= 5 and max(held) >= 3
    assert sum(call[0] == "state" for answer in at_boundaries for call in answer.invocations) >= 3
    assert any("\ufffd" in answer.text or "é" in answer.text for answer in answers.values())
    assert max(-min(answer.logprobs) for answer in answers.values()) < 20


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_the_tiny_models_are_ordinary_decoders_whose_adapters_matter(family: str) -> None:
    model = tiny.tyler(family)
    tokens = torch.tensor([tiny.ids(tiny.MEDIUM)])
    with torch.no_grad():
        theta = model.backbone.model(tokens).logits
        eta = model.policy.lora(tokens).logits  # type: ignore[misc]
        phi = model.synthesizer.lora(tokens).logits
    assert 0.5 < theta.std() < 5
    assert all(float((first - other).abs().mean()) > 0.1 for first, other in [(theta, eta), (theta, phi), (eta, phi)])


# ------------------------------------------------------------------------- equalities between settings


def test_an_engine_can_be_used_again_and_joined_while_it_runs() -> None:
    model = tiny.tyler("qwen3")
    requests = list(CASES.values())
    engine = model.engine(slots=3)
    engine.run(requests[:5])
    late, events = list(requests[5:]), []
    first = engine.add_request(late.pop(0))
    while engine.rows or engine.waiting or late:
        if late and len(events) % 3 == 0:
            engine.add_request(late.pop(0))
        events.append(engine.step())
    finished = {event.index: event.trajectory for step in events for event in step if isinstance(event, FinishEvent)}
    for index, case in enumerate(list(CASES)[5:]):
        assert not differences(finished[first + index], expected("qwen3", case)), case


# ---------------------------------------------------------------------------------------------- events


@pytest.mark.parametrize("family, slots", [*((family, 3) for family in tiny.FAMILIES), ("smollm3", 1)])
def test_the_events_of_a_stream_are_the_trajectory(family: str, slots: int) -> None:
    requests = [
        *CASES.values(),
        *(ask(tiny.ODD, router=AtBoundaries(), sampling=Sampling(1.0, seed=s)) for s in range(6)),
    ]
    events = events_of(tiny.tyler(family), requests, slots)
    for index in range(len(requests)):
        own = [event for event in events if event.index == index]
        *happened, finish = own
        assert isinstance(finish, FinishEvent)
        trajectory = finish.trajectory
        tokens = [event for event in happened if isinstance(event, TokenEvent)]
        calls = [event.invocation for event in happened if isinstance(event, InvocationEvent)]
        assert calls == list(trajectory.invocations)
        seen = [event.token if isinstance(event, TokenEvent) else event.invocation.operator for event in happened]
        assert seen == visible_and_calls(trajectory)
        assert "".join(event.text for event in tokens) == trajectory.text


def visible_and_calls(trajectory: Trajectory) -> list[int | str]:
    """The actions in order, with names for operators and without the end token."""
    names = iter(call.operator for call in trajectory.invocations)
    pairs = zip(trajectory.actions, trajectory.is_operator, strict=True)
    seen: list[int | str] = [next(names) if is_operator else action for action, is_operator in pairs]
    return seen[:-1] if trajectory.finish_reason == "eos" else seen


def test_tokens_are_streamed_as_they_happen() -> None:
    model = tiny.tyler("qwen2")
    engine = model.engine(slots=1)
    engine.add_request(ask(tiny.MEDIUM, router=Never(), max_new_tokens=10))
    events = [len(engine.step()) for _ in range(8)]
    assert set(events) == {1}


def test_a_call_stands_in_the_text_after_the_tokens_before_it() -> None:
    for trajectory in run(tiny.tyler("qwen2"), list(CASES.values())):
        visible = [action for action in trajectory.actions if action < trajectory.vocab_size]
        assert [call.offset for call in trajectory.invocations] == [
            len(tiny.tokenizer().decode(visible[: call.position], skip_special_tokens=True).rstrip("\ufffd"))
            for call in trajectory.invocations
        ]


# ----------------------------------------------------------------------------------------- how it ends


def test_any_of_the_declared_end_tokens_ends_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny.build("qwen3", seed=5)
    request = ask(tiny.MEDIUM, sampling=Sampling(1.0, seed=2), router=Never())
    free = run(model, [request])[0]
    end = free.actions[6]
    declared = [tiny.tokenizer().eos_token_id, end]
    monkeypatch.setattr(model.backbone.model.generation_config, "eos_token_id", declared)
    cut = run(model, [request])[0]
    assert cut.finish_reason == "eos"
    assert cut.actions == free.actions[: free.actions.index(end) + 1]
    assert cut.text == tiny.tokenizer().decode(cut.actions[:-1]).rstrip("\ufffd")


@pytest.mark.parametrize("slots", [1, 3])
@pytest.mark.parametrize("router", [Learned(), AtBoundaries(), Forced({2: ("global",), 5: ("procedure", "state")})])
def test_a_full_context_ends_an_answer_where_the_transcription_ends_it(
    router: Learned | AtBoundaries | Forced, slots: int
) -> None:
    model = tiny.tyler("smollm3")
    limit = tiny.MAX_POSITIONS - 5
    prompts = [(tiny.ids(tiny.LONG) * 2)[: limit - room] for room in (0, 1, 7, 12)]
    requests = [
        Request(prompt, router=router, sampling=Sampling(1.0, seed=seed)) for seed, prompt in enumerate(prompts)
    ]
    trajectories = run(model, requests, slots)
    assert any(answer.finish_reason == "length" for answer in trajectories)
    for request, trajectory in zip(requests, trajectories, strict=True):
        assert not differences(trajectory, reference.decode(model, request))
        assert len(request.prompt_ids) + trajectory.num_visible + trajectory.num_latents <= tiny.MAX_POSITIONS


@pytest.mark.parametrize("router", [Never(), Learned(), AtBoundaries()])
def test_a_stop_string_ends_the_answer_and_is_never_shown(router: Never | Learned | AtBoundaries) -> None:
    model = tiny.tyler("qwen2")
    split = 0
    for seed in range(6):
        request = ask(tiny.ODD, router=router, sampling=Sampling(1.0, seed=seed))
        free = run(model, [request])[0].text
        for start, size in ((len(free) // 2, 3), (len(free) // 3, 6), (2, 1), (0, 2)):
            stop = free[start : start + size]
            if not stop or "\ufffd" in stop:
                continue
            *events, finish = events_of(model, [replace(request, stop=("never to be seen", stop))])
            assert isinstance(finish, FinishEvent)
            trajectory = finish.trajectory
            shown = "".join(event.text for event in events if isinstance(event, TokenEvent))
            assert trajectory.finish_reason == "stop"
            assert trajectory.text == shown
            assert stop not in shown and free.startswith(shown + stop)
            assert not any(
                shown.endswith(stop[:cut]) for cut in range(1, len(stop)) if not free.startswith(shown + stop)
            )
            split += len(trajectory.actions) > 1 and stop not in tiny.tokenizer().decode(trajectory.actions[-1:])
    assert split >= 3, "some stop strings must lie over several tokens"


def with_a_call(model: Tyler) -> tuple[Trajectory, Request]:
    """An answer with one call, text on both sides of it, and how it was asked."""
    sampled = [ask(tiny.ODD, router=Forced({6: ("state",)}), sampling=Sampling(1.0, seed=seed)) for seed in range(20)]
    return next(
        (answer, request)
        for answer, request in zip(run(model, sampled), sampled, strict=True)
        if answer.invocations and answer.num_visible > 8 and len(answer.text) > answer.invocations[0].offset + 1 > 4
    )


def test_a_call_is_told_after_the_tokens_before_it_even_where_these_wait() -> None:
    model = tiny.tyler("qwen2")
    free, request = with_a_call(model)
    (call,) = free.invocations
    stop = free.text[call.offset - 3 : call.offset + 1] + "\x00"  # what may become it waits when the call is made
    kinds = [type(event) for event in events_of(model, [replace(request, stop=stop)])]
    assert kinds.index(InvocationEvent) == call.position and kinds.count(InvocationEvent) == 1


def test_a_call_within_the_stop_string_stands_at_the_end_of_the_text() -> None:
    model = tiny.tyler("qwen2")
    free, request = with_a_call(model)
    (call,) = free.invocations
    stop = free.text[call.offset - 3 : call.offset + 2]
    *events, finish = events_of(model, [replace(request, stop=(stop,))])
    assert isinstance(finish, FinishEvent) and finish.trajectory.finish_reason == "stop"
    assert finish.trajectory.text == free.text[: free.text.index(stop)]
    invocations = [event.invocation for event in events if isinstance(event, InvocationEvent)]
    assert invocations == list(finish.trajectory.invocations) == [replace(call, offset=len(finish.trajectory.text))]


def test_a_request_that_is_refused_leaves_those_before_it_undecoded() -> None:
    engine = tiny.tyler("qwen2").engine()
    unknown = replace(ask(tiny.SHORT), prompt_ids=[10**6])
    with pytest.raises(ValueError, match="tokens from 1000000 to 1000000, and the model's are from 0 to"):
        engine.run([ask(tiny.SHORT), unknown])
    assert not engine.waiting and not engine.rows


def test_who_stops_listening_to_an_engine_leaves_nothing_in_it() -> None:
    engine = tiny.tyler("qwen2").engine(slots=1)
    events = engine.stream([ask(tiny.SHORT, router=Never()), ask(tiny.MEDIUM, router=Never())])
    next(events)
    events.close()
    assert not engine.waiting and not engine.rows


def test_text_that_may_become_a_stop_string_waits() -> None:
    model = tiny.tyler("qwen2")
    request = ask(tiny.ODD, router=Never(), sampling=Sampling(1.0, seed=0))
    free = run(model, [request])[0].text
    stop = free[5:9] + "\x00"
    assert "\x00" not in free
    events = events_of(model, [replace(request, stop=(stop,))])
    assert "".join(event.text for event in events if isinstance(event, TokenEvent)) == free
    engine, shown, seen = model.engine(slots=1), "", []
    engine.add_request(replace(request, stop=(stop,)))
    while engine.waiting or engine.rows:
        shown += "".join(event.text for event in engine.step() if isinstance(event, TokenEvent))
        seen.append(shown)
    assert all(not text.endswith(stop[:size]) for text in seen[:-1] for size in range(1, len(stop)))


def test_an_answer_that_ends_inside_a_character_shows_what_is_complete() -> None:
    model = tiny.tyler("qwen2")
    first_half = tiny.ids("é")[0]
    request = ask(tiny.SHORT, router=Never(), sampling=Sampling(1.0, seed=0), max_new_tokens=400)
    cut = None
    for seed in range(40):
        actions = run(model, [replace(request, sampling=Sampling(1.2, seed=seed), max_new_tokens=30)])[0].actions
        if first_half in actions:
            cut = seed, actions.index(first_half) + 1
            break
    assert cut is not None
    *events, finish = events_of(model, [replace(request, sampling=Sampling(1.2, seed=cut[0]), max_new_tokens=cut[1])])
    assert isinstance(finish, FinishEvent)
    assert not finish.trajectory.text.endswith("\ufffd")
    assert "".join(event.text for event in events if isinstance(event, TokenEvent)) == finish.trajectory.text


# ------------------------------------------------------------------------------------- what it refuses


def test_a_prompt_that_leaves_no_room_is_refused_and_one_that_just_fits_is_not() -> None:
    model = tiny.tyler("qwen2")
    limit = tiny.MAX_POSITIONS - 5
    prompt = (tiny.ids(tiny.LONG) * 2)[: limit + 1]
    engine = model.engine(slots=1)
    with pytest.raises(ValueError, match=f"{limit + 1} tokens.*room for {limit}"):
        engine.add_request(Request(prompt))
    assert len(engine.run([Request(prompt[:limit])])[0].actions) == 1


def test_a_call_is_served_in_the_step_after_its_place() -> None:
    model = tiny.tyler("qwen2")
    engine = model.engine(slots=5)
    for text, position in zip(tiny.PROMPTS, (2, 2, 4, 5), strict=True):
        engine.add_request(ask(text, router=Forced({position: ("state",)}), max_new_tokens=30))
    served = [sum(isinstance(event, InvocationEvent) for event in engine.step()) for _ in range(8)]
    assert served == [0, 0, 2, 0, 1, 1, 0, 0]


def test_a_prompt_may_be_a_tensor() -> None:
    prompt = torch.tensor(tiny.ids(tiny.SHORT))
    assert Request(prompt) == Request(prompt.tolist())  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="as whole numbers"):
        Request(prompt[None])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="empty"):
        Request(prompt_ids=[])


# ----------------------------------------------------------------------------------------------------- abort


def test_an_aborted_request_ends_and_the_others_do_not_notice() -> None:
    model = tiny.tyler("qwen3")
    requests = [ask(text, sampling=Sampling(1.0, seed=seed)) for seed, text in enumerate(tiny.PROMPTS * 2)]
    engine = model.engine(slots=3)
    for request in requests:
        engine.add_request(request)
    engine.step()
    engine.step()
    running, last, done = engine.rows[0].index, len(requests) - 1, len(engine.rows[0].choices)
    assert done >= 2
    engine.abort(running)
    engine.abort(last)
    first = [event for event in engine.step() if isinstance(event, FinishEvent)]
    assert {event.index for event in first} == {running, last}
    assert {event.trajectory.finish_reason for event in first} == {"abort"}
    assert first[0].trajectory.actions == [] and len(first[1].trajectory.actions) == done
    assert all(row.index != running for row in engine.rows)
    finished = {}
    while engine.rows or engine.waiting:
        for event in engine.step():
            if isinstance(event, FinishEvent):
                finished[event.index] = event.trajectory
    free = run(model, requests)
    assert set(finished) == set(range(len(requests))) - {running, last}
    assert all(same(free[index], answer) for index, answer in finished.items())


def test_a_parked_row_can_be_aborted() -> None:
    model = tiny.tyler("qwen2")
    engine = model.engine(slots=2)
    parked = engine.add_request(ask(tiny.SHORT, sampling=Sampling(1.0, seed=1)))
    engine.add_request(ask(tiny.LONG, router=Never()))
    while all(row.call is None for row in engine.rows):
        engine.step()
    num_before = len(engine.rows[0].invocations)
    engine.abort(parked)
    (finish,) = [event for event in engine.step() if isinstance(event, FinishEvent)]
    assert finish.index == parked and len(finish.trajectory.invocations) == num_before
    assert len(engine.rows) == 1


def test_only_what_is_waiting_or_running_can_be_aborted() -> None:
    engine = tiny.tyler("qwen2").engine(slots=1)
    index = engine.add_request(ask(tiny.SHORT, max_new_tokens=1, router=Never()))
    engine.step()
    for other in (index, index + 1):
        with pytest.raises(ValueError, match=f"request {other} is neither"):
            engine.abort(other)


def test_the_synthesizer_is_folded_with_the_first_call_and_never_where_nobody_calls() -> None:
    """A folded copy of the adapted maps is a gigabyte for a model of 4B parameters."""
    model = tiny.build("qwen3", tiny.SEEDS["qwen3"])
    engine = model.engine(slots=2)
    plain = engine.run([ask(tiny.MEDIUM, router=Never()), ask(tiny.ODD, budget=0)])
    assert len(engine.readers) == 1
    called = [ask(tiny.LONG, router=AtBoundaries()), ask(tiny.MEDIUM, router=Never())]
    answers = engine.run(called)
    assert answers[0].invocations and len(engine.readers) == 2
    fresh = model.engine(slots=2).run(called)
    assert all(same(first, other) for first, other in zip(answers, fresh, strict=True))
    assert same(plain[0], answers[1])
