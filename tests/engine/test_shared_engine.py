"""One engine for many callers: the same answers, shared batches, and no caller that waits for ever."""

import gc
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests import tiny
from tests.asking import CASES, ask, same

from tyler.engine.native.cache import bytes_of_position
from tyler.engine.native.engine import Engine
from tyler.engine.request import Event, FinishEvent, InvocationEvent, Request, TokenEvent
from tyler.engine.routing import Forced, Learned, Never
from tyler.engine.sampling import Sampling
from tyler.engine.shared_engine import DecodingError, SharedEngine
from tyler.engine.trajectory import Trajectory
from tyler.model import Tyler
from tyler.modeling.lora import LoraSettings

SOME = ["greedy", "sampled, budget 3", "boundaries, sampled", "top-k and top-p", "forced", "never"]


@pytest.fixture()
def model() -> Tyler:
    return tiny.build("qwen3", tiny.SEEDS["qwen3"])


def alone(model: Tyler, request: Request) -> Trajectory:
    return model.engine(slots=1).run([request])[0]


def until(happens: Callable[[], bool]) -> None:
    """Wait for what the engine's thread does."""
    end = time.monotonic() + 60
    while not happens():
        assert time.monotonic() < end, "it never happens"
        time.sleep(0.001)


def watched(model: Tyler) -> tuple[SharedEngine, list[Engine], list[int]]:
    """A shared engine, the engines it makes, and how many rows each of their steps had."""
    engines, rows = [], []

    def build(*, slots: int, memory: int | None, positions: int) -> Engine:
        engine = model.engine(slots=slots, memory=memory, positions=positions)
        step = engine.step

        def counted() -> list[Event]:
            events = step()
            rows.append(len(engine.rows))
            return events

        engine.step = counted  # type: ignore[method-assign]
        engines.append(engine)
        return engine

    return SharedEngine(build), engines, rows


def in_threads(works: list[Callable[[], None]]) -> None:
    """Run them at once; raises what one of them raised."""
    errors: list[BaseException] = []

    def guarded(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert not any(thread.is_alive() for thread in threads), "a caller waits for ever"
    if errors:
        raise errors[0]


# ------------------------------------------------------------------------------------------------ several callers


def test_callers_in_several_threads_share_batches_and_get_what_they_get_alone(model: Tyler) -> None:
    shared, engines, rows = watched(model)
    expected = {case: alone(model, CASES[case]) for case in SOME}
    together = threading.Barrier(len(SOME) + 1)

    def ask_for(case: str) -> None:
        together.wait()
        for _ in range(2):
            (answer,) = shared.run([CASES[case]])
            assert same(answer, expected[case])

    def stream() -> None:
        together.wait()
        events = list(shared.events([CASES["greedy"]]))
        tokens = "".join(event.text for event in events if isinstance(event, TokenEvent))
        assert isinstance(events[-1], FinishEvent) and tokens == events[-1].trajectory.text == expected["greedy"].text

    in_threads([*(lambda case=case: ask_for(case) for case in SOME), stream])
    assert len(engines) == 1 and max(rows) > 1


def test_a_model_that_first_answered_in_inference_mode_answers_outside_as_well() -> None:
    model = tiny.build("qwen3", tiny.SEEDS["qwen3"])
    model.policy.add_lora(LoraSettings(rank=2))
    router = Forced({0: ("global",)})
    with torch.inference_mode():
        inside = model.solve("x", router=router, max_new_tokens=4)
    assert same(model.solve("x", router=router, max_new_tokens=4), inside)


def test_a_call_decodes_at_most_as_many_as_it_asks_for_and_keeps_their_order(model: Tyler) -> None:
    shared, _, rows = watched(model)
    requests = [CASES[case] for case in SOME]
    answers_by_index: dict[int, Trajectory] = {}
    answers = shared.run(requests, slots=2, finished=answers_by_index.__setitem__)
    assert max(rows) == 2
    assert all(same(answer, alone(model, request)) for answer, request in zip(answers, requests, strict=True))
    assert [answers_by_index[index] for index in range(len(requests))] == answers


def test_who_does_not_listen_is_told_only_of_the_end(model: Tyler) -> None:
    request = ask(tiny.SHORT, router=Forced({1: ("state",)}))
    (end,) = model.shared_engine.events([request], streamed=False)
    calls = [event for event in model.shared_engine.events([request]) if isinstance(event, InvocationEvent)]
    assert isinstance(end, FinishEvent) and end.trajectory.queue_seconds >= 0
    assert [call.invocation for call in calls] == list(end.trajectory.invocations) and calls[0].seconds > 0


def test_a_refused_request_is_refused_before_any_begins(model: Tyler) -> None:
    shared, engines, _ = watched(model)
    with pytest.raises(ValueError, match="shorten the prompt"):
        shared.run([CASES["greedy"], Request(tiny.ids("x") * 300)])
    with pytest.raises(ValueError, match="slots=0"):
        shared.run([CASES["greedy"]], slots=0)
    assert not engines[0].rows and not engines[0].waiting
    assert shared.run([]) == []


# ------------------------------------------------------------------------------------------------ what survives


def test_the_engine_lives_from_call_to_call_until_it_is_released(model: Tyler) -> None:
    shared, engines, _ = watched(model)
    first = shared.run([CASES["greedy"]])[0]
    assert same(shared.run([CASES["greedy"]], slots=3)[0], first) and len(engines) == 1
    shared.release()
    assert same(shared.run([CASES["greedy"]])[0], first) and len(engines) == 2
    shared.run([CASES["greedy"]], slots=100)
    assert engines[-1].room.slots == 100 and len(engines) == 3


@pytest.mark.parametrize("waits", [{"memory": 10**7}, {"requests": [ask(tiny.SHORT, max_new_tokens=200)]}])
def test_a_call_that_needs_another_engine_waits_for_those_before_it(waits: dict[str, Any], model: Tyler) -> None:
    memory = 10 * 64 * bytes_of_position(model.backbone)  # room for short answers in many slots, or long ones in few
    shared, engines, _ = watched(model)
    first, other = ask(tiny.SHORT, router=Never(), max_new_tokens=20), waits.get("requests", [CASES["greedy"]])
    stream = shared.events([first], slots=10, memory=memory)
    next(stream)
    answers = shared.run(other, memory=waits.get("memory", memory))
    assert len(engines) == 2 and same(answers[0], alone(model, other[0]))
    *_, last = stream
    assert same(last.trajectory, alone(model, first)), "it was decoded to its end meanwhile"


def test_who_waits_for_another_bound_comes_before_those_who_came_later(model: Tyler) -> None:
    shared, engines, _ = watched(model)
    stream = shared.events([CASES["never"]])
    next(stream)  # in use, without a bound
    order: list[str] = []
    step = engines[0].step
    engines[0].step = lambda: time.sleep(0.02) or step()  # type: ignore[method-assign]  # later comes meanwhile
    bounded = shared.open([CASES["greedy"]], lambda event: None, memory=10**7)
    later = shared.open([CASES["greedy"]], lambda event: None)
    for name, opening in (("bounded", bounded), ("later", later)):
        opening.add_done_callback(lambda _, name=name: order.append(name))
    until(lambda: bounded.done() and later.done())
    assert order == ["bounded", "later"]
    assert [engine.memory for engine in engines] == [None, 10**7, None]
    *_, last = stream
    assert same(last.trajectory, alone(model, CASES["never"]))


def test_a_refusal_while_waiting_leaves_nobody_behind_it(model: Tyler) -> None:
    shared, _, _ = watched(model)
    stream = shared.events([CASES["never"]])
    next(stream)
    with pytest.raises(ValueError, match="memory"):
        shared.run([CASES["greedy"]], memory=1)
    assert same(shared.run([CASES["greedy"]])[0], alone(model, CASES["greedy"]))


@torch.no_grad()
def double(tensor: torch.Tensor) -> None:
    tensor.mul_(2)


def step_of_adamw(model: Tyler) -> None:
    parameters = [parameter for parameter in model.policy.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=0.1)
    sum(parameter.sum() for parameter in parameters).backward()
    optimizer.step()


CHANGES: dict[str, Callable[[Tyler], None]] = {
    "an optimizer's step": step_of_adamw,
    "eta": lambda model: double(next(p for n, p in model.policy.lora.named_parameters() if "lora_B" in n)),
    "phi": lambda model: double(next(p for n, p in model.synthesizer.lora.named_parameters() if "lora_B" in n)),
    "psi": lambda model: double(model.policy.psi),
    "a head": lambda model: double(next(model.synthesizer.heads.parameters())),
    "theta": lambda model: double(model.backbone.decoder.layers[1].mlp.up_proj.weight),
    "theta under a LoRA": lambda model: double(model.backbone.decoder.layers[1].self_attn.v_proj.weight),
    "a norm of theta": lambda model: double(model.backbone.final_norm_gain),
}


@pytest.mark.parametrize("change", CHANGES)
def test_the_next_call_decodes_with_the_new_weights(change: str, model: Tyler) -> None:
    request = ask(tiny.ODD, router=Forced({0: ("global",), 3: ("state",)}), sampling=Sampling(1.0, seed=1))
    learned = ask(tiny.LONG, router=Learned(), sampling=Sampling(1.0, seed=5))
    before = model.shared_engine.run([request, learned])
    CHANGES[change](model)
    after = model.shared_engine.run([request, learned])
    assert all(same(answer, alone(model, question)) for answer, question in zip(after, (request, learned), strict=True))
    assert not all(same(first, other) for first, other in zip(before, after, strict=True)), "the change can be seen"


def test_a_lora_that_comes_later_is_decoded_with(model: Tyler) -> None:
    plain = Tyler.start(model.backbone, tiny.OPERATORS)
    before = plain.solve(tiny.MEDIUM, max_new_tokens=12)
    plain.policy.add_lora(tiny.LoraSettings(rank=4, alpha=8))
    tiny.randomize_lora(plain.policy.lora, torch.Generator().manual_seed(3))
    after = plain.solve(tiny.MEDIUM, max_new_tokens=12)
    assert same(after, alone(plain, plain.request(tiny.MEDIUM, max_new_tokens=12))) and not same(before, after)


def test_adapters_are_folded_anew_only_when_they_changed_and_programs_survive_it(
    model: Tyler, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared, engines, _ = watched(model)
    shared.run([CASES["greedy"]])
    folded = []
    monkeypatch.setattr(Engine, "refresh", lambda self, refresh=Engine.refresh: folded.append(1) or refresh(self))
    shared.run([CASES["greedy"]])
    assert not folded
    CHANGES["eta"](model)
    shared.run([CASES["greedy"]])
    shared.run([CASES["greedy"]])
    assert len(folded) == 1 and len(engines) == 1


@pytest.mark.parametrize("change", ["eta", "psi"])
def test_an_answer_that_began_under_other_weights_is_an_error_not_a_mixture(change: str, model: Tyler) -> None:
    shared, engines, _ = watched(model)
    stream = shared.events([CASES["never"]])
    next(stream)
    with shared.paused():
        assert engines[0].rows, "it is not done yet"
        CHANGES[change](model)
        if change == "eta":  # decoding has a copy of it: only what comes later needs an engine over the new one
            shared.between_steps(lambda engine: None)
    with pytest.raises(DecodingError, match="weights changed while this answer was decoded"):
        list(stream)
    assert same(shared.run([CASES["greedy"]])[0], alone(model, CASES["greedy"]))


# ------------------------------------------------------------------------------------------------ ends and errors


def test_who_stops_listening_frees_the_row_at_once(model: Tyler) -> None:
    shared, engines, _ = watched(model)
    for _ in range(3):
        stream = shared.events([ask(tiny.LONG, max_new_tokens=100), ask(tiny.ODD, max_new_tokens=100)], slots=1)
        next(stream)
        with shared.paused():
            assert len(engines[0].rows) == 1
        stream.close()
        until(lambda: not engines[0].rows and not engines[0].waiting)
    forgotten = shared.events([ask(tiny.LONG, max_new_tokens=100)])
    next(forgotten)
    del forgotten
    gc.collect()
    until(lambda: not engines[0].rows)


def failing(model: Tyler, after: int) -> tuple[SharedEngine, list[Engine]]:
    """A shared engine whose first engine breaks after some steps."""
    engines: list[Engine] = []

    def build(*, slots: int, memory: int | None, positions: int) -> Engine:
        engine = model.engine(slots=slots, memory=memory, positions=positions)
        if not engines:
            step, left = engine.step, iter(range(after))

            def breaks() -> list[Event]:
                if next(left, None) is None:
                    raise RuntimeError("the device is gone")
                return step()

            engine.step = breaks  # type: ignore[method-assign]
        engines.append(engine)
        return engine

    return SharedEngine(build), engines


def test_an_error_in_a_step_reaches_every_caller_and_the_next_call_works(model: Tyler) -> None:
    shared, engines = failing(model, after=4)
    lost: list[DecodingError] = []
    with shared.paused():
        for case in ("never", "greedy"):
            shared.open([CASES[case]], lambda event: lost.append(event) if isinstance(event, DecodingError) else None)
    until(lambda: len(lost) == 2)
    assert {str(error) for error in lost} == {"decoding failed: RuntimeError: the device is gone"}
    assert same(shared.run([CASES["greedy"]])[0], alone(model, CASES["greedy"])) and len(engines) == 2


def test_an_interrupted_caller_leaves_a_working_model(model: Tyler, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(index: int, trajectory: Trajectory) -> None:
        raise KeyboardInterrupt

    requests = [ask(tiny.SHORT, max_new_tokens=length, router=Never()) for length in (1, 100)]
    with pytest.raises(KeyboardInterrupt):
        model.shared_engine.run(requests, finished=interrupted)
    assert len(model.solve(tiny.SHORT, max_new_tokens=4, router=Never()).actions) <= 4


# ------------------------------------------------------------------------------------------------ the engine's thread


def test_a_model_has_one_thread_at_most_which_goes_with_it(model: Tyler) -> None:
    def threads() -> list[threading.Thread]:
        return [thread for thread in threading.enumerate() if thread.name.startswith("tyler-engine")]

    others = len(threads())
    stream = model.shared_engine.events([ask(tiny.LONG, router=Never(), max_new_tokens=100)])
    next(stream)
    model.solve(tiny.SHORT, max_new_tokens=2)
    assert len(threads()) == others + 1
    stream.close()
    until(lambda: not model.shared_engine.load().running)
    object.__setattr__(model, "shared_engine", None)
    del stream
    gc.collect()
    until(lambda: len(threads()) == others)


def test_work_between_steps_has_the_engine_to_itself(model: Tyler) -> None:
    shared, engines, _ = watched(model)
    assert shared.between_steps(lambda engine: engine).result() is engines[0]
    with shared.paused():
        opening = shared.open([CASES["never"]], lambda event: None)
        time.sleep(0.05)
        assert not opening.done()
    opening.result(timeout=60)


def test_a_call_that_is_given_up_before_it_begins_never_does(model: Tyler) -> None:
    shared, engines, _ = watched(model)
    with shared.paused():
        opening = shared.open([CASES["never"]], pytest.fail)
        shared.end_opened(opening)
    assert shared.between_steps(lambda engine: len(engine.rows)).result() == 0
    assert opening.cancelled() and len(engines) == 1
