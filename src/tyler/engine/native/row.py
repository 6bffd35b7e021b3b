"""A request in its slot: what its context holds, and which of its actions are repeated, to be scored and not drawn."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tyler.engine.native.attention import Span
from tyler.engine.request import Event
from tyler.engine.request_state import RequestState

LATENT = -1
"""Instead of a token's id, at a position that holds no token."""


@dataclass(slots=True)
class Decision:
    """An action that a row is to draw; or that it has taken already, `taken`, as its action number `place`. The hidden
    state at `position` of the context decides."""

    row: Row
    allowed: tuple[bool, ...]
    position: int
    taken: int | None = None
    place: int = -1


class Row(RequestState):
    """One request that is being answered, in a slot once it is admitted. Parking clears nothing and moves nothing: it
    sets `call`.

    `pending` are the actions of a branch that come next, whatever would be drawn. Of the context's positions `ids` has
    the token that is read there, or LATENT.
    """

    slot = -1

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        learned, repeated = self.request.router.learned, self.request.branch or ()
        self.pending = deque(action for action in repeated if learned or action < self.vocab_size)
        self.random.random(len(self.pending))  # the numbers that these have taken
        self.scoring: list[Decision] = []
        # A branch leaves out the invocation after its actions: the policy cannot draw one there, a fixed router's call
        # after so many others is not made.
        self.barred = self.request.branch is not None and learned
        self.left_out = None if self.request.branch is None or learned else len(repeated) - len(self.pending)

    @property
    def is_read(self) -> bool:
        """Whether a pass of the policy takes it: not while it waits for a call, nor when nothing of it is wanted."""
        return self.call is None and self.finish_reason not in ("abort", "error")

    @property
    def is_done(self) -> bool:
        """Whether its slot is free again; what was repeated is scored before."""
        return bool(self.finish_reason) and not (self.scoring and self.is_read)

    def repeats(self, action: int) -> int:
        """The action, which is scored when the position before it is read."""
        self.scoring.append(Decision(self, self.allowed, self.length - 1, action, len(self.choices)))
        return action

    def hold_back(self) -> None:
        """As `RequestState.hold_back`; they are scored when they come again."""
        super().hold_back()
        self.scoring = [one for one in self.scoring if one.place < len(self.choices)]

    def unread(self, read_to: int) -> int:
        """From where a pass has to read it: what is new, what is to be scored, and at least its last position."""
        return min(read_to, len(self.ids) - 1, *[one.position for one in self.scoring])

    def decided_in(self, span: Span) -> list[Decision]:
        """What a pass over a span of it can decide: it scores what was repeated, and draws behind its end."""
        found = [one for one in self.scoring if one.position < span.end]
        del self.scoring[: len(found)]
        if span.end == len(self.ids) and not self.finish_reason:
            allowed = (False,) * len(self.offered) if self.barred else self.allowed
            found.append(Decision(self, allowed, span.end - 1))
        return found

    def emit(self) -> list[Event]:
        """Events as of any request, once all of its actions are scored."""
        return [] if self.scoring else super().emit()


Charge = tuple[RequestState, int, int]
"""A row, how many of the positions of a pass are for it, and how many of these for its operator calls."""


@contextmanager
def charged(charges: Sequence[Charge]) -> Iterator[None]:
    """Charge what happens inside to rows by their positions.

    So an answer's share of all passes means the same at any number of slots. Nothing is charged inside another.
    """
    started = time.perf_counter()
    yield
    each = (time.perf_counter() - started) / sum(positions for _, positions, _ in charges)
    for row, positions, calls in charges:
        row.engine_seconds += each * positions
        row.synthesis_seconds += each * calls
