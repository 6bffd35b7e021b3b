"""Figure pca-typed (a): latents by operator, with SoftCoT's in one space, and how far apart they are.

One point is one call, the mean over its slots, with operators at all boundaries. Beside the trained operators stand
untrained ones, whose queries and places differ too: only what they lack is learned.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tyler.experiments.cells import LATENTS, Decoding, Training
from tyler.experiments.experiment import Entry, Experiment, Figures, Measured, Results, Table, entries_of, in_order
from tyler.experiments.measures import unpacked
from tyler.experiments.scales import COLOURS, SOFTCOT, STAGE1, Scale, methods

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


UNTRAINED = "untrained operators"
MARKERS = {STAGE1: "o", UNTRAINED: "x", SOFTCOT: "^"}


def entries(scale: Scale) -> list[Entry]:
    """The three sources of latents, on problems of the first task."""
    known, column = methods(scale), next(iter(scale.tasks))
    rows = {
        STAGE1: (known[STAGE1][0], Decoding(router="boundaries")),
        UNTRAINED: (Training(), Decoding(router="boundaries")),
        SOFTCOT: known[SOFTCOT],
    }
    return entries_of(scale, rows, LATENTS, "", [column])


def findings(measured: Sequence[Measured]) -> dict[str, Any]:
    """Silhouettes of every row and seed, and the points of the first seed in one plane."""
    blocks = {each.entry.row: {seed: blocks_of(record) for seed, record in each.records.items()} for each in measured}
    apart = [
        {"row": row, "seed": seed, **separation(vectors)}
        for row, seeds in blocks.items()
        for seed, vectors in seeds.items()
        if len(vectors) > 1
    ]
    return {"separation": apart, **plane({row: next(iter(seeds.values())) for row, seeds in blocks.items() if seeds})}


def blocks_of(record: Any) -> dict[str, Any]:
    """The vectors of each operator that has two calls or more."""
    vectors = {name: unpacked(kept) for name, kept in record["latents"].items()}
    return {name: calls for name, calls in vectors.items() if len(calls) > 1}


def separation(by_operator: dict[str, Any]) -> dict[str, Any]:
    """The silhouette of the operators' latents, and how often dealt labels reach it."""
    vectors = np.concatenate(list(by_operator.values()))
    labels = [label for label, calls in enumerate(by_operator.values()) for _ in range(len(calls))]
    distances = distances_of(vectors)
    return {
        "calls": {name: len(calls) for name, calls in by_operator.items()},
        "silhouette": round(silhouette(distances, labels), 4),
        "p": round(permuted(distances, labels), 4),
    }


def plane(sources: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Every vector on the first two principal components of all together."""
    named = [
        (row, name, vector)
        for row, by_operator in sources.items()
        for name, vectors in by_operator.items()
        for vector in vectors
    ]
    if len(named) < 3:
        return {"points": [], "variance": []}
    coordinates, variance = principal(np.stack([vector for _, _, vector in named]))
    points = [[row, name, *at.round(4).tolist()] for (row, name, _), at in zip(named, coordinates, strict=True)]
    return {"points": points, "variance": [round(share, 4) for share in variance]}


def tables(results: Results) -> list[Table]:
    """Silhouettes by row and seed."""
    rows = []
    for finding in results["separation"]:
        calls = ", ".join(f"{name} {count}" for name, count in finding["calls"].items())
        rows.append(
            (finding["row"], str(finding["seed"]), calls, f"{finding['silhouette']:.3f}", f"{finding['p']:.3f}")
        )
    group = in_order(results, "group")[0]
    caption = f"How far apart the latents of operators are on {group}: mean silhouette, permutation test"
    return [Table("specialization", caption, ("latents", "seed", "calls", "silhouette", "p"), tuple(rows))]


def figures(results: Results) -> Figures:
    """All latents in one plane, colour by operator, marker by source."""
    from tyler.experiments.figures import panels

    figure, (axes,) = panels(width=3.4, height=3)
    for row, name in dict.fromkeys((row, name) for row, name, _, _ in results["points"]):
        across, up = zip(*(point[2:] for point in results["points"] if point[:2] == [row, name]), strict=True)
        colour = COLOURS[SOFTCOT] if row == SOFTCOT else COLOURS[name]
        label = row if row == SOFTCOT else f"{row}: {name}"
        axes.scatter(across, up, s=8, marker=MARKERS[row], color=colour, alpha=0.6, label=label, linewidths=0.6)
    if results["points"]:
        first, second = results["variance"]
        axes.set_xlabel(f"first component ({100 * first:.0f}% of the variance)")
        axes.set_ylabel(f"second component ({100 * second:.0f}%)")
        axes.legend(fontsize=5)
    return {"specialization": figure}


EXPERIMENT = Experiment(
    "Specialization: latents by operator",
    entries,
    tables,
    findings,
    figures,
    drawn="Points are calls of the first seed; every seed's silhouette and permutation test are in the table.",
)
