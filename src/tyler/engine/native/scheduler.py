"""Who may join the batch, and who must make room: the queue, and the memory that bounds it."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from tyler.engine.native.batch import Batch
from tyler.engine.request import Request
from tyler.engine.request_state import RequestState


class Scheduler:
    """The requests that wait for a place in the batch, in their order.

    A row takes memory for as far as it may reach within a step: `longest_action` positions after where it stands.
    """

    def __init__(self, batch: Batch, longest_action: int) -> None:
        self.waiting: deque[RequestState] = deque()
        self._batch, self._memory = batch, batch.memory
        self._beyond = longest_action + 1

    def check(self, request: Request) -> None:
        """Raise ValueError for a request whose answer could not be finished even alone."""
        if self._memory is None:
            return
        positions = len(request.prompt_ids) + request.max_new_tokens - 1 + self._beyond
        needed = self._bytes([min(positions, self._batch.backbone.max_positions)])
        if needed > self._memory:
            raise ValueError(
                f"a prompt of {len(request.prompt_ids)} tokens with max_new_tokens={request.max_new_tokens} needs "
                f"{needed:,} bytes of context and caches, and memory={self._memory:,}; lower max_new_tokens or raise it"
            )

    def admit(self) -> list[RequestState]:
        """Take from the queue who may join now, and hold memory for them beside those that run."""
        joining: list[RequestState] = []
        while self._next_fits(joining):
            joining.append(self.waiting.popleft())
        self._make_room(joining)
        return joining

    def withdrawn(self) -> list[RequestState]:
        """Take those from the head of the queue whose requests were aborted while they waited."""
        ended = []
        while self.waiting and self.waiting[0].finish_reason:
            ended.append(self.waiting.popleft())
        return ended

    def preempt_youngest(self) -> None:
        """Send the rows that came last back to the queue, with their context, until the others have room to grow."""
        rows = self._batch.rows
        while len(rows) > 1 and not self._fits([]):
            slot = max(range(len(rows)), key=lambda place: rows[place].index)
            row = rows[slot]
            row.saved_context = self._batch.context.of(slot)
            self.waiting.appendleft(row)
            self._batch.leave(slot)

    def _next_fits(self, joining: Sequence[RequestState]) -> bool:
        """Whether there is a next one, and a place and memory for it beside those that run and join."""
        taken = len(self._batch.rows) + len(joining)
        return bool(self.waiting) and taken < self._batch.slots and self._fits([*joining, self.waiting[0]])

    def _fits(self, joining: Sequence[RequestState]) -> bool:
        """Whether these rows find memory beside those that run; one row alone always does."""
        if self._memory is None:
            return True
        reach = self._reach(joining)
        return len(reach) == 1 or self._bytes(reach) <= self._memory

    def _make_room(self, joining: Sequence[RequestState]) -> None:
        """Hold memory for the rows there are: more when they grow, less when most have gone and none waits."""
        self._batch.context.fit(self._reach(joining), exact=self._memory is not None, shrinks=not self.waiting)

    def _reach(self, joining: Sequence[RequestState] = ()) -> list[int]:
        """Positions that the running rows and these may reach within a step."""
        lengths = (*self._batch.context.lengths[: len(self._batch.rows)], *(row.length for row in joining))
        return [length + self._beyond for length in lengths]

    def _bytes(self, lengths: Sequence[int]) -> int:
        """What context and caches of rows of these lengths take."""
        return self._batch.context.positions_for(lengths) * self._batch.position_bytes
