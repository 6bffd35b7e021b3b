"""Multiple choice by physical laws the backbone has to know, solved as JSON fields and answered by a letter."""

from __future__ import annotations

import random

from tyler.tasks.mini.puzzle import ANSWER, Family, Puzzle

LETTERS = ("A", "B", "C", "D")
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


def _options(rng: random.Random, value: int, near_miss: int) -> list[int]:
    """Four values that differ in their last digit, in random order: the right one, the factors added, and near misses."""
    options = [value]
    candidates = [near_miss, *rng.sample(range(max(1, value - 12), value + 13), 25 if value > 12 else 12 + value)]
    for other in candidates:
        if len(options) < 4 and other % 10 not in [option % 10 for option in options]:
            options.append(other)
    rng.shuffle(options)
    return options


def draw(rng: random.Random, level: int) -> Puzzle:
    """A body with given quantities, one to three laws in a row, and four options."""
    chain, adds = _chain(rng, level)
    given: dict[str, int] = {}
    lines = []
    known: dict[str, int] = {}
    for i, goal in enumerate(chain):
        first, second = LAWS[goal]
        for name in (first, second):
            if name not in known:
                given[name] = known[name] = rng.randint(2, 9 if i == 0 else 5 if level < 4 else 3)
        known[goal] = known[first] * known[second]
        lines.append(
            f'"law": "{goal} = {first} * {second}", "step": "{known[first]} * {known[second]} = {known[goal]}"'
        )
    value, goal = known[chain[-1]], chain[-1]
    near_miss = known[LAWS[goal][0]] + known[LAWS[goal][1]]
    if adds:
        extra = rng.randint(2, 20)
        given[f"extra {goal}"] = extra
        lines.append(f'"sum": "{value} + {extra} = {value + extra}"')
        near_miss, value, goal = value, value + extra, f"total {goal}"
    options = _options(rng, value, near_miss)
    lines.append(f'"value": {value}{ANSWER}')
    answer = LETTERS[options.index(value)]
    facts = [f"{name} {amount}" for name, amount in given.items()]
    rng.shuffle(facts)
    phrase = rng.randrange(len(QUESTIONS))
    listed = ", ".join(f"{option}{letter}" for option, letter in zip(options, LETTERS, strict=True))
    return Puzzle(
        level=level,
        phrase=phrase,
        prompt=f"A {rng.choice(BODIES)} has {', '.join(facts)}. {QUESTIONS[phrase].format(goal=goal)} Options: {listed}.",
        lines=tuple(lines),
        shortcut=f"It is {value}{ANSWER}.",
        answer=answer,
        wrong=tuple(letter for letter in LETTERS if letter != answer),
    )


SCIENCE = Family(
    name="science",
    draw=draw,
    marker="",
    separator=", ",
    opening="{",
    ending="}\n\n",
    closing=f"Answer: $\\boxed{{{ANSWER}}}$",
    plain=f"Answer: {ANSWER}.",
)
