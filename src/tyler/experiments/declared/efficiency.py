"""Figure efficiency-summary and table efficiency-overhead: what an answer costs, in seconds and in tokens.

Answers are decoded one at a time on a warm engine, and timed between tokenisation and grading.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from tyler.experiments.averages import average, average_interval, averaged, mean_of, shown, with_paper, written
from tyler.experiments.experiment import MISSING, Entry, Experiment, Results, Table, entry_of, in_order, seeded
from tyler.experiments.scales import COLOURS, STAGE2, TIMED, Scale, cell, methods, timed_cell

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def entries(scale: Scale) -> list[Entry]:
    """Methods by tasks: for the accuracy the cells of `main`, for the time some of their problems one by one."""
    found = []
    for row, made in methods(scale).items():
        for column in scale.tasks:
            cells = seeded(scale, partial(cell, scale, row, scale.preset, made, column))
            found.append(Entry(scale.studied, row, column, cells))
            found.append(Entry(TIMED, row, column, (timed_cell(scale, row, made, column),)))
    return found


def tables(results: Results) -> list[Table]:
    """All methods averaged over tasks, and Tyler task by task."""
    return [summary(results), overhead(results)]


def summary(results: Results) -> Table:
    """Accuracy, seconds and tokens of every method."""
    group, columns = in_order(results, "group")[0], in_order(results, "column")
    rows = []
    for row in in_order(results, "row"):
        visible, latents = (mean_of(results, TIMED, row, columns, key) for key in ("visible", "latents"))
        both = None if visible is None or latents is None else visible + latents
        numbers = [written(number, ".1f") for number in (visible, latents, both)]
        accuracy = averaged(results, group, row, columns)
        seconds = written(mean_of(results, TIMED, row, columns, "seconds"), ".3f")
        rows.append((row, accuracy, seconds, *numbers))
    header = ("method", "accuracy", "seconds", "visible", "latents", "tokens")
    return Table(
        "efficiency",
        f"Cost of an answer on {group} at batch 1, tokens and seconds of the timed problems",
        header,
        tuple(rows),
        ruled=(3, 7),
    )


def overhead(results: Results) -> Table:
    """Seconds of Tyler's answers and of their synthesis, and its share."""
    group, rows = in_order(results, "group")[0], []
    for column in in_order(results, "column"):
        one = entry_of(results, TIMED, STAGE2, column)
        told = [MISSING] * 3
        if one is not None:
            share = 100 * one["synthesis_seconds"] / one["seconds"]
            told = [f"{one['seconds']:.3f}", f"{one['synthesis_seconds']:.4f}", f"{share:.1f}"]
        forms = (("Seconds", ".2f"), ("Synthesis seconds", ".2f"), ("Synthesis share", ".1f"))
        papers = (shown("efficiency", group, column, name, form) for name, form in forms)
        rows.append((column, *map(with_paper, told, papers)))
    header = ("task", "seconds", "of synthesis", "share in per cent")
    return Table("efficiency-overhead", f"{STAGE2} on {group}: what synthesis takes of an answer", header, tuple(rows))


def figures(results: Results) -> dict[str, Figure]:
    """Accuracy by seconds, a marker's area by tokens; and the tokens, visible and latent."""
    from tyler.experiments.figures import panels

    rows = in_order(results, "row")
    figure, (upper, lower) = panels(2)
    points = [one for row in rows if (one := point(results, row)) is not None]
    for place, one in enumerate(sorted(points, key=lambda one: one.seconds)):
        draw(upper, one, above=place % 2 == 0)
    upper.set_xlabel("seconds an answer, at batch 1")
    upper.set_ylabel("accuracy (%)")
    upper.margins(x=0.1, y=0.12)
    for one in points:
        place, colour = rows.index(one.row), COLOURS[one.row]
        lower.bar(place, one.visible, color=colour, alpha=0.45)
        lower.bar(place, one.latents, bottom=one.visible, color=colour, hatch="////", edgecolor="white", linewidth=0)
    lower.set_ylabel("tokens: visible, and latent (hatched)")
    lower.set_xticks(range(len(rows)), rows, rotation=35, ha="right")
    lower.grid(axis="x", visible=False)
    return {"efficiency": figure}


@dataclass(frozen=True)
class Point:
    """A method in the figure: per cent right with the interval, and means of an answer."""

    row: str
    accuracy: float
    interval: tuple[float, float]
    seconds: float
    visible: float
    latents: float


def point(results: Results, row: str) -> Point | None:
    """A method's place; None where something of it has not been measured."""
    group, columns = in_order(results, "group")[0], in_order(results, "column")
    accuracy = average(results, group, row, columns)
    interval = average_interval(results, group, row, columns)
    seconds, visible, latents = (
        mean_of(results, TIMED, row, columns, key) for key in ("seconds", "visible", "latents")
    )
    if accuracy is None or interval is None or seconds is None or visible is None or latents is None:
        return None
    return Point(row, accuracy, interval, seconds, visible, latents)


def draw(axes: Axes, one: Point, above: bool) -> None:
    """A point with its interval, and its name at one end of that."""
    from tyler.experiments.figures import bar

    axes.scatter(
        one.seconds, one.accuracy, s=one.visible + one.latents, color=COLOURS[one.row], alpha=0.8, linewidths=0
    )
    bar(axes, one.seconds, one.accuracy, one.interval, COLOURS[one.row])
    end = (one.seconds, one.interval[1] if above else one.interval[0])
    axes.annotate(one.row, end, (0, 5 if above else -9), textcoords="offset points", ha="center", fontsize=5.5)


EXPERIMENT = Experiment(
    "Efficiency: seconds and tokens of an answer",
    entries,
    tables,
    figures=figures,
    drawn="Bars are 95% intervals of the accuracy; seconds and tokens are of the first seed, timed once.",
)
