"""How a solution is written: the target style, and the other habits the backbone has seen."""

from __future__ import annotations

import random
from collections.abc import Callable

from tyler.tasks.mini.puzzle import ANSWER, Family, Puzzle

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
