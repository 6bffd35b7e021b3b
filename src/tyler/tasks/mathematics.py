r"""Whether two answers to a mathematics problem are the same: MATH-500, OpenR1-Math, and everything alike.

The rules, from the cheapest on:

- Dress does not count: dollars, `\left`, `\text{}`, display fractions, spaces, a final period, Unicode for LaTeX.
- Numbers are exact: 0.333 is not 1/3. Decimals, fractions, mixed numbers, thousands (`1,234`, `1\,234`), scientific
  notation and repeating decimals (`0.\overline{3}`) all count; `12,34` is not a number.
- A unit may be left out (`5`, `5\text{ cm}`), by either side, but must agree where both have one. Degrees, currency and
  percent are units: `10\%` is `10`, as golds to "what percent" are written, and never 0.1.
- A base may be left out by the answer (`52` for `52_8`, the problem names it), never added, and must agree.
- `x = 5`, `f(x) = 5` and `x \in ...` may be left out by either side, but must agree where both have one.
- Tuples, points and intervals keep their order and their brackets; sets and bare lists (`1, 2`, `1 \text{ and } 2`) are
  the same thing and have no order; lengths must agree. `a \pm b` is the list of both. A union has no order.
- Words are compared as text, without case; letters alone (`evil`) too. A letter alone is a variable or a choice:
  `(B)` is `B`.
- Where the gold answer is a number, the answer must be one number, not a calculation: `\frac{6}{4}`, `2^{10}`,
  `\sqrt{16}` and `5!` count, while a sum, difference, product or quotient of numbers (`3+4`, `2 \cdot 3`) does not.
- Equations and inequalities may be rearranged: both sides exchanged, terms moved, a constant factor. An inequality that
  bounds one variable is its interval.
- What is left is algebra, in a process that can be killed: the same value at every point (`tyler.tasks.symbolic`).
"""

from __future__ import annotations

import re
import time
import unicodedata
from fractions import Fraction
from itertools import chain
from typing import NamedTuple

from tyler.tasks import symbolic
from tyler.tasks.answers import UnreadableAnswerError, UnreadableGoldError, exact_number
from tyler.tasks.latex import bracketed, depths, matrix, split, tidy
from tyler.tasks.task import GradeOptions

_MAX_LENGTH = 2000
_MAX_DEPTH = 40
_MAX_ITEMS = 64
_MAX_QUANTITY = 300


_DEFAULT = GradeOptions()


def equal(answer: str, gold: str, options: GradeOptions = _DEFAULT) -> bool:
    """Whether `answer` is the gold answer, by the rules above. Either may come with or without dollars.

    Raises UnreadableAnswerError or UnreadableGoldError for what is empty, over 2,000 characters, nested too deeply or
    has unbalanced brackets; TimeoutError when `options.deadline` passes. Nothing is ever evaluated as a program.
    """
    expected = _readable(gold, UnreadableGoldError)
    given = _readable(answer, UnreadableAnswerError)
    return _Comparison(time.monotonic() + options.deadline).same(given, expected)


def _readable(text: str, error: type[ValueError]) -> str:
    """`text`, tidied. Raises `error` where it cannot be read."""
    if len(text) > _MAX_LENGTH:
        raise error(f"{len(text)} characters are too many to be one answer; at most {_MAX_LENGTH} are read")
    if any(unicodedata.category(letter) in ("Cs", "Cn", "Co") or letter == "\0" for letter in text):
        raise error(f"{text!r:.80} contains characters that are not text")
    tidied = tidy(text)
    levels = depths(tidied)
    if levels is None or max(levels, default=0) > _MAX_DEPTH:
        raise error(f"{text!r:.80} has brackets that do not balance or are nested too deeply")
    if not re.search(r"[^\W_]|\\infty|\\emptyset|\\\{", tidied):
        raise error(f"{text!r:.80} holds no answer")
    return tidied


class _Comparison:
    """One comparison and the time it must end; every method takes the answer first, then the gold, both tidied."""

    def __init__(self, until: float) -> None:
        self.until = until

    def same(self, answer: str, gold: str) -> bool:
        """Whether two answers, or two parts of them, are the same."""
        if _compact(answer) == _compact(gold):
            return True
        if not answer or not gold:
            return False
        answer, gold = _ungrouped(_exact_side(answer)), _ungrouped(_exact_side(gold))
        if choice := _choice(gold):
            return _choice(answer, explained=True) == choice
        for compare in (self._unions, self._lists, self._sequences, self._matrices, self._relations):
            verdict = compare(answer, gold)
            if verdict is not None:
                return verdict
        return self._values(answer, gold)

    def _unions(self, answer: str, gold: str) -> bool | None:
        parts, others = split(_right_side(answer), _CUP), split(_right_side(gold), _CUP)
        if len(parts) == len(others) == 1:
            return None
        return self._unordered(parts, others)

    def _lists(self, answer: str, gold: str) -> bool | None:
        """Bare lists, sets and `\\pm`, which have no order; None where neither side is one."""
        names, others = _items(answer), _items(gold)
        if len(others) > 1 and len(names) == 1 and "," in answer:
            names = [answer_part for answer_part in split(answer, re.compile(","))]
        if _is_set(answer) or _is_set(gold) or len(names) > 1 or len(others) > 1:
            if {len(names), len(others)} == {0}:
                return True
            if bool(_named(names)) != bool(_named(others)):
                return len(names) == len(others) and all(map(self.same, names, others))
            return self._unordered(names, others)
        return None

    def _sequences(self, answer: str, gold: str) -> bool | None:
        """Tuples, points and intervals; None where neither side is one."""
        given, expected = _interval(answer) or _sequence(answer), _interval(gold) or _sequence(gold)
        if given is None and expected is None:
            return None
        if given is None or expected is None:
            return False
        if given.name and expected.name and given.name != expected.name:
            return False
        return (
            (given.opening, given.closing) == (expected.opening, expected.closing)
            and len(given.items) == len(expected.items)
            and all(map(self.same, given.items, expected.items))
        )

    def _matrices(self, answer: str, gold: str) -> bool | None:
        given, expected = matrix(_right_side(answer)), matrix(_right_side(gold))
        if given is None and expected is None:
            return None
        if given is None or expected is None or [*map(len, given)] != [*map(len, expected)]:
            return False
        return all(map(self.same, chain(*given), chain(*expected)))

    def _relations(self, answer: str, gold: str) -> bool | None:
        """Equations and inequalities; None where neither side is one."""
        named, other = _name(answer), _name(gold)
        if named and other and named[0] == other[0]:
            return self.same(named[1], other[1])
        given, expected = _relation(answer), _relation(gold)
        if given is None and expected is None:
            return None
        if named and expected is None:
            return self.same(named[1], gold)
        if other and given is None:
            return self.same(answer, other[1])
        if given is None or expected is None or given[0] != expected[0]:
            return False
        how: symbolic.How = "0" if given[0] == "=" else ">"
        return given[0] in ("=", "<", r"\le") and self._algebra(given[1], expected[1], how)

    def _values(self, answer: str, gold: str) -> bool:
        """Single values: quantities, words, expressions."""
        value, unit = _quantity(answer)
        expected, expected_unit = _quantity(gold)
        if unit and expected_unit and unit != expected_unit:
            return False
        if (value, expected) != (answer, gold) and _compact(value) == _compact(expected):
            return True
        number, expected_number = _number(value), _number(expected)
        if number is not None and expected_number is not None:
            return number == expected_number
        for rule in (_bases, _colons, _words):
            verdict = rule(value, expected)
            if verdict is not None:
                return verdict
        if expected_number is not None and _CALCULATION.search(value):
            return False
        return self._algebra(value, expected, "=")

    def _algebra(self, answer: str, gold: str, how: symbolic.How) -> bool:
        given, expected = _expression(answer), _expression(gold)
        if given is None or expected is None:
            return False
        return symbolic.equal(given, expected, self.until - time.monotonic(), how=how)

    def _unordered(self, answers: list[str], golds: list[str]) -> bool:
        """Whether each gold part is matched by an answer part of its own."""
        if len(answers) != len(golds) or len(golds) > _MAX_ITEMS:
            return False
        left = list(answers)
        for gold in sorted(golds, key=lambda part: part not in answers):
            match = next((part for part in sorted(left, key=gold.__ne__) if self.same(part, gold)), None)
            if match is None:
                return False
            left.remove(match)
        return True


# ---------------------------------------------------------------------------------------------------------- spelling


def _compact(text: str) -> str:
    """`text` without the spaces and braces that say nothing."""
    text = re.sub(r" (?![A-Za-z0-9])|(?<![A-Za-z0-9]) ", "", text)
    return re.sub(r"(?<=[\^_])\{([A-Za-z0-9])\}", r"\1", text)


def _ungrouped(text: str) -> str:
    """`text` without round brackets or braces around a single thing."""
    while (found := bracketed(text)) and found[::2] in (("(", ")"), ("{", "}")) and len(split(found[1], _COMMA)) == 1:
        text = found[1]
    return text


def _exact_side(text: str) -> str:
    r"""The left side of `\frac{1}{3} \approx 0.333`."""
    sides = split(text, re.compile(r"\\approx(?![A-Za-z])"))
    return sides[0] if len(sides) == 2 and re.search("[0-9]", sides[0]) else text


_COMMA = re.compile("[,;]")
_CUP = re.compile(r"\\cup(?![A-Za-z])")
_LIST = re.compile(r"[,;](?: ?(?:and|or)(?![A-Za-z]))?|(?<![\\A-Za-z])(?:and|or)(?![A-Za-z])", re.IGNORECASE)
_CHOICE = re.compile(r"\(?([A-Z])\)?")
_EXPLAINED_CHOICE = re.compile(r"\(?([A-Z])[).:] ?(?!.*(?<![A-Za-z])or(?![A-Za-z]))(?!.*\([A-Z]\)).*")


def _choice(text: str, *, explained: bool = False) -> str | None:
    """The capital letter that `text` is, with or without brackets; `explained`: what the choice says may follow."""
    found = _CHOICE.fullmatch(text) or (_EXPLAINED_CHOICE.fullmatch(text) if explained else None)
    return found[1] if found else None


# ------------------------------------------------------------------------------------------------- lists and brackets


def _is_set(text: str) -> bool:
    found = bracketed(_right_side(text))
    return found is not None and found[0] == r"\{"


def _items(text: str) -> list[str]:
    r"""The parts of a bare list or of a set, `\pm` written out; one part where `text` is neither."""
    if _is_set(text):
        found = bracketed(_right_side(text))
        text = found[1] if found else text
        parts = split(text, _LIST) if text else []
    elif _number(_quantity(_right_side(text))[0]) is not None:
        return [text]
    else:
        parts = [part for part in split(text, _LIST) if part]
    return [item for part in parts for item in _both_signs(part)]


def _both_signs(text: str) -> list[str]:
    if not re.search(r"\\(?:pm|mp)(?![A-Za-z])", text):
        return [text]
    upper = re.sub(r"\\mp(?![A-Za-z])", "-", re.sub(r"\\pm(?![A-Za-z])", "+", text))
    lower = re.sub(r"\\mp(?![A-Za-z])", "+", re.sub(r"\\pm(?![A-Za-z])", "-", text))
    return [re.sub(r"(^|= ?)\+ ?", r"\1", upper.strip()), lower]


def _named(parts: list[str]) -> bool:
    """Whether the parts give values to different names, so that their order says which is which."""
    names = [name[0] for part in parts if (name := _name(part))]
    return len(names) > 1 and len(set(names)) == len(names) == len(parts)


class _Sequence(NamedTuple):
    """A tuple, a point or an interval; `name` is the variable it bounds, or empty."""

    opening: str
    items: list[str]
    closing: str
    name: str = ""


def _sequence(text: str) -> _Sequence | None:
    name = _name(text)
    found = bracketed(name[1] if name else text)
    if found is None or found[0] == "{":
        return None
    return _Sequence(found[0], split(found[1], _COMMA), found[2], name[0] if name else "")


_RELATION = re.compile(r"<|>|\\(?:le|ge|ne|approx|equiv|sim)(?![A-Za-z])|=")
_FLIPPED = {"<": ">", ">": "<", r"\le": r"\ge", r"\ge": r"\le", "=": "="}
_VARIABLE = re.compile(r"\\?[A-Za-z](?:_\{\w\})?|\\(?:theta|alpha|beta|lambda|mu|phi)")


def _interval(text: str) -> _Sequence | None:
    r"""The interval of an inequality that bounds one variable: `x > 3`, `3 < x \le 5`."""
    sides, signs = _chain(text)
    if len(sides) == 2 and _VARIABLE.fullmatch(sides[1]) and not _VARIABLE.fullmatch(sides[0]):
        sides, signs = sides[::-1], [_FLIPPED.get(sign, sign) for sign in signs]
    if len(sides) == 2 and _VARIABLE.fullmatch(sides[0]) and signs[0] in ("<", r"\le", ">", r"\ge"):
        name, bound, closed = sides[0], sides[1], len(signs[0]) > 1
        if signs[0] in ("<", r"\le"):
            return _Sequence("(", [r"-\infty", bound], "]" if closed else ")", name)
        return _Sequence("[" if closed else "(", [bound, r"\infty"], ")", name)
    if len(sides) == 3 and signs[0] in (">", r"\ge"):
        sides, signs = sides[::-1], [_FLIPPED.get(sign, sign) for sign in reversed(signs)]
    if len(sides) == 3 and _VARIABLE.fullmatch(sides[1]) and {*signs} <= {"<", r"\le"}:
        opening, closing = "(" if signs[0] == "<" else "[", ")" if signs[1] == "<" else "]"
        return _Sequence(opening, [sides[0], sides[2]], closing, sides[1])
    return None


def _chain(text: str) -> tuple[list[str], list[str]]:
    """The sides of a chain of relations, and the signs between them."""
    levels = depths(text)
    signs = [sign for sign in _RELATION.finditer(text) if levels and levels[sign.start()] == 0]
    return split(text, _RELATION), [sign[0] for sign in signs]


def _relation(text: str) -> tuple[str, str] | None:
    """Sign and difference of both sides of an equation or inequality, larger side first; None where it is none."""
    sides, signs = _chain(text)
    if not signs:
        return None
    if len(signs) > 1 or not all(sides):
        return "several", text
    larger, smaller = sides[::-1] if signs[0] in ("<", r"\le") else sides
    sign = _FLIPPED.get(signs[0], signs[0]) if signs[0] in (">", r"\ge") else signs[0]
    return sign, f"{larger}-({smaller})"


_NAME = re.compile(
    r"((?:(?!\\in(?![A-Za-z]))\\?[A-Za-z]++ ?)*+(?:_\{\w+\} ?)?(?:\([A-Za-z0-9, \\]*\) ?)?'*) ?"
    r"(?:=|\\in(?![A-Za-z])) ?(.+)"
)


def _name(text: str) -> tuple[str, str] | None:
    r"""Name and value of `x = 5`, `f(x) = 5`, `x \in (1, 2)`; the value of a chain is its last side."""
    found = _NAME.fullmatch(text)
    if found is None or not re.search("[A-Za-z]", found[1]) or _LIST.search(re.sub(r"\(.*\)", "", found[1])):
        return None
    sides, signs = _chain(found[2])
    if signs and len(split(found[2], _LIST)) > 1:
        return None
    return (_compact(found[1].strip()), sides[-1]) if {*signs} <= {"="} and sides[-1] else None


def _right_side(text: str) -> str:
    name = _name(text)
    return name[1] if name else text


# ------------------------------------------------------------------------------------------------ numbers and units

_DECIMAL = r"-?[0-9]*\.?[0-9]+"
_FRACTION = re.compile(rf"(-?) ?\\frac\{{({_DECIMAL})\}}\{{({_DECIMAL})\}}")
_MIXED = re.compile(r"(-?) ?([0-9]+) ?(?:\\frac\{([0-9]+)\}\{([0-9]+)\}|(?<= )([0-9]+) ?/ ?([0-9]+))")
_SCIENTIFIC = re.compile(r"(.+?) ?\\cdot ?10\^\{(-?[0-9]{1,3})\}")
_REPEATING = re.compile(r"(-?)([0-9]*)\.([0-9]*)\\overline ?(?:\{ ?([0-9]+) ?\}|([0-9]))")


def _number(text: str) -> Fraction | None:
    """The number that `text` writes, exactly, or None where it is not a single number."""
    if not text or not text.isascii() or len(text) > _MAX_QUANTITY:
        return None
    text = text.replace("- ", "-")
    if found := _FRACTION.fullmatch(text):
        bottom = Fraction(found[3])
        return (-1 if found[1] else 1) * Fraction(found[2]) / bottom if bottom else None
    if found := _MIXED.fullmatch(text):
        whole, top, parts = int(found[2]), int(found[3] or found[5]), int(found[4] or found[6])
        return (-1 if found[1] else 1) * (whole + Fraction(top, parts)) if parts else None
    if found := _SCIENTIFIC.fullmatch(text):
        mantissa = exact_number(found[1])
        return mantissa * Fraction(10) ** int(found[2]) if mantissa is not None else None
    if found := _REPEATING.fullmatch(text):
        start, period = found[2] + found[3], found[4] or found[5]
        value = Fraction(int(start + period) - int(start or 0), (10 ** len(period) - 1) * 10 ** len(found[3]))
        return -value if found[1] else value
    return exact_number(text)


_SCALES = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12}
_CURRENCIES = {r"\dollar": "dollar", "£": "pound", "€": "euro", "\\percent": "percent", r"\degree": "degree"}
_UNIT_NAMES = {
    "cm": "centimeter", "mm": "millimeter", "km": "kilometer", "in": "inch", "inche": "inch", "ft": "foot",
    "feet": "foot", "yd": "yard", "mi": "mile", "kg": "kilogram", "mg": "milligram", "lb": "pound", "oz": "ounce",
    "ml": "milliliter", "hr": "hour", "min": "minute", "sec": "second", "mph": "mile per hour", "sq": "square",
    "metre": "meter", "centimetre": "centimeter", "dollar": "dollar", "usd": "dollar", "cent": "cent", "m": "meter",
    "degree": "degree", "percent": "percent", "c": "celsius", "f": "fahrenheit",
}  # fmt: skip
_SMALL_WORDS = {"per", "of", "the", "a", "an", "in", "cu", "sq"}
_UNIT_WORD = r"(?:[A-Za-z]++\.?(?: ?\^ ?\{[23]\})?)"
_UNIT = re.compile(
    rf"(?P<value>(?:.*[0-9)}}\]!]|.*\\pi|.*\\infty|.*(?<![A-Za-z\\])[A-Za-z])) ?"
    rf"(?P<unit>\\(?:degree|percent|dollar)(?: [CF])?|[£€]|(?<=[0-9)}}\]! ])[/]?{_UNIT_WORD}(?:[ /-]+{_UNIT_WORD})*)"
)
_TRIGONOMETRY = re.compile(r"\\(?:sin|cos|tan|cot|sec|csc)(?![A-Za-z])")
_VETOED = {"and", "or", "not", "to", "is", "no", "over", "times", "plus", "minus", "if", "for", "more", "than", "less"}


def _quantity(text: str) -> tuple[str, str]:
    r"""Value and unit of `5 cm^{2}`, `\$18`, `45^\circ`, `2 million`; the unit is in one spelling, or empty."""
    for mark, unit in _CURRENCIES.items():
        if (rest := re.fullmatch(rf"(-? ?){re.escape(mark)} ?(.+)", text)) and mark not in (r"\degree", r"\percent"):
            value, more = _quantity(rest[1] + rest[2])
            return value, unit if more in ("", unit) else f"{unit} {more}"
    found = _UNIT.fullmatch(text) if len(text) <= _MAX_QUANTITY else None
    if found is None:
        return text, ""
    value, unit = found["value"].strip(), found["unit"].strip()
    if unit == r"\degree" and _TRIGONOMETRY.search(value):
        return text, ""
    for mark, name in _CURRENCIES.items():
        if unit.startswith(mark):
            return value, name
    words = re.findall("[A-Za-z]+", unit)
    if words[0].lower() in _SCALES and (number := _number(value)) is not None:
        return _quantity(f"{number * 10 ** _SCALES[words[0].lower()]} {unit[len(words[0]) :].strip()}".strip())
    product = text[found.start("unit") - 1] != " " and len(words[0]) == 3 and words[0].lower() not in _UNIT_NAMES
    if product or not all(_is_unit(word) for word in words):
        return text, ""
    return value, _unit_name(unit)


def _is_unit(word: str) -> bool:
    small = word.lower()
    return (
        small not in _VETOED
        and small not in _SCALES
        and (len(word) >= 3 or small in _SMALL_WORDS or (len(word) > 1 and small in _UNIT_NAMES))
    )


def _unit_name(unit: str) -> str:
    """A unit in one spelling: full words in the singular, powers as `square` and `cubic`."""
    unit = re.sub(
        r"([A-Za-z]+)\.? ?\^ ?\{([23])\}", lambda power: ("square " if power[2] == "2" else "cubic ") + power[1], unit
    )
    words = [word.lower() for word in re.findall("[A-Za-z]+", unit.replace("/", " per "))]
    stems = [word if word in _UNIT_NAMES or len(word) < 3 else word.removesuffix("s") for word in words]
    return " ".join(_UNIT_NAMES.get(stem, stem) for stem in stems if stem not in ("the", "of"))


_BASE = re.compile(r"\(?([0-9A-Za-z.]+)\)? ?_\{([0-9]+)\}")


def _bases(answer: str, gold: str) -> bool | None:
    """Numerals in a base: digits and base must agree; the answer may leave the base out."""
    given, expected = _BASE.fullmatch(answer), _BASE.fullmatch(gold)
    if expected is not None and re.fullmatch(r"\(?[0-9].*", gold):
        digits, base = (given[1], given[2]) if given else (answer, expected[2])
        return (digits.lstrip("0").upper(), base) == (expected[1].lstrip("0").upper(), expected[2])
    if given is not None and re.fullmatch(r"\(?[0-9].*", answer):
        return given[2] == "10" and given[1] == gold
    return None


_TIME = re.compile(r"([0-9]{1,2}) ?: ?([0-9]{2})(?: ?([ap])\.? ?m\.?)?", re.IGNORECASE)


def _colons(answer: str, gold: str) -> bool | None:
    """Times of day and ratios: the same parts, and the same half of the day where both name one."""
    if ":" not in answer + gold:
        return None
    given, expected = _TIME.fullmatch(answer), _TIME.fullmatch(gold)
    if given and expected:
        halves = {half.lower() for half in (given[3], expected[3]) if half}
        return (int(given[1]), given[2]) == (int(expected[1]), expected[2]) and len(halves) < 2
    parts, others = ([_number(part.strip()) for part in text.split(":")] for text in (answer, gold))
    return None not in parts and parts == others


# ---------------------------------------------------------------------------------------------- words and expressions

_COMMAND = re.compile(r"\\[A-Za-z]+")
_FORMULA_COMMANDS = re.compile(
    r"\\(?:frac|sqrt|cdot|pi|infty|binom|(?:arc)?(?:sin|cos|tan)|(?:sin|cos|tan)h|cot|sec|csc|ln|log|[lr](?:floor|ceil)|"
    r"theta|alpha|beta|gamma|delta|lambda|mu|omega|(?:var)?phi|rho|sigma|tau|(?:var)?epsilon|Delta|Omega|percent|degree|"
    r"overline|bar)"
)
_CHARACTERS = re.compile(r"[0-9A-Za-z+\-*/^_(){}\[\]|!., ]+")
_CALCULATION = re.compile(
    r"(?<=[0-9})!i] )[+\-]|(?<=[0-9})!i])[+\-]|\\cdot|[*:]|(?<=[0-9})]) ?\(|\) ?(?=[0-9])|[0-9] [0-9]|"
    r"[^0-9 ] ?/|/ ?[^0-9 ]"
)


_JUXTAPOSED = re.compile(r"(\\[a-z]+(?: ?[\^_] ?\{[^{}]*\})+ ?\()|(?<=[0-9)}]) ?\(")


def _words(answer: str, gold: str) -> bool | None:
    """Words and letters alone, as text; None where both sides may be formulas."""
    if not (_is_text(answer) or _is_text(gold)):
        return None
    return _as_text(answer) == _as_text(gold)


def _is_text(text: str) -> bool:
    bare = _COMMAND.sub(" ", text)
    return re.search("[A-Za-z]{4,}", bare) is not None or re.fullmatch(r"[A-Za-z .']{2,}", text) is not None


def _as_text(text: str) -> str:
    return re.sub(r"[\s.'\"-]+", " ", text).strip().casefold()


def _expression(text: str) -> str | None:
    """`text` for the algebra, or None where it is no formula of the known kinds, or one that means two things."""
    if not _CHARACTERS.fullmatch(_COMMAND.sub("", text)) or not all(
        map(_FORMULA_COMMANDS.fullmatch, _COMMAND.findall(text))
    ):
        return None
    if re.search(r"[0-9] +[0-9]|,|[0-9]\.[0-9]*\.|[0-9]{301}", text):
        return None
    text = re.sub(r"([0-9]+) ?\\frac\{([0-9]+)\}\{([0-9]+)\}", r"(\1+\\frac{\2}{\3})", text)
    text = _JUXTAPOSED.sub(lambda found: found[0] if found[1] else r"\cdot (", text)
    text = text.replace(r"\degree", r"\cdot \frac{\pi}{180}").replace(r"\percent", r"\%")
    return re.sub(r"\.(?![0-9])", "", text)
