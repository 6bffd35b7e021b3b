"""A stream wakes its client's task seldom, and never keeps back what matters."""

import asyncio
from types import SimpleNamespace
from typing import Any

from tyler.engine.request import Event, FinishEvent, InvocationEvent, TokenEvent
from tyler.engine.shared_engine import SharedEngine
from tyler.engine.trajectory import Invocation
from tyler.serving import generation
from tyler.serving.generation import Finished, Generation, Piece, Text
from tyler.serving.metrics import Metrics

TOKENS = 200
CALL = InvocationEvent(0, Invocation("global", 0, 0, 5, 0), 0.001)


def token(number: int) -> TokenEvent:
    return TokenEvent(0, number, f"{number} ")


def finish() -> FinishEvent:
    counts = {"num_visible": 0, "num_latents": 0, "invocations": (), "prompt_ids": (1,), "queue_seconds": 0.0}
    return FinishEvent(0, SimpleNamespace(**counts, budget=None, finish_reason="eos"))  # type: ignore[arg-type]


async def told_of(happens: list[tuple[float, Event]], *, streams: bool = True) -> list[tuple[float, list[Piece]]]:
    """What a client is told, and when, if these events come after these seconds."""
    request: Any = SimpleNamespace(budget=None, prompt_ids=(1,))
    dispatcher: Any = SimpleNamespace(open=1)
    found = Generation(dispatcher, [request], Metrics(SharedEngine(None)))
    loop = asyncio.get_running_loop()
    start, told = loop.time(), list[tuple[float, list[Piece]]]()

    async def listen() -> None:
        async for pieces in found.pieces(streams=streams):
            told.append((loop.time() - start, pieces))

    listening = asyncio.create_task(listen())
    for seconds, event in happens:
        await asyncio.sleep(max(0.0, start + seconds - loop.time()))
        found.take([event], start + seconds)
    await asyncio.wait_for(listening, 10)
    return told[1:]  # after `Started`


def texts(pieces: list[Piece]) -> str:
    return "".join(piece.text for piece in pieces if isinstance(piece, Text))


def test_tokens_that_come_quickly_are_gathered_and_none_is_lost() -> None:
    happens: list[tuple[float, Event]] = [(0.001 * number, token(number)) for number in range(TOKENS)]
    told = asyncio.run(told_of([*happens, (0.001 * TOKENS, finish())]))
    assert "".join(texts(pieces) for _, pieces in told) == "".join(f"{number} " for number in range(TOKENS))
    assert len(told) <= told[-1][0] / generation.STREAM_SECONDS + 3 < TOKENS / 4
    assert texts(told[0][1]).startswith("0 ") and len(texts(told[0][1])) <= 6, "the first token waits for no other"


def test_an_invocation_and_the_end_are_told_at_once_with_what_waited() -> None:
    happens = [(0.0, token(0)), (0.005, token(1)), (0.006, CALL), (0.010, token(2)), (0.011, finish())]
    told = asyncio.run(told_of(happens))
    pieces = [piece for _, batch in told for piece in batch]
    call = [type(piece) for piece in pieces].index(generation.Invocation)
    assert (texts(pieces[:call]), texts(pieces[call:])) == ("0 1 ", "2 ") and isinstance(pieces[-1], Finished)
    assert told[-1][0] < generation.STREAM_SECONDS, "the end does not wait for a timer"


def test_a_token_before_a_long_pause_is_told_before_it() -> None:
    told = asyncio.run(told_of([(0.0, token(0)), (0.01, token(1)), (0.4, finish())]))
    assert next(at for at, pieces in told if "1 " in texts(pieces)) < 0.3


def test_a_whole_answer_is_told_once_at_its_end() -> None:
    ((_, pieces),) = asyncio.run(told_of([(0.0, token(0)), (0.01, CALL), (0.02, finish())], streams=False))
    assert [type(piece) for piece in pieces] == [Text, generation.Invocation, Finished]
