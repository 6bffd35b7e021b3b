"""Numerals in a base, times of day and ratios, as a tidied answer writes them."""

from __future__ import annotations

import re

from tyler.tasks.answers.numbers import number

_BASES = [
    "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve", "thirteen", "fourteen",
    "fifteen", "sixteen",
]  # fmt: skip
_BASE_NAME = rf"\(?(?:base )? ?([0-9]+|{'|'.join(_BASES)})\)?"
_BASE = re.compile(rf"\(?([0-9A-Za-z.]+)\)? ?(?:_\{{ ?{_BASE_NAME} ?\}}|(?:in )?(?=\(?base ){_BASE_NAME})")


def same_numeral(answer: str, gold: str) -> bool | None:
    """Numerals in a base: digits and base must agree; the answer may leave the base out."""
    given, expected = _numeral(answer), _numeral(gold)
    if expected is not None:
        digits, base = given or (answer, expected[1])
        return (digits.lstrip("0").upper(), base) == (expected[0].lstrip("0").upper(), expected[1])
    if given is not None:
        return given == (gold, 10)
    return None


def _numeral(text: str) -> tuple[str, int] | None:
    r"""Digits and base of `52_{8}`, `52_{\text{eight}}`, `52 \text{ (base 8)}`."""
    found = _BASE.fullmatch(text)
    if found is None:
        return None
    name = next(group for group in found.groups()[1:] if group)
    base = int(name) if name.isdigit() else _BASES.index(name) + 2
    return (found[1], base) if found[1][0].isdigit() or _has_letter_digits(found[1], base) else None


def _has_letter_digits(text: str, base: int) -> bool:
    """Whether a text that begins with a letter is a numeral: `AB_{16}`, but not the variable `A_{16}`."""
    return len(text) > 1 and 10 < base <= 16 and all(digit in "0123456789ABCDEF"[:base] for digit in text)


_TIME = re.compile(r"([0-9]{1,2}) ?: ?([0-9]{2})(?: ?([ap])\.? ?m\.?)?", re.IGNORECASE)


def same_parts(answer: str, gold: str) -> bool | None:
    """Times of day and ratios: the same parts, and the same half of the day where both name one."""
    if ":" not in answer + gold:
        return None
    given, expected = _TIME.fullmatch(answer), _TIME.fullmatch(gold)
    if given and expected:
        halves = {half.lower() for half in (given[3], expected[3]) if half}
        return (int(given[1]), given[2]) == (int(expected[1]), expected[2]) and len(halves) < 2
    parts, others = ([number(part.strip()) for part in text.split(":")] for text in (answer, gold))
    return None not in parts and parts == others
