"""Named theorems, applied one after the other: the name is all the prompt gives, the rule has to be known."""

from __future__ import annotations

import random
from collections.abc import Callable

from tyler.tasks.mini.puzzle import ANSWER, Family, Puzzle, nearby

LARGEST = 99
THEOREMS: dict[str, tuple[Callable[[int], int], str]] = {
    "angle": (lambda n: n - 2, "{n} - 2"),
    "tree": (lambda n: n - 1, "{n} - 1"),
    "square": (lambda n: n * n, "{n} * {n}"),
    "doubling": (lambda n: n + n, "{n} + {n}"),
    "handshake": (lambda n: n * (n - 1) // 2, "{n} * {n_less} / 2"),
    "mirror": (lambda n: n % 10 * 10 + n // 10, "{tens} | {units}"),
    "digit": (lambda n: n // 10 + n % 10, "{tens} + {units}"),
    "unit": (lambda n: n % 10, "{tens}0 + {units}"),
    "complement": (lambda n: 100 - n, "100 - {n}"),
    "half": (lambda n: n // 2, "{n} / 2"),
    "Gauss": (lambda n: n * (n + 1) // 2, "{n} * {n_more} / 2"),
    "shift": (lambda n: n + 7, "{n} + 7"),
}
"""Name -> (rule, how a step writes it before ` = `). Rules act on 0..99."""

QUESTIONS = (
    "Start with {n}. Use the {names}. What is the result?",
    "Apply the {names} to {n}.",
    "What do the {names} make of {n}?",
    "Take {n} through the {names}.",
)


def _work(name: str, n: int) -> str:
    return THEOREMS[name][1].format(n=n, n_less=n - 1, n_more=n + 1, tens=n // 10, units=n % 10)


def draw(rng: random.Random, level: int) -> Puzzle:
    """A number from 2 to 99 and `level + 1` theorems; every value stays in 0..99."""
    start = value = rng.randint(2, LARGEST)
    names: list[str] = []
    lines: list[str] = []
    while len(names) < level + 1:
        allowed = [
            name
            for name, (rule, _) in THEOREMS.items()
            if 0 <= rule(value) <= LARGEST and (not names or name != names[-1])
        ]
        name = rng.choice(allowed)
        after = THEOREMS[name][0](value)
        lines.append(f"By the {name} theorem ${_work(name, value)} = {after}$.")
        names.append(name)
        value = after
    lines[-1] = lines[-1].rsplit(" ", 1)[0] + f" {ANSWER}$."
    phrase = rng.randrange(len(QUESTIONS))
    listed = ", ".join(names[:-1]) + f" and {names[-1]} theorems"
    return Puzzle(
        level=level,
        phrase=phrase,
        prompt=QUESTIONS[phrase].format(n=start, names=listed),
        lines=tuple(lines),
        shortcut=f"The result is ${ANSWER}$.",
        answer=str(value),
        wrong=nearby(value, rng),
    )


THEOREM = Family(
    name="theorems",
    draw=draw,
    closing=f"Hence $\\boxed{{{ANSWER}}}$",
    plain=f"Hence it is {ANSWER}.",
)
