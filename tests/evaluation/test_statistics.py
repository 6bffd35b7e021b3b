"""Intervals of counts, and paired differences."""

from __future__ import annotations

import itertools
import math

import pytest

from tyler.evaluation.statistics import Paired, wilson


@pytest.mark.parametrize(
    "correct, count, low, high",
    [
        (0, 10, 0.0, 0.2775),
        (10, 10, 0.7225, 1.0),
        (5, 10, 0.2366, 0.7634),
        (81, 263, 0.2553, 0.3662),
        (250, 500, 0.4563, 0.5437),
        (1, 1, 0.2065, 1.0),
    ],
)
def test_the_interval_is_wilsons(correct: int, count: int, low: float, high: float) -> None:
    """From (p + z^2/2n +- z sqrt(p(1-p)/n + z^2/4n^2)) / (1 + z^2/n); 81 of 263 is Newcombe's (1998) example."""
    assert wilson(correct, count) == pytest.approx((low, high), abs=5e-5)


def test_nothing_counted_says_nothing() -> None:
    assert wilson(0, 0) == (0.0, 1.0)


def test_pairs_are_counted_problem_by_problem() -> None:
    first = [True, True, False, False, True, False, False]
    second = [True, False, True, False, True, True, True]
    counts = Paired.of(first, second)
    assert counts == Paired(both=2, only_first=1, only_second=3, neither=1)
    assert (counts.count, counts.first, counts.second) == (7, 3, 5)
    assert counts.difference == pytest.approx(2 / 7)


def test_sequences_of_different_lengths_are_no_pairs() -> None:
    with pytest.raises(ValueError):
        Paired.of([True], [True, False])


def test_the_interval_of_the_difference_is_newcombes() -> None:
    """Newcombe (1998), method 10, on his first example: 0.2 with 0.0569 to 0.3404; ours is second less first."""
    low, high = Paired(36, 12, 2, 0).interval()
    assert (-high, -low) == pytest.approx((0.0569, 0.3404), abs=5e-5)


@pytest.mark.parametrize(
    "cells", [(0, 0, 0, 50), (50, 0, 0, 0), (0, 7, 0, 0), (0, 0, 7, 0), (5, 5, 5, 5), (40, 1, 9, 50)]
)
def test_the_interval_holds_the_difference_and_turns_with_the_order(cells: tuple[int, int, int, int]) -> None:
    counts = Paired(*cells)
    low, high = counts.interval()
    assert -1 <= low <= counts.difference <= high <= 1
    both, only_first, only_second, neither = cells
    turned = Paired(both, only_second, only_first, neither).interval()
    assert turned == pytest.approx((-high, -low))


@pytest.mark.parametrize("only_first, only_second", [(0, 0), (1, 0), (5, 5), (3, 9), (12, 2), (40, 61)])
def test_the_p_value_is_the_exact_binomial_one(only_first: int, only_second: int) -> None:
    """The share of all ways to split the discordant problems that are at least as uneven."""
    total = only_first + only_second
    uneven = abs(only_first - only_second)
    ways = sum(math.comb(total, k) for k in range(total + 1) if abs(total - 2 * k) >= uneven)
    assert Paired(7, only_first, only_second, 3).p_value() == pytest.approx(ways / 2**total)


def test_the_p_value_by_enumeration() -> None:
    splits = list(itertools.product((0, 1), repeat=6))
    share = sum(abs(6 - 2 * sum(split)) >= 4 for split in splits) / len(splits)
    assert Paired(0, 1, 5, 0).p_value() == share
