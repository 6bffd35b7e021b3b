"""A study, an experiment of our own: rows, controls and comparisons that one file declares, and what is made of them.

A file is `studies/NAME.yaml`: `columns` are what is asked, `trainings` how models are made, by names that later ones
start from, `rows` what answers (a training, or none, and how it decodes), `cells` the parts of the grid: some rows and
columns with some seeds, all of them where a part does not say which; they run seed by seed, in the order of `groups`.
`kept` are rows that are read and not run, and `comparisons` pairs of rows by the time at which they were committed.

Records are matched by what they say of themselves (row, task, split, seed), so that a study's tables are made without
its weights and data.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from itertools import chain, product
from pathlib import Path
from statistics import fmean
from typing import Any, ClassVar

import yaml
from pydantic import TypeAdapter

from tyler.evaluation.html_report import slug
from tyler.evaluation.statistics import Paired
from tyler.experiments.cells import ACCURACY, KEPT, NO_TRAINING, SPREAD, Cell, Decoding, Questions, Training
from tyler.experiments.experiment import MISSING, Entry, Figures, Measured, Results, Table, adjust, chance, in_order
from tyler.experiments.scales import Rows, Scale, scale_named
from tyler.modeling.operators import PAPER_OPERATORS
from tyler.presentation import counted
from tyler.tasks import Outcome

LATENTS = "latents"
"""The group of entries whose latents are measured, not their answers."""


@dataclass(frozen=True)
class Comparison:
    """Two rows on every column that both have answered, and when this was declared (the time of its first commit)."""

    first: str
    second: str
    declared: str


@dataclass(frozen=True)
class Study:
    """What one file declares. `records` is the folder of its records in docs/results, `beside` are those of other
    studies, some of whose rows it is compared with.

    `groups` are the rows in the order in which they are run and the figure shows them, `dotted` the one that is a line.
    `curve` names groups that differ in their steps, row by row, and have one column.
    """

    title: str
    scale: str
    records: str
    columns: Mapping[str, Questions]
    rows: Rows
    cells: Sequence[Cell]
    groups: Mapping[str, Iterable[str]]
    comparisons: Sequence[Comparison]
    dotted: str = "CoT"
    beside: Sequence[str] = ()
    curve: Sequence[str] = ()
    drawn: ClassVar[str] = "Bars are 95% intervals over problems, ticks are seeds."

    def entries(self, scale: Scale) -> list[Entry]:
        """One for each row and column that has a cell; none at another scale."""
        if scale.name != self.scale:
            return []
        titles, folders = {questions: title for title, questions in self.columns.items()}, (self.records, *self.beside)
        cells: dict[tuple[str, str, str], list[Cell]] = {}
        for cell in self.cells:
            group = LATENTS if cell.measure == SPREAD else self.title
            cells.setdefault((group, cell.row, titles[cell.questions]), []).append(cell.unseeded)
        entries = [Entry(*key, tuple(dict.fromkeys(some)), records=folders) for key, some in cells.items()]
        order = [row for rows in self.groups.values() for row in rows]
        position = {row: index for index, row in enumerate(order)}
        return sorted(entries, key=lambda entry: (entry.group == LATENTS, position.get(entry.row, len(order))))

    def findings(self, measured: Sequence[Measured]) -> dict[str, Any]:
        """Every declared comparison of which both sides have records, and how far latents differ."""
        answered = {(each.entry.row, each.entry.column): each for each in measured if each.answered}
        columns = dict.fromkeys(each.entry.column for each in measured if each.answered)
        pairs = [
            compared(each, column, answered[each.first, column], answered[each.second, column])
            for column in columns
            for each in self.comparisons
            if {(each.first, column), (each.second, column)} <= answered.keys()
        ]
        adjust(pairs, "column")
        spread = [
            {"row": each.entry.row, "operator": operator, **numbers}
            for each in measured
            for record in each.records.values()
            for operator, numbers in record.get("spread", {}).items()
        ]
        return {"comparisons": pairs, "spread": spread}

    def tables(self, results: Results) -> list[Table]:
        """For each column its rows and its comparisons; then how far latents differ."""
        every: list[Table] = []
        for column in in_order(results, "column"):
            name = f"{self.records}-{slug(column)}"
            if rows := [row_of(entry) for entry in results["entries"] if entry["column"] == column and "k" in entry]:
                every.append(Table(name, f"{self.title}: {column}", HEADER, tuple(rows)))
            if pairs := [pair_row(entry) for entry in results["comparisons"] if entry["column"] == column]:
                caption = f"{column}, problem by problem: {counted(len(pairs), 'comparison')}"
                every.append(Table(f"{name}-comparisons", caption, PAIRED, tuple(pairs)))
        return [*every, spread_table(self.records, results["spread"])] if results["spread"] else every

    def figures(self, results: Results) -> Figures:
        """Every row's share of right answers, one panel for each column; and the curve."""
        from tyler.experiments.figures import draw, draw_curve

        entries = [entry for entry in results["entries"] if "k" in entry]
        drawn = {self.records: draw(entries, self.groups, self.dotted)} if entries else {}
        if entries and self.curve:
            points = {name: self.groups[name] for name in self.curve}
            drawn[f"{self.records}-curve"] = draw_curve(entries, results["comparisons"], points)
        return drawn


STUDIES = Path(__file__).with_name("studies")


def studies() -> list[str]:
    """The names of all studies."""
    return sorted(file.stem for file in STUDIES.glob("*.yaml"))


@cache
def read_study(name: str) -> Study:
    """The study that a file declares."""
    declared = yaml.safe_load((STUDIES / f"{name}.yaml").read_text(encoding="utf-8"))
    scale, common = scale_named(declared["scale"]), declared.pop("overrides", ())
    trainings: dict[str | None, Training] = {None: Training()}
    for title, how in declared.pop("trainings", {}).items():
        overrides = (*(() if how["method"] in NO_TRAINING else common), *how.get("overrides", ()))
        start = trainings[how["start"]] if "start" in how else None
        trainings[title] = scale.training(how["method"], *overrides, start=start)
    columns = {title: Questions(**{"count": None} | questions) for title, questions in declared.pop("columns").items()}
    rows: Rows = {
        row: (trainings[how.pop("training", None)], TypeAdapter(Decoding).validate_python(how))
        for row, how in declared.pop("rows", {}).items()
    } | {row: (Training(KEPT), Decoding()) for row in declared.pop("kept", ())}
    pairs = declared.pop("comparisons", {}).items()
    comparisons = [Comparison(first, second, when) for when, several in pairs for first, second in several]
    cells = [cell for part in declared.pop("cells", [{}]) for cell in cells_of(scale, rows, columns, **part)]
    return Study(**declared, columns=columns, rows=rows, cells=cells, comparisons=comparisons)


def cells_of(
    scale: Scale,
    every_row: Rows,
    every_column: Mapping[str, Questions],
    rows: Sequence[str] = (),
    columns: Sequence[str] = (),
    seeds: Sequence[int] = (),
    measure: str = ACCURACY,
) -> list[Cell]:
    """Some rows, or all, on some of what is asked, seed by seed."""
    every = product(seeds or scale.seeds, rows or every_row, columns or every_column)
    return [
        Cell(row, scale.preset, *every_row[row], every_column[column], seed, measure) for seed, row, column in every
    ]


# --- what is counted --------------------------------------------------------------------------------------------------


def compared(comparison: Comparison, column: str, first: Measured, second: Measured) -> dict[str, Any]:
    """The difference of two rows over the seeds that both have, problem by problem, and when both had answers."""
    ours, theirs = matched(first, second)
    counts = Paired(tuple(theirs), tuple(ours))
    low, high = counts.interval()
    began = [min(str(record["environment"]["time"]) for record in each.records.values()) for each in (first, second)]
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
        "answered": max(began),
    }


def matched(first: Measured, second: Measured) -> tuple[list[float], list[float]]:
    """Each problem's share of right answers over the seeds that both have; what has no seed stands beside every one.

    Raises ValueError where the two answered different problems.
    """
    pairs = [
        (own, other)
        for (seed, own), (other_seed, other) in product(first.records.items(), second.records.items())
        if seed == other_seed or 0 in (seed, other_seed)
    ]
    if not Measured.of_same_problems(chain.from_iterable(pairs)):
        raise ValueError(f"{first.entry.row} and {second.entry.row} answered different problems")
    ours, theirs = (first.right(own) for own, _ in pairs), (second.right(other) for _, other in pairs)
    left, right = ([fmean(problem) for problem in zip(*side, strict=True)] for side in (ours, theirs))
    return left, right


# --- tables -----------------------------------------------------------------------------------------------------------

HEADER = (
    *("row", "k per seed", "all", "95%", "in a box", "calls g / s / p", "visible", "latents"),
    *("decoding s", "training s"),
)
PAIRED = ("first", "second", "difference", "95%", "only first", "only second", "of", "p", "Holm's p", "declared")


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


def spread_table(records: str, spread: Sequence[Mapping[str, Any]]) -> Table:
    """How far each model's latents differ from problem to problem."""
    header = ("row", "operator", "answers", "scale", "scale of the mean", "around it", "share")
    rows = []
    for finding in spread:
        scales = (finding["scale"], finding["scale_of_mean"], finding["scale"] * finding["around_mean"] ** 0.5)
        share = f"{100 * finding['around_mean']:.2f}%"
        rows.append(
            (finding["row"], finding["operator"], str(finding["calls"]), *(f"{scale:.3f}" for scale in scales), share)
        )
    return Table(f"{records}-latents", "Latents of the first call in every answer", header, tuple(rows))
