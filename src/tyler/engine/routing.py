"""When an operator is invoked: by the policy itself (Learned), or by a schedule fixed from outside.

A router is a setting and starts one `Schedule` per request. Schedules place operators between visible tokens; the
engine asks them after every visible token and knows nothing about how they decide.
"""

from __future__ import annotations

import sys
from bisect import bisect_left, bisect_right, insort
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import numpy as np

from tyler.boundaries.placement import RULES, Boundary, BoundaryScanner
from tyler.engine.checks import check_real, check_whole
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


@runtime_checkable
class Router(Protocol):
    """Who decides about operators. `learned`: they are actions of the policy; else a schedule places them."""

    @property
    def learned(self) -> bool: ...

    def start(self, operators: Sequence[Operator], random: np.random.Generator) -> Schedule: ...


class NoSchedule:
    """Places nothing."""

    def observe(self, pieces: Sequence[str]) -> None:
        pass

    def due(self) -> Call | None:
        return None

    def settled(self) -> int:
        return EVERYTHING


@dataclass(frozen=True)
class Learned:
    """Operators compete with tokens in one next-action distribution (Section 3.3)."""

    learned: bool = field(default=True, init=False)

    def start(self, operators: Sequence[Operator], random: np.random.Generator) -> Schedule:
        return NoSchedule()


@dataclass(frozen=True)
class Never:
    """No operators: plain decoding of the policy over V."""

    learned: bool = field(default=False, init=False)

    def start(self, operators: Sequence[Operator], random: np.random.Generator) -> Schedule:
        return NoSchedule()


@dataclass(frozen=True)
class Forced:
    """Operators at given numbers of visible tokens: {0: ("global",), 12: ("state", "procedure")}."""

    calls: Mapping[int, Sequence[str]]
    learned: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        for position, names in self.calls.items():
            check_whole("position", position, 0, "Forced counts visible tokens: whole numbers from 0")
            if isinstance(names, str):
                raise ValueError(f"Forced({{{position}: {names!r}}}); give the operators as a tuple, ({names!r},)")

    def start(self, operators: Sequence[Operator], random: np.random.Generator) -> Schedule:
        known = [operator.name for operator in operators]
        for name in (name for names in self.calls.values() for name in names):
            if name not in known:
                raise ValueError(f"Forced names operator {name!r}; this model has {', '.join(known) or 'none'}")
        return ForcedSchedule(
            [Call(position, name) for position, names in sorted(self.calls.items()) for name in names]
        )


class ForcedSchedule:
    """The calls of `Forced`, in order."""

    def __init__(self, calls: list[Call]) -> None:
        self._calls = calls
        self._observed = 0

    def observe(self, pieces: Sequence[str]) -> None:
        self._observed = len(pieces)

    def due(self) -> Call | None:
        if self._calls and self._calls[0].position <= self._observed:
            return self._calls.pop(0)
        return None

    def settled(self) -> int:
        return self._calls[0].position if self._calls else EVERYTHING


@dataclass(frozen=True)
class AtBoundaries:
    """Each operator at the boundaries of its rule, each with probability `rate`: Stage 1 as a method, and Rand@p.

    `only` restricts it to some operators by name. The rule is the one Stage 1 data is made with, so decoding meets
    operators where training put them.
    """

    rate: float = 1.0
    only: tuple[str, ...] | None = None
    learned: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        check_real("rate", self.rate, "it is a probability, between 0 and 1")
        if not 0 <= self.rate <= 1:
            raise ValueError(f"rate={self.rate}; it is a probability, between 0 and 1")
        if isinstance(self.only, str):
            raise ValueError(f"only={self.only!r}; give the operators as a tuple, ({self.only!r},)")

    def start(self, operators: Sequence[Operator], random: np.random.Generator) -> Schedule:
        known = [operator.name for operator in operators]
        for name in self.only or ():
            if name not in known:
                raise ValueError(
                    f"AtBoundaries(only=...) names operator {name!r}; this model has {', '.join(known) or 'none'}"
                )
        chosen = [operator for operator in operators if self.only is None or operator.name in self.only]
        return BoundarySchedule(chosen, self.rate, random)


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
            position = upcoming_token(boundary, self._ends)
            for index, operator in enumerate(self._operators):
                if operator.boundary == boundary.rule and (position, index) not in self._placed:
                    self._placed.add((position, index))
                    insort(self._found, (position, index))


def check_router(router: object) -> None:
    """Raise ValueError for what cannot route: a class instead of an object, or anything else."""
    if isinstance(router, type):
        raise ValueError(f"router={router.__name__} is a class; write {router.__name__}()")
    if not isinstance(router, Router):
        raise ValueError(f"router={router!r} is not a router; give Learned(), Never(), AtBoundaries(), Forced({{...}})")


def router_named(text: str) -> Router:
    """The router of a name: learned, never, boundaries, or boundaries:RATE with 0 <= RATE <= 1.

    Raises ValueError for any other text.
    """
    name, _, rate = text.partition(":")
    if name == "boundaries":
        try:
            return AtBoundaries(rate=float(rate or 1))
        except ValueError as error:
            raise ValueError(f"router {text!r}: {error}") from error
    named: dict[str, Router] = {"learned": Learned(), "never": Never()}
    if text not in named:
        raise ValueError(
            f"router {text!r} is unknown; choose from learned, never, boundaries, boundaries:RATE (0 to 1)"
        )
    return named[text]


def upcoming_token(boundary: Boundary, ends: Sequence[int]) -> int:
    """The visible token that a boundary comes before, given where the tokens so far end (their number: the next)."""
    if RULES[boundary.rule].side == "before":
        return bisect_right(ends, boundary.position)
    return 1 + bisect_left(ends, boundary.position) if boundary.position else 0
