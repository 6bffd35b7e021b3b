"""Truth values, numbers and lists of numbers, each with all the readings that it has: what typed answers hold."""

from __future__ import annotations

import math
import re
from fractions import Fraction

from tyler.tasks.answers.boxed import bare, plain
from tyler.tasks.answers.expressions import value
from tyler.tasks.answers.latex import both_signs, bracketed, split
from tyler.tasks.answers.quantities import MAX_LENGTH, read_quantity, unlabelled

_ROUNDED = Fraction(1, 100)
"""How far apart two sides of a chain may be, of which one is rounded."""

_TRUTHS = dict.fromkeys(("true", "yes", "correct", "t"), True) | dict.fromkeys(("false", "no", "incorrect", "f"), False)
_TRUTH = re.compile(
    r"(?:(?:the )?(?:(?:final|correct) )?(?:answer|statement|claim|argument|assertion)(?: is)? ?[:=]? ?|it is )?"
    r"(?P<word>true|false|yes|no|correct|incorrect|[tf](?=\.?\Z))(?P<rest>\Z|\s*[.,;:!(—–-].*)",
    re.IGNORECASE | re.DOTALL,
)
_TRUTH_WORD = re.compile(r"\b(?:true|false|yes|no|or|maybe|unless|depends)\b", re.IGNORECASE)


def truth(text: str) -> bool | None:
    """True for `True`, `Yes`, `Correct`, `T`, False for `False`, `No`, `Incorrect`, `F`; the words also with a reason
    after a comma; else None."""
    match = _TRUTH.fullmatch(bare(text).strip("\"'`* "))
    if match is None:
        return None
    verdict = _TRUTHS[match["word"].lower()]
    others = (_TRUTHS.get(word.lower()) for word in _TRUTH_WORD.findall(match["rest"]))
    return verdict if all(other is verdict for other in others) else None


_RELATION = re.compile(r"\\(?:approx|simeq|equiv)(?![A-Za-z])|[≈≃=]")
_MODULO = re.compile(r" ?(?:\\pmod ?(?:\{[^{}]*\}|[0-9]+)|\\(?:b?mod) ?\{?[0-9]+\}?|\(mod [0-9]+\))$")


def numbers(text: str) -> list[Fraction] | None:
    r"""The readings of a number, exactly, or None for another text.

    Several where equal numbers are given (`\frac{\pi}{4} \approx 0.785`: no two may be 1% apart), for a logarithm
    without a base, which is natural in some fields and to base 10 in others, and for a percentage: `54.8\%` is 0.548,
    and 54.8 too where that is more than 1, because questions that ask for percent have such golds.
    """
    if len(text) > MAX_LENGTH:
        return None
    text = _MODULO.sub("", bare(text))
    *before, last = _RELATION.split(text)
    if not all(side.strip() for side in before[1:]):
        return None
    if before and (re.search(r"\bor\b", text) or len(split(_THOUSANDS.sub("", text), _SEPARATOR)) > 1):
        return None
    readings = _readings(unlabelled(last))
    if readings is None:
        return None
    for side in before:
        side = unlabelled(side)
        given = None if re.fullmatch(r"[A-Za-z]?", side) else _readings(side)
        if given is not None:
            if not any(_agrees(a, b) for a in given for b in readings):
                return None
            readings = given + readings
    return readings


def _agrees(first: Fraction, other: Fraction) -> bool:
    """Whether two sides of a chain may be one number: whole ones exactly, others as far as a side may be rounded."""
    if first.denominator == other.denominator == 1:
        return first == other
    return abs(first - other) <= _ROUNDED * max(abs(first), abs(other))


def _readings(text: str) -> list[Fraction] | None:
    read = read_quantity(text, _exact)
    if read is None:
        return None
    values, percent = read
    if not percent:
        return values
    return [number / 100 for number in values] + [number for number in values if abs(number) > 1]


_LOG = re.compile(r"log(?![A-Za-z]| ?_)")


def _exact(text: str) -> list[Fraction] | None:
    """The value of an expression: two for one with a logarithm whose base is not given."""
    bases = (math.e, 10.0) if _LOG.search(text) else (math.e,)
    values = [Fraction(number) for base in bases if (number := value(text, log_base=base)) is not None]
    return values or None


_OPERATION = re.compile(
    r"(?:(?<=[0-9)}])|(?<=[0-9)}] ))(?:[-+*×·⋅÷]|\\(?:cdot|times|div|pm)(?![A-Za-z])) ?[-+]? ?(?=[0-9({.]|\\frac)"
    r"|[0-9)] ?\((?=[-0-9])"
)
_ENVIRONMENT = re.compile(r"\\begin ?\{[A-Za-z]+\}")
_CLOSED_FORM = re.compile(
    r"[\^!√π]|(?<![A-Za-z])(?:sqrt|[dt]?binom|pi|e|exp|ln|log|(?:arc)?(?:sin|cos|tan))(?![A-Za-z])"
)


def unfinished(text: str) -> bool:
    r"""Whether a number is left as a calculation with plain numbers, `248 + 2` or `\frac{3 \cdot 4}{2}`.

    Closed forms (powers, roots, factorials, functions, one fraction) are answers.
    """
    text = bare(_ENVIRONMENT.sub("", text.replace("\\\\", " ; ")))
    last = _RELATION.split(_MODULO.sub("", text))[-1]
    return _OPERATION.search(last) is not None and not _CLOSED_FORM.search(last)


_OPENED = {"[": "]", "(": ")", "{": "}", r"\{": r"\}", r"\langle": r"\rangle", "⟨": "⟩"}
_BRACKETED = re.compile(
    r"(?:.*(?:=|\\in(?![a-z])|\\approx|:) ?)?(?P<open>\\\{|\\langle|[\[({⟨])(?P<inside>[^\[\]=]*?)"
    r"(?P<close>\\\}|\\rangle|[\])}⟩])(?P<unit>[A-Za-z /]*)",
    re.DOTALL,
)
_MATRIX = re.compile(
    r"(?:.*= ?)?\\begin ?\{(?P<kind>[pbvBV]?matrix|array)\}(?: ?\{[clr|]*\})?(?P<inside>[^=]*)"
    r"\\end ?\{(?P=kind)\}"
)
_TRANSPOSED = re.compile(r"(?<=[\])}]) ?\^ ?\{? ?(?:T|\\top|\\mathsf ?\{? ?T ?\}?|\\intercal) ?\}?$")
_THOUSANDS = re.compile(r"(?<![0-9.,])([1-9][0-9]{0,2}(?:,[0-9]{3})+)(?![0-9,]*[0-9])")
_SEPARATOR = re.compile(r"[,;&](?:\s*(?:\\text ?\{ ?and ?\}|and(?=[\s\\])))?|(?<=[\s}])and(?=[\s\\])")


def listed(text: str) -> list[list[Fraction]] | None:
    r"""The readings of each number of a list, in order, or None where `text` is not a list of numbers.

    Lists stand in brackets, braces or parentheses, as a vector, or bare: `x = 1, y = 2`, `1 \text{ and } 6`. A bare
    number is a list of one. `\pm 2` is `2, -2`. A comma parts numbers; between digits without a space it groups
    thousands only where another comma of the list has a space (`4, 16, 65,536`).
    """
    if len(text) > 2 * MAX_LENGTH:
        return None
    text = text.replace("{,}", "").replace(r",\!", "").replace("\\\\", " ; ")
    text = _TRANSPOSED.sub("", plain(plain(text)).rstrip(".,; "))
    inside = _inside(text)
    if inside is None:
        return None
    if re.search(r"[,;] ", inside):
        inside = _THOUSANDS.sub(lambda match: match[0].replace(",", ""), inside)
    items = split(inside, _SEPARATOR)
    if items and not items[-1] and len(items) > 1:
        items.pop()
    readings = [reading for item in items for reading in map(numbers, both_signs(item))]
    return None if any(reading is None for reading in readings) else [item for item in readings if item is not None]


def _inside(text: str) -> str | None:
    """What the brackets of a list hold; the text itself without brackets; None where they do not match."""
    if matrix := _MATRIX.fullmatch(text):
        return matrix["inside"]
    if re.match(r"[\[⟨]|\\\{|\\langle", text) or re.search(r"[\]⟩]$|\\\}$|[=:] ?[({]", text) or bracketed(text):
        whole = _BRACKETED.fullmatch(text)
        return whole["inside"] if whole and _OPENED[whole["open"]] == whole["close"] else None
    return text
