"""A study as an experiment: rows, controls and comparisons that one file declares, and what is made of their records.

Records are matched by what they say of themselves (row, task, split, seed), so that a study's tables are made without
its weights and data.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from statistics import fmean
from typing import TYPE_CHECKING, Any

from tyler.evaluation.statistics import Paired, holm
from tyler.experiments.cells import ACCURACY, SPREAD, Cell, Questions
from tyler.experiments.experiment import MISSING, Entry, Experiment, Measured, Record, Results, Table, in_order
from tyler.experiments.scales import Rows, Scale
from tyler.modeling.operators import PAPER_OPERATORS
from tyler.tasks import Outcome

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LATENTS = "latents"
"""The group of entries whose latents are measured, not their answers."""


@dataclass(frozen=True)
class Comparison:
    """Two rows on the problems of a column, and when the comparison was declared (the time of its first commit)."""

    first: str
    second: str
    declared: str
    column: str = ""
    """Empty: every column that both have answered."""


@dataclass(frozen=True)
class Study:
    """What one file declares. `records` is the folder of its records in docs/results.

    `cells` are in the order in which they are worth running; `kept` are rows that are read and not run, with the
    command that makes their like; `groups` are the rows as the figure shows them, `dotted` the one that is a line.
    """

    title: str
    scale: str
    records: str
    columns: Mapping[str, Questions]
    cells: Sequence[Cell]
    groups: Mapping[str, Sequence[str]]
    comparisons: Sequence[Comparison]
    kept: Mapping[str, str]
    dotted: str = "CoT"

    @property
    def experiment(self) -> Experiment:
        """The study as `tyler reproduce` has it."""
        return Experiment(
            self.title,
            self.entries,
            partial(tables, self),
            partial(findings, self.comparisons),
            partial(figures, self),
            drawn="Bars are 95% intervals over problems, ticks are seeds.",
        )

    def entries(self, scale: Scale) -> list[Entry]:
        """One for each row and column that has a cell, and for each row that is kept; none at another scale."""
        if scale.name != self.scale:
            return []
        titles = {questions: title for title, questions in self.columns.items()}
        found: dict[tuple[str, str, str], list[Cell]] = {}
        for cell in self.cells:
            group = LATENTS if cell.measure == SPREAD else self.title
            column = titles.get(cell.questions, f"{cell.questions.task} {cell.questions.split}")
            found.setdefault((group, cell.row, column), []).append(cell.unseeded)
        entries = [
            Entry(group, row, column, tuple(dict.fromkeys(cells)), records=self.records)
            for (group, row, column), cells in found.items()
        ]
        kept = [
            Entry(self.title, row, column, (), records=self.records, questions=questions)
            for row in self.kept
            for column, questions in self.columns.items()
        ]
        order = {row: place for place, row in enumerate(row for rows in self.groups.values() for row in rows)}
        return sorted([*entries, *kept], key=lambda entry: (entry.group == LATENTS, order.get(entry.row, len(order))))


def cells_of(
    preset: str, rows: Rows, asked: Iterable[Questions], seeds: Sequence[int], measure: str = ACCURACY
) -> list[Cell]:
    """Every row on all that is asked, seed by seed."""
    some = list(asked)
    return [
        Cell(row, preset, *made, questions, seed, measure)
        for seed in seeds
        for row, made in rows.items()
        for questions in some
    ]


# --- what is counted --------------------------------------------------------------------------------------------------


def findings(comparisons: Sequence[Comparison], measured: Sequence[Measured]) -> dict[str, Any]:
    """Every declared comparison of which both sides have records, and how far latents differ."""
    answered = {(one.entry.row, one.entry.column): one for one in measured if one.answered}
    columns = dict.fromkeys(one.entry.column for one in measured if one.answered)
    pairs = [
        compared(one, column, answered[one.first, column], answered[one.second, column])
        for column in columns
        for one in comparisons
        if one.column in ("", column) and {(one.first, column), (one.second, column)} <= answered.keys()
    ]
    for column in columns:
        family = [pair for pair in pairs if pair["column"] == column]
        for pair, adjusted in zip(family, holm([pair["p"] for pair in family]), strict=True):
            pair |= {"holm": round(adjusted, 6), "family": len(family)}
    spread = [
        {"row": one.entry.row, "operator": operator, **told}
        for one in measured
        for record in one.found
        for operator, told in record.get("spread", {}).items()
    ]
    return {"comparisons": pairs, "spread": spread}


def compared(comparison: Comparison, column: str, first: Measured, second: Measured) -> dict[str, Any]:
    """The difference of two rows over the seeds that both have, problem by problem."""
    ours, theirs = matched(first, second)
    counts = Paired(tuple(theirs), tuple(ours))
    low, high = counts.interval()
    return {
        "first": comparison.first,
        "second": comparison.second,
        "column": column,
        "points": round(100 * counts.difference, 4),
        "low": round(100 * low, 4),
        "high": round(100 * high, 4),
        "only_first": counts.only_second,
        "only_second": counts.only_first,
        "n": counts.count,
        "p": counts.p_value(),
        "declared": comparison.declared,
        "answered": answered_at(first, second),
    }


def matched(first: Measured, second: Measured) -> tuple[list[float], list[float]]:
    """Each problem's share of right answers over the seeds that both have; what has no seed stands beside every one.

    Raises ValueError where the two answered different problems.
    """
    sides: tuple[list[Record], list[Record]] = ([], [])
    for seed, (_, one) in first.records.items():
        for other_seed, (_, other) in second.records.items():
            if seed == other_seed or 0 in (seed, other_seed):
                if one["ids"] != other["ids"]:
                    raise ValueError(f"{first.entry.row} and {second.entry.row} answered different problems")
                sides[0].append(one)
                sides[1].append(other)
    left, right = (
        [fmean(column) for column in zip(*(measured.right(record) for record in side), strict=True)]
        for measured, side in zip((first, second), sides, strict=True)
    )
    return left, right


def answered_at(first: Measured, second: Measured) -> str:
    """When the first answers of both were there."""
    return max(min(str(record["environment"]["time"]) for record in one.found) for one in (first, second))


# --- tables -----------------------------------------------------------------------------------------------------------

HEADER = ("row", "k per seed", "all", "95%", "in a box", "calls g / s / p", "visible", "latents", "decoding s")
PAIRED = ("first", "second", "difference", "95%", "only first", "only second", "of", "p", "Holm's p", "declared")


def tables(study: Study, results: Results) -> list[Table]:
    """For each column its rows and its comparisons; then how far latents differ."""
    made: list[Table] = []
    for column in in_order(results, "column"):
        rows = [row_of(one) for one in results["entries"] if one["column"] == column and "k" in one]
        if not rows:
            continue
        name = f"{study.records}-{slug(column)}"
        made.append(Table(name, f"{study.title}: {column}", (*HEADER, "training s"), tuple(rows)))
        pairs = tuple(pair_row(one) for one in results["comparisons"] if one["column"] == column)
        if pairs:
            caption = f"{column}, problem by problem: {len(pairs)} comparisons"
            made.append(Table(f"{name}-comparisons", caption, PAIRED, pairs))
    if results["spread"]:
        made.append(spread_table(study, results["spread"]))
    return made


def row_of(entry: Mapping[str, Any]) -> tuple[str, ...]:
    """A row of the table of a column."""
    answers = entry["n"] * len(entry["k"])
    readable = entry["verdicts"].get(Outcome.CORRECT, 0) + entry["verdicts"].get(Outcome.WRONG, 0)
    names = [operator.name for operator in PAPER_OPERATORS]
    calls = entry["calls"]
    return (
        entry["row"],
        ", ".join(map(str, entry["k"])),
        f"{100 * sum(entry['k']) / answers:.1f}%",
        f"{entry['low']:.1f}–{entry['high']:.1f}",
        f"{100 * readable / answers:.1f}%",
        MISSING if calls is None else " / ".join(f"{calls.get(name, 0):.2f}" for name in names),
        f"{entry['visible']:.1f}",
        f"{entry['latents']:.1f}",
        *(MISSING if entry[key] is None else f"{entry[key]:.0f}" for key in ("decoding_seconds", "training_seconds")),
    )


def pair_row(pair: Mapping[str, Any]) -> tuple[str, ...]:
    """A row of the table of comparisons; whether it was declared before its answers is told by times."""
    before = datetime.fromisoformat(pair["declared"]) < datetime.fromisoformat(pair["answered"])
    return (
        pair["first"],
        pair["second"],
        f"{pair['points']:+.1f}",
        f"{pair['low']:+.1f} to {pair['high']:+.1f}",
        *(str(pair[key]) for key in ("only_first", "only_second", "n")),
        chance(pair["p"]),
        chance(pair["holm"]),
        "before" if before else "after its answers",
    )


def chance(p: float) -> str:
    """A p as tables tell it."""
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def spread_table(study: Study, spread: Sequence[Mapping[str, Any]]) -> Table:
    """How far each model's latents differ from problem to problem."""
    header = ("row", "operator", "answers", "scale", "scale of the mean", "around it", "share")
    rows = [
        (
            one["row"],
            one["operator"],
            str(one["calls"]),
            *(f"{x:.3f}" for x in (one["scale"], one["scale_of_mean"], one["scale"] * one["around_mean"] ** 0.5)),
            f"{100 * one['around_mean']:.2f}%",
        )
        for one in spread
    ]
    return Table(f"{study.records}-latents", "Latents of the first call in every answer", header, tuple(rows))


def slug(text: str) -> str:
    """A file's name."""
    return "-".join("".join(letter if letter.isalnum() else " " for letter in text.lower()).split())


def figures(study: Study, results: Results) -> dict[str, Figure]:
    """Every row's share of right answers, one panel for each column."""
    from tyler.experiments.figures import draw

    entries = [one for one in results["entries"] if "k" in one]
    return {study.records: draw(entries, study.groups, study.dotted)} if entries else {}
