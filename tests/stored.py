"""Evaluations as the store keeps them, for tests."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from tyler.evaluation.answers import Record
from tyler.evaluation.store import ANSWERS, read_records, verdicts_name, write_answers, write_verdicts


def keep(folder: Path, records: Sequence[Record], name: str = "kept") -> None:
    """Write records as a finished evaluation."""
    folder.mkdir(parents=True, exist_ok=True)
    write_answers(folder / ANSWERS, {name: records})
    write_verdicts(folder, "official", {name: records})


def interrupt(folder: Path, count: int | None = None, rank: str = "") -> None:
    """Make of a finished evaluation one that was killed after so many answers."""
    records = read_records(folder)
    for path in [folder / ANSWERS, *folder.glob("verdicts-*")]:
        path.unlink()
    write_lines(folder, records[:count], rank)


def write_lines(folder: Path, records: Sequence[Record], rank: str = "") -> None:
    """Write records as a process that runs does."""
    answers = (json.dumps(one.row()) + "\n" for one in records)
    (folder / f"answers{rank}.jsonl").write_text("".join(answers))
    verdicts = (json.dumps(one.verdict_row()) + "\n" for one in records)
    (folder / f"{verdicts_name('official')}{rank}.jsonl").write_text("".join(verdicts))
