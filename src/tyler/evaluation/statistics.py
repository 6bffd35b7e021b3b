"""How sure a count is: intervals of a share, and the difference of two methods on the same problems."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

Z95 = 1.959963984540054


def wilson(correct: int, count: int) -> tuple[float, float]:
    """95% Wilson score interval of a proportion, in [0, 1]."""
    if count == 0:
        return 0.0, 1.0
    share = correct / count
    centre = share + Z95**2 / (2 * count)
    margin = Z95 * math.sqrt(share * (1 - share) / count + Z95**2 / (4 * count**2))
    scale = 1 + Z95**2 / count
    return max(0.0, (centre - margin) / scale), min(1.0, (centre + margin) / scale)


@dataclass(frozen=True)
class Paired:
    """Two methods on the same problems: how often both, only the first, only the second, and neither was right."""

    both: int
    only_first: int
    only_second: int
    neither: int

    @classmethod
    def of(cls, first: Sequence[bool], second: Sequence[bool]) -> Paired:
        """Count successes problem by problem. Raises ValueError for sequences of different lengths."""
        pairs = list(zip(first, second, strict=True))
        return cls(*(pairs.count(cell) for cell in ((True, True), (True, False), (False, True), (False, False))))

    @property
    def count(self) -> int:
        return self.both + self.only_first + self.only_second + self.neither

    @property
    def first(self) -> int:
        return self.both + self.only_first

    @property
    def second(self) -> int:
        return self.both + self.only_second

    @property
    def difference(self) -> float:
        """Share of the second less share of the first, in [-1, 1]."""
        return (self.only_second - self.only_first) / self.count

    def interval(self) -> tuple[float, float]:
        """95% interval of the difference: Newcombe (1998), method 10, from the two Wilson intervals.

        Statistics in Medicine 17, 2635-2650. It keeps within [-1, 1] and holds its level where counts are small.
        """
        (low1, high1), (low2, high2) = wilson(self.first, self.count), wilson(self.second, self.count)
        share1, share2, phi = self.first / self.count, self.second / self.count, self._correlation()

        def width(a: float, b: float) -> float:
            return math.sqrt(max(0.0, a**2 - 2 * phi * a * b + b**2))

        return (
            self.difference - width(share2 - low2, high1 - share1),
            self.difference + width(high2 - share2, share1 - low1),
        )

    def _correlation(self) -> float:
        """phi of the 2 x 2 table, with Newcombe's continuity correction; 0 where a margin is empty."""
        margins = self.first * (self.count - self.first) * self.second * (self.count - self.second)
        if margins == 0:
            return 0.0
        product = float(self.both * self.neither - self.only_first * self.only_second)
        if product > 0:
            product = max(product - self.count / 2, 0)
        return product / math.sqrt(margins)

    def p_value(self) -> float:
        """Two-sided exact McNemar test: whether the problems that only one of them solved split evenly."""
        discordant = self.only_first + self.only_second
        tail = sum(math.comb(discordant, k) for k in range(min(self.only_first, self.only_second) + 1))
        return min(1.0, 2 * tail / 2**discordant)
