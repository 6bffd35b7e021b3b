"""B(q, y) of the paper (Section 4.1, app:stage1): where in an answer each typed operator may be trained or invoked.

ONE rule for both uses. Stage 1 reads a whole trace with `find_boundaries`; a router's `Schedule` feeds a
`BoundaryScanner` the text as it is decoded. Rules work on text, because real tokenizers merge `.` with the blank line
after it; `token_of` maps positions to tokens. `docs/boundaries.md` says what counts, with examples, counts and errors.
"""

import sys
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from random import Random
from typing import Protocol

import numpy as np

from tyler.boundaries.rules import RULES, Boundary
from tyler.boundaries.scanner import BoundaryScanner, find_boundaries
from tyler.modeling.operators import Operator


def piece_offsets(pieces: Sequence[str]) -> list[tuple[int, int]]:
    """The span of characters [start, end) of each piece of text, for tokens decoded one after another.

    A token that completes no character has an empty piece, and its span is empty.
    """
    return list(pairwise(accumulate(map(len, pieces), initial=0)))


def token_of(boundary: Boundary, ends: Sequence[int]) -> int:
    """The token that a boundary comes before, given where the tokens so far end (their number: the next).

    A position after something goes to the first token that starts at or after it, one before something to the token
    that holds it, even where a space comes first in that token.
    """
    if RULES[boundary.rule].side == "before":
        return bisect_right(ends, boundary.position)
    return 1 + bisect_left(ends, boundary.position) if boundary.position else 0


def placed(boundaries: Iterable[Boundary], ends: Sequence[int], operators: Sequence[Operator]) -> set[tuple[int, int]]:
    """The boundaries as pairs of a token, which the operator comes before, and the index of an operator for it."""
    return {
        (token_of(boundary, ends), index)
        for boundary in boundaries
        for index, operator in enumerate(operators)
        if operator.boundary == boundary.rule
    }


def candidates(
    text: str, offsets: Sequence[tuple[int, int]], operators: Iterable[Operator]
) -> list[tuple[int, Operator]]:
    """B(q, y), app:stage1: the pairs (b, O_k) of a token position in the answer `text` and an operator for it.

    `offsets` are the spans of the answer's tokens, one after another without gaps (`detokenizer.token_spans`); b counts
    from the first of them, and positions past the last are dropped. In order of b, then of `operators`. ValueError when
    an operator names a rule that RULES does not have.
    """
    chosen = tuple(operators)
    boundaries = find_boundaries(text, {operator.boundary for operator in chosen})
    pairs = sorted(placed(boundaries, [end for _, end in offsets], chosen))
    return [(token, chosen[index]) for token, index in pairs if token < len(offsets)]


def sample_candidates(pairs: Sequence[tuple[int, Operator]], count: int, rng: Random) -> list[tuple[int, Operator]]:
    """(b, k) ~ B(q, y): `count` distinct pairs, or all when there are fewer, in the order of `pairs`.

    # Deviation: the paper does not say how it samples. Each draw takes an operator type among those that have pairs
    # left, all equally likely, and then one of its pairs; uniform over pairs would starve O_g.
    """
    left: dict[str, list[int]] = {}
    for index, (_, operator) in enumerate(pairs):
        left.setdefault(operator.name, []).append(index)
    drawn: list[int] = []
    while left and len(drawn) < count:
        name = rng.choice(list(left))
        drawn.append(left[name].pop(rng.randrange(len(left[name]))))
        if not left[name]:
            del left[name]
    return [pairs[index] for index in sorted(drawn)]


# --- as the text grows -----------------------------------------------------------------------------------------------

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
        for pair in placed(boundaries, self._ends, self._operators) - self._placed:
            self._placed.add(pair)
            insort(self._found, pair)
