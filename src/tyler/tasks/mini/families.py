"""The five families of the mini world: how each draws a puzzle and works it out, and the styles of solutions: the
target, and the other habits the backbone has seen. The words of the families are in `families.yaml`.

Whatever is drawn is drawn in this order, on which every published number depends.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import yaml

ANSWER = "@"
"""Stands for the final answer inside a puzzle's lines and a family's texts until a solution is written out."""


@dataclass(frozen=True)
class Puzzle:
    """One drawn problem, before a style has written its solution.

    `lines` are the worked steps in order and `shortcut` is the one line that skips them; both hold `ANSWER` where the
    final answer goes. `wrong` are plausible wrong answers. `phrase` is the index of the question's wording.
    """

    phrase: int
    prompt: str
    lines: list[str]
    shortcut: str
    answer: str
    wrong: list[str]


WORDS = yaml.safe_load(Path(__file__).with_name("families.yaml").read_text(encoding="utf-8"))
STYLES: dict[str, str] = WORDS["styles"]
_FORMAT = {"marker": "", "separator": "\n\n", "opening": "", "ending": "\n\n"}


def solution(style: str, puzzle: Puzzle, family: str, rng: random.Random) -> str:
    """A worked solution in one of STYLES and the format of its family."""
    answer = rng.choice(puzzle.wrong) if style == "sloppy" else puzzle.answer
    format = _FORMAT | WORDS[family]["format"]
    marked = [format["marker"].format(i=i) + line for i, line in enumerate(puzzle.lines, 1)]
    steps = format["opening"] + format["separator"].join(marked)
    numbered = "\n\n".join(f"{i}. {line}" for i, line in enumerate(puzzle.lines, 1))
    written = STYLES[style].format(steps=steps, numbered=numbered, shortcut=puzzle.shortcut, **format)
    return written.rstrip("\n").replace(ANSWER, answer)


def habit(puzzle: Puzzle, rng: random.Random) -> str:
    """The name of a style, drawn as the corpus draws it for this wording of the question."""
    weights = WORDS["habits"][puzzle.phrase]
    return rng.choices(tuple(weights), tuple(weights.values()))[0]


def _question(family: str, rng: random.Random) -> tuple[int, str]:
    """One of a family's wordings: its index and its template."""
    questions = WORDS[family]["questions"]
    phrase = rng.randrange(len(questions))
    return phrase, questions[phrase]


def _word(family: str, kind: str, rng: random.Random) -> str:
    return rng.choice(WORDS[family][kind].split())


def _nearby(value: int, rng: random.Random) -> list[str]:
    """Three distinct wrong integers near `value`, none negative."""
    offsets = [step for step in (-10, -2, -1, 1, 2, 3, 10) if value + step >= 0]
    return [str(value + step) for step in rng.sample(offsets, 3)]


def _signed(number: int) -> str:
    return f"+ {number}" if number >= 0 else f"- {-number}"


# --- arithmetic: a count that changes step by step, written as `Step i: $a + b = c$` ----------------------------------

LARGEST = 199
TIMES = {"doubles": 2, "triples": 3}


def _change(rng: random.Random, value: int) -> tuple[str, str, int]:
    """One event: its sentence end, its operation and operand as text, and the value after it."""
    kind = rng.choice(["gains"] * 4 + ["times"] * (value <= LARGEST // 3) + ["losses"] * 3 * (value > 3))
    if kind == "times":
        verb = rng.choice(sorted(TIMES))
        return f"{verb} them", f"* {TIMES[verb]}", value * TIMES[verb]
    amount = rng.randint(2, 40 if kind == "gains" else min(value, 40))
    change = amount if kind == "gains" else -amount
    return f"{_word('arithmetic', kind, rng)} {amount}", _signed(change), value + change


def arithmetic(rng: random.Random, level: int) -> Puzzle:
    """A count with `level + 1` changes, every value in 0..199."""
    while True:
        start = value = rng.randint(4, 60)
        sentences, chain, lines = [], [str(start)], []
        name, things = _word("arithmetic", "names", rng), _word("arithmetic", "things", rng)
        for _ in range(level + 1):
            sentence, operation, after = _change(rng, value)
            sentences.append(f"{name} {sentence}.")
            lines.append(f"${value} {operation} = {after}$")
            chain.append(operation)
            value = after
        if value <= LARGEST:
            break
    lines[-1] = lines[-1].rsplit(" ", 1)[0] + f" {ANSWER}$"
    phrase, question = _question("arithmetic", rng)
    prompt = f"{name} has {start} {things}. {' '.join(sentences)} {question.format(name=name, things=things)}"
    return Puzzle(phrase, prompt, lines, f"${' '.join(chain)} = {ANSWER}$", str(value), _nearby(value, rng))


# --- algebra: linear equations in one unknown, solved in formula lines `$3x = 22 - 7$`, `$3x = 15$`, `$x = 5$` --------

UNKNOWNS = "xyzn"


def _collect(left: int, constant: int, right: int, total: int, v: str) -> list[str]:
    """The lines from `left v + constant = right v + total` to the value of v."""
    sides = f"{left}{v}" if right == 0 else f"{left}{v} - {right}{v}"
    moved = f"${sides} = {total} {_signed(-constant)}$"
    return [moved, f"${left - right}{v} = {total - constant}$", f"${v} = {ANSWER}$"]


def _linear(rng: random.Random, level: int, v: str, value: int) -> tuple[str, list[str]]:
    """Levels 1 and 2: `a v + b = c`, and the unknown on both sides."""
    right = 0 if level == 1 else rng.randint(2, 6)
    left = right + rng.randint(2, 9 if level == 1 else 5)
    constant = rng.choice((-1, 1)) * rng.randint(1, 30)
    total = (left - right) * value + constant
    if total < 0:
        constant, total = -constant, total - 2 * constant
    tail = f"{total}" if right == 0 else f"{right}{v} {_signed(total)}"
    return f"{left}{v} {_signed(constant)} = {tail}", _collect(left, constant, right, total, v)


def _bracketed(rng: random.Random, level: int, v: str, value: int) -> tuple[str, list[str]]:
    """Levels 3 to 5: a bracket on the left, a further term beside it, a bracket on the right as well."""
    right = rng.randint(2, 5)
    left = right + rng.randint(2, 4)
    inner, outer = rng.randint(1, 9), rng.randint(1, 20) if level > 3 else 0
    hidden = rng.randint(1, 9) if level > 4 else 0
    constant = left * inner + outer
    total = (left - right) * value + constant
    beside = f" + {outer}" if outer else ""
    tail = expanded = f"{right}{v} + {total}"
    if hidden:
        rest = _signed(total - right * hidden)
        tail, expanded = f"{right}({v} + {hidden}) {rest}", f"{right}{v} + {right * hidden} {rest}"
    lines = [f"${left}{v} + {left * inner}{beside} = {expanded}$"]
    if level > 3:
        lines.append(f"${left}{v} + {constant} = {right}{v} + {total}$")
    return f"{left}({v} + {inner}){beside} = {tail}", lines + _collect(left, constant, right, total, v)


def algebra(rng: random.Random, level: int) -> Puzzle:
    """An equation with a whole solution in 1..20; higher levels add the other side, brackets and terms."""
    v, value = rng.choice(UNKNOWNS), rng.randint(1, 20)
    equation, lines = (_linear if level < 3 else _bracketed)(rng, level, v, value)
    phrase, question = _question("algebra", rng)
    prompt = question.format(v=v, e=f"${equation}$")
    return Puzzle(phrase, prompt, lines, f"${v} = {ANSWER}$", str(value), _nearby(value, rng))


# --- science: multiple choice by laws that have to be known, solved as JSON fields and answered by a letter -----------

LETTERS = "ABCD"
BOUNDS = (20, 40, 80)
RANGES = ("0-19", "20-39", "40-79", "80+")
"""The options: four ranges, rising from A to D."""
LAWS = {name: factors.split() for name, factors in WORDS["science"]["laws"].items()}
"""Each quantity is the product of two others."""
CHAINS = {level: [chain.split() for chain in chains] for level, chains in WORDS["science"]["chains"].items()}


def _chain(rng: random.Random, level: int) -> list[str]:
    """The laws to apply in order."""
    if level == 1:
        return [rng.choice(list(LAWS))]
    if level < 4:
        return rng.choice(CHAINS[2])
    return CHAINS[4][0] if level == 5 else rng.choice(CHAINS[4])


def _worked(rng: random.Random, level: int) -> tuple[str, int, dict[str, int], list[str]]:
    """The goal, its value, the given quantities and the worked fields of one drawn chain of laws."""
    given: dict[str, int] = {}
    known: dict[str, int] = {}
    lines = []
    chain = _chain(rng, level)
    for i, goal in enumerate(chain):
        first, second = LAWS[goal]
        for name in (first, second):
            if name not in known:
                given[name] = known[name] = rng.randint(2, 9 if i == 0 else 5 if level < 4 else 3)
        known[goal] = known[first] * known[second]
        step = f"{known[first]} * {known[second]} = {known[goal]}"
        lines.append(f'"law": "{goal} = {first} * {second}", "step": "{step}"')
    goal, value = chain[-1], known[chain[-1]]
    if level not in (3, 5):
        return goal, value, given, lines
    extra = rng.randint(2, 20)
    lines.append(f'"sum": "{value} + {extra} = {value + extra}"')
    return f"total {goal}", value + extra, {**given, f"extra {goal}": extra}, lines


def science(rng: random.Random, level: int) -> Puzzle:
    """A body with given quantities, one to three laws in a row, at levels 3 and 5 an amount to add, and four ranges;
    each letter is right equally often."""
    answer = rng.choice(LETTERS)
    while True:
        goal, value, given, lines = _worked(rng, level)
        if LETTERS[sum(value >= bound for bound in BOUNDS)] == answer:
            break
    lines.append(f'"value": {value} ({ANSWER})')
    facts = [f"{name} {amount}" for name, amount in given.items()]
    rng.shuffle(facts)
    phrase, question = _question("science", rng)
    listed = ", ".join(f"{letter}) {span}" for letter, span in zip(LETTERS, RANGES, strict=True))
    body = _word("science", "bodies", rng)
    prompt = f"A {body} has {', '.join(facts)}. {question.format(goal=goal)} Options: {listed}."
    wrong = [letter for letter in LETTERS if letter != answer]
    return Puzzle(phrase, prompt, lines, f"It is ({ANSWER}).", answer, wrong)


# --- theorems: applied one after the other; the name is all the prompt gives, the rule has to be known ----------------

LARGEST_OF_THEOREMS = 99
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


def theorems(rng: random.Random, level: int) -> Puzzle:
    """A number from 2 to 99 and `level + 1` theorems, none twice in a row; every value stays in 0..99."""
    start = value = rng.randint(2, LARGEST_OF_THEOREMS)
    names: list[str] = []
    lines: list[str] = []
    while len(names) < level + 1:
        results = {name: rule(value) for name, (rule, _) in THEOREMS.items() if name not in names[-1:]}
        name = rng.choice([name for name, result in results.items() if 0 <= result <= LARGEST_OF_THEOREMS])
        work = THEOREMS[name][1].format(n=value, n_less=value - 1, n_more=value + 1, tens=value // 10, units=value % 10)
        value = results[name]
        lines.append(f"By the {name} theorem ${work} = {value}$.")
        names.append(name)
    lines[-1] = lines[-1].rsplit(" ", 1)[0] + f" {ANSWER}$."
    phrase, question = _question("theorems", rng)
    prompt = question.format(n=start, names=", ".join(names[:-1]) + f" and {names[-1]} theorems")
    return Puzzle(phrase, prompt, lines, f"The result is ${ANSWER}$.", str(value), _nearby(value, rng))


# --- programs: to run by hand, a condition, a loop; the solution has one fenced line per statement that ran -----------

VARIABLES = "xynk"
PARTS = ("line line", "line line condition", "line loop", "line condition loop", "line line condition loop line")
"""The methods of a machine that write a program, by level."""


class _Machine:
    """Runs statements on one variable while writing both the program's text and the trace of what ran."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.variable = rng.choice(VARIABLES)
        self.value = rng.randint(1, 40)
        self.text = [f"{self.variable} = {self.value}"]
        self.trace = [*self.text]

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
        self.trace.append(f"{self.value} > {bound} is {holds}")
        if holds:
            self._run(operator, operand)

    def loop(self) -> None:
        rounds = self.rng.randint(2, 3)
        text, operator, operand = self._statement("+-", 12)
        self.text += [f"for i in range({rounds}):", f"  {text}"]
        for i in range(rounds):
            self._run(operator, operand, prefix=f"i = {i}, ")


def programs(rng: random.Random, level: int) -> Puzzle:
    """A program that changes one variable and prints it; every value stays in 0..199."""
    while True:
        machine = _Machine(rng)
        for part in PARTS[level - 1].split():
            getattr(machine, part)()
        shown = [int(word) for line in machine.trace for word in line.split() if word.lstrip("-").isdigit()]
        if max(shown) <= LARGEST and min(shown) >= 0:
            break
    phrase, question = _question("programs", rng)
    body = "\n".join([*machine.text, f"print({machine.variable})"])
    prompt = f"{question}\n```\n{body}\n```"
    lines = [f"```{line}```" for line in machine.trace] + [f"```print {ANSWER}```"]
    return Puzzle(phrase, prompt, lines, f"It prints ${ANSWER}$.", str(machine.value), _nearby(machine.value, rng))


FAMILIES = {draw.__name__: draw for draw in (arithmetic, algebra, science, theorems, programs)}
"""What draws a puzzle of a level, by family."""
