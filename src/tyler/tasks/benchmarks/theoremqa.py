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

import json
import math
import re
from decimal import Decimal
from fractions import Fraction
from functools import partial
from typing import Annotated, Any

from pydantic import AfterValidator, AllowInfNan, Field, Strict, StrictBool, StrictInt, StrictStr, TypeAdapter

from tyler.tasks.answers.boxed import UnreadableAnswerError, UnreadableGoldError, bare, letter, plain
from tyler.tasks.answers.expressions import value
from tyler.tasks.answers.latex import both_signs, bracketed, split
from tyler.tasks.answers.quantities import MAX_LENGTH, read_quantity, unlabelled
from tyler.tasks.data_files import Row
from tyler.tasks.problem import GradeOptions, Mode, Problem
from tyler.tasks.task import Source, Task, boxed

INSTRUCTION = (
    "The answer is one of these: a number such as 0.1, without a unit; a list of numbers such as [2, 3, 4]; "
    "True or False; an option such as (a)."
)
"""The forms the official prompt names, the same for every question, so that it does not give away the answer's type."""

Finite = Annotated[float, Strict(), AllowInfNan(False)]
_TOLERANCE = Fraction(4, 100)
_NOISE = Fraction(1, 10**9)
_WHOLE_NOISE = Fraction(1, 10**6)


def problem(row: Row, split: str) -> Problem | None:
    """A row as a problem, or None for one with a picture. Raises ValueError by file, line and field."""
    if _has_picture(row.fields.get("Picture")):
        return None
    kind = row.text("Answer_type")
    if kind not in _KINDS:
        raise row.error("Answer_type", f"must be one of {', '.join(_KINDS)}, got{row.shown(kind)}")
    answer = row.get("Answer", object, "an answer")
    try:
        gold = _KINDS[kind].validate_python(_typed(answer))
    except ValueError as error:
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
    return (
        any(picture.values()) if isinstance(picture, dict) else str(picture).strip().lower() not in ("", "none", "null")
    )


def _typed(answer: object) -> object:
    """The Hub's text as the value it writes: JSON, Python's `True` and `False`, or itself."""
    if not isinstance(answer, str):
        return answer
    text = {"True": "true", "False": "false"}.get(answer.strip(), answer.strip())
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _option(answer: str) -> str:
    if (chosen := letter(answer, "abcdef")) is None:
        raise ValueError("not an option")
    return f"({chosen})"


Integers = Annotated[list[StrictInt], Field(min_length=1)]
Floats = Annotated[list[Finite], Field(min_length=1)]
_KINDS: dict[str, TypeAdapter[Any]] = {
    "bool": TypeAdapter(StrictBool),
    "integer": TypeAdapter(StrictInt),
    "float": TypeAdapter(Finite),
    "option": TypeAdapter(Annotated[StrictStr, AfterValidator(_option)]),
    "list of integer": TypeAdapter(Integers),
    "list of float": TypeAdapter(Floats),
}
_ANY_KIND: TypeAdapter[Any] = TypeAdapter(StrictBool | StrictInt | Finite | Integers | Floats)


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


def equal(answer: str, gold: str, options: GradeOptions) -> bool:
    """Whether an answer is the gold answer, whose type says how they compare.

    Raises UnreadableAnswerError for an answer of another kind (a word for a number, several options), and
    UnreadableGoldError for a gold answer of an unknown type.
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
        if (chosen := read(answer)) is not None:
            return chosen == read(other)
    given, expected = listed(answer), listed(other)
    if given is None or expected is None:
        return plain(answer) == plain(other)
    return len(given) == len(expected) and all(map(_agree, given, expected))


def _agree(given: list[Fraction], expected: list[Fraction]) -> bool:
    """Whether two numbers have a reading in common."""
    return any(abs(a - b) <= _NOISE * max(abs(a), abs(b)) for a in given for b in expected)


def gold_value(gold: str) -> Any:
    """The typed value of a gold answer: JSON as in `Problem.answer`, or what it leniently may be (`True`, `c`, `1/3`).

    Raises UnreadableGoldError for anything else.
    """
    typed = _typed(gold)
    try:
        return _word(typed) if isinstance(typed, str) else _ANY_KIND.validate_python(typed)
    except (ValueError, OverflowError) as error:
        raise UnreadableGoldError(
            f"the gold answer {gold!r:.80} is not a number, truth value, option or list of numbers"
        ) from error


def _word(text: str) -> bool | int | float | str:
    """What a gold answer writes otherwise than JSON does: an option, a truth value, or an expression."""
    truth_value, number = truth(text), value(text)
    if truth_value is not None:
        return truth_value
    if number is None or text.lower() == "e":
        return _option(text)
    return int(number) if isinstance(number, Fraction) and number.denominator == 1 else float(number)


def _known(reading: Any, answer: str, kind: str) -> Any:
    if reading is None:
        raise UnreadableAnswerError(f"the answer {answer!r:.80} is not {kind}")
    return reading


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


TASK = Task(
    name="theoremqa",
    title="TheoremQA",
    sources={
        "test": Source(
            files=("theoremqa_test.json", "test.json", "test-*.parquet"), hub_id="TIGER-Lab/TheoremQA", num_rows=747
        )
    },
    problem=problem,
    verdict=boxed(equal),
    same=same_value,
    typed_gold=True,
)
