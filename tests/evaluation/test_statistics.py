"""Intervals of counts, and paired differences."""

from __future__ import annotations

import itertools
import math
from itertools import product

import numpy as np
import pytest

from tyler.evaluation.statistics import Paired, PairedShares, clustered, holm, sign_flips, sign_test, wilson


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


def correlated(source: np.random.Generator, problems: int, seeds: int, gap: float = 0.0) -> np.ndarray:
    """Right answers [problems, seeds] of a method that solves each problem with a chance of its own."""
    chances = np.clip(source.beta(0.6, 0.9, size=(problems, 1)) + gap, 0, 1)
    return source.random((problems, seeds)) < chances


def test_intervals_hold_their_level_on_problems_whose_seeds_are_alike() -> None:
    """The mean over problems of a beta of (0.6, 0.9) is 0.4; three seeds of one problem are far from independent."""
    source, runs = np.random.default_rng(0), 1500
    covered = naive = 0
    for _ in range(runs):
        right = correlated(source, 300, 3)
        low, high = clustered(right.mean(axis=1).tolist(), 3)
        covered += low <= 0.4 <= high
        low, high = wilson(float(right.sum()), right.size)
        naive += low <= 0.4 <= high
    assert 0.93 <= covered / runs <= 0.97
    assert naive / runs < 0.88, "seeds that are taken as independent"


def two_alike(source: np.random.Generator) -> PairedShares:
    """Two methods of the same chances on 200 problems, three seeds each."""
    chances = source.beta(0.6, 0.9, size=(200, 1))
    first, second = (source.random((200, 3)) < chances for _ in range(2))
    return PairedShares(tuple(first.mean(axis=1)), tuple(second.mean(axis=1)))


def test_the_interval_of_a_difference_holds_its_level() -> None:
    source, runs = np.random.default_rng(2), 1200
    ends = [two_alike(source).interval(draws=600) for _ in range(runs)]
    assert 0.93 <= sum(low <= 0 <= high for low, high in ends) / runs <= 0.97


def test_the_test_of_a_difference_fits_the_interval_beside_it() -> None:
    source, agreed = np.random.default_rng(3), 0
    for _ in range(100):
        pair = two_alike(source)
        low, high = pair.interval()
        agreed += (pair.p_value() < 0.05) == (not low <= 0 <= high)
    assert agreed >= 97


def test_a_sign_flip_test_is_the_count_of_all_flips() -> None:
    values = [0.5, -1.0, 1.0, 1 / 3, 0.0]
    flips = [sum(s * v for s, v in zip(signs, values, strict=True)) for signs in product((-1, 1), repeat=5)]
    assert sign_flips(values) == pytest.approx(sum(abs(one) >= abs(sum(values)) - 1e-9 for one in flips) / 32)
    assert sign_flips([1.0, 1.0, -1.0]) == sign_test(1, 2) and sign_flips([0.0, 0.0]) == 1.0
    many = [0.5] * 30 + [1.0] * 30 + [-0.5] * 25
    assert sign_flips(many) == sign_flips(many) < 0.001


def test_holms_p_is_that_of_his_paper() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9]) == [0.9] and holm([]) == []


def test_a_difference_of_nothing_is_known_as_far_as_its_problems_resolve_it() -> None:
    upper = wilson(0, 500)[1]
    assert PairedShares((0.5,) * 500, (0.5,) * 500).interval() == (-upper, upper)
    assert Paired(250, 0, 0, 250).interval() == (-upper, upper) and 0.005 < upper < 0.01
