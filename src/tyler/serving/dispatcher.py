"""The way between asyncio and the engine's thread (`engine/shared_engine.py`).

What a step gave rise to goes to the event loop at once, so a client that reads slowly delays no other.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress

from tyler.engine.base import BaseEngine
from tyler.engine.request import Event, Request
from tyler.engine.shared_engine import Call, DecodingError, Found, SharedEngine, Turn
from tyler.serving.settings import ServerSettings

Told = list[Event] | DecodingError
"""What a step gave rise to, or why nothing will follow."""

PROBE_SECONDS = 1.0
"""How long a failed engine is left alone before it is tried again."""

logger = logging.getLogger(__name__)


class Dispatcher:
    """Brings requests to an engine.

    `open` counts the answers of requests that have not been answered, `probe` is a question to try a new engine with.
    """

    def __init__(self, engine: SharedEngine, probe: Request, settings: ServerSettings) -> None:
        self.open = 0
        self.lost: str | None = None
        """Why the engine will not work again: so many attempts to revive it failed in a row."""
        self._engine, self._probe, self._settings = engine, probe, settings
        engine.slots, engine.keeps_prefixes = settings.slots, True
        engine.release()  # one that is there may have others
        self._reviving: asyncio.Task[None] | None = None
        self._beside = asyncio.Lock()

    @property
    def ready(self) -> bool:
        """Whether steps can be taken."""
        return self._reviving is None

    def close(self) -> None:
        """Give up on an engine that failed."""
        if self._reviving is not None:
            self._reviving.cancel()

    async def ask(self, requests: Sequence[Request], deliver: Callable[[Told, float], None]) -> Future[Call]:
        """Queue requests. This event loop calls `deliver` with what a step gave rise to, and when.

        Raises ValueError for a request that the engine refuses, DecodingError where it cannot be made.
        """
        loop = asyncio.get_running_loop()

        def pass_on(told: Told) -> None:
            """In the engine's thread."""
            with suppress(RuntimeError):  # a loop that has ended hears nothing
                loop.call_soon_threadsafe(self._deliver, deliver, told, time.perf_counter())

        opening = self._engine.open(requests, pass_on, slots=self._settings.slots, memory=self._settings.memory)
        self.open += len(requests)
        try:
            await self._found(opening)
        except BaseException:
            self.end(opening, len(requests))
            raise
        return opening

    def end(self, opening: Future[Call], answers: int) -> None:
        """Abort what is left of a call of so many answers, as soon as it has begun."""
        self.open -= answers
        self._engine.end_opened(opening)

    async def between_steps(self, work: Callable[[BaseEngine], Found]) -> Found:
        """What `work` finds with the engine, which meanwhile takes no step."""
        return await self._found(self._engine.between_steps(work, self._settings.memory))

    async def beside_steps(self, work: Callable[[Turn], Found]) -> Found:
        """What `work` finds in a thread of its own, each of whose passes of the model is within the turn it is given.

        Between two passes answers take a step. One such work is done at a time; a cancelled one ends before its next.
        """
        stopped = threading.Event()

        @contextmanager
        def turn() -> Iterator[None]:
            if stopped.is_set():
                raise InterruptedError("the request was cancelled")
            with self._engine.paused():
                yield

        async with self._beside:
            try:
                return await asyncio.to_thread(work, turn)
            finally:
                stopped.set()

    async def _found(self, future: Future[Found]) -> Found:
        """What the engine's thread found. Raises ValueError for what is refused, DecodingError for what went wrong."""
        try:
            return await asyncio.wrap_future(future)
        except ValueError:
            raise
        except Exception as error:
            self._note_failure(error)
            raise DecodingError(f"decoding failed: {type(error).__name__}: {error}") from error

    # -- an engine that failed -----------------------------------------------------------------------------------

    def _deliver(self, deliver: Callable[[Told, float], None], told: Told, now: float) -> None:
        if isinstance(told, DecodingError) and told.__cause__ is not None:
            self._note_failure(told.__cause__)
        deliver(told, now)

    def _note_failure(self, error: BaseException) -> None:
        """Have a new engine made, unless that is being done."""
        logger.error("the engine failed (%s: %s); a new one is made", type(error).__name__, error, exc_info=error)
        if self._reviving is None:
            self._reviving = asyncio.create_task(self._revive())

    async def _revive(self) -> None:
        """Answer a question of its own with a new engine; a server that can is ready again."""
        for _ in range(self._settings.max_probes):
            await asyncio.sleep(PROBE_SECONDS)
            try:
                await asyncio.to_thread(self._engine.run, [self._probe], memory=self._settings.memory)
            except Exception as error:
                logger.error("the engine failed a probe", exc_info=error)
                reason = f"{type(error).__name__}: {error}"
            else:
                self._reviving = None
                return
        self.lost = f"the engine failed {self._settings.max_probes} probes in a row ({reason})"
