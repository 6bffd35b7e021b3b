"""Silhouettes against their definition, and a permutation test that finds clusters and nothing else."""

from __future__ import annotations

from statistics import fmean

import numpy as np
import pytest

from tyler.experiments.clusters import Vectors, distances_of, permuted, principal, silhouette
from tyler.experiments.declared.invocation import POINTS, smoothed


def points(apart: float) -> tuple[Vectors, list[int]]:
    draw = np.random.default_rng(0)
    labels = [0] * 10 + [1] * 12 + [2] * 9
    return draw.normal(size=(31, 4)) + apart * np.eye(4)[labels], labels


def test_a_silhouette_is_that_of_the_definition() -> None:
    vectors, labels = points(1.0)
    values = []
    for i, own in enumerate(labels):
        means = {
            label: fmean(
                float(np.linalg.norm(vectors[i] - vectors[j]))
                for j, one in enumerate(labels)
                if one == label and j != i
            )
            for label in set(labels)
        }
        inside = means.pop(own)
        values.append((min(means.values()) - inside) / max(inside, *[min(means.values())]))
    assert silhouette(distances_of(vectors), labels) == pytest.approx(fmean(values), abs=1e-9)


@pytest.mark.parametrize(("apart", "low", "high"), [(6.0, 0.0, 0.002), (0.0, 0.02, 1.0)])
def test_dealt_labels_reach_the_silhouette_where_there_are_no_clusters(apart: float, low: float, high: float) -> None:
    vectors, labels = points(apart)
    assert low <= permuted(distances_of(vectors), labels) <= high


def test_principal_components_carry_the_variance_and_point_the_same_way_each_time() -> None:
    vectors, _ = points(3.0)
    places, shares = principal(vectors)
    total = float(((vectors - vectors.mean(axis=0)) ** 2).sum())
    assert (places**2).sum(axis=0) / total == pytest.approx(shares)
    assert shares[0] > shares[1]
    again, _ = principal(vectors[::-1])
    np.testing.assert_allclose(np.abs(again[::-1]), np.abs(places), atol=1e-9)
    np.testing.assert_allclose(again[::-1], places, atol=1e-9)


def test_a_curve_loses_no_call_at_its_ends() -> None:
    for places in ([0.0], [1.0], [0.5, 0.02]):
        area = float(np.trapezoid(smoothed(places, answers=2), dx=1 / (POINTS - 1)))
        assert area == pytest.approx(len(places) / 2, abs=0.01)
