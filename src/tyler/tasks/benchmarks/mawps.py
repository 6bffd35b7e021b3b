r"""MAWPS (Koncel-Kedziorski et al., 2016) and ASDiv-A (Miao et al., 2020) as SVAMP (Patel et al., 2021) trains on them.

https://github.com/arkilpatel/SVAMP, `data/mawps-asdiv-a_svamp/train.csv`: 3,138 word problems of one to seven
operations. A row as published, without its other columns:

    Question: "Conner has number0 dollars in his bank account . Every month he spends number1 dollars . [...]"
    Numbers: "25000.0 1500.0 8.0"   Equation: "- number0 * number1 number2"   Answer: "13000.0"

The file has no solutions: the steps are made from the equation, and the nine rows that do not compute to their answer
are left out. It has no splits either: `mawps_splits.txt` lists those held out for `test` and for `dev`, by hashes of
their texts, and the lines that repeat one of these, which would be graded twice; training keeps its repetitions. Like
templates (`word_problems.alike`, directly or over others) were made groups, and groups of at most ten problems were
drawn until 500 and 300 were held out, so that no template is in two splits.
"""

import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

from tyler.tasks.benchmarks.gsm8k import equal
from tyler.tasks.benchmarks.jsonl import final_paragraph
from tyler.tasks.data_files import Row
from tyler.tasks.problem import Problem, fingerprint
from tyler.tasks.task import Source, Task, mathematical
from tyler.tasks.word_problems import decimal, in_formula, published_number, readable, written

OPERATIONS: dict[str, tuple[str, Callable[[Fraction, Fraction], Fraction]]] = {
    "+": ("Addition", operator.add),
    "-": ("Subtraction", operator.sub),
    "*": ("Multiplication", operator.mul),
    "/": ("Common-Division", operator.truediv),
}
"""The names that SVAMP gives to operations, and what they compute."""

TOLERANCE = Fraction(1, 100)
"""How far an answer may be from what its equation computes, because the source rounded it."""

_SPLITS = {"test": 501, "dev": 300, "train": 2209}
*_LISTED, _REPEATED = Path(__file__).with_name("mawps_splits.txt").read_text("utf-8").split("\n\n")
_HELD_OUT = {text: split for split, texts in zip(("test", "dev"), _LISTED, strict=True) for text in texts.split()}
_LEFT_OUT = frozenset(map(int, _REPEATED.split()))
PLACEHOLDER = re.compile(r"number([0-9]+)")


@dataclass(frozen=True)
class Step:
    """One operation and its result."""

    left: Fraction
    operation: str
    right: Fraction
    result: Fraction

    def formula(self) -> str:
        """`$4+3=7$`: without spaces, because a `$` is known to open a formula only where its end is near."""
        return f"${self.equation()}$"

    def equation(self) -> str:
        """`4+3=7`."""
        return f"{in_formula(self.left)}{self.operation}{in_formula(self.right)}={in_formula(self.result)}"

    def worked(self) -> str:
        """Digit by digit, where there are several: `$48-19$: 48-10=38, 38-9=29`; else the formula.

        What is worked out stands outside formulas, so that a step has one place for an operator, worked or not.
        """
        if len(smaller := _digit_by_digit(self)) < 2:
            return self.formula()
        task = f"${in_formula(self.left)}{self.operation}{in_formula(self.right)}$"
        return f"{task}: {', '.join(step.equation() for step in smaller)}"


def problem(row: Row, split: str) -> Problem | None:
    """A published row as a problem, with its line as id and the number of operations as level.

    None where it is of another split, or its equation does not compute to the answer. Raises ValueError by file, line
    and field.
    """
    numbers = numbers_of(row)
    prompt = with_numbers(row, row.text("Question"), numbers)
    answer = published_number(row, "Answer", row.text("Answer"))
    steps = computed(row, numbers)
    if abs(steps[-1].result - answer) > TOLERANCE or side(row, prompt) != split:
        return None
    return solved(f"line-{row.number}", "mawps", prompt, steps, answer)


def numbers_of(row: Row) -> tuple[Fraction, ...]:
    """The numbers of a row. Raises ValueError where one is not a decimal number."""
    return tuple(published_number(row, "Numbers", number) for number in row.text("Numbers").split())


def with_numbers(row: Row, question: str, numbers: Sequence[Fraction]) -> str:
    """The row's question as people write it. Raises ValueError where it names a number that is not there."""
    return readable(PLACEHOLDER.sub(lambda match: written(_chosen(row, "Question", match, numbers)), question))


def side(row: Row, prompt: str) -> str | None:
    """The split of a row; None for one that repeats a held-out problem."""
    held_out = _HELD_OUT.get(fingerprint(prompt).hex()[:8])
    return None if held_out and row.number in _LEFT_OUT else held_out or "train"


def solved(id: str, task: str, prompt: str, steps: Sequence[Step], answer: Fraction, worked: bool = False) -> Problem:
    """A problem with its steps."""
    return Problem(
        id=id,
        task=task,
        prompt=prompt,
        answer=written(answer),
        solution=trace(steps, answer, worked),
        family=OPERATIONS[steps[-1].operation][0],
        level=len(steps),
    )


def computed(row: Row, numbers: Sequence[Fraction]) -> list[Step]:
    """The steps of the row's equation, which is in prefix notation, in reading order.

    Raises ValueError where it is not a whole equation, names a number that is not there, or divides by zero.
    """
    words, steps, shown = iter(row.text("Equation").split()), list[Step](), row.shown(row.fields["Equation"])

    def value() -> Fraction:
        if (word := next(words, "")) not in OPERATIONS:
            return _operand(row, word, numbers)
        left, right = value(), value()
        if word == "/" and right == 0:
            raise row.error("Equation", f"divides by zero:{shown}")
        steps.append(step(left, word, right))
        return steps[-1].result

    value()
    if next(words, None) is not None or not steps:
        raise row.error("Equation", f"is not one equation in prefix notation:{shown}")
    return steps


def step(left: Fraction, operation: str, right: Fraction) -> Step:
    """One operation, computed."""
    return Step(left, operation, right, OPERATIONS[operation][1](left, right))


def _digit_by_digit(by: Step) -> list[Step]:
    """An operation as several, each with one digit of a number; of a division, one digit of a whole result."""
    if by.operation in "+-":
        return _in_turn(by.left, by.operation, _digits(by.right))
    if by.operation == "/":
        parts = _digits(by.result) if by.result.denominator == 1 else []
        single = [step(part * by.right, "/", by.right) for part in parts]
    else:
        split, by_one = (by.right, by.left) if len(_digits(by.right)) > 1 else (by.left, by.right)
        single = [step(part, "*", by_one) for part in _digits(split)]
    results = [small.result for small in single]
    return [*single, *_in_turn(results[0], "+", results[1:])] if single else []


def _in_turn(left: Fraction, operation: str, numbers: Sequence[Fraction]) -> list[Step]:
    steps = list[Step]()
    for number in numbers:
        steps.append(step(steps[-1].result if steps else left, operation, number))
    return steps


def _digits(number: Fraction) -> list[Fraction]:
    """A number as a sum of its digits: 305 is 300 + 5. Empty where no decimals hold it."""
    whole, _, decimals = (decimal(number) or "0").partition(".")
    digits = [
        (int(digit), Fraction(10) ** -power) for power, digit in enumerate(whole + decimals, start=1 - len(whole))
    ]
    return [digit * unit for digit, unit in digits if digit]


def _operand(row: Row, word: str, numbers: Sequence[Fraction]) -> Fraction:
    if not word:
        raise row.error("Equation", f"is not one equation in prefix notation:{row.shown(row.fields['Equation'])}")
    match = PLACEHOLDER.fullmatch(word)
    return published_number(row, "Equation", word) if match is None else _chosen(row, "Equation", match, numbers)


def _chosen(row: Row, field: str, match: re.Match[str], numbers: Sequence[Fraction]) -> Fraction:
    if int(match[1]) >= len(numbers):
        raise row.error(field, f"names {match[0]}, but field 'Numbers' has only {len(numbers)}")
    return numbers[int(match[1])]


def trace(steps: Sequence[Step], answer: Fraction, worked: bool = False) -> str:
    r"""The target: one paragraph a step (`Step 1: $4+3=7$`), `worked` or not, and the boxed answer.

    Where the source rounded its answer, the last step ends in `\approx` and the answer.
    """
    formula = Step.worked if worked else Step.formula
    lines = [f"Step {number}: {formula(step)}" for number, step in enumerate(steps, start=1)]
    if steps[-1].result != answer:
        lines[-1] = lines[-1].removesuffix("$") + rf"\approx {in_formula(answer)}$"
    return "\n\n".join([*lines, final_paragraph(in_formula(answer))])


TASK = Task(
    name="mawps",
    title="MAWPS and ASDiv-A",
    sources={
        split: Source(
            files=("mawps_asdiv_train.csv", "mawps-asdiv-a_svamp/train.csv"),
            url="https://raw.githubusercontent.com/arkilpatel/SVAMP/main/data/mawps-asdiv-a_svamp/train.csv",
            num_rows=num_rows,
        )
        for split, num_rows in _SPLITS.items()
    },
    problem=problem,
    **mathematical(equal),
)
