"""Multiple choice by physical laws the backbone has to know, solved as JSON fields and answered by a letter."""

from __future__ import annotations

import random

from tyler.tasks.mini.puzzle import ANSWER, Family, Puzzle

LETTERS = ("A", "B", "C", "D")
BOUNDS = (20, 40, 80)
RANGES = ("0-19", "20-39", "40-79", "80+")
"""The options: four ranges, rising from A to D."""

BODIES = ("car", "ball", "stone", "train", "block", "cart", "robot", "sled", "drone", "wire")
LAWS = {
    "force": ("mass", "acceleration"),
    "momentum": ("mass", "speed"),
    "work": ("force", "distance"),
    "distance": ("speed", "time"),
    "speed": ("acceleration", "time"),
    "mass": ("density", "volume"),
    "charge": ("current", "time"),
    "voltage": ("current", "resistance"),
    "energy": ("charge", "voltage"),
}
CHAINS = {
    1: tuple((name,) for name in LAWS),
    2: (("speed", "momentum"), ("mass", "force"), ("force", "work"), ("charge", "energy"), ("speed", "distance")),
    3: (("mass", "force", "work"), ("mass", "momentum"), ("voltage", "energy"), ("distance", "work")),
}
QUESTIONS = ("What is its {goal}?", "Find the {goal}.", "Which {goal} is right?", "Choose the {goal}.")


def _chain(rng: random.Random, level: int) -> tuple[tuple[str, ...], bool]:
    """The laws to apply in order, and whether a given extra amount is added at the end (levels 3 and 5)."""
    if level < 3:
        return rng.choice(CHAINS[level]), False
    if level == 3:
        return rng.choice(CHAINS[2]), True
    return CHAINS[3][0] if level == 5 else rng.choice(CHAINS[3]), level == 5


def _letter(value: int) -> str:
    """The letter of the range that holds `value`."""
    return LETTERS[sum(value >= bound for bound in BOUNDS)]


def _worked(rng: random.Random, level: int) -> tuple[str, int, dict[str, int], list[str]]:
    """The goal, its value, the given quantities and the worked fields of one drawn chain of laws."""
    chain, adds = _chain(rng, level)
    given: dict[str, int] = {}
    known: dict[str, int] = {}
    lines = []
    for i, goal in enumerate(chain):
        first, second = LAWS[goal]
        for name in (first, second):
            if name not in known:
                given[name] = known[name] = rng.randint(2, 9 if i == 0 else 5 if level < 4 else 3)
        known[goal] = known[first] * known[second]
        lines.append(
            f'"law": "{goal} = {first} * {second}", "step": "{known[first]} * {known[second]} = {known[goal]}"'
        )
    goal, value = chain[-1], known[chain[-1]]
    if not adds:
        return goal, value, given, lines
    extra = rng.randint(2, 20)
    lines.append(f'"sum": "{value} + {extra} = {value + extra}"')
    return f"total {goal}", value + extra, {**given, f"extra {goal}": extra}, lines


def draw(rng: random.Random, level: int) -> Puzzle:
    """A body with given quantities, one to three laws in a row, and four ranges; each letter is right equally often."""
    answer = rng.choice(LETTERS)
    while True:
        goal, value, given, lines = _worked(rng, level)
        if _letter(value) == answer:
            break
    lines.append(f'"value": {value} ({ANSWER})')
    facts = [f"{name} {amount}" for name, amount in given.items()]
    rng.shuffle(facts)
    phrase = rng.randrange(len(QUESTIONS))
    question = QUESTIONS[phrase].format(goal=goal)
    listed = ", ".join(f"{letter}) {span}" for letter, span in zip(LETTERS, RANGES, strict=True))
    return Puzzle(
        level=level,
        phrase=phrase,
        prompt=f"A {rng.choice(BODIES)} has {', '.join(facts)}. {question} Options: {listed}.",
        lines=tuple(lines),
        shortcut=f"It is ({ANSWER}).",
        answer=answer,
        wrong=tuple(letter for letter in LETTERS if letter != answer),
    )


SCIENCE = Family(
    name="science",
    draw=draw,
    separator=", ",
    opening="{",
    ending="}\n\n",
    closing=f"Answer: $\\boxed{{{ANSWER}}}$",
    plain=f"Answer: ({ANSWER}).",
)
