"""Figures of experiments: one style, one colour for each method, and the same bytes from the same numbers."""

import io
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from statistics import fmean
from typing import Any

from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.figure import Figure

NOTE, LETTER = 5, 0.55
"""Points of a note under a figure, and the width of its letters in them."""
BAR: Mapping[str, Any] = {"fmt": "none", "elinewidth": 0.8, "capsize": 2, "capthick": 0.8}


def styled() -> AbstractContextManager[None]:
    """The style, for everything that is drawn inside."""
    return style.context(Path(__file__).with_name("tyler.mplstyle"))


def panels(rows: int = 1, columns: int = 1, width: float = 3.4, height: float = 2.4) -> tuple[Figure, list[Axes]]:
    """A figure of so many panels, each of a size in inches, row by row. One above the other they fit a column."""
    figure = Figure((width * columns, height * rows))
    return figure, [*figure.subplots(rows, columns, squeeze=False).flat]


def bar(axes: Axes, x: float, y: float, ends: Sequence[float], color: str) -> None:
    """An interval around a point."""
    low, high = ends
    axes.errorbar([x], [y], yerr=[[max(0.0, y - low)], [max(0.0, high - y)]], ecolor=color, **BAR)


def seeds_and_mean(axes: Axes, heights: Sequence[Sequence[float]], color: str, marker: str, label: str) -> None:
    """The means over seeds at every step, and each seed as a thin line."""
    there = [(index, values) for index, values in enumerate(heights) if values]
    indices = [index for index, _ in there]
    for seed in zip(*(values for _, values in there), strict=False):
        axes.plot(indices, seed, color=color, linewidth=0.5, alpha=0.5)
    if there:
        axes.plot(indices, [fmean(values) for _, values in there], color=color, marker=marker, label=label)


def written(figure: Figure, note: Sequence[str]) -> bytes:
    """A figure as SVG, the same bytes from the same results.

    Small lines under it say what it is made of, wrapped to its width.
    """
    letters = int(figure.get_figwidth() * 72 / (NOTE * LETTER))
    wrapped = [part for line in note for part in textwrap.wrap(line, letters)]
    figure.supxlabel("\n".join(wrapped), x=0.01, ha="left", fontsize=NOTE, color="#555555", linespacing=1.4)
    out = io.StringIO()
    figure.savefig(out, format="svg", metadata={"Date": None})
    return out.getvalue().encode()


COLOURS = ("#666666", "#0072b2", "#56b4e9", "#d55e00", "#009e73", "#cc79a7")
"""Of the groups; people who see few colours tell these apart."""

Entry = Mapping[str, Any]


def draw(entries: Sequence[Entry], groups: Mapping[str, Iterable[str]], dotted: str) -> Figure:
    """A row that has not answered a column has a gap there; the share of `dotted` goes through a panel as a line."""
    rows = {entry["row"] for entry in entries}
    shown = [(group, row) for group, names in groups.items() for row in names if row in rows]
    heights, height = {}, 0.0
    for (group, row), before in zip(shown, [None, *shown], strict=False):
        height += 1.0 if before is None or before[0] == group else 2.2
        heights[row] = height
    columns = list(dict.fromkeys(entry["column"] for entry in entries))
    figure = Figure((10, 0.21 * height + 1), layout="constrained")
    (panels,) = figure.subplots(1, len(columns), sharey=True, squeeze=False)
    colours = {row: COLOURS[list(groups).index(group)] for group, row in shown}
    for axes, column in zip(panels, columns, strict=True):
        draw_panel(axes, [entry for entry in entries if entry["column"] == column], heights, colours, dotted)
        axes.set_xlabel(f"{column}: % right")
    axes = panels[0]
    labels = [f"{short(row)} (dotted)" if row == dotted else short(row) for row in heights]
    axes.set_yticks(list(heights.values()), labels, fontsize=8)
    axes.set_ylim(height + 1, -0.4)
    for group in dict(shown):
        first = min(heights[row] for own, row in shown if own == group)
        colour = COLOURS[list(groups).index(group)]
        axes.text(0.01, first - 1, group, transform=axes.get_yaxis_transform(), fontsize=8, color=colour, va="center")
    return figure


def draw_panel(
    axes: Axes, entries: Sequence[Entry], heights: Mapping[str, float], colours: Mapping[str, str], dotted: str
) -> None:
    """One column's rows."""
    for entry in entries:
        if (height := heights.get(entry["row"])) is None:
            continue
        colour, seeds = colours[entry["row"]], [100 * k / entry["n"] for k in entry["k"]]
        ends = [entry["low"], entry["high"]]
        axes.plot(ends, [height] * 2, color=colour, linewidth=4, alpha=0.3, solid_capstyle="butt")
        axes.plot(seeds, [height] * len(seeds), "|", color=colour, markersize=6)
        axes.plot(sum(seeds) / len(seeds), height, "o", color=colour, markersize=4)
        if entry["row"] == dotted:
            axes.axvline(sum(seeds) / len(seeds), color=COLOURS[0], linestyle=":", linewidth=1)
    axes.grid(axis="x", alpha=0.25)


def draw_curve(entries: Sequence[Entry], pairs: Sequence[Entry], groups: Mapping[str, Iterable[str]]) -> Figure:
    """Shares of right answers by steps, and what the first row of a group has above the others that read latents.

    Groups are called by their steps; rows in the same place of each are a line.
    """
    figure, (shares, gains) = panels(columns=2)
    numbers = {(row["row"], ""): (100 * fmean(row["k"]) / row["n"], row["low"], row["high"]) for row in entries}
    numbers |= {(pair["first"], pair["second"]): (pair["points"], pair["low"], pair["high"]) for pair in pairs}
    silent, steps = {row["row"] for row in entries if not row["latents"]}, [int(name.split()[0]) for name in groups]
    lines, own = [*zip(*groups.values(), strict=True)], f", {next(iter(groups))}"
    for rows, color in zip(lines, COLOURS[1:], strict=False):
        label = rows[0].replace(own, "")
        line(shares, steps, [numbers.get((row, "")) for row in rows], color, label)
        if rows != lines[0] and silent.isdisjoint(rows):
            line(gains, steps, [numbers.get(pair) for pair in zip(lines[0], rows, strict=True)], color, label)
    gains.axhline(0, color="black", linewidth=0.6)
    for axes, title in ((shares, "% right"), (gains, f"{lines[0][0].replace(own, '')}: points above")):
        axes.set(xscale="log", xlabel="training steps", ylabel=title)
        axes.set_xticks(steps, map(str, steps))
        axes.minorticks_off()
        axes.legend()
    return figure


def line(axes: Axes, xs: Sequence[int], points: Sequence[Sequence[float] | None], color: str, label: str) -> None:
    """Points with their intervals, (y, low, high), and gaps."""
    there = [(x, *point) for x, point in zip(xs, points, strict=True) if point]
    for x, y, *ends in there:
        bar(axes, x, y, ends, color)
    axes.plot([x for x, *_ in there], [y for _, y, *_ in there], "o-", color=color, label=label)


def short(name: str) -> str:
    """A row's name without what its group says already."""
    for start in ("Stage 1, ", "Stage 1 of ", "Stage 2, ", "Stage 2 "):
        name = name.removeprefix(start)
    return "unmodified" if name == "Stage 2" else name
