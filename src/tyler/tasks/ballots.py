"""Which of several answers to one problem are the same, by the equality of its task: who shares a ballot in a vote."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from tyler.tasks.grading import find_task


def ballots(task: str, answers: Sequence[str]) -> list[list[int]]:
    """The indices of equal answers, one list a ballot, in the order of first answers. The gold answer has no say.

    An answer goes to the first ballot whose first answer it equals: equality is not transitive where a grader lets a
    unit be omitted (`5 cm`, `5`, `5 m`). Raises ValueError for an unknown task.
    """
    cast: list[list[int]] = []
    for index, answer in enumerate(answers):
        ballot = next((one for one in cast if _same(task, answers[one[0]], answer)), None)
        if ballot is None:
            cast.append([index])
        else:
            ballot.append(index)
    return cast


@lru_cache(maxsize=65_536)
def _same(task: str, answer: str, other: str) -> bool:
    return answer == other or find_task(task).same(answer, other)
