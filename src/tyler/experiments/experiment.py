"""What an experiment is: entries, each the cells of one number over its seeds, and what is made of their records.

`results.json` holds everything that tables and figures show, and they are made from it alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from statistics import fmean
from typing import TYPE_CHECKING, Any, TypeAlias

from tyler.evaluation.answers import Record
from tyler.evaluation.reports import Report, markdown_row
from tyler.evaluation.statistics import clustered, holm
from tyler.experiments.cells import ACCURACY, KEPT, LATENCY, LATENTS, Cell
from tyler.experiments.scales import Rows, Scale

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MISSING = "–"
"""A number that has not been measured."""
ESCAPED = {"&": r"\&", "%": r"\%", "_": r"\_", "#": r"\#", "$": r"\$", "–": "--", "±": r"$\pm$", "Δ": r"$\Delta$"}


@dataclass(frozen=True)
class Table:
    """`rows` of text under `columns`; `name` is its file's."""

    name: str
    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def markdown(table: Table, note: Sequence[str]) -> str:
    """As GitHub shows it."""
    lines = [f"## {table.caption}", "", markdown_row(table.columns), markdown_row(["---"] * len(table.columns))]
    return "\n".join([*lines, *map(markdown_row, table.rows), "", *note]) + "\n"


def latex(table: Table, note: Sequence[str]) -> str:
    """A `table` environment that needs the package booktabs; the note is a comment above it."""
    return "\n".join(
        [
            *(f"% {line}" for line in note),
            r"\begin{table}[t]",
            r"  \centering\small",
            rf"  \begin{{tabular}}{{l{'c' * (len(table.columns) - 1)}}}",
            r"  \toprule",
            f"  {' & '.join(map(escaped, table.columns))} \\\\",
            r"  \midrule",
            *(f"  {' & '.join(map(escaped, row))} \\\\" for row in table.rows),
            r"  \bottomrule",
            r"  \end{tabular}",
            rf"  \caption{{{escaped(table.caption)}}}",
            rf"  \label{{tab:{table.name}}}",
            r"\end{table}",
            "",
        ]
    )


def escaped(text: str) -> str:
    """Plain text for LaTeX."""
    return "".join(ESCAPED.get(letter, letter) for letter in text)


WRITERS = {"md": markdown, "tex": latex}
"""By the ending of the file."""


CellRecord = Mapping[str, Any]
"""A finished cell (`records.read`)."""
Results = Mapping[str, Any]
"""The content of a results.json."""
Figures: TypeAlias = "dict[str, Figure]"
"""By the names of their files."""


@dataclass(frozen=True)
class Entry:
    """One number of an experiment: a row and a column of a group of rows, with a cell for each seed.

    `families` are those of the problems that count, none for all. Where `records` names folders of records, they are
    matched by what they say of themselves.
    """

    group: str
    row: str
    column: str
    cells: tuple[Cell, ...]
    families: tuple[str, ...] = ()
    records: tuple[str, ...] = ()

    @property
    def runnable(self) -> list[Cell]:
        """The cells that are not only read."""
        return [cell for cell in self.cells if cell.training.method != KEPT]


@dataclass(frozen=True)
class Measured:
    """An entry with the records there are of it, by seed."""

    entry: Entry
    records: Mapping[int, CellRecord]

    @property
    def answered(self) -> list[CellRecord]:
        """The records that tell who is right."""
        return [record for record in self.records.values() if record["answers"]]

    def shares(self) -> list[float]:
        """Each problem's share of right answers over the seeds. Raises ValueError for records of other problems."""
        if not self.of_same_problems(self.answered):
            raise ValueError(f"the records of {self.entry.row} are of different problems; answer them again")
        return [fmean(seeds) for seeds in zip(*map(self.right, self.answered), strict=True)]

    @staticmethod
    def of_same_problems(records: Iterable[CellRecord]) -> bool:
        """Whether records are of the same problems in the same order."""
        return len({tuple(answer.id for answer in record["answers"]) for record in records}) <= 1

    def right(self, record: CellRecord) -> list[bool]:
        """Which of the problems that count were solved."""
        return [answer.correct for answer in self.counting(record)]

    def counting(self, record: CellRecord) -> list[Record]:
        """The answers to the problems that count: all, or those of some families."""
        chosen = self.entry.families
        return [answer for answer in record["answers"] if not chosen or answer.family in chosen]

    @property
    def pooled(self) -> list[Record]:
        """The answers to the problems that count, of all seeds."""
        return [answer for record in self.answered for answer in self.counting(record)]

    def counted(self) -> dict[str, Any]:
        """The entry as results.json has it: k of each seed, n, means per answer, and the records they are from."""
        entry: dict[str, Any] = {"group": self.entry.group, "row": self.entry.row, "column": self.entry.column}
        entry |= {"seeds": list(self.records), "records": [record["name"] for record in self.records.values()]}
        if not self.answered:
            return entry | ({"n": self.entry.cells[0].questions.count} if self.records else {})
        low, high = clustered(self.shares(), len(self.answered))
        report = Report(self.entry.row, tuple(self.pooled))
        calls = {name: round(count, 4) for name, count in report.invocations_by_operator().items()}
        return entry | {
            "k": [sum(self.right(record)) for record in self.answered],
            "n": len(self.right(self.answered[0])),
            "low": round(100 * low, 6),
            "high": round(100 * high, 6),
            "verdicts": dict(Counter(str(answer.outcome) for answer in report.records)),
            "visible": round(report.mean(lambda answer: answer.visible_tokens), 3),
            "latents": round(report.mean(lambda answer: answer.latents), 3),
            "calls": None if report.invocations is None else calls,
            **self.times(),
        }

    def times(self) -> dict[str, float | None]:
        """Mean seconds of an answer and of its synthesis, where answers were timed one by one; of a study's rows those
        of decoding and training, None where a record does not have them."""
        if self.entry.records:
            kept: dict[str, list[Any]] = {
                key: [record.get(key) for record in self.answered] for key in ("decoding_seconds", "training_seconds")
            }
            return {key: None if None in values else round(fmean(values), 1) for key, values in kept.items()}
        timed = ("seconds", "synthesis_seconds") if self.entry.cells[0].measure == LATENCY else ()
        return {key: round(fmean(getattr(answer, key) for answer in self.pooled), 6) for key in timed}


@dataclass(frozen=True)
class Experiment:
    """One experiment of the paper.

    `findings` are of all entries, with the records there are, and go into results.json beside the counts; `tables` and
    `figures` are made of its content. `drawn` says under the figures what they show of seeds and intervals.
    """

    title: str
    entries: Callable[[Scale], list[Entry]]
    tables: Callable[[Results], list[Table]]
    findings: Callable[[Sequence[Measured]], dict[str, Any]] = lambda measured: {}
    figures: Callable[[Results], Figures] = lambda results: {}
    drawn: str = ""


def seeded(cell: Cell, seeds: Sequence[int]) -> tuple[Cell, ...]:
    """A cell for each seed; one where nothing is trained."""
    return tuple(dict.fromkeys(replace(cell, seed=seed).unseeded for seed in seeds))


def entries_of(
    scale: Scale, rows: Rows, measure: str = ACCURACY, group: str = "", columns: Sequence[str] = ()
) -> list[Entry]:
    """Rows by columns of a scale, by default by all of its tasks.

    The group is a backbone's title, by default of the one that most experiments study; TIMED stands for that one too,
    whose answers to some problems are timed one by one, of the first seed alone.
    """
    group, preset = group or scale.studied, scale.backbones.get(group, scale.preset)
    counts, seeds = {LATENCY: scale.timed, LATENTS: scale.seen}, scale.seeds[:1] if measure == LATENCY else scale.seeds
    entries = []
    for (row, how), column in product(rows.items(), columns or scale.tasks):
        questions = scale.tasks[column]
        questions = replace(questions, count=counts.get(measure, questions.count))
        entries.append(Entry(group, row, column, seeded(Cell(row, preset, *how, questions, 0, measure), seeds)))
    return entries


def entry_of(results: Results, group: str, row: str, column: str) -> Mapping[str, Any] | None:
    """One entry of a results.json; None where it is not there or has no record yet."""
    key = (group, row, column)
    entries = (entry for entry in results["entries"] if (entry["group"], entry["row"], entry["column"]) == key)
    return next((entry for entry in entries if entry["seeds"]), None)


def in_order(results: Results, key: str) -> list[str]:
    """The groups, rows or columns of a results.json, as they come."""
    return list(dict.fromkeys(entry[key] for entry in results["entries"]))


def adjust(comparisons: Sequence[dict[str, Any]], family: str) -> None:
    """Give every comparison Holm's p of its family, those that have one value of a key, and how many these are."""
    for name in dict.fromkeys(pair[family] for pair in comparisons):
        members = [pair for pair in comparisons if pair[family] == name]
        for pair, adjusted in zip(members, holm([pair["p"] for pair in members]), strict=True):
            pair |= {"holm": round(adjusted, 6), "family": len(members)}


def chance(p: float) -> str:
    """A p as tables tell it."""
    return "< 0.001" if p < 0.001 else f"{p:.3f}"
