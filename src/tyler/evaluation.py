"""Pass@1 of a reasoner on a task: what was answered, what it cost, and how sure the number is."""

from __future__ import annotations

import json
import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean

from rich.console import Console
from rich.table import Table

from tyler.model import DEFAULT_ROUTERS, Tyler
from tyler.progress import bar
from tyler.reasoner import Reasoner, TylerReasoner
from tyler.routing import Router
from tyler.runs import atomic_write
from tyler.tasks import grade, load_problems
from tyler.tasks.problem import Outcome, Problem
from tyler.trajectory import Trajectory

Z95 = 1.959963984540054


@dataclass(frozen=True)
class Record:
    """One answered problem: enough to recount every number of a report."""

    id: str
    family: str
    level: int
    prompt: str
    completion: str
    gold: str
    answer: str | None
    outcome: Outcome
    invocations: tuple[tuple[str, int, int], ...]
    """(operator, visible tokens before it, latents) of each."""
    visible_tokens: int
    latents: int
    seconds: float
    synthesis_seconds: float

    @property
    def correct(self) -> bool:
        return self.outcome is Outcome.CORRECT


def record(problem: Problem, trajectory: Trajectory) -> Record:
    """Grade one trajectory."""
    verdict = grade(problem.task, trajectory.text, problem.answer, truncated=trajectory.truncated)
    return Record(
        id=problem.id,
        family=problem.family,
        level=problem.level,
        prompt=problem.prompt,
        completion=trajectory.text,
        gold=problem.answer,
        answer=verdict.answer,
        outcome=verdict.outcome,
        invocations=tuple((call.operator, call.position, call.num_latents) for call in trajectory.invocations),
        visible_tokens=trajectory.num_visible,
        latents=trajectory.num_latents,
        seconds=trajectory.seconds,
        synthesis_seconds=trajectory.synthesis_seconds,
    )


@dataclass(frozen=True)
class Report:
    """One reasoner on one set of problems. `seconds` is the wall time of all answers together, batched."""

    name: str
    records: tuple[Record, ...]
    seconds: float

    @property
    def num_correct(self) -> int:
        return sum(record.correct for record in self.records)

    def mean(self, value: Callable[[Record], float]) -> float:
        return fmean(value(record) for record in self.records)

    def share(self, outcome: Outcome) -> float:
        return self.mean(lambda record: record.outcome is outcome)

    def invocations_by_operator(self) -> dict[str, float]:
        """Mean invocations per answer."""
        counts = Counter(name for record in self.records for name, _, _ in record.invocations)
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


def wilson(correct: int, count: int) -> tuple[float, float]:
    """95% Wilson score interval of a proportion, in [0, 1]."""
    if count == 0:
        return 0.0, 1.0
    share = correct / count
    centre = share + Z95**2 / (2 * count)
    margin = Z95 * math.sqrt(share * (1 - share) / count + Z95**2 / (4 * count**2))
    scale = 1 + Z95**2 / count
    return max(0.0, (centre - margin) / scale), min(1.0, (centre + margin) / scale)


def evaluate(reasoner: Reasoner, problems: Sequence[Problem]) -> Report:
    """Answer and grade every problem, with a progress bar. Raises ValueError when there are no problems."""
    if not problems:
        raise ValueError("there is nothing to evaluate: the set of problems is empty")
    records: dict[int, Record] = {}
    with bar(reasoner.name, len(problems)) as progress:

        def finished(index: int, trajectory: Trajectory) -> None:
            records[index] = record(problems[index], trajectory)
            correct = sum(done.correct for done in records.values())
            progress.advance(note=f"{correct}/{len(records)} correct")

        started = time.perf_counter()
        reasoner.solve([problem.prompt for problem in problems], finished)
        seconds = time.perf_counter() - started
    return Report(reasoner.name, tuple(records[index] for index in range(len(problems))), seconds)


COLUMNS = (
    "method",
    "correct",
    "accuracy",
    "95% CI",
    "no box",
    "cut off",
    "visible",
    "latents",
    "calls",
    "seconds",
)


def rows(reports: Sequence[Report]) -> list[tuple[str, ...]]:
    """One row per report, as in COLUMNS; tokens and calls are means per answer, seconds the whole set."""
    lines: list[tuple[str, ...]] = []
    for report in reports:
        low, high = wilson(report.num_correct, len(report.records))
        lines.append(
            (
                report.name,
                f"{report.num_correct}/{len(report.records)}",
                f"{100 * report.num_correct / len(report.records):.1f}%",
                f"{100 * low:.1f}–{100 * high:.1f}",
                f"{100 * report.share(Outcome.NO_BOX):.1f}%",
                f"{100 * report.share(Outcome.TRUNCATED):.1f}%",
                f"{report.mean(lambda record: record.visible_tokens):.1f}",
                f"{report.mean(lambda record: record.latents):.1f}",
                f"{report.mean(lambda record: len(record.invocations)):.2f}",
                f"{report.seconds:.1f}",
            )
        )
    return lines


TERMINAL_COLUMNS = ("method", "correct", "accuracy", "95% CI", "visible", "latents", "calls", "seconds")


def table(reports: Sequence[Report], title: str) -> Table:
    """The comparison for a terminal of 80 columns; report.md has the rates of missing and cut-off answers too."""
    result = Table(title=title, title_justify="left", box=None, padding=(0, 2, 0, 0), header_style="bold")
    lines = [dict(zip(COLUMNS, line, strict=True)) for line in rows(reports)]
    result.add_column(TERMINAL_COLUMNS[0], overflow="fold")  # a long name gives way, numbers never do
    for column in TERMINAL_COLUMNS[1:]:
        result.add_column(column, justify="right", min_width=max(len(line[column]) for line in lines), no_wrap=True)
    for line in lines:
        result.add_row(*(line[column] for column in TERMINAL_COLUMNS))
    result.caption = "tokens and calls are means per answer; seconds are of all answers, batched"
    result.caption_justify = "left"
    return result


def markdown(reports: Sequence[Report]) -> str:
    """The comparison, and accuracy by family, as Markdown."""
    lines = [markdown_row(COLUMNS), markdown_row(["---"] * len(COLUMNS)), *map(markdown_row, rows(reports))]
    families = list(reports[0].by_family())
    if families != [""]:
        lines += ["", markdown_row(["method", *families]), markdown_row(["---"] * (len(families) + 1))]
        for report in reports:
            lines.append(markdown_row([report.name, *(f"{k}/{n}" for k, n in report.by_family().values())]))
    return "\n".join(lines) + "\n"


def markdown_row(cells: Sequence[str]) -> str:
    """One line of a Markdown table."""
    return f"| {' | '.join(cells)} |"


def save(reports: Sequence[Report], folder: Path) -> None:
    """Write report.md and, for each report, every record as JSON lines."""
    folder.mkdir(parents=True, exist_ok=True)
    atomic_write(folder / "report.md", markdown(reports))
    for report in reports:
        lines = (json.dumps(asdict(record), ensure_ascii=False) + "\n" for record in report.records)
        atomic_write(folder / f"{slug(report.name)}.jsonl", "".join(lines))


def slug(name: str) -> str:
    """A file's name for a report's."""
    return "-".join(name.lower().split())


def run(
    model: str,
    *,
    task: str,
    split: str,
    path: str | None = None,
    count: int | None = None,
    router: Router | None = None,
    budget: int | None = None,
    max_new_tokens: int = 2048,
    slots: int = 32,
    output: Path | None = None,
) -> Report:
    """`tyler eval`: evaluate a saved model, or a plain backbone, on a task and print the table."""
    problems = load_problems(task, split, path=path, count=count)
    loaded = Tyler.from_pretrained(model)
    reasoner = TylerReasoner(
        name=Path(model).name,
        model=loaded,
        router=router or DEFAULT_ROUTERS[loaded.stage],
        budget=budget,
        max_new_tokens=max_new_tokens,
        slots=slots,
    )
    report = evaluate(reasoner, problems)
    Console().print(table([report], f"{task} {split}, greedy"))
    if output is not None:
        save([report], output)
    return report
