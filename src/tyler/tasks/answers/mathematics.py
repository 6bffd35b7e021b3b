r"""Whether two answers to a mathematics problem are the same: MATH-500, OpenR1-Math, and everything alike.

The rules, from the cheapest on:

- Dress does not count (`latex.py`). Numbers are exact, 0.333 is not 1/3, and units are those of `quantities.py`.
- A unit may be left out (`5`, `5\text{ cm}`), by either side, but must agree where both have one. Degrees, currency and
  percent are units: `10\%` is `10`, as golds to "what percent" are written, and never 0.1. Within `\text{}` all words
  may be a unit but those that change, deny or doubt the number (`18\text{ dozen}`, `5\text{ or more}`).
- A base may be left out by the answer (`52` for `52_8`, the problem names it), never added, and must agree. It may be
  written `52_{\text{eight}}` or `52 \text{ (base 8)}`.
- `x = 5`, `f(x) = 5` and `x \in ...` may be left out by either side, but must agree where both have one. A chain says
  what its last side says (`3 + 4 = 7`), where it is true; `\sqrt{2} \approx 1.41` says the exact side.
  What is asked for may stand before its value: `|AB| = 5`, `\frac{a}{b} = \frac12`, `\int_0^1 x\,dx = \frac12`.
- What must still be computed (`\frac{d}{dx} x^3`, `(x+1)(x-1)` for `x^2-1`) does not count (`relations.py`).
- Tuples, points and intervals keep their order and their brackets; sets and bare lists (`1, 2`, `1 \text{ and } 2`) are
  the same thing and have no order; lengths must agree. `a \pm b` is the list of both. A union has no order.
  `x = 1, y = 2`, in the order of the alphabet, is the point `(1, 2)`. A tuple is not a column vector or a bare list.
- A matrix may have a factor in front; round and square brackets are the same, bars are another thing.
- Words are compared as text, without case; letters alone (`evil`) too. A letter alone is a variable or a choice:
  `(B)` is `B`.
- Where the gold answer is a number, the answer must be one number, not a calculation: `\frac{6}{4}`, `2^{10}`,
  `\sqrt{16}` and `5!` count, while a sum, difference, product or quotient of numbers (`3+4`, `2 \cdot 3`), `|-7|` and
  `\frac{1}{\infty}` do not. Algebra whose variables cancel is the number that is left (`x^2 - x^2` is 0), unless it has
  such a calculation in it. Ratios are compared part by part: `6:4` is not `3:2`.
- Equations and inequalities may be rearranged: both sides exchanged, terms moved, a constant factor. An inequality that
  bounds one variable is its interval, two joined by `or` their union, by `and` their overlap; so is `\{x \mid x > 3\}`.
- What is left is algebra, in a process that can be killed: the same value at every point
  (`tyler.tasks.answers.symbolic`).
"""

import re
import time
import unicodedata

from tyler.tasks.answers import symbolic
from tyler.tasks.answers.boxed import UnreadableAnswerError, UnreadableGoldError
from tyler.tasks.answers.latex import both_signs, bracketed, compact, depths, environment, split, tidy
from tyler.tasks.answers.quantities import MIXED, SPELLINGS, mixed, number, same_numeral, same_parts, split_unit
from tyler.tasks.answers.relations import (
    COMMA,
    LIST,
    as_named,
    assigned,
    condition,
    interval,
    is_asked_for,
    must_be_computed,
    name_and_value,
    relation,
    right_side,
    same_letters,
    sequence,
    sides_and_signs,
)
from tyler.tasks.problem import GradeOptions

_MAX_LENGTH = 2000
_MAX_DEPTH = 40
_MAX_ITEMS = 64
_DEFAULT = GradeOptions()


def equal(answer: str, gold: str, options: GradeOptions = _DEFAULT) -> bool:
    """Whether `answer` is the gold answer, by the rules above. Either may come with or without dollars.

    Raises UnreadableAnswerError or UnreadableGoldError for what is empty, over 2,000 characters, nested too deeply or
    has unbalanced brackets; TimeoutError when `options.deadline` passes. Nothing is ever evaluated as a program.
    """
    expected = _readable(gold, UnreadableGoldError)
    if (choice := _choice(expected)) and len(answer) <= _MAX_LENGTH and _choice(tidy(answer), explained=True) == choice:
        return True  # before brackets are read: that of `B) 12` has no other
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
        if compact(answer) == compact(gold):
            return True
        if not answer or not gold:
            return False
        answer, gold = (condition(_ungrouped(as_named(_exact_side(side)))) for side in (answer, gold))
        if self._contradicts_itself(answer):
            return False
        if choice := _choice(gold):
            return _choice(answer, explained=True) == choice
        for compare in (self._unions, self._matrices, self._lists, self._sequences, self._relations):
            verdict = compare(answer, gold)
            if verdict is not None:
                return verdict
        return self._values(answer, gold)

    def _unions(self, answer: str, gold: str) -> bool | None:
        parts, others = _union(answer), _union(gold)
        return None if len(parts) == len(others) == 1 else self._unordered(parts, others)

    def _lists(self, answer: str, gold: str) -> bool | None:
        """Bare lists, sets and `\\pm`, which have no order; None where neither side is one."""
        for side, other in ((answer, gold), (gold, answer)):
            if (interval(side) or sequence(side)) and (interval(other) or assigned(other)):
                return None
        names, others = _items(answer), _items(gold)
        if len(others) > 1 and len(names) == 1 and "," in answer:
            names = split(answer, re.compile(","))
        if not (_is_set(answer) or _is_set(gold) or len(names) > 1 or len(others) > 1):
            return None
        if _named(names) != _named(others):
            return len(names) == len(others) and all(map(self.same, names, others))
        return self._unordered(names, others)

    def _sequences(self, answer: str, gold: str) -> bool | None:
        """Tuples, points and intervals; None where neither side is one."""
        given, expected = interval(answer) or sequence(answer), interval(gold) or sequence(gold)
        if given is None and expected is None:
            return None
        given, expected = given or assigned(answer), expected or assigned(gold)
        if given is None or expected is None or (given.name and expected.name and given.name != expected.name):
            return None if relation(answer) and relation(gold) else False  # `a > b` bounds a, `b < a` bounds b
        return (
            (given.opening, given.closing) == (expected.opening, expected.closing)
            and len(given.items) == len(expected.items)
            and all(map(self.same, given.items, expected.items))
        )

    def _matrices(self, answer: str, gold: str) -> bool | None:
        """Matrices, cases and determinants, entry by entry; None where neither side is one."""
        given, expected = _rows(right_side(answer)), _rows(right_side(gold))
        if given is None or expected is None:
            return None if given is expected else False
        if given[0] != expected[0] or [*map(len, given[1])] != [*map(len, expected[1])]:
            return False
        return all(all(map(self.same, *rows)) for rows in zip(given[1], expected[1], strict=True))

    def _relations(self, answer: str, gold: str) -> bool | None:
        """Equations and inequalities; None where neither side is one."""
        named, other = name_and_value(answer), name_and_value(gold)
        if named and other and named[0] == other[0]:
            return self.same(named[1], other[1])  # of a chain the last sides, which its others do not contradict
        given, expected = relation(answer), relation(gold)
        if given is None and expected is None:
            return None
        if named and expected is None:
            return self.same(named[1], gold)
        if other and given is None:
            return self.same(answer, other[1])
        sides, signs = sides_and_signs(answer)
        closed = not any(map(_is_open, [*sides[:-1], split_unit(sides[-1])[0]]))
        if expected is None and {*signs} == {"="} and (closed or is_asked_for(sides[0])):
            return self.same(sides[-1], gold)
        if given is None or expected is None or given[0] != expected[0]:
            return False
        compared: symbolic.Relation = "proportional" if given[0] in ("=", r"\ne") else "positive"
        return given[0] in ("=", r"\ne", "<", r"\le") and self._algebra(given[1], expected[1], compared)

    def _contradicts_itself(self, answer: str) -> bool:
        """Whether a chain of equations has a side without variables that is not equal to its last one."""
        sides, signs = sides_and_signs(answer)
        if {*signs} != {"="}:
            return False
        *before, last = sides
        if bracketed(last):
            numbers = [side for side in before if not re.search("[A-Za-z]", _COMMAND.sub(" ", side))]
            return any(bracketed(side) and not self.same(side, last) for side in numbers)
        value = split_unit(last)[0]
        if _is_open(value):
            return False
        return any(_expression(side) and not _is_open(side) and not self._algebra(side, value) for side in before)

    def _values(self, answer: str, gold: str) -> bool:
        """Single values: quantities, words, expressions."""
        value, unit = split_unit(answer)
        expected, expected_unit = split_unit(gold)
        if unit and expected_unit and unit != expected_unit:
            return False
        if (value, expected) != (answer, gold) and compact(value) == compact(expected):
            return True
        count, expected_count = number(value), number(expected)
        if count is not None and expected_count is not None:
            return count == expected_count
        for rule in (same_numeral, same_parts, same_letters, _words):
            verdict = rule(value, expected)
            if verdict is not None:
                return verdict
        if must_be_computed(value, expected):
            return False
        if expected_count is not None and not _cancels(value) and (_CALCULATION.search(value) or _is_open(value)):
            return False
        return self._algebra(value, expected)

    def _algebra(self, answer: str, gold: str, compared: symbolic.Relation = "equal") -> bool:
        given, expected = _expression(answer), _expression(gold)
        if given is None or expected is None:
            return False
        return symbolic.equal(given, expected, self.until - time.monotonic(), relation=compared, waited=self._extend)

    def _extend(self, seconds: float) -> None:
        self.until += seconds

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


def _ungrouped(text: str) -> str:
    """`text` without round brackets or braces around a single thing."""
    while (group := bracketed(text)) and group[::2] in (("(", ")"), ("{", "}")) and len(split(group[1], COMMA)) == 1:
        text = group[1]
    return text


_ABOUT = re.compile(r"\\(?:approx|simeq)(?![A-Za-z])")


def _exact_side(text: str) -> str:
    r"""The left side of `\frac{1}{3} \approx 0.333`; in `x \approx 5` and `\approx 5` the sign is one of equality."""
    sides = split(text, _ABOUT)
    if len(sides) != 2:
        return text
    left, right = sides
    return left if re.search("[0-9]", left) else f"{left}={right}" if left else right


_CUP = re.compile(r"\\cup(?![A-Za-z])")
_OR = re.compile(r"(?<![\\A-Za-z])or(?![A-Za-z])|\\(?:lor|vee)(?![A-Za-z])", re.IGNORECASE)


def _union(text: str) -> list[str]:
    r"""The parts of `(1, 2) \cup (3, 4)`, or of inequalities joined by `or`."""
    either = split(text, _OR)
    bounds = [interval(part) for part in either]
    one_name = len({bound.name if bound else "" for bound in bounds} - {""}) == 1
    return either if len(either) > 1 and all(bounds) and one_name else split(right_side(text), _CUP)


def _rows(text: str) -> tuple[str, list[list[str]]] | None:
    """Name and entries of what has rows; those of a matrix multiplied by the factor in front, if there is one."""
    factor, begin, rest = text.partition(r"\begin")
    factor = factor.strip().removesuffix(r"\cdot").strip()
    if (rows := environment(text)) or not factor:
        return rows
    rows = environment(begin + rest)
    if rows is None or rows[0] != "matrix":
        return None
    return "matrix", [[_product(factor, entry) for entry in row] for row in rows[1]]


def _product(factor: str, entry: str) -> str:
    by, count = number("-1" if factor == "-" else factor), number(entry)
    if by is None or count is None:
        return f"-({entry})" if factor == "-" else rf"({factor}) \cdot ({entry})"
    return str(by * count)


_CHOICE = re.compile(r"\(?([A-Z])\)?")
_EXPLAINED_CHOICE = re.compile(r"\(?([A-Z])[).:] ?(?!.*(?<![A-Za-z])or(?![A-Za-z]))(?!.*\([A-Z]\)).*")


def _choice(text: str, *, explained: bool = False) -> str | None:
    """The capital letter that `text` is, with or without brackets; `explained`: what the choice says may follow."""
    match = _CHOICE.fullmatch(text) or (_EXPLAINED_CHOICE.fullmatch(text) if explained else None)
    return match[1] if match else None


# ------------------------------------------------------------------------------------------------- lists and brackets


def _is_set(text: str) -> bool:
    group = bracketed(right_side(text))
    return group is not None and group[0] == r"\{"


def _items(text: str) -> list[str]:
    r"""The parts of a bare list or of a set, `\pm` written out; one part where `text` is neither."""
    group = bracketed(right_side(text))
    if group and group[0] == r"\{":
        parts = split(group[1], LIST) if group[1] else []
    elif number(split_unit(right_side(text))[0]) is not None:
        return [text]
    else:
        parts = [part for part in split(text, LIST) if part]
    return [item for part in parts for item in both_signs(part)]


def _named(parts: list[str]) -> bool:
    """Whether the parts give values to different names, so that their order says which is which."""
    names = [name[0] for part in parts if (name := name_and_value(part))]
    return len(names) > 1 and len(set(names)) == len(names) == len(parts)


# ---------------------------------------------------------------------------------------------- words and expressions

_COMMAND = re.compile(r"\\[A-Za-z]+")
_EXPRESSIONS = frozenset(SPELLINGS["expressions"].split())
_CHARACTERS = re.compile(r"[0-9A-Za-z+\-*/^_(){}\[\]|!., ]*")
_CALCULATION = re.compile(
    r"(?<=[0-9})!i] )[+\-]|(?<=[0-9})!i])[+\-]|\\cdot|[*:]|(?<=[0-9})]) ?\(|\) ?(?=[0-9])|[0-9] [0-9]|"
    r"[^0-9 ] ?/|/ ?[^0-9 ]"
)


_CLOSED_COMMAND = re.compile(
    r"\\(?:frac|sqrt|cdot|pi|binom|(?:arc)?(?:sin|cos|tan)h?|cot|sec|csc|ln|log|percent|degree|overline)(?![A-Za-z])"
)


def _is_open(text: str) -> bool:
    """Whether `text` has variables, bars, infinities or commands beyond those of closed forms."""
    return re.search(r"[|\\A-DF-Za-df-hj-z]", _CLOSED_COMMAND.sub(" ", text)) is not None


_VARIABLE = re.compile("[A-DF-Za-df-hj-z]")
_POWER = re.compile(r"(?<=[A-Za-z)}]) ?\^ ?(?:\{ ?[0-9]+ ?\}|[0-9])")
_FRACTION = re.compile(r"\\frac ?\{ ?[0-9]+ ?\} ?\{ ?[0-9]+ ?\}")
_NUMBERS_COMBINED = re.compile(r"[0-9][)} ]*(?:[+\-*/:]|\\cdot|(?=[({ ]))[({ +\-]*[0-9]")


def _cancels(text: str) -> bool:
    """Whether `text` is an expression in variables, which may cancel, and no two numbers in it are left to combine."""
    bare = _CLOSED_COMMAND.sub(" ", text)
    if re.search(r"[|\\]", bare) or not _VARIABLE.search(bare):
        return False
    return _NUMBERS_COMBINED.search(_POWER.sub("", _FRACTION.sub("1", text))) is None


_JUXTAPOSED = re.compile(r"(\\[a-z]+(?: ?[\^_] ?\{[^{}]*\})+ ?\()|(?<=[0-9)}]) ?\(")


def _words(answer: str, gold: str) -> bool | None:
    """Words and letters alone, as text; None where both sides may be formulas."""
    return _as_text(answer) == _as_text(gold) if _is_text(answer) or _is_text(gold) else None


_ENVIRONMENT = re.compile(r"\\(?:begin|end) ?\{[A-Za-z*]+\}")
_PUNCTUATION = re.compile(
    r"(?<=[A-Za-z]{3})-(?=[A-Za-z]{2})|(?<=[A-Za-z]{2})-(?=[A-Za-z]{3})|(?<=[A-Za-z]{3}) - (?=[A-Za-z]{3})|"
    r"(?<=[A-Za-z])\.(?![0-9])|(?<=[A-Za-z]{2})'(?=[A-Za-z])|\""
)
"""Between and in words; a minus sign, a decimal point and a prime say something."""


def _is_text(text: str) -> bool:
    """Whether `text` has a word of four letters, or is letters and what stands between words."""
    bare = _COMMAND.sub(" ", _ENVIRONMENT.sub(" ", text))
    return re.search("[A-Za-z]{4,}", bare) is not None or re.fullmatch(r"[A-Za-z .']{2,}", text) is not None


def _as_text(text: str) -> str:
    """`text` without case and the punctuation of words."""
    return re.sub(r"\s+", " ", _PUNCTUATION.sub(" ", text)).strip().casefold()


def _expression(text: str) -> str | None:
    """`text` for the algebra, or None where it is not a formula of the known kinds, or one that means two things."""
    commands = {command[1:] for command in _COMMAND.findall(text)}
    if not _CHARACTERS.fullmatch(_COMMAND.sub("", text)) or not commands <= _EXPRESSIONS:
        return None
    text = re.sub(
        r"(?<![0-9.,])([1-9][0-9]{0,2}(?:,[0-9]{3})+)(?![0-9,])", lambda match: match[0].replace(",", ""), text
    )
    text = re.sub(r"(?<=[0-9])[eE]([+-]?[0-9]+)(?![0-9])", r"\\cdot 10^{\1}", text)
    if re.search(r"[0-9] +[0-9]|,|[0-9]\.[0-9]*\.|[0-9]{301}", text):
        return None
    if any(mixed(match) is None for match in MIXED.finditer(text)):
        return None
    text = re.sub(r"([0-9]+) ?\\frac\{([0-9]+)\}\{([0-9]+)\}", r"(\1+\\frac{\2}{\3})", text)
    text = _JUXTAPOSED.sub(lambda match: match[0] if match[1] else r"\cdot (", text)
    text = text.replace(r"\degree", r"\cdot \frac{\pi}{180}").replace(r"\percent", r"\%")
    return re.sub(r"\.(?![0-9])", "", text)
