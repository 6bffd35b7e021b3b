"""A reasoner answers problems with trajectories. Evaluation, serving and analysis know this and nothing more."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from tyler.engine.trajectory import Trajectory
from tyler.tasks import Problem

Finished = Callable[[int, Trajectory], None]
"""Called with a problem's index as soon as its trajectory is done; order is not given."""


class Reasoner(Protocol):
    """Tyler under some setting, or a baseline."""

    @property
    def name(self) -> str: ...

    def solve(self, problems: Sequence[Problem], finished: Finished = ...) -> list[Trajectory]: ...


def ignore(index: int, trajectory: Trajectory) -> None:
    """The default of `finished`: do nothing."""
