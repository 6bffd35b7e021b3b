"""Table efficiency-budget and figure latent-budget-scaling: accuracy, latency and latents at B_O = 0, 1, 2, 5, 8.

The budget is a hard cap at inference on the model after Stage 2, as in the paper's sweep.
"""

from dataclasses import replace
from functools import partial

from tyler.experiments.averages import average, averaged, difference, held_against, mean_of, shown, with_paper, written
from tyler.experiments.cells import LATENCY
from tyler.experiments.experiment import Entry, Experiment, Figures, Results, Table, entries_of, in_order
from tyler.experiments.scales import COLOURS, STAGE2, TIMED, Scale, methods

BUDGETS = (0, 1, 2, 5, 8)


def entries(scale: Scale) -> list[Entry]:
    """Budgets by tasks, answered together for the accuracy and one by one for the latency."""
    training, decoding = methods(scale)[STAGE2]
    rows = {str(budget): (training, replace(decoding, budget=budget)) for budget in BUDGETS}
    return [*entries_of(scale, rows), *entries_of(scale, rows, LATENCY, TIMED)]


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
        cells = (with_paper(text, shown("budget", group, row, column, form)) for text, column, form in numbers)
        rows.append((row, *cells, difference(results, group, row)))
    caption = f"Budget sweep on {group}, averaged over {', '.join(columns)}"
    return [Table("budget", caption, ("B_O", "accuracy", "seconds", "latents", "difference to B_O = 0"), tuple(rows))]


def figures(results: Results) -> Figures:
    """Accuracy on the left axis and latency on the right, by budget."""
    from tyler.experiments.figures import bar, panels

    group, columns = in_order(results, "group")[0], in_order(results, "column")
    rows = in_order(results, "row")
    figure, (axes,) = panels()
    other = axes.twinx()
    accuracies = {int(row): mean for row in rows if (mean := average(results, group, row, columns)) is not None}
    seconds = {int(row): mean_of(results, TIMED, row, columns, "seconds") for row in rows}
    axes.plot(list(accuracies), [mean for mean, _, _ in accuracies.values()], "o-", color=COLOURS[STAGE2])
    axes.set_ylabel("accuracy (%)", color=COLOURS[STAGE2])
    for budget, (middle, *ends) in accuracies.items():
        bar(axes, budget, middle, ends, COLOURS[STAGE2])
    timed = {budget: value for budget, value in seconds.items() if value is not None}
    other.plot(list(timed), list(timed.values()), "s-", color=COLOURS["seconds"])
    other.set_ylabel("seconds an answer", color=COLOURS["seconds"])
    other.spines["right"].set_visible(True)
    other.grid(False)
    axes.set_xlabel("latent-call budget $B_O$")
    axes.set_xticks(BUDGETS)
    return {"budget": figure}


EXPERIMENT = Experiment(
    "Budget: accuracy, latency and latents",
    entries,
    tables,
    partial(held_against, "0"),
    figures,
    drawn="Bars are 95% intervals of the accuracy; seconds are of the first seed, timed once.",
)
