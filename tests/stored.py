"""Evaluations as the store keeps them, for tests."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from tyler.evaluation.answers import Answer, Record
from tyler.evaluation.store import ANSWERS, read_records, write_answers, write_verdicts
from tyler.tasks.problem import GradeOptions


def keep(folder: Path, records: Sequence[Record], name: str = "kept") -> None:
    """Write records as a finished evaluation."""
    folder.mkdir(parents=True, exist_ok=True)
    write_answers(folder / ANSWERS, {name: records})
    write_verdicts(folder, GradeOptions(), {name: records})


def write_problems(file: Path, numbers: Iterable[int]) -> None:
    """A problem for each number, whose answer is 5."""
    rows = [{"problem": f"How many {i} x?", "solution": "\\boxed{5}", "answer": "5"} for i in numbers]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))


def interrupt(folder: Path, count: int | None = None, rank: str = "") -> None:
    """Make of a finished evaluation one that was killed after so many answers."""
    records = read_records(folder)
    for path in [folder / ANSWERS, *folder.glob("verdicts-*")]:
        path.unlink()
    write_lines(folder, records[:count], rank)


def write_lines(folder: Path, records: Sequence[Answer], rank: str = "") -> None:
    """Write records as a process that runs does."""
    (folder / f"answers{rank}.jsonl").write_text("".join(json.dumps(record.row()) + "\n" for record in records))
