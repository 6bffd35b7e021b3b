"""Training curves: panels from metrics.jsonl, as pictures in pages.

Colour means an operator, and nothing else; other curves are in grey. Curves differ by dash or mark too. Of several runs
in one panel each has a colour and a dash of its own.
"""

import base64
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from tyler.presentation import SERIES, colour_of

Metrics = Sequence[Mapping[str, Any]]

CALLS = r"invocations(?:_(\w+))?"
OBJECTIVE = "Objective"
READING = "Faint lines are single steps, the others means over a twentieth of all steps."
DASHES = ("-", "--", "-.", ":")
INK = "#6e7682"
"""Of text, and of curves of no operator: a grey that is read on white and on black."""
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
class Panel:
    """One plot. 0 and `high` are in sight, so that noise does not fill the plot; of a loss that may be negative not."""

    title: str
    unit: str
    keys: tuple[str, ...]
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
    for title, unit, pattern, high in PANELS:
        if keys := tuple(key for key in logged if re.fullmatch(pattern, key)):
            filled.append(Panel(title, unit, keys, high, budget if title.startswith("Invocations") else None))
    return filled


def operator_of(key: str) -> str | None:
    """The operator whose invocations a metric counts."""
    match = re.fullmatch(rf"\w+/{CALLS}", key)
    return match[1] if match else None


def label_of(key: str) -> str:
    """What a metric is called in a panel."""
    return operator_of(key) or key.replace("stage2/", "").replace("memgen_grpo/", "").replace("_", " ")


def picture(panel: Panel, runs: Mapping[str, Metrics]) -> str:
    """One panel as the address of an image that holds it; of several runs the first curve of each, by their names."""
    drawn = io.StringIO()
    with rc_context({**STYLE, "svg.hashsalt": panel.title}):
        figure = Figure(INCHES, layout="constrained")
        draw(figure.subplots(), panel, runs)
        figure.savefig(drawn, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    return f"data:image/svg+xml;base64,{base64.b64encode(drawn.getvalue().encode()).decode()}"


def draw(axes: Axes, panel: Panel, runs: Mapping[str, Metrics]) -> None:
    """The curves of a panel, those of each run in turn."""
    several = len(runs) > 1
    for nth_run, (run, metrics) in enumerate(runs.items()):
        for nth, key in enumerate(panel.keys[:1] if several else panel.keys):
            own = SERIES[nth_run % len(SERIES)] if several else colour_of(name) if (name := operator_of(key)) else INK
            label, dash = run if several else label_of(key), DASHES[(nth_run + nth) % len(DASHES)]
            plot(axes, *series(metrics, key), now_and_then="greedy" in key or "development" in key, linestyle=dash,
                 color=own, label=label)  # fmt: skip
    if panel.budget is not None:
        axes.axhline(panel.budget, color=INK, linestyle=(0, (1, 2)), linewidth=1, label=f"budget {panel.budget}")
    set_limits(axes, panel)
    axes.set_ylabel(panel.unit)
    axes.set_xlabel("step")
    axes.grid(alpha=0.15)
    axes.spines[["top", "right"]].set_visible(False)
    if len(axes.get_legend_handles_labels()[0]) > 1:
        axes.legend(frameon=False, fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.22), ncols=2)


def plot(axes: Axes, steps: Sequence[int], values: Sequence[float], *, now_and_then: bool, **look: Any) -> None:
    """One curve: marked where it was measured now and then, smoothed where it has many steps."""
    reach = 0 if now_and_then else len(values) // 40
    if reach:
        axes.plot(steps, values, color=look.get("color"), linewidth=0.6, alpha=0.3)
    means = [fmean(values[max(0, index - reach) : index + reach + 1]) for index in range(len(values))]
    axes.plot(steps, means, marker="o" if now_and_then or len(values) < 3 else "", markersize=4, **look)


def set_limits(axes: Axes, panel: Panel) -> None:
    """The axis holds what the panel says must be in sight, with a little room."""
    low, high = axes.get_ylim()
    high = max(high, panel.high or high)
    if panel.title != OBJECTIVE:
        low = low if low < 0 else -0.03 * high
    axes.set_ylim(low, high + 0.03 * (high - low))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
