"""`tyler grade`: verdicts made again from the answers that are kept, without decoding."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from tyler.evaluation import html_report
from tyler.evaluation.answers import Answer, Record
from tyler.evaluation.pass_at_1 import GRADERS
from tyler.evaluation.reports import Report, table
from tyler.evaluation.store import (
    ANSWERS,
    line_files,
    newest_verdicts,
    read_answers,
    verdict_on,
    write_verdicts,
)
from tyler.runs.checkpoints import RunError
from tyler.tasks import find_task, grader_version
from tyler.tasks.task import GradeOptions

SHOWN = 20
"""Changed verdicts that are printed; the files have all."""


@dataclass(frozen=True)
class Change:
    """One answer whose verdict is another than before."""

    before: Record
    after: Record

    def __str__(self) -> str:
        read = [
            f"read {one.answer!r}" if one.answer is not None else "read nothing" for one in (self.before, self.after)
        ]
        why = read[1] if read[0] == read[1] else f"{read[0]} before, {read[1]} now"
        reason = f"; {self.after.reason}" if self.after.reason else ""
        task, problem, sample = self.after.key
        number = f", sample {sample + 1}" if sample else ""
        return (
            f"{task} {problem}{number}: {self.before.outcome} -> {self.after.outcome} ({why}, gold "
            f"{self.after.gold!r}{reason})"
        )


@dataclass(frozen=True)
class Regraded:
    """What regrading a folder came to: by evaluation its new records, and which verdicts changed."""

    records: Mapping[str, Sequence[Record]]
    changes: Sequence[Change]
    without_text: int
    graders: Sequence[Mapping[str, str]]
    """The graders of the verdicts before."""


def regrade(folder: Path, options: GradeOptions) -> Regraded:
    """Grade every kept text of a folder again and write the verdicts beside those there are.

    Raises FileNotFoundError for a folder without answers, RunError for an evaluation that is not finished, ValueError
    where no text was kept, and what `tyler.tasks.grade` raises.
    """
    if line_files(folder):
        raise RunError(
            f"{folder} is not finished; the command that began it resumes it, then its answers can be graded"
        )
    if not (folder / ANSWERS).exists():
        raise FileNotFoundError(f"{folder} holds no answers (no {ANSWERS}); give a directory that tyler eval wrote")
    answers = read_answers(folder)
    before, graders = newest_verdicts(folder, answers)
    texts = {name: [one for one in some if one.text is not None] for name, some in answers.items()}
    texts = {name: some for name, some in texts.items() if some}
    if not texts:
        raise ValueError(f"{folder} holds verdicts without texts: nothing there can be graded again")
    records = {name: graded(some, options) for name, some in texts.items()}
    write_verdicts(folder, options.mode, records)
    changes = [
        Change(before[name][one.key], one)
        for name, some in records.items()
        for one in some
        if one.key in before[name] and before[name][one.key].outcome is not one.outcome
    ]
    num_answers = sum(map(len, answers.values()))
    return Regraded(records, changes, num_answers - sum(map(len, texts.values())), graders)


def graded(answers: Sequence[Answer], options: GradeOptions) -> list[Record]:
    """The answers with verdicts, in their order."""
    with ThreadPoolExecutor(GRADERS) as graders:
        verdicts = graders.map(lambda answer: verdict_on(answer, options), answers)
        return [answer.graded(verdict) for answer, verdict in zip(answers, verdicts, strict=True)]


def run(folder: Path, options: GradeOptions) -> Regraded:
    """Regrade a folder, print what changed and why, and write the reports of an evaluation again."""
    found, console = regrade(folder, options), Console(highlight=False, soft_wrap=True)
    count = sum(map(len, found.records.values()))
    console.print(f"graded {count} answers of {folder}: {len(found.changes)} verdicts changed")
    for line in differences(found.graders, grader_version(options.mode)):
        console.print(f"the grader differs: {line}")
    for change in found.changes[:SHOWN]:
        console.print(f"  {change}", markup=False)
    if len(found.changes) > SHOWN:
        console.print(f"  and {len(found.changes) - SHOWN} more")
    if found.without_text:
        console.print(f"{found.without_text} answers were kept without their texts: their verdicts stay as they were")
    for records in found.records.values():
        rewrite_reports(folder, records)
    return found


def differences(before: Sequence[Mapping[str, str]], now: Mapping[str, str]) -> list[str]:
    """In which parts the graders of earlier verdicts differ from today's."""
    lines = [
        f"{part} was {grader.get(part, 'not noted')}, is {now.get(part, 'not noted')}"
        for grader in before
        for part in {**grader, **now}
        if grader.get(part) != now.get(part)
    ]
    return list(dict.fromkeys(lines))


def rewrite_reports(folder: Path, records: Sequence[Record]) -> None:
    """Write the reports of one evaluation from its new verdicts, where it has reports."""
    file = folder / "report.json"
    if not file.exists():
        return
    there = json.loads(file.read_text(encoding="utf-8"))
    tasks = dict.fromkeys(record.task for record in records)
    reports = [Report(find_task(task).title, tuple(one for one in records if one.task == task)) for task in tasks]
    html_report.write(reports, folder, there["title"], there["settings"], links={ANSWERS: ANSWERS})
    Console().print(table(reports, there["title"]))
