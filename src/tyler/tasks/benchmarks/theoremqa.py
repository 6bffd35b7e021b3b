r"""TheoremQA (Chen et al., 2023), https://github.com/TIGER-AI-Lab/TheoremQA: 800 questions, 747 without a picture.

A row as published:

    {"Question": "How many ways are there to divide a set of 8 elements into 5 non-empty ordered subsets?",
     "Answer": 11760, "Answer_type": "integer", "Picture": null, "source": "self", "id": "jianyu_xu/Lah_number_6.json",
     "explanation": "NONE", "theorem": "lah number", "subfield": "Combinatorics", "field": "Math"}

The Hub's copy has the first four columns only, and `Answer` as text. A gold answer is JSON: `true`, `11760`, `1.0`,
`[0, 5]`, `[0.333, 0.25]`, `"(c)"`.

How answers compare (`GradeOptions.mode`):

- `official`, what the official evaluator means to do: a float lies within 4% of the gold; an integer rounds to it;
  lists are sorted first. Deviation: gold 0 takes only 0 (the evaluator takes 0.4 for the integer 0), and words are
  read whole (it finds "no" in "normal").
- `strict`: official, and besides: a float, rounded to the decimals the gold is written with, is the gold, and a gold
  that is whole (`4600.0`) is met exactly; an integer is exact; lists are in order.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from functools import partial
from typing import Any

from tyler.tasks.answers.boxed import UnreadableAnswerError, UnreadableGoldError
from tyler.tasks.answers.choices import letter
from tyler.tasks.answers.dress import bare, plain
from tyler.tasks.answers.expressions import value
from tyler.tasks.answers.quantities import MAX_LENGTH, read_quantity, unlabelled
from tyler.tasks.data_files import Row
from tyler.tasks.problem import Problem
from tyler.tasks.task import GradeOptions, Mode, Source, Task, boxed

INSTRUCTION = (
    "The answer is one of these: a number such as 0.1, without a unit; a list of numbers such as [2, 3, 4]; "
    "True or False; an option such as (a)."
)
"""The forms the official prompt names, the same for every question, so that it does not give away the answer's type."""

Gold = bool | int | float | str | list[int] | list[float]

_TOLERANCE = Fraction(4, 100)
_ROUNDED = Fraction(1, 100)
_NOISE = Fraction(1, 10**9)
_WHOLE_NOISE = Fraction(1, 10**6)


# ------------------------------------------------------------------------------------------------------------- rows


def problem(row: Row, split: str) -> Problem | None:
    """A row as a problem, or None for one with a picture. Raises ValueError by file, line and field."""
    if _has_picture(row.fields.get("Picture")):
        return None
    kind = row.text("Answer_type")
    if kind not in _KINDS:
        raise row.error("Answer_type", f"must be one of {', '.join(_KINDS)}, got{row.shown(kind)}")
    answer = row.get("Answer", object, "an answer")
    try:
        gold = _KINDS[kind](_typed(answer))
    except (TypeError, ValueError, OverflowError) as error:
        raise row.error("Answer", f"is not of type {kind!r}, got{row.shown(answer)}") from error
    return Problem(
        id=str(row.fields.get("id") or f"{split}-{row.number}"),
        task="theoremqa",
        prompt=f"{row.text('Question')}\n\n{INSTRUCTION}",
        answer=json.dumps(gold),
        family=str(row.fields.get("field") or ""),
        question=row.text("Question"),
    )


def _has_picture(picture: object) -> bool:
    """Published as null or a path, on the Hub as null or an image: `{"bytes": ..., "path": ...}`."""
    if isinstance(picture, dict):
        return any(picture.values())
    if isinstance(picture, str):
        return picture.strip().lower() not in ("", "none", "null")
    return picture is not None


def _typed(answer: object) -> object:
    """The Hub's text as the value it writes: JSON, Python's `True` and `False`, or itself."""
    if not isinstance(answer, str):
        return answer
    text = {"True": "true", "False": "false"}.get(answer.strip(), answer.strip())
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _bool(answer: Any) -> bool:
    if not isinstance(answer, bool):
        raise TypeError
    return answer


def _float(answer: Any) -> float:
    if isinstance(answer, bool) or not isinstance(answer, int | float) or not math.isfinite(answer):
        raise TypeError
    return float(answer)


def _integer(answer: Any) -> int:
    if _float(answer) != int(answer):
        raise ValueError
    return int(answer)


def _option(answer: Any) -> str:
    chosen = letter(answer, "abcdef") if isinstance(answer, str) else None
    if chosen is None:
        raise ValueError
    return f"({chosen})"


def _list_of(kind: Callable[[Any], Any]) -> Callable[[Any], list[Any]]:
    def read(answer: Any) -> list[Any]:
        if not isinstance(answer, list) or not answer:
            raise TypeError
        return [kind(item) for item in answer]

    return read


_KINDS: dict[str, Callable[[Any], Gold]] = {
    "bool": _bool,
    "integer": _integer,
    "float": _float,
    "option": _option,
    "list of integer": _list_of(_integer),
    "list of float": _list_of(_float),
}


# ---------------------------------------------------------------------------------------------------------- grading


def equal(answer: str, gold: str, options: GradeOptions) -> bool:
    """Whether an answer is the gold answer, whose type says how they compare.

    Raises UnreadableAnswerError for an answer of another kind (a word for a number, several options), and
    UnreadableGoldError for a gold answer that is none of the types.
    """
    expected = gold_value(gold)
    if len(answer) > 4000:
        raise UnreadableAnswerError(f"the answer has {len(answer)} characters")
    if isinstance(expected, bool):
        return _known(truth(answer), answer, "True or False") == expected
    if isinstance(expected, str):
        return _known(letter(answer, "abcdef"), answer, "an option") == expected.strip("()")
    if isinstance(expected, list):
        items = None if unfinished(answer) else listed(answer)
        return _same_list(_known(items, answer, "a list of numbers"), expected, options.mode)
    readings = None if unfinished(answer) else numbers(answer)
    return _same(_known(readings, answer, "a number"), expected, options.mode)


def same_value(answer: str, other: str) -> bool:
    """Whether two answers are the same truth value, option, number or list; no tolerance but for what is rounded."""
    for read in (truth, partial(letter, letters="abcdef")):
        if (said := read(answer)) is not None:
            return said == read(other)
    given, expected = listed(answer), listed(other)
    if given is None or expected is None:
        return plain(answer) == plain(other)
    return len(given) == len(expected) and all(map(_agree, given, expected))


def _agree(given: list[Fraction], expected: list[Fraction]) -> bool:
    """Whether two numbers have a reading in common."""
    return any(abs(a - b) <= _NOISE * max(abs(a), abs(b)) for a in given for b in expected)


def latex(gold: str) -> str | None:
    """The gold answer as LaTeX: None for a truth value and for an option, which are no mathematics."""
    expected = gold_value(gold)
    return None if isinstance(expected, bool | str) else json.dumps(expected)


def gold_value(gold: str) -> Gold:
    """The typed value of a gold answer: JSON as in `Problem.answer`, or what it leniently may be (`True`, `c`, `1/3`).

    Raises UnreadableGoldError for anything else.
    """
    typed = _typed(gold)
    kinds: dict[type, Callable[[Any], Gold]] = {bool: _bool, int: _integer, float: _float, str: _word, list: _numbers}
    try:
        return kinds[type(typed)](typed)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise UnreadableGoldError(
            f"the gold answer {gold!r:.80} is no number, truth value, option or list of numbers"
        ) from error


def _word(text: str) -> Gold:
    """What a gold answer writes otherwise than JSON does: an option, a truth value, or an expression."""
    said, found = truth(text), value(text)
    if said is not None:
        return said
    if found is None or text.lower() == "e":
        return _option(text)
    return int(found) if isinstance(found, Fraction) and found.denominator == 1 else float(found)


def _numbers(answer: Any) -> list[Any]:
    return _list_of(_float if any(isinstance(item, float) for item in answer) else _integer)(answer)


def _known(found: Any, answer: str, kind: str) -> Any:
    if found is None:
        raise UnreadableAnswerError(f"the answer {answer!r:.80} is not {kind}")
    return found


def _same(given: list[Fraction], gold: int | float, mode: Mode) -> bool:
    """Whether one of the readings of a number is the gold number."""
    same = _official if mode == "official" else _strict
    return any(same(number, gold) for number in given)


def _official(number: Fraction, gold: int | float) -> bool:
    if gold == 0:
        return abs(number) <= _NOISE
    if isinstance(gold, int):
        return round(number) == gold
    return abs(number - Fraction(gold)) <= _TOLERANCE * abs(Fraction(gold))


def _strict(number: Fraction, gold: int | float) -> bool:
    if gold == 0 or not _official(number, gold):
        return _official(number, gold)
    if isinstance(gold, int):
        return abs(number - gold) <= _NOISE * abs(gold)
    exact, exponent = Fraction(repr(gold)), Decimal(repr(gold)).as_tuple().exponent
    noise = _WHOLE_NOISE * abs(exact)
    if exact.denominator == 1:
        return abs(number - exact) <= noise
    return abs(number - exact) <= max(Fraction(10) ** int(exponent) / 2, noise)


def _same_list(given: list[list[Fraction]], gold: list[int] | list[float], mode: Mode) -> bool:
    if len(given) != len(gold):
        return False
    if mode == "official":
        given, gold = sorted(given), sorted(gold)
    return all(_same(item, expected, mode) for item, expected in zip(given, gold, strict=True))


# ------------------------------------------------------------------------------------------------- reading answers

_TRUTHS = {
    "true": True,
    "yes": True,
    "correct": True,
    "t": True,
    "false": False,
    "no": False,
    "incorrect": False,
    "f": False,
}
_TRUTH = re.compile(
    r"(?:(?:the )?(?:(?:final|correct) )?(?:answer|statement|claim|argument|assertion)(?: is)? ?[:=]? ?|it is )?"
    r"(?P<word>true|false|yes|no|correct|incorrect|[tf](?=\.?\Z))(?P<rest>\Z|\s*[.,;:!(—–-].*)",
    re.IGNORECASE | re.DOTALL,
)
_TRUTH_WORD = re.compile(r"\b(?:true|false|yes|no|or|maybe|unless|depends)\b", re.IGNORECASE)


def truth(text: str) -> bool | None:
    """True for `True`, `Yes`, `Correct`, `T`, False for `False`, `No`, `Incorrect`, `F`; the words also with a reason
    after a comma; else None."""
    found = _TRUTH.fullmatch(bare(text).strip("\"'`* "))
    if found is None:
        return None
    said = _TRUTHS[found["word"].lower()]
    others = (_TRUTHS.get(word.lower()) for word in _TRUTH_WORD.findall(found["rest"]))
    return said if all(other is said for other in others) else None


_RELATION = re.compile(r"\\(?:approx|simeq|equiv)(?![A-Za-z])|[≈≃=]")
_MODULO = re.compile(r" ?(?:\\pmod ?(?:\{[^{}]*\}|[0-9]+)|\\(?:b?mod) ?\{?[0-9]+\}?|\(mod [0-9]+\))$")


def numbers(text: str) -> list[Fraction] | None:
    r"""The readings of a number, exactly, or None where `text` is none.

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
    if before and (re.search(r"\bor\b", text) or len(_split(_THOUSANDS.sub("", text))) > 1):
        return None
    found = _readings(unlabelled(last))
    if found is None:
        return None
    for side in before:
        side = unlabelled(side)
        given = None if re.fullmatch(r"[A-Za-z]?", side) else _readings(side)
        if given is not None:
            if not any(_agrees(a, b) for a in given for b in found):
                return None
            found = given + found
    return found


def _agrees(one: Fraction, other: Fraction) -> bool:
    """Whether two sides of a chain may be one number: whole ones exactly, others as far as a side may be rounded."""
    if one.denominator == other.denominator == 1:
        return one == other
    return abs(one - other) <= _ROUNDED * max(abs(one), abs(other))


def _readings(text: str) -> list[Fraction] | None:
    read = read_quantity(text, _exact)
    if read is None:
        return None
    found, percent = read
    if not percent:
        return found
    return [number / 100 for number in found] + [number for number in found if abs(number) > 1]


_LOG = re.compile(r"log(?![A-Za-z]| ?_)")


def _exact(text: str) -> list[Fraction] | None:
    """The value of an expression: two for one with a logarithm whose base is not given."""
    bases = (math.e, 10.0) if _LOG.search(text) else (math.e,)
    found = [Fraction(one) for base in bases if (one := value(text, log_base=base)) is not None]
    return found or None


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
_BOTH_SIGNS = re.compile(r"\\pm(?![A-Za-z])")
_SEPARATOR = re.compile(r"[,;&](?:\s*(?:\\text ?\{ ?and ?\}|and(?=[\s\\])))?|(?<=[\s}])and(?=[\s\\])")


def listed(text: str) -> list[list[Fraction]] | None:
    r"""The readings of each number of a list, in order, or None where `text` is no list of numbers.

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
        inside = _THOUSANDS.sub(lambda found: found[0].replace(",", ""), inside)
    items = [item.strip() for item in _split(inside)]
    if items and not items[-1] and len(items) > 1:
        items.pop()
    found = [reading for item in items for reading in _item(item)]
    return None if any(reading is None for reading in found) else [item for item in found if item is not None]


def _inside(text: str) -> str | None:
    """What the brackets of a list hold; the text itself where there are none; None where they do not match."""
    if matrix := _MATRIX.fullmatch(text):
        return matrix["inside"]
    if re.match(r"[\[⟨]|\\\{|\\langle", text) or re.search(r"[\]⟩]$|\\\}$|[=:] ?[({]", text) or _is_wrapped(text):
        whole = _BRACKETED.fullmatch(text)
        return whole["inside"] if whole and _OPENED[whole["open"]] == whole["close"] else None
    return text


def _is_wrapped(text: str) -> bool:
    """Whether one pair of parentheses or braces holds the whole text."""
    if text[:1] not in ("(", "{"):
        return False
    depth = 0
    for at, char in enumerate(text):
        depth += {"(": 1, "{": 1, ")": -1, "}": -1}.get(char, 0)
        if depth == 0:
            return at == len(text) - 1
    return False


def _split(text: str) -> list[str]:
    """The items between the separators that no bracket holds."""
    items, depth, start, at = [], 0, 0, 0
    while at < len(text):
        depth += {"(": 1, "{": 1, ")": -1, "}": -1}.get(text[at], 0)
        found = _SEPARATOR.match(text, at) if depth == 0 else None
        if found:
            items.append(text[start:at])
            start = found.end()
        at = max(at + 1, found.end() if found else 0)
    return [*items, text[start:]]


def _item(text: str) -> list[list[Fraction] | None]:
    r"""The readings of the one number of an item, or of the two of `\pm 2` and `\frac{-3 \pm \sqrt{17}}{4}`."""
    if not _BOTH_SIGNS.search(text):
        return [numbers(text)]
    return [numbers(_BOTH_SIGNS.sub(sign, text)) for sign in ("+", "-")]


TASK = Task(
    name="theoremqa",
    title="TheoremQA",
    sources={
        "test": Source(
            files=(
                "theoremqa_test.json",
                "theoremqa_test.jsonl",
                "theoremqa_test.parquet",
                "test.json",
                "test-*.parquet",
            ),
            hub_id="TIGER-Lab/TheoremQA",
            hub_split="test",
            num_rows=747,
        )
    },
    problem=problem,
    verdict=boxed(equal),
    same=same_value,
    latex=latex,
    typed_gold=True,
)
