"""One engine that many callers share, from any thread, and that lives on between their calls.

A call brings requests and receives their events. Whoever waits for events takes a step of the engine himself,
when nobody else does, and each step serves all calls: their rows are one batch. There is no thread behind this, so
nothing has to be started or stopped; a server gives it one of its own (`step` in a loop).

What survives from call to call are the buffers, the recorded programs, and the decoders with their folded weights. The
weights are watched (`weight_watch.py`): the first call after they changed finds the new ones folded in.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from typing import Protocol, TypeVar

from tyler.engine.checks import check_sizes
from tyler.engine.fair_lock import FairLock
from tyler.engine.protocol import DecodingEngine, Load
from tyler.engine.request import Event, FinishEvent, PromptTooLong, Request, checked
from tyler.engine.request_state import RequestState
from tyler.engine.trajectory import Trajectory
from tyler.engine.weight_watch import WeightWatch

SLOTS = 64
"""Rows of an engine that is kept, unless a call asks for more: a row that nobody uses costs next to nothing."""

Found = TypeVar("Found")
Turn = Callable[[], AbstractContextManager[object]]
"""What a pass over the model is within, where an engine shares the model: meanwhile the engine takes no step."""


class DecodingError(RuntimeError):
    """An answer was lost to something that went wrong elsewhere; the same question may be asked again."""


class Build(Protocol):
    """Makes an engine."""

    def __call__(self, *, slots: int, memory: int | None) -> DecodingEngine: ...


class Call:
    """Requests of one caller. `deliver` receives every event, `failed` once an error that ended all of them."""

    def __init__(
        self, rows: Sequence[RequestState], slots: int, deliver: Callable[[Event], None], failed: Callable[[str], None]
    ) -> None:
        self.deliver, self.failed = deliver, failed
        self.waiting = deque(enumerate(rows))
        """Those that wait until this call has fewer than `slots` rows in the engine."""
        self.places: dict[int, int] = {}
        """Of those in the engine: the engine's index, and their place among the caller's requests."""
        self.slots = slots

    @property
    def done(self) -> bool:
        return not self.waiting and not self.places


class SharedEngine:
    """An engine that is made when it is first needed, by `build`, with at least `slots` rows, and kept.

    A call that asks for another `memory` than that of the engine in use waits until those before it are done, and so
    gets an engine with its own bound; those that come later wait for it in turn. One that asks for more slots gets them
    if nobody else is answered just now.
    """

    def __init__(self, build: Build, slots: int = SLOTS) -> None:
        self.slots = slots
        """Rows of an engine, unless a call asks for more. Whoever changes it does so before the first call."""
        self._build, self._lock = build, FairLock()
        self._engine: DecodingEngine | None = None
        self._watch: WeightWatch | None = None
        self._calls: dict[int, Call] = {}  # by the engine's index of each of their rows
        self._left: deque[Call] = deque()  # ended by their callers, and not yet taken out
        self._queue: deque[object] = deque()  # who waits for another engine, or behind one who does

    # -- calls ---------------------------------------------------------------------------------------------------

    def events(
        self,
        requests: Sequence[Request],
        *,
        slots: int = SLOTS,
        coalesce: int | None = None,
        memory: int | None = None,
        streamed: bool = True,
    ) -> Generator[Event, None, None]:
        """Decode requests, telling what happens as it happens; without `streamed` not of tokens.

        An event's index is the request's place in `requests`. At most `slots` of them are decoded at once. Who stops
        listening aborts what is left. Raises ValueError for a request that the engine refuses, before any begins,
        FloatingPointError for an answer whose logits are not finite, and DecodingError when the engine failed in
        another caller's hands.
        """
        arrived, errors = deque[Event](), list[str]()
        call = self.begin(
            requests,
            deliver=arrived.append,
            failed=errors.append,
            slots=slots,
            coalesce=coalesce,
            memory=memory,
            streamed=streamed,
        )
        try:
            while True:
                while arrived:
                    yield from checked([arrived.popleft()])
                if errors:
                    raise DecodingError(errors[0])
                with self._turn():
                    if arrived or errors:  # told by whoever had the lock since this thread looked
                        continue
                    if call.done:
                        return
                    self._step()
        finally:
            self.end(call)

    def run(
        self,
        requests: Sequence[Request],
        *,
        slots: int = SLOTS,
        coalesce: int | None = None,
        memory: int | None = None,
        finished: Callable[[int, Trajectory], None] | None = None,
    ) -> list[Trajectory]:
        """Decode requests; trajectories in their order. `finished` receives each, with its place, as it is done."""
        trajectories: dict[int, Trajectory] = {}
        for event in self.events(requests, slots=slots, coalesce=coalesce, memory=memory, streamed=False):
            if isinstance(event, FinishEvent):
                trajectories[event.index] = event.trajectory
                if finished is not None:
                    finished(event.index, event.trajectory)
        return [trajectories[index] for index in range(len(requests))]

    def begin(
        self,
        requests: Sequence[Request],
        *,
        deliver: Callable[[Event], None],
        failed: Callable[[str], None],
        slots: int = SLOTS,
        coalesce: int | None = None,
        memory: int | None = None,
        streamed: bool = True,
    ) -> Call:
        """Queue requests; `deliver` is called within the step in which something happens, in whatever thread takes it.

        `deliver` and `failed` are quick and never raise. Raises ValueError for a request that the engine
        refuses, PromptTooLong with the places of all that are too long.
        """
        check_sizes(slots, coalesce, memory)

        def queued(engine: DecodingEngine) -> Call:
            rows = prepared(engine, requests, streamed=streamed, coalesce=coalesce)
            call = Call(rows, slots, deliver, failed)
            self._feed(engine, call)
            return call

        return self._with_engine(queued, slots, memory)

    def end(self, call: Call) -> None:
        """Abort what is left of a call: at once, or with the step that is being taken."""
        if not call.done:
            self._left.append(call)
            self._sweep()

    def step(self) -> bool:
        """Take one step for all calls; False where there was nothing to do."""
        with self._turn():
            self._take_out()
            if not self._calls:
                return False
            self._step()
            return True

    def between_steps(self, work: Callable[[DecodingEngine], Found], memory: int | None = None) -> Found:
        """What `work` finds with the engine while nobody takes a step."""
        return self._with_engine(work, 1, memory)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Within it nobody takes a step: for what runs the model beside the engine."""
        with self._turn():
            yield

    @property
    def busy(self) -> bool:
        """Whether somebody is being answered, as seen in passing."""
        return bool(self._calls)

    def release(self) -> None:
        """Give the engine's memory back, unless somebody is being answered."""
        with self._turn():
            self._take_out()
            if not self._calls and self._engine is not None and not self._engine.release():
                self._drop()

    def close(self) -> None:
        """End the engine for good; a later call builds another. Whoever is being answered gets an error."""
        with self._turn():
            self._fail("the engine was closed")

    def load(self) -> Load:
        """What the engine is doing, as seen in passing."""
        engine = self._engine
        if engine is None:
            return Load()
        load = engine.load()
        return replace(load, waiting=load.waiting + sum(len(call.waiting) for call in set(list(self._calls.values()))))

    # -- who may touch the engine --------------------------------------------------------------------------------

    def _with_engine(self, work: Callable[[DecodingEngine], Found], slots: int, memory: int | None) -> Found:
        """What `work` does with an engine under this bound, after those who came before and wait for another one."""
        ticket = object()
        try:
            while True:
                with self._turn():
                    first = not self._queue or self._queue[0] is ticket
                    engine = self._fitting(slots, memory) if first else None
                    if engine is not None:
                        return work(engine)
                    if ticket not in self._queue:
                        self._queue.append(ticket)
                    self._take_out()
                    if self._calls:
                        self._step()
        finally:
            with suppress(ValueError):  # it never waited
                self._queue.remove(ticket)

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """The lock, and afterwards what those left behind who found it taken."""
        try:
            with self._lock:
                yield
        finally:
            self._sweep()

    def _sweep(self) -> None:
        """Take out the calls that were ended, unless somebody has the lock: he does it.

        This never waits, since a forgotten iterator ends its call from wherever it is collected.
        """
        while self._left and self._lock.try_acquire():
            try:
                self._take_out()
            finally:
                self._lock.release()

    # -- with the lock -------------------------------------------------------------------------------------------

    def _fitting(self, slots: int, memory: int | None) -> DecodingEngine | None:
        """An engine over the present weights under this bound; None while another is in use."""
        self._take_out()
        if self._engine is not None and self._watch is not None and self._watch.changed:
            self._take_new_weights(self._engine, self._watch)
        engine = self._engine
        if engine is not None and self._calls:
            return engine if engine.fits(0, memory) else None
        if engine is None or not engine.fits(slots, memory):
            self._drop()  # its memory goes before the new one's comes
            engine = self._build(slots=max(slots, self.slots), memory=memory)
            self._engine, self._watch = engine, engine.watch()
        return engine

    def _take_new_weights(self, engine: DecodingEngine, watch: WeightWatch) -> None:
        """Whoever is being answered began under other weights, and gets an error instead of a mixture."""
        if self._calls:
            self._fail("the model's weights changed while this answer was decoded; ask again")
        elif watch.theta_changed or not engine.refresh():
            self._drop()
        watch.look()

    def _feed(self, engine: DecodingEngine, call: Call) -> None:
        """Give the engine as many of a call's requests as may run at once."""
        while call.waiting and len(call.places) < call.slots:
            place, row = call.waiting.popleft()
            call.places[row.index] = place
            self._calls[row.index] = call
            engine.waiting.append(row)

    def _step(self) -> None:
        engine = self._engine
        assert engine is not None, "whoever has a call has an engine"
        try:
            for event in engine.step():
                self._tell(engine, event)
        except BaseException as error:
            self._fail(f"decoding failed: {type(error).__name__}: {error}")
            raise

    def _tell(self, engine: DecodingEngine, event: Event) -> None:
        """Deliver an event to whoever asked; events of aborted requests are dropped."""
        call = self._calls.get(event.index)
        if call is not None:
            place = call.places[event.index]
            if isinstance(event, FinishEvent):
                del call.places[event.index], self._calls[event.index]
                self._feed(engine, call)
            call.deliver(replace(event, index=place))
        if isinstance(event, FinishEvent):
            engine.forget(event.index)

    def _take_out(self) -> None:
        """Abort the rows of calls that were ended; the last ones are gone when this returns."""
        engine = self._engine
        while self._left:
            call = self._left.popleft()
            for index in call.places:
                if engine is not None and self._calls.pop(index, None) is not None:
                    engine.abort(index)
            call.waiting.clear()
            call.places.clear()
        while engine is not None and not self._calls and engine.busy:
            self._step()
            engine = self._engine

    def _drop(self) -> None:
        """End the engine there is; the next call builds another."""
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.close()

    def _fail(self, message: str) -> None:
        """Drop the engine, and tell every caller why."""
        self._drop()
        calls, self._calls = list(dict.fromkeys(self._calls.values())), {}
        for call in calls:
            call.waiting.clear()
            call.places.clear()
            call.failed(message)


def prepared(
    engine: DecodingEngine, requests: Sequence[Request], *, streamed: bool, coalesce: int | None
) -> list[RequestState]:
    """What the requests start as. Raises ValueError as `Engine.prepare`; PromptTooLong has the places of all that are
    too long, and says what is wrong with the first."""
    rows: list[RequestState] = []
    refusals: dict[int, PromptTooLong] = {}
    for place, request in enumerate(requests):
        try:
            rows.append(engine.prepare(request, streamed=streamed, coalesce=coalesce))
        except PromptTooLong as error:
            refusals[place] = error
    if refusals:
        first = next(iter(refusals.values()))
        raise PromptTooLong(str(first), tuple(refusals)) from first
    return rows
