"""Training curves: panels from metrics.jsonl, as SVG for pages.

Colour means an operator, and nothing else; other curves are in the ink of the page. Curves differ by dash or mark too.
Of several runs in one panel each has a colour and a dash of its own.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from tyler.presentation import SERIES, colour_of

matplotlib.use("Agg")
from matplotlib import pyplot

Metrics = Sequence[Mapping[str, Any]]

CALLS = r"invocations(?:_(\w+))?"
OBJECTIVE = "Objective"
READING = (
    "Lines are means over a twentieth of the steps, at least 5; bands go from the 10th to the 90th percentile of these."
)
"""How to read a curve of many steps."""
DASHES, MARKS = ("-", "--", "-.", ":"), "Dosv^"
INK = "#010203"
"""Stands for the colour of the text, which a page may choose."""
FEWEST = 24
"""Points from which on a curve is smoothed."""
INCHES = (4.6, 2.7)
"""Of one panel: its text has the size of a page's where the page shows it at its own width."""

INKED = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color", "grid.color")
STYLE: Any = {"font.size": 10, "lines.linewidth": 1.6, "svg.fonttype": "none", **dict.fromkeys(INKED, INK)}

PANELS = (
    ("Loss on traces", "nats per token", r"(?!stage2|memgen_grpo)\w+/(development_)?loss", None),
    ("Reward", "mean per rollout", r"\w+/reward", 1.0),
    ("Success", "share", r"\w+/(success|accuracy)", 1.0),
    ("Invocations, sampled", "per rollout", rf"stage2/{CALLS}", None),
    ("Invocations, greedy", "per answer", rf"greedy/{CALLS}", None),
    ("Blocks after delimiters", "per answer", r"(memgen_grpo|greedy)/(insertions|consultations)", None),
    ("Shares of rollouts and groups", "share", r"\w+/(over_budget|truncated|degenerate_groups|agreed)", 1.0),
    ("KL to the start", "nats per action", r"\w+/kl", None),
    ("Entropy of the policy", "nats per action", r"\w+/entropy", None),
    ("Length of rollouts", "per rollout", r"\w+/(visible_tokens|latents)", None),
    (OBJECTIVE, "loss", r"(stage2|memgen_grpo)/(loss|grpo|anchor)", None),
    ("Clipped ratios", "share of actions", r"\w+/(operator_)?clip_share", None),
    ("Gradient norm before clipping", "norm", r"\w+/gradient_norm", None),
    ("Learning rate", "per step", r"\w+/learning_rate", None),
)
"""Title, unit, what the keys in it match, and what is in sight whatever the values are; the most telling first."""


@dataclass(frozen=True)
class Curve:
    """One metric in a panel. `mark` curves are points joined by a dashed line: measured now and then."""

    key: str

    @property
    def label(self) -> str:
        return self.operator or self.key.replace("stage2/", "").replace("memgen_grpo/", "").replace("_", " ")

    @property
    def mark(self) -> bool:
        return "greedy" in self.key or "development" in self.key

    @property
    def operator(self) -> str | None:
        """Whose invocations it counts."""
        match = re.fullmatch(rf"\w+/{CALLS}", self.key)
        return match[1] if match else None


@dataclass(frozen=True)
class Panel:
    """One plot. 0 and `high` are in sight, so that noise does not fill the plot; of a loss that may be negative not."""

    title: str
    unit: str
    curves: tuple[Curve, ...]
    high: float | None = None
    budget: int | None = None
    """A value to hold against the curves."""


def series(metrics: Metrics, key: str) -> tuple[list[int], list[float]]:
    """Steps and values of one metric, where it was logged."""
    logged = [(entry["step"], entry[key]) for entry in metrics if entry.get(key) is not None]
    return [step for step, _ in logged], [value for _, value in logged]


def panels(metrics: Metrics, budget: int | None = None) -> list[Panel]:
    """The panels that a run's metrics fill; curves that were not logged are left out."""
    logged = list(dict.fromkeys(key for entry in metrics for key, value in entry.items() if value is not None))
    filled = []
    for title, unit, keys, high in PANELS:
        if curves := tuple(Curve(key) for key in logged if re.fullmatch(keys, key)):
            filled.append(Panel(title, unit, curves, high, budget if title.startswith("Invocations") else None))
    return filled


# --- drawing ----------------------------------------------------------------------------------------------------------


def smoothed(values: Sequence[float]) -> tuple[list[float], list[float], list[float]]:
    """Mean, 10th and 90th percentile of the values around each: a twentieth of all, at least 5, fewer at the ends."""
    reach = max(2, len(values) // 40)
    windows = [values[max(0, index - reach) : index + reach + 1] for index in range(len(values))]
    low, high = zip(*(np.quantile(window, (0.1, 0.9)) for window in windows), strict=True)
    return [float(np.mean(window)) for window in windows], list(map(float, low)), list(map(float, high))


def svg(panel: Panel, runs: Mapping[str, Metrics]) -> str:
    """One panel as inline SVG whose ink is the text's colour; of several runs the curves of each, by their names."""
    drawn = io.StringIO()
    with pyplot.rc_context({**STYLE, "svg.hashsalt": panel.title}):
        figure, axes = pyplot.subplots(figsize=INCHES, layout="constrained")
        _draw(axes, panel, runs)
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


def _draw(axes: Axes, panel: Panel, runs: Mapping[str, Metrics]) -> None:
    """The curves of a panel, those of each run in turn."""
    several = len(runs) > 1
    curves = panel.curves[:1] if several else panel.curves
    for nth_run, (run, metrics) in enumerate(runs.items()):
        for nth, curve in enumerate(curves):
            colour = SERIES[nth_run % len(SERIES)] if several else colour_of(curve.operator) if curve.operator else INK
            _plot(axes, series(metrics, curve.key), curve, run if several else curve.label, colour, nth_run + nth)
    if panel.budget is not None:
        axes.axhline(panel.budget, color=INK, linestyle=(0, (1, 2)), linewidth=1, label=f"budget {panel.budget}")
    _set_limits(axes, panel)
    axes.set_ylabel(panel.unit)
    axes.set_xlabel("step")
    axes.grid(alpha=0.15)
    axes.spines[["top", "right"]].set_visible(False)
    if len(axes.get_legend_handles_labels()[0]) > 1 or panel.curves[0].mark:
        axes.legend(frameon=False, fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.22), ncols=2)


def _plot(axes: Axes, points: tuple[list[int], list[float]], curve: Curve, label: str, colour: str, nth: int) -> None:
    steps, values = points
    dash, mark = DASHES[nth % len(DASHES)], MARKS[nth % len(MARKS)]
    if curve.mark or curve.key.endswith("learning_rate") or len(values) < FEWEST:
        shape = mark if curve.mark or len(values) < 3 else ""
        axes.plot(steps, values, "--" if curve.mark else dash, marker=shape, color=colour, label=label, markersize=4)
        return
    middle, low, high = smoothed(values)
    axes.fill_between(steps, low, high, color=colour, alpha=0.15, linewidth=0)
    axes.plot(steps, middle, dash, color=colour, label=label)


def _set_limits(axes: Axes, panel: Panel) -> None:
    """The axis holds what the panel says must be in sight, with a little room."""
    low, high = axes.get_ylim()
    high = max(high, panel.high or high)
    if panel.title != OBJECTIVE:
        low = low if low < 0 else -0.03 * high
    axes.set_ylim(low, high + 0.03 * (high - low))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
