"""Small programs to run by hand: assignments, a condition, a loop; the solution writes one fenced line per statement run."""

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
    """Runs statements while writing both the program's text and the trace of what ran."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.values: dict[str, int] = {}
        self.text: list[str] = []
        self.trace: list[str] = []

    def operation(self) -> tuple[str, str, str, int]:
        """A target variable, a source variable, an operator and a small operand."""
        target, source = self.rng.choice(tuple(self.values)), self.rng.choice(tuple(self.values))
        operator = self.rng.choice(("+", "+", "-", "*"))
        return target, source, operator, self.rng.randint(2, 3 if operator == "*" else 19)

    def run(self, statement: tuple[str, str, str, int], prefix: str = "") -> None:
        target, source, operator, operand = statement
        before = self.values[source]
        after = {"+": before + operand, "-": before - operand, "*": before * operand}[operator]
        self.values[target] = after
        self.trace.append(f"{prefix}{target} = {before} {operator} {operand} = {after}")

    def assign(self, variable: str) -> None:
        self.values[variable] = self.rng.randint(1, 30)
        self.text.append(f"{variable} = {self.values[variable]}")
        self.trace.append(f"{variable} = {self.values[variable]}")

    def line(self) -> None:
        statement = self.operation()
        self.text.append("{} = {} {} {}".format(*statement))
        self.run(statement)

    def condition(self) -> None:
        variable, bound = self.rng.choice(tuple(self.values)), self.rng.randint(5, 50)
        statement = self.operation()
        self.text += [f"if {variable} > {bound}:", "  {} = {} {} {}".format(*statement)]
        holds = self.values[variable] > bound
        self.trace.append(f"{self.values[variable]} > {bound} is {'True' if holds else 'False'}")
        if holds:
            self.run(statement)

    def loop(self, rounds: int) -> None:
        target = self.rng.choice(tuple(self.values))
        statement = (target, target, self.rng.choice("+-"), self.rng.randint(2, 9))
        self.text += [f"for i in range({rounds}):", "  {} = {} {} {}".format(*statement)]
        for i in range(rounds):
            self.run(statement, prefix=f"i = {i}, ")


def _build(machine: _Machine, rng: random.Random, level: int) -> None:
    """Level 1 is two statements, 2 adds a condition, 3 a loop, 4 both, 5 both and two more statements."""
    for variable in rng.sample(VARIABLES, 2 if level > 1 else 1):
        machine.assign(variable)
    for _ in range(2 if level in (1, 5) else 1):
        machine.line()
    if level in (2, 4, 5):
        machine.condition()
    if level >= 3:
        machine.loop(rng.randint(2, 3))
    if level == 5:
        machine.line()


def draw(rng: random.Random, level: int) -> Puzzle:
    """A program that prints the variable it last changed; every value stays in 0..199."""
    while True:
        machine = _Machine(rng)
        _build(machine, rng, level)
        last = next((line for line in reversed(machine.trace) if " is " not in line))
        printed = last.split(", ")[-1].split(" ")[0]
        value = machine.values[printed]
        shown = [int(word) for line in machine.trace for word in line.split() if word.lstrip("-").isdigit()]
        if max(shown) <= LARGEST and min(shown) >= 0 and (level < 3 or machine.trace[-1] == last):
            break
    phrase = rng.randrange(len(QUESTIONS))
    body = "\n".join([*machine.text, f"print({printed})"])
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
    marker="",
    separator="\n\n",
    opening="Solution:\n\n",
    ending="\n\n",
    closing=f"Output: $\\boxed{{{ANSWER}}}$",
    plain=f"Output: {ANSWER}.",
)
