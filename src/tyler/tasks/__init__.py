"""Tasks: problems, gold answers and their graders. A task's own module loads when the task is used."""

from __future__ import annotations

from tyler.tasks.grading import TASKS, find_task, grade, task_name
from tyler.tasks.loading import load_problems
from tyler.tasks.problem import Outcome, Problem, Verdict

__all__ = ["TASKS", "Outcome", "Problem", "Verdict", "find_task", "grade", "load_problems", "task_name"]
