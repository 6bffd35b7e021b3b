"""Word problems with other numbers and names: what of a published problem may change, and what must not.

A number keeps its size, decimals and roundness, a 1 stays (its noun is in the singular), and so does a number that a
word repeats (`the three pizzas`). Which of two numbers is greater stays, so that parts remain smaller than
their wholes.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import permutations

from tyler.tasks.word_problems import NAMES, decimal

SPREAD = 3
"""How many times as large or as small a number may become."""
SMALL = 12
"""Up to which a smaller number may grow."""

_WORDS = "zero one two three four five six seven eight nine ten eleven twelve"
_VALUES = {word: Fraction(value) for value, word in enumerate(_WORDS.split())}
_WORD = re.compile(r"[A-Za-z]+")


def fixed(text: str, numbers: Sequence[Fraction]) -> list[bool]:
    """Which numbers have to stay: 0 and 1, fractions that no two decimals hold, and those that a word repeats."""
    spoken = {_VALUES[word] for word in _WORD.findall(text.lower()) if word in _VALUES}
    return [number in (0, 1) or 100 % number.denominator != 0 or number in spoken for number in numbers]


def other_numbers(
    numbers: Sequence[Fraction], stay: Sequence[bool], attempts: int, rng: random.Random
) -> Iterator[list[Fraction]]:
    """Numbers of the same kind and in the same order of size, equal ones apart or not: those of so many attempts."""
    places = range(len(numbers))
    order = [(one, other) for one, other in permutations(places, 2) if numbers[one] < numbers[other]]
    for _ in range(attempts):
        drawn = [number if stays else alike(number, rng) for number, stays in zip(numbers, stay, strict=True)]
        if all(drawn[one] < drawn[other] for one, other in order):
            yield drawn


def alike(number: Fraction, rng: random.Random) -> Fraction:
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
    """Whether both are positive and, like each other, whole or exact decimals."""
    return min(first, second) > 0 and (first.denominator == 1) == (second.denominator == 1) and _short(second)


def _short(number: Fraction) -> bool:
    """Whether two decimals hold a number."""
    written = decimal(number)
    return written is not None and len(written.partition(".")[2]) <= 2


def other_names(text: str, rng: random.Random) -> str:
    """The text with other names of people in the place of those that are known, each for one."""
    present = {word.lower() for word in _WORD.findall(text)}
    renamed: dict[str, str] = {}
    for names in NAMES:
        own = sorted(present & names)
        renamed.update(zip(own, rng.sample(sorted(names - present), len(own)), strict=True))
    return _WORD.sub(lambda word: _in_case(word[0], renamed.get(word[0].lower())), text)


def _in_case(word: str, name: str | None) -> str:
    if name is None:
        return word
    return name if word.islower() else name.title()
