"""Small programs to run by hand: a condition, a loop; the solution has one fenced line per statement that ran."""

from __future__ import annotations

import random

from tyler.tasks.mini.puzzle import ANSWER, Family, Puzzle, nearby

LARGEST = 199
VARIABLES = ("x", "y", "n", "k")
QUESTIONS = (
    "What does this program print?",
    "Run this program.",
    "Give the output of this program.",
    "Read this program and tell what it prints.",
)


class _Machine:
    """Runs statements on one variable while writing both the program's text and the trace of what ran."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.variable = rng.choice(VARIABLES)
        self.value = rng.randint(1, 40)
        self.text = [f"{self.variable} = {self.value}"]
        self.trace = [f"{self.variable} = {self.value}"]

    def _statement(self, operators: str, largest: int) -> tuple[str, str, int]:
        operator = self.rng.choice(operators)
        operand = self.rng.randint(2, 3 if operator == "*" else largest)
        return f"{self.variable} = {self.variable} {operator} {operand}", operator, operand

    def _run(self, operator: str, operand: int, prefix: str = "") -> None:
        before = self.value
        self.value = {"+": before + operand, "-": before - operand, "*": before * operand}[operator]
        self.trace.append(f"{prefix}{self.variable} = {before} {operator} {operand} = {self.value}")

    def line(self) -> None:
        text, operator, operand = self._statement("++-*", 29)
        self.text.append(text)
        self._run(operator, operand)

    def condition(self) -> None:
        bound = self.rng.randint(5, 60)
        text, operator, operand = self._statement("++-*", 29)
        holds = self.value > bound
        self.text += [f"if {self.variable} > {bound}:", f"  {text}"]
        self.trace.append(f"{self.value} > {bound} is {'True' if holds else 'False'}")
        if holds:
            self._run(operator, operand)

    def loop(self, rounds: int) -> None:
        text, operator, operand = self._statement("+-", 12)
        self.text += [f"for i in range({rounds}):", f"  {text}"]
        for i in range(rounds):
            self._run(operator, operand, prefix=f"i = {i}, ")


def _build(rng: random.Random, level: int) -> _Machine:
    """Level 1 has two statements, 2 adds a condition, 3 has one and a loop, 4 all three, 5 two statements more."""
    machine = _Machine(rng)
    for _ in range(2 if level in (1, 2, 5) else 1):
        machine.line()
    if level in (2, 4, 5):
        machine.condition()
    if level >= 3:
        machine.loop(rng.randint(2, 3))
    if level == 5:
        machine.line()
    return machine


def draw(rng: random.Random, level: int) -> Puzzle:
    """A program that changes one variable and prints it; every value stays in 0..199."""
    while True:
        machine = _build(rng, level)
        shown = [int(word) for line in machine.trace for word in line.split() if word.lstrip("-").isdigit()]
        if max(shown) <= LARGEST and min(shown) >= 0:
            break
    value = machine.value
    phrase = rng.randrange(len(QUESTIONS))
    body = "\n".join([*machine.text, f"print({machine.variable})"])
    lines = [f"```{line}```" for line in machine.trace] + [f"```print {ANSWER}```"]
    return Puzzle(
        level=level,
        phrase=phrase,
        prompt=f"{QUESTIONS[phrase]}\n```\n{body}\n```",
        lines=tuple(lines),
        shortcut=f"It prints ${ANSWER}$.",
        answer=str(value),
        wrong=nearby(value, rng),
    )


PROGRAMS = Family(
    name="programs",
    draw=draw,
    opening="Solution:\n\n",
    closing=f"Output: $\\boxed{{{ANSWER}}}$",
    plain=f"Output: {ANSWER}.",
)
