"""What every family of the mini world is made of: a puzzle, and the format a family writes its solutions in."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

ANSWER = "@"
"""Stands for the final answer inside a puzzle's lines and a family's texts until a solution is written out."""


@dataclass(frozen=True)
class Puzzle:
    """One drawn problem, before a style has written its solution.

    `lines` are the worked steps in order and `shortcut` is the one line that skips them; both hold `ANSWER` where the
    final answer goes. `wrong` are plausible wrong answers. `phrase` is the index of the question's wording.
    """

    level: int
    phrase: int
    prompt: str
    lines: tuple[str, ...]
    shortcut: str
    answer: str
    wrong: tuple[str, ...]


@dataclass(frozen=True)
class Family:
    """A family of puzzles and its own format: how a step is marked, what joins steps, and how a solution closes.

    `marker` is put before each line (`{i}` counts from 1); `opening` and `ending` enclose the joined lines; `closing`
    boxes the answer and `plain` states it without a box. `draw(rng, level)` makes a puzzle.
    """

    name: str
    draw: Callable[[random.Random, int], Puzzle]
    marker: str
    separator: str
    opening: str
    ending: str
    closing: str
    plain: str


def nearby(value: int, rng: random.Random) -> tuple[str, ...]:
    """Three distinct wrong integers near `value`, none negative."""
    offsets = [step for step in (-10, -2, -1, 1, 2, 3, 10) if value + step >= 0]
    return tuple(str(value + step) for step in rng.sample(offsets, 3))
