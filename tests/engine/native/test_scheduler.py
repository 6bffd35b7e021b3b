"""Requests wait for memory, rows make room, and no answer changes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests import tiny
from tests.asking import ACTIONS, CASES, ask, run, same

from tyler.engine.native.engine import Engine
from tyler.engine.request import FinishEvent, TokenEvent
from tyler.engine.routing import AtBoundaries, Forced, Learned, Never
from tyler.engine.sampling import Sampling
from tyler.model import Tyler


def bytes_held(engine: Engine) -> int:
    readers = (engine.batch.policy_reader, engine.batch.synthesis_reader)
    caches = [reader.cache for reader in readers]
    return engine.context.embeds.nbytes + sum(cache.keys.nbytes + cache.values.nbytes for cache in caches)


def memory_for(model: Tyler, rows: int, positions: int) -> int:
    config = model.backbone.model.config
    cache = 2 * config.num_hidden_layers * config.num_key_value_heads * getattr(config, "head_dim", 8) * 4
    return rows * positions * (2 * cache + 32 * 4)


@pytest.mark.parametrize("rows", [1, 2, 3])
def test_requests_wait_for_memory_and_answers_do_not_change(rows: int) -> None:
    model = tiny.tyler("qwen3")
    requests = [replace(request, max_new_tokens=min(request.max_new_tokens, ACTIONS)) for request in CASES.values()]
    bound = memory_for(model, rows, 4 * 64)
    engine = model.engine(slots=8, memory=bound)
    for request in requests:
        engine.add_request(request)
    found, most = {}, 0
    while engine.rows or engine.waiting:
        for event in engine.step():
            if isinstance(event, FinishEvent):
                found[event.index] = event.trajectory
        assert bytes_held(engine) <= bound
        most = max(most, len(engine.rows))
    assert rows <= most < 8
    free = run(model, requests)
    assert all(same(free[index], found[index]) for index in range(len(requests)))


@pytest.mark.parametrize("router", [Learned(), AtBoundaries(), Forced({2: ("state",), 30: ("global", "procedure")})])
def test_a_row_that_was_postponed_goes_on_where_it_was(router: Learned | AtBoundaries | Forced) -> None:
    """All start in one block of positions and grow out of it, which is more than the memory holds."""
    model = tiny.tyler("qwen2")
    requests = [ask(tiny.MEDIUM, router=router, sampling=Sampling(1.0, seed=s), max_new_tokens=90) for s in range(6)]
    engine = model.engine(slots=6, memory=memory_for(model, 3, 128))
    for request in requests:
        engine.add_request(request)
    events, preempted = [], 0
    while engine.rows or engine.waiting:
        before = {row.index for row in engine.rows}
        events += engine.step()
        preempted += sum(row.index in before for row in engine.waiting)
    assert preempted >= 1
    finished = {event.index: event.trajectory for event in events if isinstance(event, FinishEvent)}
    free = run(model, requests)
    for index, one in enumerate(free):
        assert same(one, finished[index])
        shown = "".join(event.text for event in events if isinstance(event, TokenEvent) and event.index == index)
        assert shown == one.text


def test_a_row_that_makes_room_does_not_hide_the_end_of_a_request_that_waited() -> None:
    """The request is aborted before the very step in which another one is sent back to the queue's head."""
    model = tiny.tyler("qwen2")

    def start() -> Engine:
        engine = model.engine(slots=6, memory=memory_for(model, 3, 128))
        for seed in range(8):
            engine.add_request(ask(tiny.MEDIUM, sampling=Sampling(1.0, seed=seed), max_new_tokens=90))
        return engine

    def preempts(engine: Engine) -> bool:
        before = {row.index for row in engine.rows}
        engine.step()
        return any(row.index in before for row in engine.waiting)

    rehearsal, steps = start(), 0
    while not preempts(rehearsal):
        steps += 1
    engine = start()
    for _ in range(steps):
        engine.step()
    last = engine.waiting[-1].index
    engine.abort(last)
    events = engine.step()
    assert any(isinstance(event, FinishEvent) and event.index == last for event in events)
    assert all(row.index != last for row in engine.waiting)


def test_what_never_fits_the_memory_is_refused() -> None:
    model = tiny.tyler("qwen3")
    engine = model.engine(slots=2, memory=memory_for(model, 1, 64))
    with pytest.raises(ValueError, match=r"max_new_tokens=100 needs [\d,]+ bytes.*memory=[\d,]+; lower"):
        engine.add_request(ask(tiny.SHORT, max_new_tokens=100))
    assert len(engine.run([ask(tiny.SHORT, max_new_tokens=20, router=Never())])[0].actions) <= 20
    with pytest.raises(ValueError, match="memory=0"):
        model.engine(memory=0)


def test_memory_follows_the_rows_that_are_left() -> None:
    model = tiny.tyler("qwen2")
    engine = model.engine(slots=8)
    for index in range(8):
        engine.add_request(ask(tiny.LONG if index else tiny.SHORT, router=Never(), max_new_tokens=2 if index else 40))
    engine.step()
    full = engine.context.embeds.nbytes
    for _ in range(10):
        engine.step()
    assert engine.context.rows == 1 and engine.batch.policy_reader.cache.keys.shape[1] == 1
    assert engine.context.embeds.nbytes <= full / 8
