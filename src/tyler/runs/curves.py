"""Training curves: panels from metrics.jsonl, as PNG and as SVG for pages, and a sketch for the terminal.

Colour means an operator, and nothing else; other curves are in the ink of the page. Curves differ by dash or mark too.
Of several runs in one panel each has a colour and a dash of its own.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tyler.presentation import SERIES, colour_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Metrics = Sequence[Mapping[str, Any]]

INVOCATIONS = "stage2/invocations_"
READING = (
    "Lines are means over a twentieth of the steps, at least 5; bands go from the 10th to the 90th percentile of these."
)
"""How to read a curve of many steps."""
DASHES, MARKS = ("-", "--", "-.", ":"), "Dosv^"
BLOCKS = "▁▂▃▄▅▆▇█"
INK = "#010203"
"""Stands for the colour of the text, which a page may choose."""
FEWEST = 24
"""Points from which on a curve is smoothed."""
INCHES = (4.6, 2.7)
"""Of one panel: its text has the size of a page's where the page shows it at its own width."""


@dataclass(frozen=True)
class Curve:
    """One metric in a panel. `mark` curves are points joined by a dashed line: measured now and then."""

    key: str
    label: str
    mark: bool = False
    operator: str | None = None
    exact: bool = False
    """A setting, not a measurement: it is not smoothed."""


@dataclass(frozen=True)
class Panel:
    """One plot. `low` and `high` are in sight whatever the values are, so that noise does not fill the plot."""

    title: str
    unit: str
    curves: tuple[Curve, ...]
    low: float | None = 0.0
    high: float | None = None
    line: tuple[float, str] | None = field(default=None)
    """A value to hold against the curves, and what it is."""


def series(metrics: Metrics, key: str) -> tuple[list[int], list[float]]:
    """Steps and values of one metric, where it was logged."""
    logged = [(entry["step"], entry[key]) for entry in metrics if entry.get(key) is not None]
    return [step for step, _ in logged], [value for _, value in logged]


def operators_of(metrics: Metrics, prefix: str = INVOCATIONS) -> list[str]:
    """The operators whose invocations were logged, in the order of the log."""
    names = {key.removeprefix(prefix): None for entry in metrics for key in entry if key.startswith(prefix)}
    return list(names)


# --- which panels there are -------------------------------------------------------------------------------------------


def panels(metrics: Metrics, budget: int | None = None) -> list[Panel]:
    """The panels that a run's metrics fill, the most telling first; curves that were not logged are left out."""
    logged = {key for entry in metrics for key, value in entry.items() if value is not None}
    found = []
    for panel in [*_supervised(logged), *_reinforced(metrics, budget), *_optimization(logged)]:
        if kept := tuple(curve for curve in panel.curves if curve.key in logged):
            found.append(Panel(panel.title, panel.unit, kept, panel.low, panel.high, panel.line))
    return found


def _supervised(logged: set[str]) -> list[Panel]:
    """The loss of every loop that learns from traces."""
    loops = sorted(key.removesuffix("/loss") for key in logged if re.fullmatch(r"(?!stage2|memgen_grpo)\w+/loss", key))
    return [
        Panel(
            "Loss on traces",
            "nats per token",
            (
                Curve(f"{loop}/loss", "training batch"),
                Curve(f"{loop}/development_loss", "development problems", mark=True),
            ),
        )
        for loop in loops
    ]


def _reinforced(metrics: Metrics, budget: int | None) -> list[Panel]:
    """What loops that learn from rewards log."""
    within = None if budget is None else (float(budget), f"budget {budget}")
    success = (Curve("stage2/success", "sampled rollouts"), Curve("greedy/accuracy", "greedy, development", mark=True))
    shares = (
        Curve("stage2/over_budget", "rollouts over budget"),
        Curve("stage2/truncated", "rollouts cut off"),
        Curve("stage2/degenerate_groups", "groups that teach nothing"),
        Curve("memgen_grpo/degenerate_groups", "groups that teach nothing"),
        Curve("memgen_grpo/agreed", "trigger agreed"),
    )
    lengths = [
        Curve(f"{loop}/{what}", what.replace("_", " "))
        for loop in ("stage2", "memgen_grpo")
        for what in ("visible_tokens", "latents")
    ]
    return [
        Panel("Reward", "mean per rollout", (Curve("stage2/reward", "success less budget penalty"),), high=1.0),
        Panel("Success", "share", success, high=1.0),
        Panel(
            "Success",
            "share",
            (
                Curve("memgen_grpo/reward", "sampled answers"),
                Curve("memgen_grpo/greedy_accuracy", "greedy, development", mark=True),
            ),
            high=1.0,
        ),
        Panel("Invocations, sampled", "per rollout", _calls(metrics, "stage2/invocations"), line=within),
        Panel("Invocations, greedy", "per answer", _calls(metrics, "greedy/invocations", mark=True), line=within),
        Panel(
            "Blocks after delimiters",
            "per answer",
            (
                Curve("memgen_grpo/insertions", "sampled"),
                Curve("memgen_grpo/consultations", "trigger asked"),
                Curve("memgen_grpo/greedy_insertions", "greedy, development", mark=True),
            ),
        ),
        Panel("Shares of rollouts and groups", "share", shares, high=1.0),
        Panel("KL to the start", "nats per action", (Curve("stage2/kl", "k3 estimate"),)),
        Panel("Entropy of the policy", "nats per action", (Curve("stage2/entropy", "over V'"),)),
        Panel("Length of rollouts", "per rollout", tuple(lengths)),
    ]


def _calls(metrics: Metrics, key: str, mark: bool = False) -> tuple[Curve, ...]:
    each = (Curve(f"{key}_{name}", name, mark, name) for name in operators_of(metrics, f"{key}_"))
    return Curve(key, "all", mark), *each


def _optimization(logged: set[str]) -> list[Panel]:
    """How the optimizer fared, in every loop."""

    def curves(what: str, label: str, exact: bool = False) -> tuple[Curve, ...]:
        return tuple(Curve(key, label, exact=exact) for key in sorted(logged) if key.endswith(f"/{what}"))

    objective = (
        Curve("stage2/loss", "whole"),
        Curve("stage2/grpo", "GRPO with KL"),
        Curve("stage2/anchor", "anchor, before its weight"),
        Curve("memgen_grpo/loss", "GRPO"),
    )
    clipped = (*curves("clip_share", "all actions"), *curves("operator_clip_share", "invocations"))
    return [
        Panel("Objective", "loss", objective, low=None),
        Panel("Clipped ratios", "share of actions", clipped),
        Panel("Gradient norm before clipping", "norm", curves("gradient_norm", "norm")),
        Panel("Learning rate", "per step", curves("learning_rate", "rate", exact=True)),
    ]


# --- drawing ----------------------------------------------------------------------------------------------------------


def smoothed(values: Sequence[float]) -> tuple[list[float], list[float], list[float]]:
    """Mean, 10th and 90th percentile of the values around each: a twentieth of all, at least 5, fewer at the ends."""
    import numpy as np

    reach = max(2, len(values) // 40)
    windows = [values[max(0, place - reach) : place + reach + 1] for place in range(len(values))]
    low, high = zip(*(np.quantile(window, (0.1, 0.9)) for window in windows), strict=True)
    return [float(np.mean(window)) for window in windows], list(map(float, low)), list(map(float, high))


def save_png(metrics: Metrics, path: Path, title: str, budget: int | None = None) -> None:
    """Every panel of a run in one picture, two side by side. Nothing is written where nothing was logged."""
    if not (chosen := panels(metrics, budget)):
        return
    pyplot = _pyplot()
    rows = -(-len(chosen) // 2)
    with pyplot.rc_context(_style()):
        figure, axes = pyplot.subplots(
            rows, 2, figsize=(2 * INCHES[0], rows * INCHES[1] + 0.5), layout="constrained", squeeze=False
        )
        figure.suptitle(title, x=0.02, ha="left", fontsize=12, fontweight="bold")
        if any(len(series(metrics, curve.key)[0]) >= FEWEST for panel in chosen for curve in panel.curves):
            figure.supxlabel(READING, fontsize=8)
        for place, panel in zip(axes.flat, chosen, strict=False):
            _draw(place, panel, {"": metrics})
        for place in axes.flat[len(chosen) :]:
            place.remove()
        figure.savefig(path, dpi=120, facecolor="white")
        pyplot.close(figure)


def svg(panel: Panel, runs: Mapping[str, Metrics]) -> str:
    """One panel as inline SVG whose ink is the text's colour; of several runs the curves of each, by their names."""
    pyplot, drawn = _pyplot(), io.StringIO()
    with pyplot.rc_context({**_style(), "svg.fonttype": "none", "svg.hashsalt": panel.title}):
        figure, axes = pyplot.subplots(figsize=INCHES, layout="constrained")
        _draw(axes, panel, runs, titled=False)
        figure.savefig(drawn, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
        pyplot.close(figure)
    return _inline(drawn.getvalue(), panel, runs)


def _inline(drawn: str, panel: Panel, runs: Mapping[str, Metrics]) -> str:
    """The drawing without what only a file needs: its size is the page's, its ids are its own."""
    body = drawn[drawn.index("<svg") :]
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    body = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", body, count=1)
    body = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", body, count=1)
    prefix = re.sub(r"\W+", "-", "-".join([panel.title, panel.curves[0].key, *runs])).lower()
    body = re.sub(r'((?:id="|href="#|url\(#))', rf"\g<1>{prefix}-", body)
    return body.replace("<svg", '<svg aria-hidden="true"', 1).replace(INK, "currentColor")


def _draw(axes: Axes, panel: Panel, runs: Mapping[str, Metrics], titled: bool = True) -> None:
    """The curves of a panel, those of each run in turn."""
    several = len(runs) > 1
    curves = panel.curves[:1] if several else panel.curves
    for place, (run, metrics) in enumerate(runs.items()):
        for nth, curve in enumerate(curves):
            colour = SERIES[place % len(SERIES)] if several else colour_of(curve.operator) if curve.operator else INK
            _plot(axes, series(metrics, curve.key), curve, run if several else curve.label, colour, place + nth)
    if panel.line is not None:
        axes.axhline(panel.line[0], color=INK, linestyle=(0, (1, 2)), linewidth=1, label=panel.line[1])
    _set_limits(axes, panel)
    axes.set_ylabel(panel.unit)
    axes.set_xlabel("step")
    if titled:
        axes.set_title(panel.title, loc="left", fontsize=10, fontweight="bold")
    axes.grid(alpha=0.15)
    axes.spines[["top", "right"]].set_visible(False)
    if len(axes.get_legend_handles_labels()[0]) > 1 or panel.curves[0].mark:
        axes.legend(frameon=False, fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.22), ncols=2)


def _plot(axes: Axes, points: tuple[list[int], list[float]], curve: Curve, label: str, colour: str, nth: int) -> None:
    steps, values = points
    dash, mark = DASHES[nth % len(DASHES)], MARKS[nth % len(MARKS)]
    if curve.mark or curve.exact or len(values) < FEWEST:
        shape = mark if curve.mark or len(values) < 3 else ""
        axes.plot(steps, values, "--" if curve.mark else dash, marker=shape, color=colour, label=label, markersize=4)
        return
    middle, low, high = smoothed(values)
    axes.fill_between(steps, low, high, color=colour, alpha=0.15, linewidth=0)
    axes.plot(steps, middle, dash, color=colour, label=label)


def _set_limits(axes: Axes, panel: Panel) -> None:
    """The axis holds what the panel says must be in sight, with a little room."""
    from matplotlib.ticker import MaxNLocator

    low, high = axes.get_ylim()
    low, high = (low if panel.low is None else min(low, panel.low)), max(high, panel.high or high)
    room = 0.03 * (high - low)
    axes.set_ylim(low if panel.low is None or low < panel.low else panel.low - room, high + room)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def _pyplot() -> Any:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def _style() -> dict[str, Any]:
    ink = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color", "grid.color")
    return {"font.size": 10, "lines.linewidth": 1.6, **dict.fromkeys(ink, INK)}


# --- the terminal -----------------------------------------------------------------------------------------------------


def sketch(metrics: Metrics, width: int = 36) -> str:
    """One line of blocks per curve of Stage 2, with its first and last value."""
    keys = ["stage2/reward", "stage2/success", "stage2/invocations"]
    lines = []
    for key in [*keys, *(INVOCATIONS + name for name in operators_of(metrics))]:
        _, values = series(metrics, key)
        if values:
            label = key.removeprefix("stage2/").replace("_", " ")
            lines.append(f"{label:<21} {blocks(values, width):<{width}} {values[0]:6.2f} → {values[-1]:.2f}")
    return "\n".join(lines)


def blocks(values: Sequence[float], width: int) -> str:
    """The values as block characters, averaged into at most `width` columns, from their lowest to their highest."""
    columns = min(width, len(values))
    cuts = [round(place * len(values) / columns) for place in range(columns + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in pairwise(cuts)]
    low, high = min(means), max(means)
    span = (high - low) or 1.0
    return "".join(BLOCKS[min(len(BLOCKS) - 1, int((mean - low) / span * len(BLOCKS)))] for mean in means)
