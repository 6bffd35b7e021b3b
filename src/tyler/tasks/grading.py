"""The verifier: one completion against one gold answer. Stage 2's task reward and success are this function too."""

from __future__ import annotations

import importlib

from tyler.tasks.answers import UnreadableAnswerError, UnreadableGoldError, boxed_answer
from tyler.tasks.problem import Outcome, Verdict

GENERATED_TASKS = {"mini": "tyler.tasks.mini"}
"""Tasks that make their own problems: `load(split, *, count, seed)` and `equal(answer, gold)`."""

FILE_TASKS = {"gsm8k": "tyler.tasks.gsm8k", "jsonl": "tyler.tasks.traces"}
"""Tasks that read a file: `read(path, split)` and `equal(answer, gold)`. A new benchmark is one file and one line here.

`equal` says whether two answers are the same, and raises UnreadableAnswerError, UnreadableGoldError or TimeoutError
where it cannot say.
"""

TASKS = GENERATED_TASKS | FILE_TASKS


def check_task(task: str) -> str:
    """`task`, if it is known; otherwise ValueError with the names that are."""
    if task not in TASKS:
        raise ValueError(f"unknown task {task!r}; known tasks are {', '.join(sorted(TASKS))}")
    return task


def grade(task: str, completion: str, gold: str, *, truncated: bool = False) -> Verdict:
    """The verdict on one completion: its last boxed answer against `gold` under the task's equality.

    `truncated` says that the generation stopped at its length limit: without a finished last box it is then TRUNCATED,
    otherwise NO_BOX. Raises ValueError for an unknown task.
    """
    equal = importlib.import_module(TASKS[check_task(task)]).equal
    answer = boxed_answer(completion)
    if answer is None:
        return Verdict(Outcome.TRUNCATED if truncated else Outcome.NO_BOX)
    try:
        return Verdict(Outcome.CORRECT if equal(answer, gold) else Outcome.WRONG, answer)
    except UnreadableAnswerError:
        return Verdict(Outcome.UNPARSABLE, answer)
    except UnreadableGoldError:
        return Verdict(Outcome.GOLD_ERROR, answer)
    except TimeoutError:
        return Verdict(Outcome.TIMEOUT, answer)
