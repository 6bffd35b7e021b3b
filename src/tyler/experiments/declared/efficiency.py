"""Figure efficiency-summary and table efficiency-overhead: what an answer costs, in seconds and in tokens.

Answers are decoded one at a time on a warm engine, and timed between tokenisation and grading.
"""

from typing import Any

from tyler.experiments.averages import average, averaged, mean_of, shown, with_paper, written
from tyler.experiments.cells import LATENCY
from tyler.experiments.experiment import Entry, Experiment, Figures, Results, Table, entries_of, in_order
from tyler.experiments.scales import COLOURS, STAGE2, TIMED, Scale, methods


def entries(scale: Scale) -> list[Entry]:
    """Methods by tasks: for the accuracy the cells of `main`, for the time some of their problems one by one."""
    return [*entries_of(scale, methods(scale)), *entries_of(scale, methods(scale), LATENCY, TIMED)]


def tables(results: Results) -> list[Table]:
    """All methods averaged over tasks, and Tyler task by task."""
    return [summary(results), overhead(results)]


def summary(results: Results) -> Table:
    """Accuracy, seconds and tokens of every method."""
    group, columns = in_order(results, "group")[0], in_order(results, "column")
    rows = []
    for row in in_order(results, "row"):
        seconds, visible, latents = costs(results, row)
        both = None if visible is None or latents is None else visible + latents
        numbers = [written(number, ".1f") for number in (visible, latents, both)]
        rows.append((row, averaged(results, group, row, columns), written(seconds, ".3f"), *numbers))
    header = ("method", "accuracy", "seconds", "visible", "latents", "tokens")
    caption = f"Cost of an answer on {group} at batch 1, tokens and seconds of the timed problems"
    return Table("efficiency", caption, header, tuple(rows))


def overhead(results: Results) -> Table:
    """Seconds of Tyler's answers and of their synthesis, and its share."""
    group, rows = in_order(results, "group")[0], []
    for column in in_order(results, "column"):
        keys = ("seconds", "synthesis_seconds")
        seconds, synthesis = (mean_of(results, TIMED, STAGE2, [column], key) for key in keys)
        share = None if seconds is None or synthesis is None else 100 * synthesis / seconds
        numbers = (written(seconds, ".3f"), written(synthesis, ".4f"), written(share, ".1f"))
        forms = (("Seconds", ".2f"), ("Synthesis seconds", ".2f"), ("Synthesis share", ".1f"))
        papers = (shown("efficiency", group, column, name, form) for name, form in forms)
        rows.append((column, *map(with_paper, numbers, papers)))
    header = ("task", "seconds", "of synthesis", "share in per cent")
    return Table("efficiency-overhead", f"{STAGE2} on {group}: what synthesis takes of an answer", header, tuple(rows))


def costs(results: Results, row: str) -> list[float | None]:
    """Mean seconds, visible tokens and latents of an answer; None for what has not been measured."""
    return [mean_of(results, TIMED, row, in_order(results, "column"), key) for key in ("seconds", "visible", "latents")]


def figures(results: Results) -> Figures:
    """Accuracy by seconds, a marker's area by tokens, its name at one end of its interval; and the tokens."""
    from tyler.experiments.figures import bar, panels

    group, columns, rows = in_order(results, "group")[0], in_order(results, "column"), in_order(results, "row")
    figure, (upper, lower) = panels(2)
    known: dict[str, Any] = {row: (*costs(results, row), average(results, group, row, columns)) for row in rows}
    known = {row: values for row, values in known.items() if None not in values}
    for nth, (row, values) in enumerate(sorted(known.items(), key=lambda pair: pair[1])):
        (seconds, visible, latents, (accuracy, *ends)), colour = values, COLOURS[row]
        upper.scatter(seconds, accuracy, s=visible + latents, color=colour, alpha=0.8, linewidths=0)
        bar(upper, seconds, accuracy, ends, colour)
        point, below = (seconds, ends[1 - nth % 2]), nth % 2
        upper.annotate(row, point, (0, -9 if below else 5), textcoords="offset points", ha="center", fontsize=5.5)
        lower.bar(rows.index(row), visible, color=colour, alpha=0.45)
        lower.bar(rows.index(row), latents, bottom=visible, color=colour, hatch="////", edgecolor="white", linewidth=0)
    upper.set_xlabel("seconds an answer, at batch 1")
    upper.set_ylabel("accuracy (%)")
    upper.margins(x=0.1, y=0.12)
    lower.set_ylabel("tokens: visible, and latent (hatched)")
    lower.set_xticks(range(len(rows)), rows, rotation=35, ha="right")
    lower.grid(axis="x", visible=False)
    return {"efficiency": figure}


EXPERIMENT = Experiment(
    "Efficiency: seconds and tokens of an answer",
    entries,
    tables,
    figures=figures,
    drawn="Bars are 95% intervals of the accuracy; seconds and tokens are of the first seed, timed once.",
)
