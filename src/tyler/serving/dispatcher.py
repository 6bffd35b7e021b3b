"""The engine's thread, and the way between it and asyncio.

One thread begins and ends calls and takes the engine's steps. What a step gave rise to goes to the event loop at once,
so a client that reads slowly holds up nobody: it finds several tokens waiting and gets them together.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TypeVar

from tyler.engine.protocol import DecodingEngine
from tyler.engine.request import Event, FinishEvent, InvocationEvent, Request, TokenEvent
from tyler.engine.shared_engine import Call, DecodingError, SharedEngine, Turn
from tyler.serving.metrics import Metrics, Stopwatch

Found = TypeVar("Found")

STREAM_SECONDS = 0.05
"""How long a stream's tokens are gathered after it was sent some: with a small model an event for each token costs more
than the token, and nobody reads faster. The first one, invocations and ends are never kept back."""

PROBE_SECONDS = 1.0
"""How long a failed engine is left alone before it is tried again."""


class Answering:
    """The answers to some requests, as they come. Belongs to the event loop, but for `call` and `watches`."""

    def __init__(self, dispatcher: Dispatcher, requests: Sequence[Request], asked: float) -> None:
        self._dispatcher, self._arrived, self._news = dispatcher, list[Event | DecodingError](), asyncio.Event()
        self.requests, self.asked = tuple(requests), asked
        self.watches = [Stopwatch(dispatcher.metrics, asked) for _ in requests]
        self.call: Call | None = None
        self.unfinished = len(self.requests)
        self.failed = False
        self.streams = True
        """Whether somebody wants to hear of tokens, or only of ends: waking up takes time."""
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

    def take(self, item: Event | DecodingError) -> None:
        """Note what happened; in the event loop."""
        self._arrived.append(item)
        if not isinstance(item, TokenEvent):
            if self.streams or not isinstance(item, InvocationEvent):
                self._wake()
        elif self.streams and self._timer is None:
            loop = asyncio.get_running_loop()
            if (due := self._woken + STREAM_SECONDS) <= loop.time():
                self._wake()
            else:
                self._timer = loop.call_at(due, self._wake)

    def _wake(self) -> None:
        """Let whoever waits see what has arrived."""
        if self._timer is not None:
            self._timer.cancel()
        self._woken, self._timer = asyncio.get_running_loop().time(), None
        self._news.set()

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
        self._max_probes, self._failed_probes = max_probes, 0
        self._engine, self._probe, self._slots, self._memory = engine, probe, slots, memory
        engine.slots = slots
        engine.release()  # one that is there may have others
        self._jobs = queue.SimpleQueue[Callable[[], None] | None]()
        self._outbox: list[tuple[Answering, Event | DecodingError]] = []
        self._thread = threading.Thread(target=self._run, name="tyler-engine", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._beside = asyncio.Lock()

    # -- in the event loop ---------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to serve."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    @property
    def ready(self) -> bool:
        """Whether steps can be taken."""
        return self.healthy and self.lost is None and self._thread.is_alive()

    async def close(self) -> None:
        """Stop after the present step."""
        self._jobs.put(None)
        await asyncio.to_thread(self._thread.join)

    async def ask(self, requests: Sequence[Request]) -> Answering:
        """Queue requests. Raises ValueError for one that the engine refuses, DecodingError where it cannot be made."""
        answering = Answering(self, requests, time.perf_counter())
        self.open += answering.unfinished
        try:
            await self._in_thread(lambda: self._begin(answering))
        except BaseException:
            self.open -= answering.unfinished
            answering.unfinished = 0
            self.end(answering)
            raise
        return answering

    async def between_steps(self, work: Callable[[DecodingEngine], Found]) -> Found:
        """What `work` finds with the engine, which meanwhile takes no step."""
        return await self._in_thread(lambda: self._engine.between_steps(work, self._memory))

    async def beside_steps(self, work: Callable[[Turn], Found]) -> Found:
        """What `work` finds in a thread of its own, each of whose passes of the model is within the turn it is given.

        After every pass, answers get as much time as it took. One such work is done at a time; whoever is cancelled
        ends it before its next pass. Raises DecodingError for what goes wrong in it, but for a ValueError.
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
            raise InterruptedError("nobody waits for it")
        with self._engine.paused():
            began = time.perf_counter()
            yield
            took = time.perf_counter() - began
        if self._engine.busy:
            stopped.wait(took)

    def end(self, answering: Answering) -> None:
        """Abort what is left of a call."""

        def end() -> None:
            if answering.call is not None:
                self._engine.end(answering.call)

        self._jobs.put(end)

    async def _in_thread(self, work: Callable[[], Found]) -> Found:
        loop = asyncio.get_running_loop()
        found: asyncio.Future[Found] = loop.create_future()

        def settle(result: Found | None, error: Exception | None) -> None:
            if found.cancelled():
                return
            if error is None:
                found.set_result(result)  # type: ignore[arg-type]
            else:
                found.set_exception(error)

        def job() -> None:
            try:
                result = work()
            except ValueError as error:
                self._tell(settle, None, error)
            except Exception as error:
                self._note_failure(error)
                self._tell(settle, None, DecodingError(f"decoding failed: {type(error).__name__}: {error}"))
            else:
                self._tell(settle, result, None)

        self._jobs.put(job)
        return await found

    # -- in the engine's thread ----------------------------------------------------------------------------------

    def _run(self) -> None:
        """Do jobs and take steps until the job is None."""
        busy = False
        while True:
            if not self._do_jobs(wait=not busy):
                return
            try:
                busy = self._engine.step()
                if busy:  # whoever can take a step is well again
                    self._note_recovery()
            except Exception as error:
                self._note_failure(error)
            self._send()

    def _do_jobs(self, wait: bool) -> bool:
        """Everything that is to be done between two steps; False when it is time to stop."""
        while True:
            try:
                job = self._jobs.get(block=wait, timeout=None if self.healthy else PROBE_SECONDS)
            except queue.Empty:
                if wait:
                    self._try_again()
                return True
            if job is None:
                return False
            try:
                job()
            except Exception as error:  # what aborts a call may take a step, and fail as any
                self._note_failure(error)
            self._send()
            wait = False

    def _begin(self, answering: Answering) -> None:
        def failed(reason: str) -> None:
            self._outbox.append((answering, DecodingError(reason)))

        def deliver(event: Event) -> None:
            if isinstance(event, FinishEvent) and event.error is not None:
                failed(event.error)
                return
            answering.watches[event.index].see(event, time.perf_counter())
            self._outbox.append((answering, event))

        answering.call = self._engine.begin(
            answering.requests, deliver=deliver, failed=failed, slots=self._slots, memory=self._memory
        )

    def _send(self) -> None:
        """Hand what has happened to the event loop, all at once."""
        if self._outbox:
            outbox, self._outbox = self._outbox, []
            self._tell(hand_out, outbox)

    def _tell(self, function: Callable[..., None], *arguments: object) -> None:
        assert self._loop is not None, "nobody asks before the start"
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(function, *arguments)

    def _note_failure(self, error: Exception) -> None:
        self.healthy = False
        reason = f"{type(error).__name__}: {error}"
        logging.getLogger(__name__).error("the engine failed (%s); a new one is made", reason, exc_info=error)

    def _note_recovery(self) -> None:
        self.healthy, self._failed_probes = True, 0

    def _try_again(self) -> None:
        """Answer a question of its own with a new engine; a server that can is ready again."""
        try:
            self._engine.run([self._probe], memory=self._memory)
            self._note_recovery()
        except Exception as error:
            self._note_failure(error)
            self._failed_probes += 1
            if self._failed_probes >= self._max_probes:
                self.lost = f"the engine failed {self._failed_probes} probes in a row ({type(error).__name__}: {error})"


def hand_out(outbox: Sequence[tuple[Answering, Event | DecodingError]]) -> None:
    """Give everybody what is theirs."""
    for answering, item in outbox:
        answering.take(item)
