"""One request's plan of operator calls, revealed as its visible text grows: the calls of a list, or at boundaries."""

from __future__ import annotations

import sys
from bisect import bisect_left, bisect_right, insort
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from tyler.boundaries.placement import token_of
from tyler.boundaries.rules import Boundary
from tyler.boundaries.scanner import BoundaryScanner
from tyler.modeling.operators import Operator

EVERYTHING = sys.maxsize


@dataclass(frozen=True)
class Call:
    """Invoke the operator named `operator` once `position` visible tokens are in the context."""

    position: int
    operator: str


class Schedule(Protocol):
    """One request's fixed plan of operator calls, revealed as its visible text grows."""

    def observe(self, pieces: Sequence[str]) -> None:
        """Take the texts of the visible tokens so far; only those beyond the last observation are looked at."""

    def due(self) -> Call | None:
        """The next call that is certain, at or before the tokens observed so far. Each is returned once."""

    def settled(self) -> int:
        """Visible tokens before this index can no longer be preceded by a new call."""


class ForcedSchedule:
    """Calls in the order of their positions."""

    def __init__(self, calls: Sequence[Call] = ()) -> None:
        self._calls = list(calls)
        self._observed = 0

    def observe(self, pieces: Sequence[str]) -> None:
        self._observed = len(pieces)

    def due(self) -> Call | None:
        if self._calls and self._calls[0].position <= self._observed:
            return self._calls.pop(0)
        return None

    def settled(self) -> int:
        return self._calls[0].position if self._calls else EVERYTHING


class BoundarySchedule:
    """Boundaries of the visible text, mapped to tokens and released in the order of their positions.

    A scanner may be certain of one boundary while it still doubts an earlier one, so a boundary waits until nothing
    before it is undecided.
    """

    def __init__(self, operators: Sequence[Operator], rate: float, random: np.random.Generator) -> None:
        self._operators, self._rate, self._random = operators, rate, random
        self._scanner = BoundaryScanner({operator.boundary for operator in operators})
        self._ends: list[int] = []
        self._found: list[tuple[int, int]] = []  # (position, operator), sorted, not yet released
        self._placed: set[tuple[int, int]] = set()
        self._take(self._scanner.feed(""))

    def observe(self, pieces: Sequence[str]) -> None:
        for index in range(len(self._ends), len(pieces)):
            piece = pieces[index]
            self._ends.append((self._ends[-1] if self._ends else 0) + len(piece))
            self._take(self._scanner.feed(piece))

    def due(self) -> Call | None:
        while self._found and self._found[0][0] <= self._certain():
            position, operator = self._found.pop(0)
            if self._random.random() < self._rate:
                return Call(position, self._operators[operator].name)
        return None

    def settled(self) -> int:
        return min(self._certain(), self._found[0][0]) if self._found else self._certain()

    def _certain(self) -> int:
        """Visible tokens before this index can no longer be preceded by a new boundary.

        One at the scanner's undecided text would fall on the first token that starts there (which may be empty, inside
        a character) or on the token that holds it.
        """
        settled = self._scanner.settled
        starting = 1 + bisect_left(self._ends, settled) if settled else 0
        return min(starting, bisect_right(self._ends, settled))

    def _take(self, boundaries: list[Boundary]) -> None:
        """Queue the operators of newly certain boundaries; each at most once per visible position."""
        for boundary in boundaries:
            position = token_of(boundary, self._ends)
            for index, operator in enumerate(self._operators):
                if operator.boundary == boundary.rule and (position, index) not in self._placed:
                    self._placed.add((position, index))
                    insort(self._found, (position, index))
