r"""The one reader of a number as people write it: exactly, or not at all. Every task reads its numbers here.

Decimals (`-3.50`, `.5`), repeating ones (`0.\overline{3}`), fractions (`1/2`, `\frac{1}{2}`), mixed numbers (`2 1/2`,
`2\frac{1}{2}`), scientific notation (`3.5e4`, `3.5 \times 10^4`), and thousands as `1,234` or `1 234` (in LaTeX also
`1\,234`, `1{,}234`: `boxed.py`). `12,34` and `0,123` are not numbers, nor is a mixed number whose fraction is not below
1 (`1\frac{3}{2}` reads as 2.5 and as 1.5), nor what is still to be computed (`3+4`, `2^{10}`: `expressions.py`).
"""

from __future__ import annotations

import re
from fractions import Fraction

_MAX_LENGTH = 256

NUMERAL = re.compile(
    r"(?P<whole>[1-9][0-9]{0,2}(?:,[0-9]{3})+(?![0-9])|[1-9][0-9]{0,2}(?: [0-9]{3})+(?! ?[0-9])|[0-9]+)?"
    r"(?:\.(?P<decimals>[0-9]*)(?:\\(?:overline|bar) ?(?:\{ ?(?P<period>[0-9]{1,9}) ?\}|(?P<digit>[0-9])))?)?"
    r"(?:(?<=[0-9.])[eE](?P<exponent>[+-]?[0-9]{1,3})(?![0-9]))?"
)
MIXED = re.compile(
    r"(?P<whole>[0-9]{1,9}) ?(?:\\frac ?\{ ?(?P<top>[0-9]{1,9}) ?\} ?\{ ?(?P<bottom>[0-9]{1,9}) ?\}"
    r"|(?<= )(?P<over>[0-9]{1,9}) ?/ ?(?P<under>[0-9]{1,9}))"
)
_PLAIN = re.compile(r"-?[0-9]+(?:\.[0-9]+)?", re.ASCII)
_SIGN = re.compile(r"([+-]?) ?")
_FRACTION = re.compile(
    r"([0-9]+) ?/ ?([0-9]+)|\\frac ?\{ ?(-?[0-9]*\.?[0-9]+) ?\} ?\{ ?(-?[0-9]*\.?[0-9]+) ?\}", re.ASCII
)
_SCIENTIFIC = re.compile(
    r"(?P<mantissa>[^\\*×·⋅]+?) ?(?:\\(?:cdot|times)(?![A-Za-z])|[*×·⋅]) ?10 ?(?:\^|\*\*) ?"
    r"(?:\{ ?(?P<braced>-? ?[0-9]{1,3}) ?\}|(?P<bare>-?[0-9]))"
)


def number(text: str) -> Fraction | None:
    """The number that an undressed text writes, exactly, or None where it is not a single number."""
    if len(text) > _MAX_LENGTH:
        return None
    if _PLAIN.fullmatch(text):
        return Fraction(text)
    sign = _SIGN.match(text)
    size = _size(text[sign.end() :]) if sign else None
    return -size if size is not None and sign and sign[1] == "-" else size


def _size(text: str) -> Fraction | None:
    """A number without its sign."""
    if match := NUMERAL.fullmatch(text):
        return numeral(match)
    if match := MIXED.fullmatch(text):
        return mixed(match)
    if match := _FRACTION.fullmatch(text):
        top, bottom = (Fraction(part) for part in match.groups() if part is not None)
        return top / bottom if bottom else None
    match = _SCIENTIFIC.fullmatch(text)
    mantissa = NUMERAL.fullmatch(match["mantissa"]) if match else None
    size = numeral(mantissa) if mantissa else None
    if match is None or size is None:
        return None
    return size * Fraction(10) ** int((match["braced"] or match["bare"]).replace(" ", ""))


def numeral(match: re.Match[str]) -> Fraction | None:
    """The value of a match of NUMERAL, or None where it holds no digit."""
    whole, decimals = re.sub("[, ]", "", match["whole"] or ""), match["decimals"] or ""
    period = match["period"] or match["digit"] or ""
    if not whole + decimals + period:
        return None
    value = int(whole + decimals or "0") * Fraction(10) ** -len(decimals)
    if period:
        value += Fraction(int(period), (10 ** len(period) - 1) * 10 ** len(decimals))
    return value * Fraction(10) ** int(match["exponent"] or 0)


def mixed(match: re.Match[str]) -> Fraction | None:
    """The value of a match of MIXED, or None where its fraction is not below 1."""
    top, bottom = int(match["top"] or match["over"]), int(match["bottom"] or match["under"])
    return int(match["whole"]) + Fraction(top, bottom) if top < bottom else None


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
    match = _BASE.fullmatch(text)
    if match is None:
        return None
    name = next(group for group in match.groups()[1:] if group)
    base = int(name) if name.isdigit() else _BASES.index(name) + 2
    return (match[1], base) if match[1][0].isdigit() or _has_letter_digits(match[1], base) else None


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
