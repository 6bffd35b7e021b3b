"""Arithmetic word problems: a count that changes step by step, written as `Step i: $a + b = c$`."""

from __future__ import annotations

import random

from tyler.tasks.mini.puzzle import ANSWER, Family, Puzzle, nearby

LARGEST = 199
NAMES = ("Tom", "Ann", "Sam", "Mia", "Leo", "Eva", "Max", "Zoe", "Ben", "Ida")
THINGS = ("apples", "coins", "books", "cards", "stones", "shells", "pens", "cups", "nuts", "stamps")
GAINS = ("buys", "finds", "gets", "picks")
LOSSES = ("sells", "loses", "gives", "breaks")
TIMES = {"doubles": 2, "triples": 3}
QUESTIONS = (
    "How many {things} does {name} have?",
    "Find the number of {things}.",
    "How many {things} now?",
    "How many {things} are left?",
)


def _change(rng: random.Random, value: int) -> tuple[str, str, int]:
    """One event: its sentence end, its operation and operand as text, and the value after it."""
    kinds = ["gain"] * 4 + ["times"] * (value <= LARGEST // 3) + ["loss"] * 3 * (value > 3)
    kind = rng.choice(kinds)
    if kind == "times":
        verb = rng.choice(sorted(TIMES))
        return f"{verb} them", f"* {TIMES[verb]}", value * TIMES[verb]
    amount = rng.randint(2, 40) if kind == "gain" else rng.randint(2, min(value, 40))
    if kind == "gain":
        return f"{rng.choice(GAINS)} {amount}", f"+ {amount}", value + amount
    return f"{rng.choice(LOSSES)} {amount}", f"- {amount}", value - amount


def draw(rng: random.Random, level: int) -> Puzzle:
    """A count with `level + 1` changes, every value in 0..199."""
    while True:
        start = value = rng.randint(4, 60)
        sentences, chain, lines = [], [str(start)], []
        name, things = rng.choice(NAMES), rng.choice(THINGS)
        for _ in range(level + 1):
            sentence, operation, after = _change(rng, value)
            sentences.append(f"{name} {sentence}.")
            lines.append(f"${value} {operation} = {after}$")
            chain.append(operation)
            value = after
        if value <= LARGEST:
            break
    lines[-1] = lines[-1].rsplit(" ", 1)[0] + f" {ANSWER}$"
    phrase = rng.randrange(len(QUESTIONS))
    question = QUESTIONS[phrase].format(name=name, things=things)
    return Puzzle(
        level=level,
        phrase=phrase,
        prompt=f"{name} has {start} {things}. {' '.join(sentences)} {question}",
        lines=tuple(lines),
        shortcut=f"${' '.join(chain)} = {ANSWER}$",
        answer=str(value),
        wrong=nearby(value, rng),
    )


ARITHMETIC = Family(
    name="arithmetic",
    draw=draw,
    marker="Step {i}: ",
    closing=f"The answer is $\\boxed{{{ANSWER}}}$",
    plain=f"The answer is {ANSWER}.",
)
