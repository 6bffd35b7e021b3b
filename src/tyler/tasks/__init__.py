"""Tasks: problems, gold answers and their graders. A task's own module loads when the task is used."""

from __future__ import annotations

import importlib
import random
from pathlib import Path

from tyler.tasks.grading import FILE_TASKS, GENERATED_TASKS, TASKS, check_task, grade
from tyler.tasks.problem import Outcome, Problem, Verdict

__all__ = ["TASKS", "Outcome", "Problem", "Verdict", "grade", "load_problems"]


def load_problems(
    task: str, split: str, *, path: str | Path | None = None, count: int | None = None, seed: int = 0
) -> list[Problem]:
    """The problems of a task: all of a split, or `count` of them drawn without replacement with `seed`.

    A task that reads a file (gsm8k, jsonl) takes it from `path`, where `split` only names the ids, and keeps the file's
    order; with one seed, a smaller sample is part of a larger one. A generated task (mini) knows its splits.
    Raises ValueError for an unknown task, a missing or needless `path`, a broken file, or a `count` out of range.
    """
    check_task(task)
    if count is not None and count < 1:
        raise ValueError(f"count must be at least 1 problem, got {count}; leave it out to load all of them")
    if task in GENERATED_TASKS:
        if path is not None:
            raise ValueError(f"task {task!r} generates its problems and reads no file; leave out path={str(path)!r}")
        generated: list[Problem] = importlib.import_module(GENERATED_TASKS[task]).load(split, count=count, seed=seed)
        return generated
    if path is None:
        raise ValueError(f"task {task!r} reads a file; give path= to its {split!r} split (JSON Lines)")
    if not Path(path).is_file():
        raise ValueError(f"task {task!r}: {str(path)!r} is not a file; give path= to its {split!r} split (JSON Lines)")
    problems: list[Problem] = importlib.import_module(FILE_TASKS[task]).read(path, split)
    return problems if count is None else _sample(problems, count, seed)


def _sample(problems: list[Problem], count: int, seed: int) -> list[Problem]:
    if count > len(problems):
        raise ValueError(f"count={count} problems were asked for, but there are only {len(problems)}")
    order = list(range(len(problems)))
    random.Random(seed).shuffle(order)
    return [problems[i] for i in sorted(order[:count])]
