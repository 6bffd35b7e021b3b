"""What runs and evaluations lie below a folder, and how each stands: from its records alone, without opening it."""

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from tyler.evaluation.answers import Answer
from tyler.evaluation.store import ANSWERS, SETTINGS, line_files, read_answers, read_evaluations
from tyler.runs.catalogue import Status, TrainingRun, is_locked
from tyler.runs.checkpoints import CHECKPOINTS
from tyler.runs.run import CONFIG, METRICS


@dataclass(frozen=True)
class EvaluationRun:
    """A folder with the records of an evaluation."""

    path: Path

    @cached_property
    def settings(self) -> dict[str, Any]:
        """What was asked; empty for records that were saved from Python."""
        file = self.path / SETTINGS
        return dict(json.loads(file.read_text(encoding="utf-8"))) if file.exists() else {}

    @cached_property
    def answers(self) -> list[Answer]:
        """Those that are there, of all processes."""
        every = (answer for some in read_answers(self.path).values() for answer in some)
        return list({answer.key: answer for answer in every}.values())

    @property
    def what(self) -> str:
        """The tasks, as in "eval gsm8k"."""
        return f"eval {', '.join(sorted({answer.task for answer in self.answers}))}".strip()

    @property
    def step(self) -> int:
        """Answers so far."""
        return len(self.answers)

    @property
    def total(self) -> int | None:
        """Answers in all: problems times samples; None where no settings say so."""
        problems = self.settings.get("problems")
        if not isinstance(problems, dict):
            return None
        return sum(int(str(digest).partition(",")[0]) for digest in problems.values()) * self.settings.get("samples", 1)

    @property
    def status(self) -> Status:
        """Whether a process is writing it; else whether every answer is there."""
        if any(is_locked(file) for file in line_files(self.path)):
            return "running"
        return "finished" if self.step and (self.total is None or self.step >= self.total) else "interrupted"

    @property
    def accuracy(self) -> float | None:
        """The share of right answers among those with a verdict, which they get at the end; None without any."""
        records = [record for some in read_evaluations(self.path).values() for record in some]
        return sum(record.correct for record in records) / len(records) if records else None


AnyRun = TrainingRun | EvaluationRun


def runs_below(folder: Path) -> Iterator[AnyRun]:
    """Every run and evaluation in a folder or below it, by path; nothing is looked for inside of a run."""
    for directory, names, files in os.walk(folder):
        names.sort()
        path = Path(directory)
        if CONFIG in files and (METRICS in files or CHECKPOINTS in names):
            names.clear()
            yield TrainingRun(path)
        elif ANSWERS in files or line_files(path):
            yield EvaluationRun(path)
        names[:] = [name for name in names if not name.startswith(".")]
