"""How sure a count is: intervals of a share, pass@k, and the difference of two methods on the same problems."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np

Z95 = 1.959963984540054


def wilson(correct: float, count: float) -> tuple[float, float]:
    """95% Wilson score interval of a proportion, in [0, 1]."""
    if count == 0:
        return 0.0, 1.0
    share = correct / count
    centre = share + Z95**2 / (2 * count)
    margin = Z95 * math.sqrt(share * (1 - share) / count + Z95**2 / (4 * count**2))
    scale = 1 + Z95**2 / count
    return max(0.0, (centre - margin) / scale), min(1.0, (centre + margin) / scale)


def clustered(shares: Sequence[float], samples: int = 1) -> tuple[float, float]:
    """95% interval of a mean over problems, each with its share in [0, 1] of what its `samples` answers gave.

    Answers to one problem are alike, so problems are what is counted: Wilson's interval at the effective number of
    answers p (1 - p) / v, where v is the variance of the mean of the problems' shares (Korn and Graubard 1998, Survey
    Methodology 24, 193-201), at most all answers. With one answer each it is Wilson's own.
    """
    count, mean = len(shares), fmean(shares) if shares else 0.0
    variance = sum((share - mean) ** 2 for share in shares) / count**2 if shares else 0.0
    spread = mean * (1 - mean)
    effective = count if spread == 0 else min(spread / variance, count * samples) if variance else count * samples
    return wilson(mean * effective, effective)


def pass_at(k: int, correct: int, count: int) -> float:
    """The chance that one of k answers is right, of `count` of which `correct` are: 1 - C(n - c, k) / C(n, k).

    Without bias over which answers were drawn (Chen et al. 2021, arXiv:2107.03374). Raises ValueError unless
    1 <= k <= count.
    """
    if not 1 <= k <= count:
        raise ValueError(f"pass@{k} cannot be counted from {count} answers; k is 1 to {count}")
    return 1 - math.comb(count - correct, k) / math.comb(count, k)


def resampled(values: np.ndarray, draws: int, source: np.random.Generator) -> np.ndarray:
    """Bootstrap samples of what was found for each problem: [n, ...] gives [draws, n, ...]."""
    return values[source.integers(len(values), size=(draws, len(values)))]


def middle95(values: np.ndarray) -> tuple[float, float]:
    """Where the middle 95% of numbers lie: of a statistic of bootstrap samples, its percentile interval."""
    low, high = np.quantile(values, (0.025, 0.975))
    return float(low), float(high)


@dataclass(frozen=True)
class Paired:
    """Two methods on the same problems: each problem's share of right answers, 0 or 1 where it has one."""

    first_shares: tuple[float, ...]
    second_shares: tuple[float, ...]

    @property
    def count(self) -> int:
        return len(self.first_shares)

    @property
    def differences(self) -> list[float]:
        return [second - first for first, second in zip(self.first_shares, self.second_shares, strict=True)]

    @property
    def difference(self) -> float:
        """Mean share of the second less that of the first, in [-1, 1]."""
        return fmean(self.differences)

    @property
    def only_first(self) -> int:
        """Problems that the first solves more often."""
        return sum(difference < 0 for difference in self.differences)

    @property
    def only_second(self) -> int:
        """Problems that the second solves more often."""
        return sum(difference > 0 for difference in self.differences)

    def interval(self, draws: int = 10_000) -> tuple[float, float]:
        """95% percentile bootstrap interval of the difference over problems, the same at every call.

        Where no problem differs the bootstrap has nothing to draw: then the interval is what so many problems resolve
        (`resolution`).
        """
        if not any(self.differences):
            return resolution(self.count)
        return middle95(resampled(np.asarray(self.differences), draws, np.random.default_rng(0)).mean(axis=1))

    def p_value(self) -> float:
        """Two-sided sign-flip test of the mean difference over problems; with one answer each it is McNemar's."""
        return sign_flips(self.differences)


def resolution(count: int) -> tuple[float, float]:
    """The 95% interval of a difference where none of `count` problems differs: one on which the share of problems that
    differ is at the upper end of Wilson's interval of 0 of `count`, all of them one way."""
    bound = wilson(0, count)[1]
    return -bound, bound


EXACT_FLIPS, FLIPS = 14, 20_000
"""Up to so many differences all flips are counted; of more, so many are drawn."""


def sign_flips(differences: Sequence[float]) -> float:
    """The two-sided chance that differences whose signs are thrown anew have a mean at least as far from 0.

    Of up to 14 problems that differ, or where all differ by as much, it is exact; else of 20,000 draws, the same at
    every call. It tests the mean that the interval beside it is of.
    """
    values = np.asarray([difference for difference in differences if difference])
    if len(values) == 0:
        return 1.0
    if np.allclose(np.abs(values), abs(values[0])):
        return sign_test(int((values < 0).sum()), int((values > 0).sum()))
    if len(values) <= EXACT_FLIPS:
        signs = np.asarray(list(itertools.product((-1, 1), repeat=len(values))))
        return float((np.abs(signs @ values) >= abs(values.sum()) - 1e-9).mean())
    signs = np.random.default_rng(0).choice((-1.0, 1.0), size=(FLIPS, len(values)))
    reached = int((np.abs(signs @ values) >= abs(values.sum()) - 1e-9).sum())
    return (1 + reached) / (1 + FLIPS)


def holm(ps: Sequence[float]) -> list[float]:
    """The p-values of a family of tests, adjusted by Holm (1979) so that one false finding is as rare as said."""
    order = sorted(range(len(ps)), key=ps.__getitem__)
    adjusted, highest = [1.0] * len(ps), 0.0
    for rank, index in enumerate(order):
        highest = max(highest, min(1.0, (len(ps) - rank) * ps[index]))
        adjusted[index] = highest
    return adjusted


def sign_test(fewer: int, more: int) -> float:
    """The two-sided chance that fair coins fall at least as unevenly as `fewer` to `more`."""
    tail = sum(math.comb(fewer + more, k) for k in range(min(fewer, more) + 1))
    return min(1.0, 2 * tail / 2 ** (fewer + more))
