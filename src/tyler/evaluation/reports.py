"""What an evaluation found, for people: tables for the terminal and Markdown."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean
from typing import Any

from rich.table import Table

from tyler.evaluation.answers import Record
from tyler.evaluation.samples import Estimate, by_problem, majority_at_k, pass_at_k
from tyler.evaluation.statistics import clustered
from tyler.tasks import Outcome, find_task


@dataclass(frozen=True)
class Report:
    """The records of one reasoner on one set of problems, or of a plain method, under the name of its row."""

    name: str
    records: tuple[Record, ...]

    @cached_property
    def problems(self) -> dict[tuple[str, str], list[Record]]:
        """The answers to each problem, by task and id, in the order of their samples."""
        return by_problem(self.records)

    @property
    def samples(self) -> int:
        """Answers to a problem: of the one that has most."""
        return max(map(len, self.problems.values()))

    @property
    def interval(self) -> tuple[float, float]:
        """95% interval of the accuracy: Wilson's, over problems where they have several answers."""
        return clustered([fmean(one.correct for one in answers) for answers in self.problems.values()], self.samples)

    @property
    def num_correct(self) -> int:
        return sum(record.correct for record in self.records)

    @property
    def accuracy(self) -> float:
        return self.num_correct / len(self.records)

    @property
    def seconds(self) -> float:
        """Wall time of all answers together, batched: of each session, until its last answer was graded."""
        ends: dict[int, float] = {}
        for record in self.records:
            ends[record.session] = max(ends.get(record.session, 0.0), record.elapsed)
        return sum(ends.values())

    @property
    def synthesis_share(self) -> float | None:
        """The operators' share of the engine's time, passes split over the rows they served; None if not kept."""
        times = [record.engine_seconds for record in self.records if record.engine_seconds is not None]
        if len(times) < len(self.records):
            return None
        return sum(record.synthesis_seconds for record in self.records) / max(sum(times), 1e-9)

    def mean(self, value: Callable[[Record], float]) -> float:
        return fmean(value(record) for record in self.records)

    def share(self, outcome: Outcome) -> float:
        return self.mean(lambda record: record.outcome is outcome)

    def invocations_by_operator(self) -> dict[str, float]:
        """Mean invocations per answer."""
        counts = Counter(call.operator for record in self.records for call in record.calls)
        return {name: count / len(self.records) for name, count in sorted(counts.items())}

    def by_family(self) -> dict[str, tuple[int, int]]:
        """k and n of each family."""
        families = sorted({record.family for record in self.records})
        return {
            family: (
                sum(record.correct for record in self.records if record.family == family),
                sum(record.family == family for record in self.records),
            )
            for family in families
        }


COLUMNS = (
    "method",
    "correct",
    "accuracy",
    "95% CI",
    "no box",
    "cut off",
    "unparsable",
    "timeout",
    "visible",
    "latents",
    "calls",
    "seconds",
    "synthesis",
)
ACCURACY_COLUMNS = ("method", "correct", "accuracy", "95% CI", "visible", "latents", "calls", "seconds")
FAILURE_COLUMNS = ("method", "no box", "cut off", "unparsable", "timeout", "synthesis")

CAPTION = (
    "An answer without a finished box is wrong. Tokens and calls are means per answer; seconds are of all answers, "
    "batched; synthesis is the operators' share of the engine's time, each pass split over the rows it served."
)


SAMPLE_CAPTION = (
    "pass@k: the chance that one of k answers is right, without bias. maj@k: how often the answer that most of k gave "
    "is right; a tie counts in part. Intervals are over problems: answers to one problem are alike."
)


def percent(share: float | None) -> str:
    """A share as text; what is not known is a dash."""
    return "–" if share is None else f"{100 * share:.1f}%"


def interval(report: Report) -> str:
    """The 95% interval of a report's accuracy, in percent."""
    low, high = report.interval
    return f"{100 * low:.1f}–{100 * high:.1f}"


def rows(reports: Sequence[Report]) -> list[tuple[str, ...]]:
    """One row per report, as in COLUMNS."""
    return [
        (
            report.name,
            f"{report.num_correct}/{len(report.records)}",
            percent(report.accuracy),
            interval(report),
            percent(report.share(Outcome.NO_BOX)),
            percent(report.share(Outcome.TRUNCATED)),
            percent(report.share(Outcome.UNPARSABLE)),
            percent(report.share(Outcome.TIMEOUT)),
            f"{report.mean(lambda record: record.visible_tokens):.1f}",
            f"{report.mean(lambda record: record.latents):.1f}",
            f"{report.mean(lambda record: len(record.calls)):.2f}",
            f"{report.seconds:.1f}",
            percent(report.synthesis_share),
        )
        for report in reports
    ]


def heading(reports: Sequence[Report]) -> str:
    """What the rows of a table are: tasks, or methods on the same problems."""
    tasks = {record.task for report in reports for record in report.records}
    titles = {find_task(task).title for task in tasks}
    return "task" if all(report.name in titles for report in reports) else "method"


def sample_rows(reports: Sequence[Report]) -> list[tuple[str, ...]]:
    """Of problems with several answers: pass@k and maj@k with their intervals, after a row that names them.

    Empty where every problem has one answer.
    """
    several = [report for report in reports if report.samples > 1]
    lines: list[tuple[str, ...]] = []
    for report in several:
        found = [(f"pass@{k}", one) for k, one in pass_at_k(report.records).items()]
        if any(record.answer is not None for record in report.records):
            found += [(f"maj@{k}", one) for k, one in majority_at_k(report.records).items() if k > 1]
        lines += [(report.name, name, percent(one.value), spread(one)) for name, one in found]
    return [(heading(several), "measure", "share", "95% CI"), *lines] if lines else []


def spread(estimate: Estimate) -> str:
    """An interval in percent."""
    return f"{100 * estimate.low:.1f}–{100 * estimate.high:.1f}"


def is_over_tasks(reports: Sequence[Report]) -> bool:
    """Whether reports are of several tasks, and not of several methods."""
    tasks = {record.task for report in reports for record in report.records}
    return len(reports) > 1 and len(tasks) >= len(reports)


def mean_accuracy(reports: Sequence[Report]) -> str | None:
    """The unweighted mean over benchmarks, as the paper averages; None where the reports are not of several tasks."""
    if not is_over_tasks(reports):
        return None
    return f"mean accuracy of {len(reports)}, unweighted: {percent(fmean(report.accuracy for report in reports))}"


UNSOLVABLE = {
    Outcome.GOLD_ERROR: ("gold answers that could not be read", "these cannot be solved"),
    Outcome.TOO_LONG: ("problems that leave no room for an answer in the model's context", "they count as wrong"),
}


def warnings(reports: Sequence[Report]) -> list[str]:
    """What a reader must know before believing the numbers: gold answers that the grader could not read, problems that
    were too long to be asked, and answers on which math-verify says otherwise."""
    unsolved = (
        f"{report.name}: {kind}: {len(ids)} ({', '.join(ids[:5])}); {so}"
        for report in reports
        for outcome, (kind, so) in UNSOLVABLE.items()
        if (ids := list(dict.fromkeys(record.id for record in report.records if record.outcome is outcome)))
    )
    more = (line for report in reports for line in (repeated(report), second_opinion(report)) if line)
    return [*unsolved, *more]


def repeated(report: Report) -> str | None:
    """On how many problems all samples are one answer; None where that is rare."""
    texts: dict[str, set[str | None]] = {}
    for record in report.records:
        texts.setdefault(record.id, set()).add(record.text)
    alike = [found for found in texts.values() if len(found) == 1 and None not in found]
    if report.samples == 1 or 2 * len(alike) <= len(texts):
        return None
    return (
        f"{report.name}: the {report.samples} answers to {len(alike)} of {len(texts)} problems are one text each, so "
        f"pass@{report.samples} is nearly pass@1; raise --temperature (soft-thinking: --method-set gumbel=true)"
    )


def second_opinion(report: Report) -> str | None:
    """On how many answers math-verify says otherwise, and what it would count; None where it says nothing else."""
    asked = [record for record in report.records if record.math_verify is not None]
    differing = [record for record in asked if record.math_verify is not record.correct]
    if not differing:
        return None
    return (
        f"{report.name}: math-verify disagrees on {len(differing)} of {len(asked)} answers"
        f" ({', '.join(record.id for record in differing[:5])})"
        f"; it accepts {sum(record.math_verify is True for record in asked)}, we {sum(one.correct for one in asked)}"
    )


def table(reports: Sequence[Report], title: str, columns: Sequence[str] = ACCURACY_COLUMNS) -> Table:
    """Some columns of the comparison, for a terminal of 80."""
    result = Table(title=title, title_justify="left", box=None, padding=(0, 2, 0, 0), header_style="bold")
    lines = [dict(zip(COLUMNS, line, strict=True)) for line in rows(reports)]
    result.add_column(heading(reports), overflow="fold")  # a long name gives way, numbers never do
    for column in columns[1:]:
        result.add_column(column, justify="right", min_width=max(len(line[column]) for line in lines), no_wrap=True)
    for line in lines:
        result.add_row(*(line[column] for column in columns))
    return result


def sample_table(reports: Sequence[Report]) -> Table | None:
    """pass@k and maj@k for the terminal; None where every problem has one answer."""
    if not (lines := sample_rows(reports)):
        return None
    result = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for place, column in enumerate(lines[0]):
        result.add_column(column, justify="right" if place > 1 else "left", no_wrap=place > 0, overflow="fold")
    for line in lines[1:]:
        result.add_row(*line)
    return result


def markdown(reports: Sequence[Report], settings: Mapping[str, Any] | None = None) -> str:
    """The comparison, accuracy by family, what was asked for, and how to read it, as Markdown."""
    columns = (heading(reports), *COLUMNS[1:])
    lines = [markdown_row(columns), markdown_row(["---"] * len(columns)), *map(markdown_row, rows(reports))]
    if mean := mean_accuracy(reports):
        lines += ["", mean[0].upper() + mean[1:] + "."]
    lines += ["", CAPTION, *warnings(reports)]
    if sampled := sample_rows(reports):
        first, *others = sampled
        lines += ["", markdown_row(first), markdown_row(["---"] * 4), *map(markdown_row, others), "", SAMPLE_CAPTION]
    for families, members in groups(reports):
        lines += ["", markdown_row([heading(reports), *families]), markdown_row(["---"] * (len(families) + 1))]
        lines += [
            markdown_row([report.name, *(f"{k}/{n}" for k, n in report.by_family().values())]) for report in members
        ]
    if settings:
        lines += ["", *(f"- {key}: `{json.dumps(value, ensure_ascii=False)}`" for key, value in settings.items())]
    return "\n".join(lines) + "\n"


def markdown_row(cells: Sequence[str]) -> str:
    """One line of a Markdown table."""
    return f"| {' | '.join(cells)} |"


def groups(reports: Sequence[Report]) -> list[tuple[tuple[str, ...], list[Report]]]:
    """Reports whose problems have the same families, with those; reports without families are left out."""
    found: dict[tuple[str, ...], list[Report]] = {}
    for report in reports:
        found.setdefault(tuple(report.by_family()), []).append(report)
    return [(families, members) for families, members in found.items() if families != ("",)]
