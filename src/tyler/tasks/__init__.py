"""Tasks: problems, gold answers and their graders. A task's own module loads when the task is used."""

from tyler.tasks.grading import TASKS, ballots, find_task, grade, grader_version, task_name
from tyler.tasks.loading import load_problems
from tyler.tasks.problem import Outcome, Problem, Verdict

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
