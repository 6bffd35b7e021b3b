"""The generated mini world: five families of verifiable problems in splits that can never share a problem.

A problem's split is decided by a hash of its text, so no seed and no amount of pretraining can put an evaluation
problem into the corpus.
"""

import hashlib
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from tyler.tasks.mini.families import FAMILIES, Puzzle, habit, solution
from tyler.tasks.problem import Problem


@dataclass(frozen=True)
class Split:
    """A split: the hash buckets (of 100) it owns, the levels and families it draws by default, and its default size."""

    buckets: range
    levels: tuple[int, ...]
    count: int
    families: tuple[str, ...] = tuple(FAMILIES)


SPLITS: dict[str, Split] = {
    "eval": Split(range(0, 6), (1, 2, 3), 600),
    "dev": Split(range(6, 12), (1, 2, 3), 300),
    "harder": Split(range(12, 18), (4, 5), 300),
    "train": Split(range(18, 35), (1, 2, 3), 2000),
    "corpus": Split(range(35, 100), (1, 2, 3, 4), 10_000),
    "dev-harder": Split(range(6, 12), (4, 5), 300),
    "train-harder": Split(range(18, 35), (1, 2, 3, 4, 5), 2000),
    "train-mathematics": Split(range(18, 35), (1, 2, 3), 2000, ("arithmetic", "algebra")),
    "train-science": Split(range(18, 35), (1, 2, 3), 2000, ("science",)),
    "train-theorems": Split(range(18, 35), (1, 2, 3), 2000, ("theorems",)),
    "train-programs": Split(range(18, 35), (1, 2, 3), 2000, ("programs",)),
}
"""A name with a hyphen draws other levels or families from the buckets of the split that it begins with."""

PER_BUCKET = 150
"""A bucket has more distinct problems of every family and level; those with the fewest have just under 300."""

CURRICULUM: tuple[tuple[float, ...], tuple[float, ...]] = ((0.80, 0.15, 0.05, 0.0), (0.30, 0.32, 0.30, 0.08))
"""How often the corpus draws levels 1 to 4 at its start and from its middle on; linear in between."""


@dataclass(frozen=True)
class Example:
    """One pretraining text: the prompt, the completion, and the name of the style it is written in."""

    prompt: str
    completion: str
    style: str


def bucket(prompt: str) -> int:
    """The hash bucket 0..99 of a problem's text; it alone decides the split."""
    return int.from_bytes(hashlib.sha256(prompt.encode()).digest()[:8], "big") % 100


def load(split: str, *, count: int | None = None, seed: int = 0) -> list[Problem]:
    """`count` distinct problems of a split, families and levels in turn; equal arguments give equal lists anywhere.

    Raises ValueError for an unknown split, and for more problems than there surely are.
    """
    if split not in SPLITS:
        raise ValueError(f"unknown split {split!r} of the mini world; allowed: {', '.join(SPLITS)}")
    rule = SPLITS[split]
    cells = [(name, level) for level in rule.levels for name in rule.families]
    count, largest = rule.count if count is None else count, len(cells) * len(rule.buckets) * PER_BUCKET
    if count > largest:
        raise ValueError(
            f"{count:,} problems of {split!r} of the mini world were asked for; at most {largest:,} are made"
        )
    return list(_generated(split, count, seed, tuple(cells)))


@lru_cache(maxsize=64)
def _generated(split: str, count: int, seed: int, cells: tuple[tuple[str, int], ...]) -> tuple[Problem, ...]:
    """Kept, for a run asks for the same problems several times: to train, to develop, to hold out, to name a cell."""
    rng = random.Random(f"mini {split} {seed}")
    seen: set[str] = set()
    problems = []
    for i in range(count):
        name, level = cells[i % len(cells)]
        puzzle = _draw(rng, name, level, SPLITS[split].buckets, seen)
        seen.add(puzzle.prompt)
        digest = hashlib.sha256(puzzle.prompt.encode()).hexdigest()[:12]
        worked = solution("full", puzzle, name, rng)
        problems.append(Problem(f"{name}-{level}-{digest}", "mini", puzzle.prompt, puzzle.answer, worked, name, level))
    return tuple(problems)


def corpus(seed: int, count: int, *, start: float = 0.0) -> Iterator[Example]:
    """`count` pretraining texts in mixed styles; easy levels first, from `start` (0..1) of the curriculum on."""
    rng = random.Random(f"mini corpus stream {seed}")
    first, last = CURRICULUM
    for i in range(count):
        ramp = min(1.0, 2 * (start + (1 - start) * i / count))
        weights = [a + (b - a) * ramp for a, b in zip(first, last, strict=True)]
        family = rng.choice(list(FAMILIES))
        puzzle = _draw(rng, family, rng.choices(SPLITS["corpus"].levels, weights)[0], SPLITS["corpus"].buckets, set())
        style = habit(puzzle, rng)
        yield Example(puzzle.prompt, solution(style, puzzle, family, rng), style)


_INTEGER = re.compile("-?[0-9]{1,20}")


def equal(answer: str, gold: str) -> bool:
    """Whether a boxed answer is the gold one: integers by value, anything else by its text without spaces."""
    answer, gold = answer.replace(" ", ""), gold.replace(" ", "")
    if _INTEGER.fullmatch(answer) and _INTEGER.fullmatch(gold):
        return int(answer) == int(gold)
    return answer == gold


def _draw(rng: random.Random, family: str, level: int, buckets: range, seen: set[str]) -> Puzzle:
    while True:
        puzzle = FAMILIES[family](rng, level)
        if bucket(puzzle.prompt) in buckets and puzzle.prompt not in seen:
            return puzzle
