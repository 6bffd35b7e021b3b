"""One engine that many callers share, from any thread, and that lives on between their calls.

A call brings requests and receives their events. One thread begins and ends calls and takes the engine's steps, each
of which serves all calls: their rows are one batch.

What survives from call to call are the caches, and the decoders with their folded weights. The weights are watched:
the first call after they changed finds the new ones folded in.
"""

import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from queue import SimpleQueue
from typing import TypeVar

from peft import PeftModel
from torch import Tensor

from tyler.engine.base import BaseEngine, Load
from tyler.engine.checks import check_sizes
from tyler.engine.request import Event, FinishEvent, PromptTooLong, Request, checked
from tyler.engine.request_state import RequestState
from tyler.engine.trajectory import Trajectory

SLOTS = 64
"""Rows of an engine that is kept, unless a call asks for more: an unused row costs next to nothing."""

Found = TypeVar("Found")
Turn = Callable[[], AbstractContextManager[object]]
"""What a pass over the model is within, where an engine shares the model: meanwhile the engine takes no step."""


class DecodingError(RuntimeError):
    """An answer was lost to something that went wrong elsewhere; the same question may be asked again."""


Deliver = Callable[[list[Event] | DecodingError], None]
Build = Callable[..., BaseEngine]
"""Makes an engine with so many `slots`, within so much `memory`, for answers of so many `positions`."""


@dataclass(eq=False)
class Call:
    """Requests of one caller. `deliver` receives what each step gave rise to, or an error that ended them."""

    waiting: deque[tuple[int, RequestState]]
    """Those that wait until this call has fewer than `slots` rows in the engine, with their places among all of it."""
    slots: int
    deliver: Deliver
    places: dict[int, int] = field(default_factory=dict)
    """Of those in the engine, by the engine's index."""

    @property
    def done(self) -> bool:
        return not self.waiting and not self.places

    def end(self) -> None:
        """Forget what is left of it."""
        self.waiting.clear()
        self.places.clear()


class SharedEngine:
    """An engine that is made when it is first needed, by `build`, with at least `slots` rows, and kept.

    A call that asks for another `memory` than that of the engine in use, or for longer answers than its slots hold,
    waits until those before it are done, and so gets another engine; those that come later wait for it in turn. One
    that asks for more slots gets them if no other call is running.
    """

    def __init__(self, build: Build, slots: int = SLOTS) -> None:
        self.slots = slots
        """Rows of an engine, unless a call asks for more. To be changed before the first call only."""
        self.keeps_prefixes = False
        """Whether a prompt that goes on where an answered one ended reads only what is new, as a server's do."""
        self._build = build
        self._thread = ThreadPoolExecutor(1, "tyler-engine")  # begins with the first call, and goes with this object
        self._goes_on = False  # whether it is to take another step
        self._engine: BaseEngine | None = None
        self._watch: WeightWatch | None = None
        self._calls: dict[int, Call] = {}  # by the engine's index of each of their rows
        self._left: deque[Call] = deque()  # ended by their callers, and not yet taken out

    # -- calls ---------------------------------------------------------------------------------------------------

    def events(
        self, requests: Sequence[Request], *, slots: int = SLOTS, memory: int | None = None, streamed: bool = True
    ) -> Generator[Event, None, None]:
        """Decode requests, telling what happens as it happens; without `streamed` not of tokens.

        An event's index is the request's place in `requests`. At most `slots` of them are decoded at once. Who stops
        listening aborts what is left. Raises ValueError for a request that the engine refuses, before any begins,
        FloatingPointError for an answer whose logits are not finite, and DecodingError when the engine failed.
        """
        arrived, unfinished = SimpleQueue[list[Event] | DecodingError](), len(requests)
        opening = self.open(requests, arrived.put, slots=slots, memory=memory, streamed=streamed)
        try:
            opening.result()
            while unfinished:
                item = arrived.get()
                if isinstance(item, DecodingError):
                    raise item
                unfinished -= sum(isinstance(event, FinishEvent) for event in item)
                yield from checked(item)
        finally:
            self.end_opened(opening)

    def run(
        self,
        requests: Sequence[Request],
        *,
        slots: int = SLOTS,
        memory: int | None = None,
        finished: Callable[[int, Trajectory], None] | None = None,
    ) -> list[Trajectory]:
        """Decode requests; trajectories in their order. `finished` receives each, with its place, as it is done."""
        trajectories: dict[int, Trajectory] = {}
        for event in self.events(requests, slots=slots, memory=memory, streamed=False):
            if isinstance(event, FinishEvent):
                trajectories[event.index] = event.trajectory
                if finished is not None:
                    finished(event.index, event.trajectory)
        return [trajectories[index] for index in range(len(requests))]

    def open(
        self,
        requests: Sequence[Request],
        deliver: Deliver,
        *,
        slots: int = SLOTS,
        memory: int | None = None,
        streamed: bool = True,
    ) -> Future[Call]:
        """Queue requests; `deliver` is called by the engine's thread after every step in which something happens.

        It is quick and never raises. The call comes with ValueError for a request that the engine
        refuses, PromptTooLong with the places of all that are too long.
        """
        check_sizes(slots, memory)

        def begin(engine: BaseEngine) -> Call:
            rows = prepared(engine, requests, streamed=streamed)
            call = Call(deque(enumerate(rows)), slots, deliver)
            self._feed(engine, call)
            self._go_on()
            return call

        positions = max((request.reach for request in requests), default=1)
        return self._thread.submit(lambda: begin(self._fitting(slots, memory, positions)))

    def end_opened(self, opening: Future[Call]) -> None:
        """Abort what is left of a call before the next step; one that has not begun never does, or ends at once.

        This never waits: a forgotten iterator ends its call from wherever it is collected.
        """

        def end(opened: Future[Call]) -> None:
            if not opened.cancelled() and opened.exception() is None and not opened.result().done:
                self._left.append(opened.result())

        if not opening.cancel():
            opening.add_done_callback(end)

    def between_steps(self, work: Callable[[BaseEngine], Found], memory: int | None = None) -> Future[Found]:
        """What `work` returns, called with the engine between two steps."""
        return self._thread.submit(lambda: work(self._fitting(1, memory, 1)))

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Within it the engine takes no step: for what runs the model beside it."""
        turn = threading.Barrier(2)
        self._thread.submit(lambda: (turn.wait(), turn.wait()))  # meets the caller when it begins, and when it ends
        turn.wait()
        try:
            yield
        finally:
            turn.wait()

    def release(self) -> None:
        """Give the engine's memory back, unless a call is running."""

        def release() -> None:
            self._take_out()
            if not self._calls and self._engine is not None and not self._engine.release():
                self._drop()

        self._thread.submit(release).result()

    def close(self) -> None:
        """End the engine for good; a later call builds another. Unfinished calls get an error."""
        self._thread.submit(self._fail, DecodingError("the engine was closed")).result()

    def load(self) -> Load:
        engine = self._engine
        load = Load() if engine is None else engine.load()
        return replace(load, waiting=load.waiting + sum(len(call.waiting) for call in set(list(self._calls.values()))))

    # -- in the engine's thread ----------------------------------------------------------------------------------

    def _go_on(self) -> None:
        """Let the thread take steps while there is a call, each after what was asked of it before."""
        if self._calls and not self._goes_on:
            self._goes_on = True
            self._thread.submit(self._turn)

    def _turn(self) -> None:
        self._take_out()
        if self._watch is not None and self._watch.live_changed:
            self._take_new_weights()
        if self._calls:
            self._step()
        self._goes_on = False
        self._go_on()

    def _fitting(self, slots: int, memory: int | None, positions: int) -> BaseEngine:
        """An engine over the present weights with what a call needs. Those that another one answers are answered first;
        who comes later waits, too."""
        self._take_out()
        self._take_new_weights()
        while (engine := self._engine) is not None and self._calls:
            if engine.fits(0, memory, positions):
                return engine
            self._step()
            self._take_out()
            self._take_new_weights()
        if engine is None or not engine.fits(slots, memory, positions):
            self._drop()  # its memory goes before the new one's comes
            engine = self._build(slots=max(slots, self.slots), memory=memory, positions=positions)
            engine.keeps_prefixes = self.keeps_prefixes
            self._engine, self._watch = engine, WeightWatch(engine)
        return engine

    def _take_new_weights(self) -> None:
        """Let what comes now be answered under the present weights: calls that began under others end with an error."""
        if self._engine is None or self._watch is None or not self._watch.changed:
            return
        if self._calls:
            self._fail(DecodingError("the model's weights changed while this answer was decoded; ask again"))
        elif self._watch.theta_changed or not self._engine.refresh():
            self._drop()
        else:
            self._watch = WeightWatch(self._engine)

    def _feed(self, engine: BaseEngine, call: Call) -> None:
        """Give the engine as many of a call's requests as may run at once."""
        while call.waiting and len(call.places) < call.slots:
            place, row = call.waiting.popleft()
            call.places[row.index] = place
            self._calls[row.index] = call
            engine.waiting.append(row)

    def _step(self) -> None:
        """Take a step, and tell the callers what happened; who has room for another row gets it.

        What goes wrong in it ends the engine, and every call.
        """
        engine, told = self._engine, dict[Call, list[Event]]()
        assert engine is not None, "a call has an engine"
        try:
            events = engine.step()
        except BaseException as error:
            lost = DecodingError(f"decoding failed: {type(error).__name__}: {error}")
            lost.__cause__ = error
            return self._fail(lost)
        for event in events:
            if (call := self._calls.get(event.index)) is None:  # aborted
                continue
            told.setdefault(call, []).append(replace(event, index=call.places[event.index]))
            if isinstance(event, FinishEvent):
                del call.places[event.index], self._calls[event.index]
                self._feed(engine, call)
        for call, its in told.items():
            call.deliver(its)

    def _take_out(self) -> None:
        """Abort the rows of calls that were ended; where no other call is left, they are gone when this returns."""
        while self._left:
            call = self._left.popleft()
            for index in call.places:
                if self._engine is not None and self._calls.pop(index, None) is not None:
                    self._engine.abort(index)
            call.end()
        while not self._calls and self._engine is not None and self._engine.busy:
            self._step()

    def _drop(self) -> None:
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.close()

    def _fail(self, error: DecodingError) -> None:
        """Drop the engine, and tell every caller why."""
        self._drop()
        calls, self._calls = list(dict.fromkeys(self._calls.values())), {}
        for call in calls:
            call.end()
            call.deliver(error)


class WeightWatch:
    """The tensors that an engine reads, and how often each had been written when it was brought up to date.

    Decoding runs on copies: adapters folded into the weights of a view. torch counts the writes to every tensor: an
    optimizer's step, `copy_` or `load_state_dict` shows there, and looking takes 0.1 us a tensor. A write through
    `.data`, past that counter, does not: drop the engine after one.
    """

    def __init__(self, engine: BaseEngine) -> None:
        self._adapted = engine.adapted
        self._frozen = list(engine.backbone.model.parameters())
        known = set(map(id, self._frozen))
        self._trained = [one for module in self._adapted for one in module.parameters() if id(one) not in known]
        adapters = {id(one) for module in self._adapted if module.lora for one in module.lora.parameters()}
        self._live = [one for one in self._trained if id(one) not in adapters]
        self._known, self._known_live = self._present(), writes(self._live)

    def _present(self) -> tuple[list[int], list[int], list[PeftModel | None]]:
        return writes(self._frozen), writes(self._trained), [module.lora for module in self._adapted]

    @property
    def theta_changed(self) -> bool:
        """Whether the backbone itself was written."""
        return writes(self._frozen) != self._known[0]

    @property
    def live_changed(self) -> bool:
        """Whether what decoding reads in place was written: an answer that went on would be a mixture."""
        return self.theta_changed or writes(self._live) != self._known_live

    @property
    def changed(self) -> bool:
        """Whether anything was written, or a LoRA has come or gone."""
        return self._present() != self._known


def writes(tensors: Sequence[Tensor]) -> list[int]:
    """How often each tensor was written in place."""
    return [tensor._version for tensor in tensors]


def prepared(engine: BaseEngine, requests: Sequence[Request], *, streamed: bool) -> list[RequestState]:
    """What the requests start as. Raises ValueError as `Engine.prepare`; PromptTooLong has the places of all that are
    too long, and says what is wrong with the first."""
    rows, refusals = list[RequestState](), dict[int, PromptTooLong]()
    for place, request in enumerate(requests):
        try:
            rows.append(engine.prepare(request, streamed=streamed))
        except PromptTooLong as error:
            refusals[place] = error
    for first in refusals.values():
        raise PromptTooLong(str(first), tuple(refusals)) from first
    return rows
