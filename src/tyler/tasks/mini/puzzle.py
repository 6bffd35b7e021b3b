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
    lines: list[str]
    shortcut: str
    answer: str
    wrong: list[str]


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


STYLES = {
    "full": "{steps}{ending}{closing}",
    "sloppy": "{steps}{ending}{closing}",
    "plain": "{steps}{ending}{plain}",
    "numbered": "{numbered}\n\n$\\boxed{{@}}$",
    "brief": "{shortcut}\n\n$\\boxed{{@}}$",
    "reversed": "$\\boxed{{@}}$\n\n{steps}{ending}",
}
"""How solutions are written: `full` is the target; `sloppy` is the same with a slip in its last result, which is then
boxed; `plain` states its answer without a box; `numbered` has one format for all families; `brief` has no steps;
`reversed` gives the answer before them."""

HABITS: tuple[dict[str, float], ...] = (
    {"full": 52, "sloppy": 9, "plain": 8, "numbered": 10, "brief": 13, "reversed": 8},
    {"full": 52, "sloppy": 9, "plain": 8, "numbered": 10, "brief": 13, "reversed": 8},
    {"full": 22, "sloppy": 5, "plain": 5, "numbered": 10, "brief": 50, "reversed": 8},
    {"full": 22, "sloppy": 5, "plain": 50, "numbered": 8, "brief": 9, "reversed": 6},
)
"""Per wording of the question (`Puzzle.phrase`): how often, in percent, the corpus answers it in each style."""


def solution(style: str, puzzle: Puzzle, family: Family, rng: random.Random) -> str:
    """A worked solution in one of STYLES."""
    answer = rng.choice(puzzle.wrong) if style == "sloppy" else puzzle.answer
    marked = [family.marker.format(i=i) + line for i, line in enumerate(puzzle.lines, 1)]
    written = STYLES[style].format(
        steps=family.opening + family.separator.join(marked),
        numbered="\n\n".join(f"{i}. {line}" for i, line in enumerate(puzzle.lines, 1)),
        ending=family.ending,
        closing=family.closing,
        plain=family.plain,
        shortcut=puzzle.shortcut,
    )
    return written.rstrip("\n").replace(ANSWER, answer)


def habit(puzzle: Puzzle, rng: random.Random) -> str:
    """The name of a style, drawn as the corpus draws it for this wording of the question."""
    weights = HABITS[puzzle.phrase]
    return rng.choices(tuple(weights), tuple(weights.values()))[0]
