"""The figure of a study: every row's share of right answers with its interval and its seeds, a panel a column."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tyler.experiments.figures import panels_beside

COLOURS = ("#666666", "#0072b2", "#56b4e9", "#d55e00", "#009e73", "#cc79a7")
"""Of the groups; people who see few colours tell these apart."""

Entry = Mapping[str, Any]


def draw(entries: Sequence[Entry], groups: Mapping[str, Sequence[str]], dotted: str) -> Figure:
    """A row that has not answered a column has a gap there; the share of `dotted` goes through a panel as a line."""
    rows = {entry["row"] for entry in entries}
    shown = [(group, row) for group, names in groups.items() for row in names if row in rows]
    places, place = {}, 0.0
    for (group, row), before in zip(shown, [None, *shown], strict=False):
        place += 1.0 if before is None or before[0] == group else 2.2
        places[row] = place
    columns = list(dict.fromkeys(entry["column"] for entry in entries))
    figure, panels = panels_beside(len(columns), height=0.21 * place + 1)
    colours = {row: COLOURS[list(groups).index(group)] for group, row in shown}
    for axes, column in zip(panels, columns, strict=True):
        draw_panel(axes, [one for one in entries if one["column"] == column], places, colours, dotted)
        axes.set_xlabel(f"{column}: % right")
    axes = panels[0]
    labels = [f"{short(row)} (dotted)" if row == dotted else short(row) for row in places]
    axes.set_yticks(list(places.values()), labels, fontsize=8)
    axes.set_ylim(place + 1, -0.4)
    for group in dict(shown):
        first = min(places[row] for one, row in shown if one == group)
        colour = COLOURS[list(groups).index(group)]
        axes.text(0.01, first - 1, group, transform=axes.get_yaxis_transform(), fontsize=8, color=colour, va="center")
    return figure


def draw_panel(
    axes: Axes, entries: Sequence[Entry], places: Mapping[str, float], colours: Mapping[str, str], dotted: str
) -> None:
    """One column's rows."""
    for entry in entries:
        if (place := places.get(entry["row"])) is None:
            continue
        colour, seeds = colours[entry["row"]], [100 * k / entry["n"] for k in entry["k"]]
        ends = [entry["low"], entry["high"]]
        axes.plot(ends, [place] * 2, color=colour, linewidth=4, alpha=0.3, solid_capstyle="butt")
        axes.plot(seeds, [place] * len(seeds), "|", color=colour, markersize=6)
        axes.plot(sum(seeds) / len(seeds), place, "o", color=colour, markersize=4)
        if entry["row"] == dotted:
            axes.axvline(sum(seeds) / len(seeds), color=COLOURS[0], linestyle=":", linewidth=1)
    axes.grid(axis="x", alpha=0.25)


def short(name: str) -> str:
    """A row's name without what its group says already."""
    for start in ("Stage 1, ", "Stage 1 of ", "Stage 2, ", "Stage 2 "):
        name = name.removeprefix(start)
    return "unmodified" if name == "Stage 2" else name
