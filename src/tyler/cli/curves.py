"""Training curves: a PNG for people, a sketch for the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

INVOCATIONS = "stage2/invocations_"
BLOCKS = "▁▂▃▄▅▆▇█"


def series(metrics: Sequence[dict[str, Any]], key: str) -> tuple[list[int], list[float]]:
    """Steps and values of one metric, where it was logged."""
    logged = [(entry["step"], entry[key]) for entry in metrics if entry.get(key) is not None]
    return [step for step, _ in logged], [value for _, value in logged]


def operators_of(metrics: Sequence[dict[str, Any]]) -> list[str]:
    """The operators whose invocations were logged, in the order of the log."""
    names = {key.removeprefix(INVOCATIONS): None for entry in metrics for key in entry if key.startswith(INVOCATIONS)}
    return list(names)


def plot_stage2(metrics: Sequence[dict[str, Any]], budget: int, path: Path) -> None:
    """Reward and success above, invocations by operator and the budget below, over Stage 2."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (top, bottom) = pyplot.subplots(2, 1, sharex=True, figsize=(7, 6), layout="constrained")
    for key, label in (("stage2/reward", "reward"), ("stage2/success", "success (sampled)")):
        top.plot(*series(metrics, key), label=label, linewidth=1.6)
    steps, accuracy = series(metrics, "greedy/accuracy")
    if steps:
        top.plot(steps, accuracy, "o--", label="accuracy (greedy, development)", markersize=4, linewidth=1)
    top.set_ylabel("mean per rollout")
    bottom.plot(*series(metrics, "stage2/invocations"), color="black", label="all", linewidth=1.6)
    for name in operators_of(metrics):
        bottom.plot(*series(metrics, INVOCATIONS + name), label=name, linewidth=1.2)
    bottom.axhline(budget, color="grey", linestyle=":", label=f"budget {budget}")
    bottom.set_ylabel("invocations per rollout")
    bottom.set_xlabel("step")
    for axes in (top, bottom):
        axes.grid(alpha=0.25)
        axes.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))
        axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle("Stage 2: reward and operator invocations")
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


def sketch(metrics: Sequence[dict[str, Any]], width: int = 36) -> str:
    """One line of blocks per curve, with its first, last and extreme values."""
    keys = [
        "stage2/reward",
        "stage2/success",
        "stage2/invocations",
        *(INVOCATIONS + name for name in operators_of(metrics)),
    ]
    lines = []
    for key in keys:
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
