"""The way between asyncio and the engine's thread (`engine/shared_engine.py`).

What a step gave rise to goes to the event loop at once, so a client that reads slowly delays no other: it finds several
tokens waiting and gets them together.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from typing import TypeVar

from tyler.engine.base import BaseEngine
from tyler.engine.request import Event, FinishEvent, InvocationEvent, Request, TokenEvent
from tyler.engine.shared_engine import Call, DecodingError, SharedEngine, Turn
from tyler.serving.metrics import Metrics, Stopwatch

Found = TypeVar("Found")

STREAM_SECONDS = 0.05
"""How long a stream's tokens are gathered after it was sent some: with a small model an event for each token costs more
than the token, and readers are slower. The first one, invocations and ends are never kept back."""

PROBE_SECONDS = 1.0
"""How long a failed engine is left alone before it is tried again."""


class Answering:
    """The answers to some requests, as they come. Belongs to the event loop, but for `watches`."""

    def __init__(self, dispatcher: Dispatcher, requests: Sequence[Request], asked: float) -> None:
        self._dispatcher, self._arrived, self._news = dispatcher, list[Event | DecodingError](), asyncio.Event()
        self.requests, self.asked = tuple(requests), asked
        self.watches = [Stopwatch(dispatcher.metrics, asked) for _ in requests]
        self.opening: Future[Call] | None = None
        self.unfinished = len(self.requests)
        self.failed = False
        self.streams = True
        """Whether a reader wants to hear of tokens, or only of ends: waking up takes time."""
        self._woken = -STREAM_SECONDS
        self._timer: asyncio.TimerHandle | None = None

    async def batches(self) -> AsyncIterator[list[Event]]:
        """Everything that happened since the last look, until all requests are finished.

        An event's index is its request's place. Raises DecodingError when the engine failed.
        """
        while self.unfinished:
            await self._news.wait()
            self._news.clear()
            arrived, self._arrived = self._arrived, []
            for item in arrived:
                if isinstance(item, DecodingError):
                    self.failed = True
                    self.close()
                    raise item
                if isinstance(item, FinishEvent):
                    self._dispatcher.open -= 1
                    self.unfinished -= 1
            if arrived:
                yield [item for item in arrived if not isinstance(item, DecodingError)]

    def take(self, items: Sequence[Event | DecodingError]) -> None:
        """Note what happened; in the event loop."""
        self._arrived += items
        for item in items:
            if isinstance(item, DecodingError) and item.__cause__ is not None:
                self._dispatcher.note_failure(item.__cause__)
        quiet = TokenEvent if self.streams else (TokenEvent, InvocationEvent)
        if not all(isinstance(item, quiet) for item in items):
            self._wake()
        elif self.streams and self._timer is None:
            loop = asyncio.get_running_loop()
            if (due := self._woken + STREAM_SECONDS) <= loop.time():
                self._wake()
            else:
                self._timer = loop.call_at(due, self._wake)

    def _wake(self) -> None:
        """Let the reader see what has arrived."""
        if self._timer is not None:
            self._timer.cancel()
        self._woken, self._timer = asyncio.get_running_loop().time(), None
        self._news.set()

    def done(self) -> None:
        """Note that what is not decoded is done."""
        self._dispatcher.open -= self.unfinished
        self.unfinished = 0

    def close(self) -> None:
        """Abort what is unfinished; nothing where all is done."""
        if self.unfinished:
            self._dispatcher.open -= self.unfinished
            counter = self._dispatcher.metrics.failed if self.failed else self._dispatcher.metrics.aborted
            counter.inc(self.unfinished)
            self.unfinished = 0
            self._dispatcher.end(self)


class Dispatcher:
    """Brings requests to an engine, from the event loop in which `start` was called.

    `open` counts the answers that have been asked for and are not finished.
    """

    def __init__(
        self,
        engine: SharedEngine,
        metrics: Metrics,
        probe: Request,
        *,
        slots: int,
        memory: int | None,
        max_probes: int,
    ) -> None:
        self.metrics, self.open, self.healthy = metrics, 0, True
        self.lost: str | None = None
        """Why the engine will not work again: so many attempts to revive it failed in a row."""
        self._max_probes = max_probes
        self._engine, self._probe, self._slots, self._memory = engine, probe, slots, memory
        engine.slots, engine.keeps_prefixes = slots, True
        engine.release()  # one that is there may have others
        self._loop: asyncio.AbstractEventLoop | None = None
        self._reviving: asyncio.Task[None] | None = None
        self._beside = asyncio.Lock()

    def start(self) -> None:
        """Begin to serve."""
        self._loop = asyncio.get_running_loop()

    @property
    def ready(self) -> bool:
        """Whether steps can be taken."""
        return self.healthy and self.lost is None and self._loop is not None

    async def close(self) -> None:
        """Stop after the present step."""
        if self._reviving is not None:
            self._reviving.cancel()
        self._loop = None

    async def ask(self, requests: Sequence[Request]) -> Answering:
        """Queue requests. Raises ValueError for one that the engine refuses, DecodingError where it cannot be made."""
        answering = Answering(self, requests, time.perf_counter())
        self.open += answering.unfinished
        opening = self._engine.open(requests, partial(self._deliver, answering), slots=self._slots, memory=self._memory)
        answering.opening = opening
        try:
            await self._found(opening)
        except BaseException:
            self.open -= answering.unfinished
            answering.unfinished = 0
            self.end(answering)
            raise
        return answering

    def hold(self, count: int) -> Answering:
        """Room for so many texts that are read and not answered."""
        held = Answering(self, [], time.perf_counter())
        held.unfinished = count
        self.open += count
        return held

    def end(self, answering: Answering) -> None:
        """Abort what is left of a call, as soon as it has begun."""
        if answering.opening is not None:
            self._engine.end_opened(answering.opening)

    async def between_steps(self, work: Callable[[BaseEngine], Found]) -> Found:
        """What `work` finds with the engine, which meanwhile takes no step."""
        return await self._found(self._engine.between_steps(work, self._memory))

    async def beside_steps(self, work: Callable[[Turn], Found]) -> Found:
        """What `work` finds in a thread of its own, each of whose passes of the model is within the turn it is given.

        After every pass, answers get as much time as it took. One such work is done at a time; a cancelled one
        ends before its next pass. Raises DecodingError for what goes wrong in it, but for a ValueError.
        """
        stopped = threading.Event()
        async with self._beside:
            try:
                return await asyncio.to_thread(work, partial(self._brief_turn, stopped))
            except ValueError:
                raise
            except Exception as error:
                logging.getLogger(__name__).error("what ran beside the engine failed", exc_info=error)
                raise DecodingError(f"reading failed: {type(error).__name__}: {error}") from error
            finally:
                stopped.set()

    @contextmanager
    def _brief_turn(self, stopped: threading.Event) -> Iterator[None]:
        if stopped.is_set():
            raise InterruptedError("the request was cancelled")
        with self._engine.paused():
            began = time.perf_counter()
            yield
            took = time.perf_counter() - began
        if self._engine.busy:
            stopped.wait(took)

    async def _found(self, future: Future[Found]) -> Found:
        """What the engine's thread found. Raises ValueError for what is refused, DecodingError for what went wrong."""
        try:
            return await asyncio.wrap_future(future)
        except ValueError:
            raise
        except Exception as error:
            self.note_failure(error)
            raise DecodingError(f"decoding failed: {type(error).__name__}: {error}") from error

    def _deliver(self, answering: Answering, told: list[Event] | DecodingError) -> None:
        """In the engine's thread: take the times, and let the event loop have what happened."""
        now, items = time.perf_counter(), list[Event | DecodingError]()
        if isinstance(told, DecodingError):
            return self._post(answering, [told])
        for event in told:
            if isinstance(event, FinishEvent) and event.error is not None:
                items.append(DecodingError(event.error))
            else:
                answering.watches[event.index].see(event, now)
                items.append(event)
        self._post(answering, items)

    def _post(self, answering: Answering, items: Sequence[Event | DecodingError]) -> None:
        if (loop := self._loop) is not None and not loop.is_closed():
            loop.call_soon_threadsafe(answering.take, items)

    # -- an engine that failed -----------------------------------------------------------------------------------

    def note_failure(self, error: BaseException) -> None:
        """Have a new engine made, unless that is being done."""
        reason = f"{type(error).__name__}: {error}"
        logging.getLogger(__name__).error("the engine failed (%s); a new one is made", reason, exc_info=error)
        if self._reviving is None and self._loop is not None:
            self.healthy = False
            self._reviving = self._loop.create_task(self._revive())

    async def _revive(self) -> None:
        """Answer a question of its own with a new engine; a server that can is ready again."""
        for attempt in range(1, self._max_probes + 1):
            await asyncio.sleep(PROBE_SECONDS)
            try:
                await asyncio.to_thread(self._engine.run, [self._probe], memory=self._memory)
            except Exception as error:
                logging.getLogger(__name__).error("the engine failed a probe", exc_info=error)
                reason = f"{type(error).__name__}: {error}"
                if attempt == self._max_probes:
                    self.lost = f"the engine failed {attempt} probes in a row ({reason})"
            else:
                self.healthy, self._reviving = True, None
                return
