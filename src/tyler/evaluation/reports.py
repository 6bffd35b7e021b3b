"""What an evaluation came to: its numbers, pass@k and a majority vote among them, and tables of them."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tyler.evaluation.answers import Record
from tyler.evaluation.statistics import clustered, pass_at
from tyler.tasks import Outcome, ballots, find_task


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
        return clustered(
            [fmean(record.correct for record in answers) for answers in self.problems.values()], self.samples
        )

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

    @property
    def invocations(self) -> float | None:
        """Mean calls of an answer; None where a server does not say."""
        if any(record.invocations is None for record in self.records):
            return None
        return self.mean(lambda record: len(record.calls))

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
        outcomes: defaultdict[str, list[bool]] = defaultdict(list)
        for record in self.records:
            outcomes[record.family].append(record.correct)
        return {family: (sum(right), len(right)) for family, right in sorted(outcomes.items())}


# --- several answers to each problem ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Estimate:
    """A share over problems with its 95% interval, all in [0, 1]."""

    value: float
    low: float
    high: float


def by_problem(records: Iterable[Record]) -> dict[tuple[str, str], list[Record]]:
    """The answers to each problem in the order of their samples."""
    grouped: defaultdict[tuple[str, str], list[Record]] = defaultdict(list)
    for record in records:
        grouped[record.problem].append(record)
    return {problem: sorted(answers, key=lambda answer: answer.sample) for problem, answers in grouped.items()}


def powers(samples: int) -> list[int]:
    """The k of pass@k and maj@k that are reported: 1, 2, 4, ... and all of them."""
    return sorted({*(2**n for n in range(samples.bit_length()) if 2**n <= samples), samples})


def pass_at_k(records: Sequence[Record]) -> dict[int, Estimate]:
    """The chance that one of k answers is right, by k, without bias; over as many answers as every problem has."""
    return _estimates(records, lambda answers, k: pass_at(k, sum(record.correct for record in answers), len(answers)))


def majority_at_k(records: Sequence[Record]) -> dict[int, Estimate]:
    """How often the answer that most of k gave is right, by k: the mean over as many groups of k as there are."""
    return _estimates(records, lambda answers, k: fmean(vote(group) for group in _groups(answers, k)))


def _estimates(records: Sequence[Record], share: Callable[[list[Record], int], float]) -> dict[int, Estimate]:
    problems = by_problem(records).values()
    fewest = min(map(len, problems))
    shares = {k: [share(answers, k) for answers in problems] for k in powers(fewest)}
    return {k: Estimate(fmean(own), *clustered(own, max(1, fewest // k))) for k, own in shares.items()}


def _groups(answers: list[Record], k: int) -> list[list[Record]]:
    """Answers in groups of k, in their order; what is left over is in none."""
    return [answers[start : start + k] for start in range(0, len(answers) - k + 1, k)]


def vote(answers: Sequence[Record]) -> float:
    """The chance that the most frequent answer is right, where a tie is broken by lot; 0 where none has an answer.

    Answers are the same where their task's grader says so (`tyler.tasks.grading`); the gold answer has no say in that.
    """
    given = [record for record in answers if record.answer is not None]
    cast = ballots(given[0].task, [record.answer or "" for record in given]) if given else []
    most = max(map(len, cast), default=0)
    shares = [fmean(given[index].correct for index in ballot) for ballot in cast if len(ballot) == most]
    return fmean(shares) if shares else 0.0


# --- tables -----------------------------------------------------------------------------------------------------------


COLUMNS: Mapping[str, Callable[[Report], str]] = {
    "method": lambda report: report.name,
    "correct": lambda report: f"{report.num_correct}/{len(report.records)}",
    "accuracy": lambda report: percent(report.accuracy),
    "95% CI": lambda report: interval(report),
    "no box": lambda report: percent(report.share(Outcome.NO_BOX)),
    "cut off": lambda report: percent(report.share(Outcome.TRUNCATED)),
    "unparsable": lambda report: percent(report.share(Outcome.UNPARSABLE)),
    "timeout": lambda report: percent(report.share(Outcome.TIMEOUT)),
    "visible": lambda report: f"{report.mean(lambda record: record.visible_tokens):.1f}",
    "latents": lambda report: f"{report.mean(lambda record: record.latents):.1f}",
    "calls": lambda report: "–" if report.invocations is None else f"{report.invocations:.2f}",
    "seconds": lambda report: f"{report.seconds:.1f}",
    "synthesis": lambda report: percent(report.synthesis_share),
}
"""What a table tells of a report, by the heads of its columns."""
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


def spread(low: float, high: float) -> str:
    """An interval in percent."""
    return f"{100 * low:.1f}–{100 * high:.1f}"


def interval(report: Report) -> str:
    """The 95% interval of a report's accuracy, in percent."""
    return spread(*report.interval)


def rows(reports: Sequence[Report], columns: Sequence[str] = tuple(COLUMNS)) -> list[tuple[str, ...]]:
    """The heads of some columns, then one row per report."""
    lines = [tuple(COLUMNS[column](report) for column in columns) for report in reports]
    return [(heading(reports), *columns[1:]), *lines]


def heading(reports: Sequence[Report]) -> str:
    """What the rows of a table are: tasks, or methods on the same problems."""
    tasks = {record.task for report in reports for record in report.records}
    return "task" if {find_task(task).title for task in tasks} >= {report.name for report in reports} else "method"


def sample_rows(reports: Sequence[Report]) -> list[tuple[str, ...]]:
    """Of problems with several answers: pass@k and maj@k with their intervals, after a row that names them.

    Empty where every problem has one answer.
    """
    several = [report for report in reports if report.samples > 1]
    lines: list[tuple[str, ...]] = []
    for report in several:
        measures = [(f"pass@{k}", estimate) for k, estimate in pass_at_k(report.records).items()]
        if any(record.answer is not None for record in report.records):
            measures += [(f"maj@{k}", estimate) for k, estimate in majority_at_k(report.records).items() if k > 1]
        lines += [
            (report.name, name, percent(estimate.value), spread(estimate.low, estimate.high))
            for name, estimate in measures
        ]
    return [(heading(several), "measure", "share", "95% CI"), *lines] if lines else []


def mean_accuracy(reports: Sequence[Report]) -> float | None:
    """The unweighted mean over benchmarks, as the paper averages; None where the reports are not of several tasks."""
    return fmean(report.accuracy for report in reports) if len(reports) > 1 and heading(reports) == "task" else None


def mean_in_words(reports: Sequence[Report]) -> str | None:
    """The same as text."""
    mean = mean_accuracy(reports)
    return None if mean is None else f"mean accuracy of {len(reports)}, unweighted: {percent(mean)}"


UNSOLVABLE = {
    Outcome.GOLD_ERROR: ("gold answers that could not be read", "these cannot be solved"),
    Outcome.TOO_LONG: ("problems that leave no room for an answer in the model's context", "they count as wrong"),
}


def warnings(reports: Sequence[Report]) -> list[str]:
    """What a reader must know before believing the numbers: gold answers that the grader could not read, problems that
    were too long to be asked, and samples that are all alike."""
    unsolved = (
        f"{report.name}: {kind}: {len(ids)} ({', '.join(ids[:5])}); {so}"
        for report in reports
        for outcome, (kind, so) in UNSOLVABLE.items()
        if (ids := list(dict.fromkeys(record.id for record in report.records if record.outcome is outcome)))
    )
    return [*unsolved, *filter(None, map(repeated, reports))]


def repeated(report: Report) -> str | None:
    """On how many problems all samples are one answer; None where that is rare."""
    texts = [{record.text for record in answers} for answers in report.problems.values()]
    alike = sum(len(different) == 1 and None not in different for different in texts)
    if report.samples == 1 or 2 * alike <= len(texts):
        return None
    return (
        f"{report.name}: the {report.samples} answers to {alike} of {len(texts)} problems are one text each, so "
        f"pass@{report.samples} is nearly pass@1; raise --temperature (soft-thinking: --method-set gumbel=true)"
    )


def table(reports: Sequence[Report], title: str, columns: Sequence[str] = ACCURACY_COLUMNS) -> Table:
    """Some columns of the comparison, for a terminal of 80."""
    return for_terminal(rows(reports, columns), title=title)


def show(reports: Sequence[Report], title: str) -> None:
    """Print all tables of some reports."""
    console = Console()
    console.print(table(reports, title))
    if sampled := sample_rows(reports):
        console.print()
        console.print(for_terminal(sampled, words=2))
        console.print(SAMPLE_CAPTION, style="dim", highlight=False)
    console.print()
    console.print(table(reports, "answers that could not be counted, and the cost of operators", FAILURE_COLUMNS))
    for line in filter(None, (mean_in_words(reports), *warnings(reports), CAPTION)):
        console.print(line, style="dim", highlight=False)


def for_terminal(lines: Sequence[Sequence[str]], *, words: int = 1, **settings: Any) -> Table:
    """Rows below their heads. The first columns are words, which give way where a terminal is narrow; numbers never
    do."""
    result = Table(**settings, title_justify="left", box=None, padding=(0, 2, 0, 0), header_style="bold")
    for index, (head, *cells) in enumerate(zip(*lines, strict=True)):
        if index < words:
            result.add_column(head, overflow="fold")
        else:
            result.add_column(head, justify="right", min_width=max(map(len, cells)), no_wrap=True)
    for line in lines[1:]:
        result.add_row(*map(Text, line))
    return result


def markdown_row(cells: Sequence[str]) -> str:
    """One line of a Markdown table."""
    return f"| {' | '.join(cells)} |"


def family_rows(reports: Sequence[Report]) -> list[list[tuple[str, ...]]]:
    """Accuracy by family, in a table for all reports whose problems have the same; reports without are left out."""
    by_families: dict[tuple[str, ...], list[Report]] = {}
    for report in reports:
        by_families.setdefault(tuple(report.by_family()), []).append(report)
    return [
        [
            (heading(members), *(family or "other" for family in families)),
            *((member.name, *(f"{k}/{n} ({k / n:.0%})" for k, n in member.by_family().values())) for member in members),
        ]
        for families, members in by_families.items()
        if families != ("",)
    ]


def by_task(records: Sequence[Record]) -> list[Report]:
    """A report for each task, under its title."""
    tasks = dict.fromkeys(record.task for record in records)
    return [Report(find_task(task).title, tuple(answer for answer in records if answer.task == task)) for task in tasks]
