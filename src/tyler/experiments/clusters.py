"""Whether latents of different operators differ: principal components, silhouettes, and a permutation test."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

PERMUTATIONS = 999

Vectors = NDArray[np.float64]


def principal(vectors: Vectors, count: int = 2) -> tuple[Vectors, list[float]]:
    """Coordinates [n, count] on the first principal components, and the share of the variance that each has.

    A component points to where its largest loading is positive, so that the picture is the same each time.
    """
    centred = vectors - vectors.mean(axis=0)
    _, scales, components = np.linalg.svd(centred, full_matrices=False)
    kept = components[:count]
    signs = np.sign(kept[np.arange(len(kept)), np.abs(kept).argmax(axis=1)])
    shares = scales**2 / max(float((scales**2).sum()), 1e-30)
    return centred @ (kept * signs[:, None]).T, [float(share) for share in shares[:count]]


def silhouette(distances: Vectors, labels: Sequence[int] | NDArray[np.int64]) -> float:
    """The mean silhouette (Rousseeuw 1987) from all distances [n, n]; every label has two points or more."""
    named = np.asarray(labels)
    groups = np.eye(named.max() + 1)[named]
    sums, sizes = distances @ groups, groups.sum(axis=0)
    own = sums[np.arange(len(named)), named] / (sizes[named] - 1)
    means = sums / sizes
    means[np.arange(len(named)), named] = np.inf
    nearest = means.min(axis=1)
    return float(((nearest - own) / np.maximum(np.maximum(nearest, own), 1e-30)).mean())


def distances_of(vectors: Vectors) -> Vectors:
    """Euclidean, of all pairs."""
    squares = (vectors**2).sum(axis=1)
    return np.sqrt(np.maximum(squares[:, None] + squares[None, :] - 2 * vectors @ vectors.T, 0))


def permuted(distances: Vectors, labels: Sequence[int], seed: int = 0) -> float:
    """How often labels that are dealt anew reach the silhouette of the true ones: a one-sided p-value."""
    draw, true = np.random.default_rng(seed), silhouette(distances, labels)
    reached = sum(silhouette(distances, draw.permutation(labels)) >= true - 1e-12 for _ in range(PERMUTATIONS))
    return (1 + reached) / (1 + PERMUTATIONS)
