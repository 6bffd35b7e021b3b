r"""Relations of a tidied answer: names, equations, inequalities, and the tuples and intervals they stand for."""

import re
from typing import NamedTuple

from tyler.tasks.answers.latex import bracketed, compact, depths, split
from tyler.tasks.answers.quantities import SPELLINGS

_LETTERS = re.compile(r"(?P<sign>-?) ?(?P<letters>[A-Za-z](?:(?: | ?\\cdot )?[A-Za-z])+)")
_BETWEEN = re.compile(r" ?\\cdot | ")
_LONGEST = 3
"""Letters that touch: more of them may be a word."""
_WORDS = frozenset(SPELLINGS["words"].split())


def same_letters(answer: str, gold: str) -> bool | None:
    """Products of letters in any order (`xy`, `y x`); None where either side is another text, or may be a word."""
    given, expected = _letters(answer), _letters(gold)
    return None if given is None or expected is None else given == expected


def _letters(text: str) -> tuple[str, list[str]] | None:
    """The sign and the letters of a product, in alphabetic order."""
    if (match := _LETTERS.fullmatch(text)) is None:
        return None
    letters, gaps = _BETWEEN.subn("", match["letters"])
    if gaps < len(letters) - 1 and (gaps or len(letters) > _LONGEST or letters.lower() in _WORDS):
        return None
    return match["sign"], sorted(letters)


_DERIVATIVE = re.compile(
    r"\\frac ?\{ ?(?:d|\\partial)(?: ?\^ ?\{? ?[0-9a-z] ?\}?)?[^{}]*(?:\{[^{}]*\}[^{}]*)*\} ?"
    r"\{ ?(?:d|\\partial) ?[A-Za-z]"
    r"|(?<![A-Za-z\\])d(?: ?\^ ?\{? ?[0-9] ?\}?)?(?: ?[A-Za-z])? ?/ ?\(?d ?[a-z](?![a-z])"
)
_OPERATION = re.compile(r"\\(?:i*int|oint|sum|prod|lim|limsup|liminf)(?![A-Za-z])")
_SUM = r"\((?=[^()]*[^()\s^_{] ?[+-])[^()]*\)"
_PRODUCT = re.compile(rf"{_SUM} ?(?:\\cdot ?)?{_SUM}|{_SUM} ?\^ ?\{{? ?[2-9]")


def is_unevaluated(text: str) -> bool:
    """Whether `text` holds a derivative, an integral, a sum, a product sign or a limit."""
    return _OPERATION.search(text) is not None or _DERIVATIVE.search(text) is not None


def must_be_computed(answer: str, gold: str) -> bool:
    """Whether an answer is left as what the gold one is the value of."""
    if is_unevaluated(answer):
        return True
    return _PRODUCT.search(answer) is not None and re.search(r"[()]", gold) is None and _is_expanded(gold)


def _is_expanded(gold: str) -> bool:
    """Whether a gold answer is a sum of terms without a quotient or a root: what a product was multiplied out to."""
    return re.search(r"[^\s^_{(] ?[+-]", gold) is not None and re.search(r"\\(?!cdot|pi)[a-z]|/", gold) is None


COMMA = re.compile("[,;]")
LIST = re.compile(r"[,;](?: ?(?:and|or)(?![A-Za-z]))?|(?<![\\A-Za-z])(?:and|or)(?![A-Za-z])", re.IGNORECASE)
_AND = re.compile(r"(?<![\\A-Za-z])and(?![A-Za-z])|\\(?:land|wedge)(?![A-Za-z])", re.IGNORECASE)


class Sequence(NamedTuple):
    """A tuple, a point or an interval; `name` is the variable it bounds, or empty."""

    opening: str
    items: list[str]
    closing: str
    name: str = ""


def sequence(text: str) -> Sequence | None:
    """The tuple, point or interval that `text` writes in brackets, with or without a name."""
    name = name_and_value(text)
    group = bracketed(name[1] if name else text)
    if group is None or group[0] == "{":
        return None
    return Sequence(group[0], split(group[1], COMMA), group[2], name[0] if name else "")


_RELATION = re.compile(r"<|>|\\(?:le|ge|ne|approx|equiv|sim)(?![A-Za-z])|=")
_FLIPPED = {"<": ">", ">": "<", r"\le": r"\ge", r"\ge": r"\le", "=": "="}
_VARIABLE = re.compile(r"\\?[A-Za-z](?:_\{\w\})?|\\(?:theta|alpha|beta|lambda|mu|phi)")


def interval(text: str) -> Sequence | None:
    r"""The interval of an inequality that bounds one variable: `x > 3`, `3 < x \le 5`, `x > 3 \text{ and } x \le 5`."""
    both = split(text, _AND)
    if len(both) == 2:
        return _overlap(interval(both[0]), interval(both[1]))
    sides, signs = sides_and_signs(text)
    if len(sides) == 2 and _VARIABLE.fullmatch(sides[1]) and not _VARIABLE.fullmatch(sides[0]):
        sides, signs = sides[::-1], [_FLIPPED.get(sign, sign) for sign in signs]
    if len(sides) == 2:  # `x > 3` is `\infty > x > 3`
        infinity, sign = (r"-\infty", "<") if signs[0] in ("<", r"\le") else (r"\infty", ">")
        sides, signs = [infinity, *sides], [sign, *signs]
    if len(sides) == 3 and signs[0] in (">", r"\ge"):
        sides, signs = sides[::-1], [_FLIPPED.get(sign, sign) for sign in reversed(signs)]
    if len(sides) == 3 and _VARIABLE.fullmatch(sides[1]) and {*signs} <= {"<", r"\le"}:
        opening, closing = "(" if signs[0] == "<" else "[", ")" if signs[1] == "<" else "]"
        return Sequence(opening, [sides[0], sides[2]], closing, sides[1])
    return None


def _overlap(first: Sequence | None, other: Sequence | None) -> Sequence | None:
    """Two bounds of one variable as one interval: a lower one and an upper one, in either order."""
    if first is None or other is None or first.name != other.name:
        return None
    lower, upper = (first, other) if first.items[1] == r"\infty" else (other, first)
    if lower.items[1] != r"\infty" or upper.items[0] != r"-\infty":
        return None
    return Sequence(lower.opening, [lower.items[0], upper.items[1]], upper.closing, first.name)


def sides_and_signs(text: str) -> tuple[list[str], list[str]]:
    """The sides of a chain of relations, and the signs between them."""
    levels = depths(text)
    signs = [sign for sign in _RELATION.finditer(text) if levels and levels[sign.start()] == 0]
    return split(text, _RELATION), [sign[0] for sign in signs]


def relation(text: str) -> tuple[str, str] | None:
    """Sign and difference of both sides of an equation or inequality, larger side first; None for another text."""
    sides, signs = sides_and_signs(text)
    if not signs:
        return None
    if len(signs) > 1 or not all(sides):
        return "several", text
    larger, smaller = sides[::-1] if signs[0] in ("<", r"\le") else sides
    sign = _FLIPPED.get(signs[0], signs[0]) if signs[0] in (">", r"\ge") else signs[0]
    return sign, f"{larger}-({smaller})"


_NAME = re.compile(
    r"((?:\|[A-Za-z]{1,3}\| ?|[A-Za-z](?: ?: ?[A-Za-z])+ ?)"
    r"|(?:(?!\\in(?![A-Za-z]))[\\A-Za-z ])*(?:_\{\w+\} ?)?(?:(?:\^\{-1\}|'+) ?(?=\())?"
    r"(?:\((?:[A-Za-z0-9, \\|]|(?<=[(,])-|\.(?=[0-9]))*\) ?)?'*) ?"
    r"(?:=|\\in(?![A-Za-z])) ?(.+)"
)


def name_and_value(text: str) -> tuple[str, str] | None:
    r"""Name and value of `x = 5`, `f(x) = 5`, `x \in (1, 2)`; the value of a chain is its last side."""
    match = _NAME.fullmatch(text)
    if match is None or not re.search("[A-Za-z]", match[1]) or LIST.search(re.sub(r"\(.*\)", "", match[1])):
        return None
    sides, signs = sides_and_signs(match[2])
    if signs and len(split(match[2], LIST)) > 1:
        return None
    return (compact(match[1].strip()), sides[-1]) if {*signs} <= {"="} and sides[-1] else None


def as_named(text: str) -> str:
    """`x=5` for `5=x`: an equation whose right side alone is a variable names its left one."""
    sides, signs = sides_and_signs(text)
    turned = signs == ["="] and _VARIABLE.fullmatch(sides[1]) and re.search("[0-9]", sides[0])
    return f"{sides[1]}={sides[0]}" if turned and not re.search(r"(?<![\\A-Za-z])[A-Za-df-hj-z]", sides[0]) else text


_ASKED = re.compile(
    r"(?=.*[A-Za-z].*[A-Za-z])(?:[A-Za-z+\-/(){}| ]|(?<=\()-?[0-9]+(?=\))|\\(?:frac|cdot|overline|angle)(?![A-Za-z]))+"
)


def is_asked_for(side: str) -> bool:
    r"""Whether a side of an equation says what the other is the value of: `\frac{a}{b}`, `a + b`, `\int ...`."""
    return _ASKED.fullmatch(side) is not None or is_unevaluated(side)


def right_side(text: str) -> str:
    """`text` without its name."""
    name = name_and_value(text)
    return name[1] if name else text


_BUILDER = re.compile(rf"({_VARIABLE.pattern}) ?(?:\\in ?\(-\\infty,\\infty\) ?)?[|:] ?(.+)")


def condition(text: str) -> str:
    r"""The condition of a set-builder such as `\{x \mid x > 3\}`; else `text` itself."""
    group = bracketed(text)
    builder = _BUILDER.fullmatch(group[1]) if group and group[0] == r"\{" else None
    return builder[2] if builder and _RELATION.search(builder[2]) else text


def assigned(text: str) -> Sequence | None:
    """The point `(1, 2)` of `x = 1, y = 2`: names that are single letters in the order of the alphabet, or None."""
    values = [name_and_value(part) for part in split(text, LIST)]
    names = [name for name, _ in filter(None, values)]
    if len(names) < 2 or len(names) < len(values) or names != sorted({*names}) or max(map(len, names)) > 1:
        return None
    return Sequence("(", [value for _, value in filter(None, values)], ")")
