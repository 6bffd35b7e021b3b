"""Table and figures continual-learning: one domain after the other, what is kept and what is forgotten.

SFT and GRPO learn each domain on the model of the one before, with its LoRA merged in. MemGen's weaver and Tyler's Phi
go on learning.

# Deviation: Tyler's policy {eta, psi} belongs to one Phi and is learned anew on each domain; the paper does not say
which of its parts go on.
"""

from collections.abc import Mapping, Sequence
from itertools import product
from statistics import fmean
from typing import Any

from tyler.experiments.averages import accuracy, average, share_text, shown, with_paper, written
from tyler.experiments.cells import Cell, Decoding, Training
from tyler.experiments.experiment import (
    Entry,
    Experiment,
    Figures,
    Measured,
    Results,
    Table,
    entry_of,
    in_order,
    seeded,
)
from tyler.experiments.scales import COLOURS, COT, GRPO, MEMGEN, SFT, TYLER, Rows, Scale

BASE = "0 base"
MARKERS = "os^D"
"""One a method, for readers who cannot tell the colours apart."""
Shares = dict[tuple[str, str], float]
"""Per cent right, by step and domain."""


def entries(scale: Scale) -> list[Entry]:
    """Every method after every domain, on the problems of all domains; none where a scale has no domains."""
    preset = scale.backbones[scale.sequential]
    steps: dict[str, Rows] = {BASE: {COT: (Training(), Decoding(router="never"))}}
    chains = trainings(scale)
    for index, domain in enumerate(scale.domains):
        steps[f"{index + 1} {domain.title}"] = {
            row: (chain[index], Decoding("memgen" if row == MEMGEN else "tyler")) for row, chain in chains.items()
        }
    every = []
    for step, rows in steps.items():
        for (row, how), domain in product(rows.items(), scale.domains):
            cells = seeded(Cell(f"{step}: {row}", preset, *how, domain.questions, 0), scale.seeds)
            every.append(Entry(step, row, domain.column, cells, domain.families))
    return every


def trainings(scale: Scale) -> dict[str, list[Training]]:
    """The training of each method after each domain."""
    chains: dict[str, list[Training]] = {SFT: [], GRPO: [], MEMGEN: [], TYLER: []}
    operators: Training | None = None
    for domain in scale.domains:
        for row, method in ((SFT, "sft"), (GRPO, "grpo")):
            merged = Training("merge", start=chains[row][-1]) if chains[row] else None
            chains[row].append(scale.training(method, *domain.learned, start=merged))
        before = chains[MEMGEN][-1] if chains[MEMGEN] else None
        chains[MEMGEN].append(scale.training("memgen", *domain.learned, start=before))
        operators = scale.training("stage1", *domain.learned, start=operators)
        chains[TYLER].append(scale.training("stage2", *domain.learned, start=operators))
    return chains


def forgetting(after: Sequence[Sequence[float]]) -> float:
    """F_t of accuracies after the steps 1..t, each a row with a column for every domain in the order of adaptation.

    F_t = mean over the domains i seen so far of max_{s <= t} A_{s,i} - A_{t,i}; the last row is A_t.
    """
    return fmean(max(row[i] for row in after) - after[-1][i] for i in range(len(after)))


def findings(measured: Sequence[Measured]) -> dict[str, Any]:
    """The macro average and F of every method after every step, of each seed that has all domains up to there."""
    columns = list(dict.fromkeys(each.entry.column for each in measured))
    steps = list(dict.fromkeys(each.entry.group for each in measured if each.entry.group != BASE))
    shares: dict[str, dict[int, Shares]] = {}
    for each in measured:
        for seed, record in each.records.items():
            of_seed = shares.setdefault(each.entry.row, {}).setdefault(seed, {})
            of_seed[each.entry.group, each.entry.column] = 100 * fmean(each.right(record))
    retention = []
    for (row, seeds), last in product(shares.items(), range(len(steps))):
        needed = list(product(steps[: last + 1], columns))
        whole = [of_seed for of_seed in seeds.values() if all(key in of_seed for key in needed)]
        after = [[[of_seed[step, column] for column in columns] for step in steps[: last + 1]] for of_seed in whole]
        if after:
            averages = [round(fmean(rows[-1]), 4) for rows in after]
            forgotten = [round(forgetting(rows), 4) for rows in after]
            retention.append({"row": row, "step": steps[last], "average": averages, "forgetting": forgotten})
    return {"retention": retention}


def retained(results: Results, row: str, step: str, key: str) -> list[float]:
    """A method's average or F after a step, of each seed."""
    return next(
        (finding[key] for finding in results["retention"] if (finding["row"], finding["step"]) == (row, step)), []
    )


def tables(results: Results) -> list[Table]:
    """The matrix of accuracies with averages and F."""
    columns = in_order(results, "column")
    rows = list[tuple[str, ...]]()
    for step in in_order(results, "group"):
        for row in (method for method in in_order(results, "row") if (method == COT) == (step == BASE)):
            entries = {column: entry_of(results, step, row, column) for column in columns}
            shares = [share_text(entry, shown("continual", step, row, column)) for column, entry in entries.items()]
            mean, forgotten = average(results, step, row, columns), retained(results, row, step, "forgetting")
            ends = {"Average": mean and mean[0], "Forgetting": fmean(forgotten) if forgotten else None}
            last = (with_paper(written(end, ".2f"), shown("continual", step, row, key)) for key, end in ends.items())
            rows.append((step, row, *shares, *last))
    header = ("after", "method", *columns, "average", "F")
    return [Table("continual", "Sequential adaptation, Pass@1 in per cent", header, tuple(rows))]


def figures(results: Results) -> Figures:
    """Six panels: accuracy on each domain after every step, the macro average, and F; each seed is a thin line."""
    from tyler.experiments.figures import panels, seeds_and_mean

    steps = [step for step in in_order(results, "group") if step != BASE]
    columns, methods = in_order(results, "column"), [row for row in in_order(results, "row") if row != COT]
    figure, drawn = panels(2, 3, width=2.27, height=1.75)
    values: dict[str, dict[str, list[list[float]]]] = {
        column: {row: [of_seeds(entry_of(results, step, row, column)) for step in steps] for row in methods}
        for column in columns
    }
    for key in ("average", "forgetting"):
        values[key] = {row: [retained(results, row, step, key) for step in steps] for row in methods}
    titles = {"average": "macro average", "forgetting": "forgetting F (lower is better)"}
    for axes, (name, lines) in zip(drawn, values.items(), strict=False):
        for (row, heights), marker in zip(lines.items(), MARKERS, strict=False):
            seeds_and_mean(axes, heights, color=COLOURS[row], marker=marker, label=row)
        base = accuracy(entry_of(results, BASE, COT, name)) if name in columns else None
        if base is not None:
            axes.axhline(base, color=COLOURS[COT], linestyle="--", linewidth=0.8, label=COT)
        axes.set_title(titles.get(name, name))
        axes.set_xticks(range(len(steps)), [step.partition(" ")[2] for step in steps], rotation=20)
    figure.legend(*drawn[0].get_legend_handles_labels(), loc="outside upper center", ncols=len(methods) + 1)
    return {"continual": figure}


def of_seeds(entry: Mapping[str, Any] | None) -> list[float]:
    """Per cent right, of each seed."""
    return [] if entry is None else [100 * k / entry["n"] for k in entry["k"]]


EXPERIMENT = Experiment(
    "Continual: one domain after the other",
    entries,
    tables,
    findings,
    figures,
    drawn="Thick lines are means over seeds, thin lines are seeds.",
)
