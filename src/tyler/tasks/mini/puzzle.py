"""What every family of the mini world is made of: a puzzle, the format a family writes its solutions in, and the styles
of solutions: the target, and the other habits the backbone has seen."""

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
    closing: str
    plain: str
    marker: str = ""
    separator: str = "\n\n"
    opening: str = ""
    ending: str = "\n\n"


def nearby(value: int, rng: random.Random) -> tuple[str, ...]:
    """Three distinct wrong integers near `value`, none negative."""
    offsets = [step for step in (-10, -2, -1, 1, 2, 3, 10) if value + step >= 0]
    return tuple(str(value + step) for step in rng.sample(offsets, 3))


BOX = f"$\\boxed{{{ANSWER}}}$"


def _steps(puzzle: Puzzle, family: Family) -> str:
    marked = [family.marker.format(i=i) + line for i, line in enumerate(puzzle.lines, 1)]
    return family.opening + family.separator.join(marked) + family.ending


def full(puzzle: Puzzle, family: Family, rng: random.Random) -> str:
    """The target style: every step in the family's own format, then the boxed answer."""
    return (_steps(puzzle, family) + family.closing).replace(ANSWER, puzzle.answer)


def sloppy(puzzle: Puzzle, family: Family, rng: random.Random) -> str:
    """The target style with a slip in the last result, which is then boxed."""
    return (_steps(puzzle, family) + family.closing).replace(ANSWER, rng.choice(puzzle.wrong))


def plain(puzzle: Puzzle, family: Family, rng: random.Random) -> str:
    """Every step, but the answer is only stated, never boxed."""
    return (_steps(puzzle, family) + family.plain).replace(ANSWER, puzzle.answer)


def numbered(puzzle: Puzzle, family: Family, rng: random.Random) -> str:
    """Every step, numbered `1. ` in one format for all families."""
    lines = [f"{i}. {line}" for i, line in enumerate(puzzle.lines, 1)]
    return ("\n\n".join(lines) + "\n\n" + BOX).replace(ANSWER, puzzle.answer)


def brief(puzzle: Puzzle, family: Family, rng: random.Random) -> str:
    """No steps: the shortcut line and the box."""
    return (puzzle.shortcut + "\n\n" + BOX).replace(ANSWER, puzzle.answer)


def reversed_order(puzzle: Puzzle, family: Family, rng: random.Random) -> str:
    """The boxed answer first, the steps after it."""
    return (BOX + "\n\n" + _steps(puzzle, family).rstrip("\n")).replace(ANSWER, puzzle.answer)


STYLES: dict[str, Callable[[Puzzle, Family, random.Random], str]] = {
    "full": full,
    "sloppy": sloppy,
    "plain": plain,
    "numbered": numbered,
    "brief": brief,
    "reversed": reversed_order,
}

HABITS: tuple[dict[str, float], ...] = (
    {"full": 52, "sloppy": 9, "plain": 8, "numbered": 10, "brief": 13, "reversed": 8},
    {"full": 52, "sloppy": 9, "plain": 8, "numbered": 10, "brief": 13, "reversed": 8},
    {"full": 22, "sloppy": 5, "plain": 5, "numbered": 10, "brief": 50, "reversed": 8},
    {"full": 22, "sloppy": 5, "plain": 50, "numbered": 8, "brief": 9, "reversed": 6},
)
"""Per wording of the question (`Puzzle.phrase`): how often, in percent, the corpus answers it in each style."""


def habit(puzzle: Puzzle, rng: random.Random) -> str:
    """The name of a style, drawn as the corpus draws it for this wording of the question."""
    weights = HABITS[puzzle.phrase]
    return rng.choices(tuple(weights), tuple(weights.values()))[0]
