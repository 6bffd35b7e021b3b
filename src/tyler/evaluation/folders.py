"""What runs and evaluations lie below a folder, and how each stands: from its records alone, without opening it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cached_property
from pathlib import Path
from typing import Any

from tyler.evaluation.store import ANSWERS, SETTINGS
from tyler.runs.catalogue import Status, TrainingRun, is_locked
from tyler.runs.checkpoints import CHECKPOINTS
from tyler.runs.json_lines import read_jsonl
from tyler.runs.run import CONFIG, METRICS

LINES, VERDICTS = "answers*.jsonl", "verdicts-*"

NAMES = ("task", "id", "sample")
Key = tuple[str, str, int]
"""Names an answer."""


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
    def answers(self) -> set[Key]:
        """The names of its answers, of all processes: task, problem and sample."""
        rows = _columns(self.path / ANSWERS, [*NAMES]) if (self.path / ANSWERS).exists() else []
        return {_key(row) for row in [*rows, *_lines(self.path, LINES)]}

    @cached_property
    def outcomes(self) -> dict[Key, str]:
        """The newest verdict on each answer that has one."""
        files = sorted(self.path.glob(f"{VERDICTS}.parquet"), key=lambda file: file.stat().st_mtime)
        rows = [row for file in files for row in _columns(file, [*NAMES, "outcome"])]
        return {_key(row): row["outcome"] for row in [*rows, *_lines(self.path, f"{VERDICTS}.jsonl")]}

    @property
    def what(self) -> str:
        """The tasks, as in "eval gsm8k"."""
        return f"eval {', '.join(dict.fromkeys(sorted(task for task, _, _ in self.answers)))}".strip()

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
        return sum(int(str(told).partition(",")[0]) for told in problems.values()) * self.settings.get("samples", 1)

    @property
    def status(self) -> Status:
        """Whether a process is writing it; else whether every answer is there."""
        if any(is_locked(file) for file in self.path.glob(LINES)):
            return "running"
        return "finished" if self.step and (self.total is None or self.step >= self.total) else "interrupted"

    @property
    def accuracy(self) -> float | None:
        """The share of right answers; None before the first verdict."""
        outcomes = self.outcomes.values()
        return sum(outcome == "correct" for outcome in outcomes) / len(outcomes) if outcomes else None


def _key(row: Mapping[str, Any]) -> Key:
    return row["task"], row["id"], row["sample"]


def _lines(folder: Path, pattern: str) -> list[dict[str, Any]]:
    return [line for file in sorted(folder.glob(pattern)) for line in read_jsonl(file)]


def _columns(file: Path, names: list[str]) -> list[dict[str, Any]]:
    """Some columns of a Parquet file. Raises ValueError, naming the file, where it is damaged."""
    import pyarrow.parquet as pq

    try:
        return list(pq.read_table(file, columns=names).to_pylist())
    except (OSError, ValueError) as error:
        raise ValueError(f"{file} is damaged ({error}); restore it") from error


AnyRun = TrainingRun | EvaluationRun


def runs_below(folder: Path) -> Iterator[AnyRun]:
    """Every run and evaluation in a folder or below it, by path; nothing is looked for inside of a run."""
    for place, names, files in os.walk(folder):
        names.sort()
        path = Path(place)
        if CONFIG in files and (METRICS in files or CHECKPOINTS in names):
            names.clear()
            yield TrainingRun(path)
        elif any(file == ANSWERS or fnmatch(file, LINES) for file in files):
            yield EvaluationRun(path)
        names[:] = [name for name in names if not name.startswith(".")]
