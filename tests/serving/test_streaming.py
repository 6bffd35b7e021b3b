"""A stream wakes its client's task seldom, and never keeps back what matters."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from tyler.engine.request import Event, FinishEvent, InvocationEvent, TokenEvent
from tyler.engine.trajectory import Invocation
from tyler.serving import dispatcher
from tyler.serving.dispatcher import Answering
from tyler.serving.metrics import Metrics

TOKENS = 200
CALL = InvocationEvent(0, Invocation("global", 0, 0, 5, 0), 0.001)


def token(number: int) -> TokenEvent:
    return TokenEvent(0, number, str(number))


def answering(streams: bool = True) -> Answering:
    owner: Any = SimpleNamespace(metrics=Metrics(), open=1)
    request: Any = object()
    found = Answering(owner, [request], 0.0)
    found.streams = streams
    return found


async def batches_of(found: Answering, happens: list[tuple[float, Event]]) -> list[tuple[float, list[Event]]]:
    """What a client is told, and when, if these events come after these seconds."""
    loop = asyncio.get_running_loop()
    start, told = loop.time(), []

    async def listen() -> None:
        async for batch in found.batches():
            told.append((loop.time() - start, batch))

    listening = asyncio.create_task(listen())
    for seconds, event in happens:
        await asyncio.sleep(max(0.0, start + seconds - loop.time()))
        found.take([event])
    await asyncio.wait_for(listening, 10)
    return told


def finish() -> FinishEvent:
    return FinishEvent(0, None)  # type: ignore[arg-type]


def test_tokens_that_come_quickly_are_gathered_and_none_is_lost() -> None:
    happens = [(0.001 * number, token(number)) for number in range(TOKENS)]
    told = asyncio.run(batches_of(answering(), [*happens, (0.001 * TOKENS, finish())]))
    assert [event for _, batch in told for event in batch] == [event for _, event in [*happens, (0, finish())]]
    length = told[-1][0]
    assert len(told) <= length / dispatcher.STREAM_SECONDS + 3 < TOKENS / 4
    assert told[0][1][0] == token(0) and len(told[0][1]) <= 3, "the first token waits for no other"


def test_an_invocation_and_the_end_are_told_at_once_with_what_waited() -> None:
    happens = [(0.0, token(0)), (0.005, token(1)), (0.006, CALL), (0.010, token(2)), (0.011, finish())]
    told = asyncio.run(batches_of(answering(), happens))
    assert [event for _, batch in told for event in batch] == [event for _, event in happens]
    assert any(batch[-2:] == [token(1), CALL] for _, batch in told)
    assert told[-1][0] < dispatcher.STREAM_SECONDS, "the end does not wait for a timer"


def test_a_token_before_a_long_pause_is_told_before_it() -> None:
    told = asyncio.run(batches_of(answering(), [(0.0, token(0)), (0.01, token(1)), (0.4, finish())]))
    seconds = next(at for at, batch in told if token(1) in batch)
    assert seconds < 0.3


def test_a_whole_answer_wakes_nobody_before_its_end() -> None:
    told = asyncio.run(batches_of(answering(streams=False), [(0.0, token(0)), (0.01, CALL), (0.02, finish())]))
    assert [batch for _, batch in told] == [[token(0), CALL, finish()]]
