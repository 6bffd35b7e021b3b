"""Table efficiency-budget and figure latent-budget-scaling: accuracy, latency and latents at B_O = 0, 1, 2, 5, 8.

The budget is a hard cap at inference on the model after Stage 2, as in the paper's sweep.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from tyler.experiments.averages import (
    average,
    average_interval,
    averaged,
    difference,
    differences,
    mean_of,
    shown,
    with_paper,
    written,
)
from tyler.experiments.cells import ACCURACY
from tyler.experiments.experiment import Entry, Experiment, Measured, Results, Table, in_order, seeded
from tyler.experiments.scales import COLOURS, STAGE2, TIMED, Scale, cell, methods, timed_cell

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BUDGETS = (0, 1, 2, 5, 8)


def entries(scale: Scale) -> list[Entry]:
    """Budgets by tasks, answered together for the accuracy and one by one for the latency."""
    training, decoding = methods(scale)[STAGE2]
    found = []
    for budget in BUDGETS:
        row, made = str(budget), (training, replace(decoding, budget=budget))
        for column in scale.tasks:
            cells = seeded(scale, partial(cell, scale, row, scale.preset, made, column))
            found.append(Entry(scale.studied, row, column, cells))
            found.append(Entry(TIMED, row, column, (timed_cell(scale, row, made, column),)))
    return found


def findings(measured: Sequence[Measured]) -> dict[str, Any]:
    """How far every budget is from none."""
    return {"differences": differences([one for one in measured if one.entry.cells[0].measure == ACCURACY], "0")}


def tables(results: Results) -> list[Table]:
    """The one, averaged over tasks."""
    group, columns = in_order(results, "group")[0], in_order(results, "column")
    rows = []
    for row in in_order(results, "row"):
        numbers = (
            (averaged(results, group, row, columns), "Accuracy", ".2f"),
            (written(mean_of(results, TIMED, row, columns, "seconds"), ".3f"), "Seconds", ".2f"),
            (written(mean_of(results, group, row, columns, "latents"), ".1f"), "Latents", ".0f"),
        )
        told = (with_paper(text, shown("budget", group, row, column, form)) for text, column, form in numbers)
        rows.append((row, *told, difference(results, group, row)))
    caption = f"Budget sweep on {group}, averaged over {', '.join(columns)}"
    return [Table("budget", caption, ("B_O", "accuracy", "seconds", "latents", "difference to B_O = 0"), tuple(rows))]


def figures(results: Results) -> dict[str, Figure]:
    """Accuracy on the left axis and latency on the right, by budget."""
    from tyler.experiments.figures import bar, panels

    group, columns = in_order(results, "group")[0], in_order(results, "column")
    rows = in_order(results, "row")
    figure, (axes,) = panels()
    other = axes.twinx()
    accuracies = [(int(row), average(results, group, row, columns)) for row in rows]
    seconds = [(int(row), mean_of(results, TIMED, row, columns, "seconds")) for row in rows]
    for place, points, colour, marker, label in (
        (axes, accuracies, COLOURS[STAGE2], "o", "accuracy (%)"),
        (other, seconds, COLOURS["seconds"], "s", "seconds an answer"),
    ):
        there = [(x, y) for x, y in points if y is not None]
        place.plot([x for x, _ in there], [y for _, y in there], marker=marker, color=colour)
        place.set_ylabel(label, color=colour)
    for row, (_, middle) in zip(rows, accuracies, strict=True):
        if middle is not None and (ends := average_interval(results, group, row, columns)) is not None:
            bar(axes, int(row), middle, ends, COLOURS[STAGE2])
    other.spines["right"].set_visible(True)
    other.grid(False)
    axes.set_xlabel("latent-call budget $B_O$")
    axes.set_xticks(BUDGETS)
    return {"budget": figure}


EXPERIMENT = Experiment(
    "Budget: accuracy, latency and latents",
    entries,
    tables,
    findings,
    figures,
    base="0",
    drawn="Bars are 95% intervals of the accuracy; seconds are of the first seed, timed once.",
)
