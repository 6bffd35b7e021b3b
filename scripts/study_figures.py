"""The figures of the studies, drawn from records by their `report` commands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot
from matplotlib.axes import Axes

from tyler.evaluation.statistics import wilson
from tyler.experiments.methods import COLOURS as METHODS

Records = Sequence[Mapping[str, Any]]
"""One record a seed."""
COLOURS = ("#666666", "#0072b2", "#56b4e9", "#d55e00", "#009e73", "#cc79a7")
"""Of the groups; people who see few colours tell these apart."""
MARKERS, KINDS = "os^Dv<P>X*h", ("visible", "latents")
GROUPS = {
    "without operators": ("CoT", "SFT", "GRPO"),
    "Stage 1: who is called": (
        "Stage 1, all boundaries",
        "Stage 1, random 75%",
        "Stage 1, random 50%",
        "Stage 1, random 25%",
        "Stage 1, global alone",
        "Stage 1, state alone",
        "Stage 1, procedure alone",
        "Stage 1, never",
        "Stage 1 of one insertion, all boundaries",
        "Stage 1 of one insertion, global alone",
    ),
    "Stage 1: what they say": (
        "Stage 1, all boundaries, mean latents",
        "Stage 1, global alone, mean latents",
        "Stage 1, state alone, mean latents",
        "Stage 1, procedure alone, mean latents",
        "Stage 1, all boundaries, latents zeroed",
    ),
    "Stage 2: how it is trained": (
        "Stage 2",
        "Stage 2 without anchor",
        "Stage 2 without budget penalty",
        "Stage 2, budget weight 0.5",
        "Stage 2, budget 2",
        "Stage 2, budget 1, weight 0.5",
        "Stage 2, psi from 0.1",
        "Stage 2, psi from 0.02",
        "Stage 2 after one insertion",
    ),
    "Stage 2: one operator taken away": (
        "Stage 2, global removed",
        "Stage 2, state removed",
        "Stage 2, procedure removed",
        "Stage 2, global zeroed",
        "Stage 2, state zeroed",
        "Stage 2, procedure zeroed",
        "Stage 2, operators masked",
        "Stage 2, latents zeroed",
        "Stage 2, mean latents",
    ),
    "Stage 2: one for another": (
        "Stage 2, global for all",
        "Stage 2, state for all",
        "Stage 2, procedure for all",
        "Stage 2, global and state swapped",
        "Stage 2, global and procedure swapped",
        "Stage 2, state and procedure swapped",
    ),
}
"""The cells of the study on `mini`, as its figure shows them."""


def share(records: Records, split: str) -> tuple[float, float, float, list[float]]:
    """Per cent right over all seeds, its 95% Wilson interval, and that of each seed."""
    right = [record[split]["outcomes"].count("c") for record in records]
    count = len(records[0][split]["outcomes"])
    low, high = wilson(sum(right), count * len(right))
    return 100 * sum(right) / (count * len(right)), 100 * low, 100 * high, [100 * k / count for k in right]


def draw_shares(
    found: Mapping[str, Records],
    splits: Sequence[str],
    path: Path,
    groups: Mapping[str, Sequence[str]] = GROUPS,
    dotted: str = "CoT",
) -> None:
    """Every cell's share of right answers, with its interval and its seeds, one panel a split.

    A cell that has not answered a split has a gap there; the share of `dotted` goes through the panel as a line.
    """
    shown = [(group, name) for group, names in groups.items() for name in names if name in found]
    places, place = {}, 0.0
    for (group, name), before in zip(shown, [None, *shown], strict=False):
        place += 1.0 if before is None or before[0] == group else 2.2
        places[name] = place
    size = (10, 0.21 * place + 1)
    figure, (panels,) = pyplot.subplots(1, len(splits), sharey=True, figsize=size, layout="constrained", squeeze=False)
    for axes, split in zip(panels, splits, strict=True):
        for group, name in shown:
            if not (answered := [record for record in found[name] if split in record]):
                continue
            colour = COLOURS[list(groups).index(group)]
            middle, low, high, seeds = share(answered, split)
            axes.plot([low, high], [places[name]] * 2, color=colour, linewidth=4, alpha=0.3, solid_capstyle="butt")
            axes.plot(seeds, [places[name]] * len(seeds), "|", color=colour, markersize=6)
            axes.plot(middle, places[name], "o", color=colour, markersize=4)
        if dotted in found and all(split in record for record in found[dotted]):
            axes.axvline(share(found[dotted], split)[0], color=COLOURS[0], linestyle=":", linewidth=1)
        finish(axes, f"{split}: % right", "")
    axes = panels[0]
    labels = [f"{short(name)} (dotted)" if name == dotted else short(name) for name in places]
    axes.set_yticks(list(places.values()), labels, fontsize=8)
    axes.set_ylim(place + 1, -0.4)
    for group in dict(shown):
        first = min(places[name] for one, name in shown if one == group)
        colour = COLOURS[list(groups).index(group)]
        axes.text(0.01, first - 1, group, transform=axes.get_yaxis_transform(), fontsize=8, color=colour, va="center")
    save(figure, path)


def short(name: str) -> str:
    """A cell's name without what its group says already."""
    for start in ("Stage 1, ", "Stage 1 of ", "Stage 2, ", "Stage 2 "):
        name = name.removeprefix(start)
    return "as it is" if name == "Stage 2" else name


def draw_costs(found: Mapping[str, Records], splits: Sequence[str], path: Path) -> None:
    """Every method's share of right answers against the tokens of an answer, one panel a split."""
    figure, (panels,) = pyplot.subplots(1, len(splits), figsize=(10, 4.2), layout="constrained", squeeze=False)
    for axes, split in zip(panels, splits, strict=True):
        for marker, (name, records) in zip(MARKERS, found.items(), strict=False):
            colour = colour_of(name)
            middle, low, high, _ = share(records, split)
            spent = fmean(sum(sum(one[split][kind]) for kind in KINDS) / len(one[split]["outcomes"]) for one in records)
            axes.plot([spent] * 2, [low, high], color=colour, linewidth=4, alpha=0.25, solid_capstyle="butt")
            axes.plot(spent, middle, marker, color=colour, markersize=6, label=name, alpha=0.8)
        finish(axes, "tokens of an answer, visible and latent", f"{split}: % right")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside right center", frameon=False, fontsize=8)
    save(figure, path)


def colour_of(row: str) -> str:
    """The colour of a method in every figure; that of a variant is its method's."""
    return METHODS[max((name for name in METHODS if row.startswith(name)), key=len)]


def finish(axes: Axes, below: str, beside: str) -> None:
    axes.set_xlabel(below)
    axes.set_ylabel(beside)
    axes.grid(axis="both" if beside else "x", alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)


def save(figure: Any, path: Path) -> None:
    """The same bytes from the same records."""
    with matplotlib.rc_context({"svg.hashsalt": "tyler", "svg.fonttype": "none"}):
        figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)
