"""`tyler grade`: verdicts made again from the answers that are kept, without decoding."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from rich.console import Console

from tyler.evaluation import html_report
from tyler.evaluation.answers import Record
from tyler.evaluation.reports import by_task, table
from tyler.evaluation.store import (
    ANSWERS,
    graded,
    grader_of,
    judged,
    line_files,
    read_answers,
    read_evaluations,
    verdict_files,
    verdicts_name,
    write_verdicts,
)
from tyler.runs.checkpoints import RunError
from tyler.tasks.problem import GradeOptions

SHOWN = 20
"""Changed verdicts that are printed; the files have all."""


def change_in_words(before: Record, after: Record) -> str:
    """One answer whose verdict is another than before, and why."""
    read, now = ("nothing" if record.answer is None else repr(record.answer) for record in (before, after))
    why = f"read {now}" if read == now else f"read {read} before, read {now} now"
    reason = f"; {after.reason}" if after.reason else ""
    task, problem, sample = after.key
    number = f", sample {sample + 1}" if sample else ""
    return f"{task} {problem}{number}: {before.outcome} -> {after.outcome} ({why}, gold {after.gold!r}{reason})"


@dataclass(frozen=True)
class Regraded:
    """What regrading a folder came to: by evaluation its new records, and the records before and after a change."""

    records: Mapping[str, Sequence[Record]]
    changes: Sequence[tuple[Record, Record]]
    without_text: int
    earlier: Mapping[str, str]
    """What decided the newest verdicts before; empty where there was no verdict."""
    today: Mapping[str, str]


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
    texts = {
        name: kept for name, some in answers.items() if (kept := [answer for answer in some if answer.text is not None])
    }
    if not texts:
        raise ValueError(f"{folder} holds verdicts without texts: nothing there can be graded again")
    before = {(name, answer.key): answer for name, some in read_evaluations(folder, None).items() for answer in some}
    files = verdict_files(folder)
    records = {name: graded(some, options) for name, some in texts.items()}
    today = grader_of(options, chain.from_iterable(answers.values()))
    todays = [file for file in files if file.path.name == verdicts_name(today)]
    textless = {
        name: [record for record in judged(name, some, todays, True) if record.text is None]
        for name, some in answers.items()
    }  # the file that is written anew has these alone
    write_verdicts(folder, options, {name: [*records.get(name, ()), *textless[name]] for name in answers}, answers)
    pairs = [(before.get((name, answer.key)), answer) for name, some in records.items() for answer in some]
    changes = [(old, new) for old, new in pairs if old is not None and old.outcome is not new.outcome]
    without_text = sum(map(len, answers.values())) - len(pairs)
    return Regraded(records, changes, without_text, files[-1].about["grader"] if files else {}, today)


def run(folder: Path, options: GradeOptions) -> None:
    """Regrade a folder, print what changed and why, and write the reports of an evaluation again."""
    regraded, console = regrade(folder, options), Console(highlight=False, soft_wrap=True)
    count = sum(map(len, regraded.records.values()))
    console.print(f"graded {count} answers of {folder}: {len(regraded.changes)} verdicts changed")
    for part in {**regraded.earlier, **regraded.today} if regraded.earlier else ():
        earlier, today = (grader.get(part, "not noted") for grader in (regraded.earlier, regraded.today))
        if earlier != today:
            console.print(f"the grader differs: {part} was {earlier}, is {today}")
    for change in regraded.changes[:SHOWN]:
        console.print(f"  {change_in_words(*change)}", markup=False)
    if len(regraded.changes) > SHOWN:
        console.print(f"  and {len(regraded.changes) - SHOWN} more")
    if regraded.without_text:
        console.print(
            f"{regraded.without_text} answers were kept without their texts: their verdicts stay as they were"
        )
    for records in read_evaluations(folder, None).values():
        rewrite_reports(folder, records)


def rewrite_reports(folder: Path, records: Sequence[Record]) -> None:
    """Write the reports of one evaluation from its new verdicts, where it has reports."""
    file = folder / "report.json"
    if not file.exists():
        return
    there = json.loads(file.read_text(encoding="utf-8"))
    reports = by_task(records)
    html_report.write(reports, folder, there["title"], there["settings"], there.get("facts"), {ANSWERS: ANSWERS})
    Console().print(table(reports, there["title"]))
