"""Tasks: problems, gold answers and their graders. A task's own module loads when the task is used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tyler.tasks.grading import TASKS, ballots, find_task, grade, grader_version, task_name
from tyler.tasks.loading import load_problems
from tyler.tasks.problem import Outcome, Problem, Verdict

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """A benchmark's module under the place it had in earlier versions, as in `from tyler.tasks import gsm8k`."""
        if name not in TASKS:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        return import_module(TASKS[name])


__all__ = [
    "TASKS",
    "Outcome",
    "Problem",
    "Verdict",
    "ballots",
    "find_task",
    "grade",
    "grader_version",
    "load_problems",
    "task_name",
]
