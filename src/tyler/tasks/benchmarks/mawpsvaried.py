r"""Problems without end for training: MAWPS and ASDiv-A (`mawps`) with other numbers and names, some longer by a step.

They are made from the training problems of `mawps` alone, so they share no template with its development and test
problems; one more step is added only where the longer text is like none of these either. From the row

    Question: "Josh had number0 pencils . He gave number1 pencils to Dorothy . How many pencils does Josh have left ?"

becomes, for one, "Marvin had 96 pencils. He gave 24 pencils to Julia. Then Marvin shares all of the pencils equally
among 9 friends. How many pencils does each friend get?".

A number keeps its size, decimals and roundness, a 1 stays (its noun is in the singular), and so does a number that a
word repeats (`the three pizzas`). Which of two numbers is greater stays, so that parts remain smaller than their
wholes.
"""

import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from itertools import count as counting
from itertools import islice, permutations
from pathlib import Path

from tyler.tasks.benchmarks import mawps
from tyler.tasks.benchmarks.gsm8k import equal
from tyler.tasks.benchmarks.mawps import Step
from tyler.tasks.data_files import Row
from tyler.tasks.problem import Problem
from tyler.tasks.task import Generated, mathematical
from tyler.tasks.word_problems import NAMES, alike, template

COUNT = 20_000
"""Problems of the split, where no count is given."""
LONGER = 0.25
"""The share of problems to which a step is added, of those that allow it."""
ATTEMPTS = 300
"""Draws of numbers until their results are of the kind that the published ones are of."""
LARGEST = 10**6
REPEATS = 5_000
"""Texts in a row that have been, after which no new ones are expected."""

SPREAD = 3
"""How many times as large or as small a number may become."""
SMALL = 12
"""Up to which a smaller number may grow."""

_WORDS = "zero one two three four five six seven eight nine ten eleven twelve"
_VALUES = {word: Fraction(value) for value, word in enumerate(_WORDS.split())}
_FIRST_NAMES = frozenset().union(*NAMES)
_LETTERS = re.compile(r"[A-Za-z]+")
_OWNED = re.compile(
    r"(?<=\. )How many (?P<things>(?:[a-z]+ ){0,2}[a-z]+s) (?:does|will) (?P<who>[A-Z][a-z]+) (?:now )?have"
    r"(?: now| left| in all| in total| altogether| then)*\?$"
)


@dataclass(frozen=True)
class Source:
    """A published training problem: its row, its numbers, which of them stay, and the results of its steps."""

    row: Row
    numbers: tuple[Fraction, ...]
    stay: tuple[bool, ...]
    results: tuple[Fraction, ...]


Variant = tuple[str, list[Step]]
"""A problem as text, with its steps."""


def problems(split: str, count: int | None, seed: int, rows: Sequence[Row]) -> list[Problem]:
    """`count` different problems drawn with `seed`: templates alike often; a smaller number begins a larger one."""
    by_template: dict[str, list[Source]] = {}
    for row in rows:
        problem = mawps.problem(row, "train")
        if problem is not None and (source := _source(row)) is not None:
            by_template.setdefault(template(problem.prompt), []).append(source)
    others = [mawps.problem(row, split) for row in rows for split in ("dev", "test")]
    held_out = {template(problem.prompt) for problem in others if problem is not None}
    if not by_template:
        raise ValueError(f"none of the {len(rows)} rows is a training problem whose numbers may vary")

    @cache
    def is_new(own: str) -> bool:
        return not any(alike([own, other]) for other in held_out)

    return list(islice(_distinct(list(by_template.values()), is_new, seed), COUNT if count is None else count))


def _source(row: Row) -> Source | None:
    """A row whose numbers may vary; None where its results are not exact decimals."""
    numbers = mawps.numbers_of(row)
    results = tuple(step.result for step in mawps.computed(row, numbers))
    if not all(same_kind(result, result) for result in results):
        return None
    used = set(mawps.PLACEHOLDER.findall(row.text("Equation")))
    stay = fixed(row.text("Question"), numbers)
    kept = tuple(stays or str(index) not in used for index, stays in enumerate(stay))
    return None if all(kept) else Source(row, numbers, kept, results)


def _distinct(sources: Sequence[Sequence[Source]], is_new: Callable[[str], bool], seed: int) -> Iterator[Problem]:
    """Problems without end, no text twice. Raises ValueError where only texts turn up that have been."""
    rng, seen, latest = random.Random(seed), set[str](), 0
    for number in counting():
        source = rng.choice(rng.choice(sources))
        variant = _varied(source, rng)
        if variant is not None and (variant := _longer(*variant, is_new, rng))[0] not in seen:
            text, steps = variant
            seen.add(text)
            latest = number
            name = f"line-{source.row.number}-{number}"
            yield mawps.solved(name, "mawpsvaried", text, steps, steps[-1].result, worked=True)
        if number - latest > REPEATS:
            raise ValueError(f"the rows make no more than about {len(seen)} different problems; ask for fewer")


def _varied(source: Source, rng: random.Random) -> Variant | None:
    """The problem with other numbers and names; None where no numbers of its kind turn up."""
    for numbers in other_numbers(source.numbers, source.stay, ATTEMPTS, rng):
        try:
            steps = mawps.computed(source.row, numbers)
        except ValueError:  # a division by zero
            continue
        kept = all(same_kind(old, step.result) for old, step in zip(source.results, steps, strict=True))
        if kept and steps[-1].result <= LARGEST:
            return mawps.with_numbers(source.row, other_names(source.row.text("Question"), rng), numbers), steps
    return None


# --- other numbers and names ------------------------------------------------------------------------------------------


def fixed(text: str, numbers: Sequence[Fraction]) -> list[bool]:
    """Which numbers have to stay: 0 and 1, fractions that no two decimals hold, and those that a word repeats."""
    spoken = {_VALUES[word] for word in _LETTERS.findall(text.lower()) if word in _VALUES}
    return [number in (0, 1) or 100 % number.denominator != 0 or number in spoken for number in numbers]


def other_numbers(
    numbers: Sequence[Fraction], stay: Sequence[bool], attempts: int, rng: random.Random
) -> Iterator[list[Fraction]]:
    """Numbers of the same kind and in the same order of size, equal ones apart or not: those of so many attempts."""
    indices = range(len(numbers))
    order = [(smaller, larger) for smaller, larger in permutations(indices, 2) if numbers[smaller] < numbers[larger]]
    for _ in range(attempts):
        drawn = [number if stays else similar_number(number, rng) for number, stays in zip(numbers, stay, strict=True)]
        if all(drawn[smaller] < drawn[larger] for smaller, larger in order):
            yield drawn


def similar_number(number: Fraction, rng: random.Random) -> Fraction:
    """A number of about the same size, as round and with as many decimals."""
    unit = _unit(number)
    units = number / unit
    low, high = units / SPREAD, max(units * SPREAD, Fraction(SMALL))
    return max(2, round(float(low) * (float(high) / float(low)) ** rng.random())) * unit


def _unit(number: Fraction) -> Fraction:
    """The power of ten that a number is a multiple of, ten times or more where it is whole."""
    unit = Fraction(1)
    while number % unit:
        unit /= 10
    while number % (unit * 10) == 0 and number >= 100 * unit:
        unit *= 10
    return unit


def same_kind(first: Fraction, second: Fraction) -> bool:
    """Whether both are positive and, like each other, whole or of at most two decimals."""
    both_or_none_whole = (first.denominator == 1) == (second.denominator == 1)
    return min(first, second) > 0 and both_or_none_whole and 100 % second.denominator == 0


def other_names(text: str, rng: random.Random) -> str:
    """The text with other names of people in the place of those that are known, each for one."""
    present = {word.lower() for word in _LETTERS.findall(text)}
    renamed: dict[str, str] = {}
    for names in NAMES:
        own = sorted(present & names)
        renamed.update(zip(own, rng.sample(sorted(names - present), len(own)), strict=True))
    return _LETTERS.sub(lambda word: _in_case(word[0], renamed.get(word[0].lower())), text)


def _in_case(word: str, name: str | None) -> str:
    if name is None:
        return word
    return name if word.islower() else name.title()


# --- one more step ---------------------------------------------------------------------------------------------------

_MORE = [
    line.split(" ", 1) for line in Path(__file__).with_name("mawpsvaried_steps.txt").read_text("utf-8").splitlines()
]
"""What may happen next to the things that a person has: the operation, and the text with its question."""


def _operands(operation: str, left: int) -> Sequence[int]:
    """The numbers that may come next; a whole number is divided so that each part has two or more."""
    return {
        "-": range(2, left - 1),
        "+": range(2, max(SMALL, left) + 1),
        "*": range(2, 13),
        "/": [size for size in range(2, 13) if left % size == 0 and left > size],
    }[operation]


def _longer(text: str, steps: list[Step], is_new: Callable[[str], bool], rng: random.Random) -> Variant:
    """The problem with one more step, by chance and where it asks how many things a person has; else unchanged.

    `is_new` says whether a template is like that of no held-out problem.
    """
    question_match, left = _OWNED.search(text), steps[-1].result
    if question_match is None or left.denominator != 1 or left < 2 or rng.random() >= LONGER:
        return text, steps
    operation, happening = rng.choice(_MORE)
    if not (operands := _operands(operation, int(left))):
        return text, steps
    who, number = question_match["who"], rng.choice(operands)
    other = rng.choice(sorted(_FIRST_NAMES - {who.lower()})).title() if "{other}" in happening else ""
    question = happening.format(who=who, things=question_match["things"], number=number, other=other)
    longer = text[: question_match.start()] + question
    if is_new(template(longer)):
        return longer, [*steps, mawps.step(left, operation, Fraction(number))]
    return text, steps


TASK = Generated(
    name="mawpsvaried",
    title="MAWPS and ASDiv-A with other numbers and names",
    sources={"train": mawps.TASK.sources["train"]},
    load=problems,
    **mathematical(equal),
)
