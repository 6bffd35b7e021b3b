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
from decimal import Decimal
from fractions import Fraction
from functools import partial
from typing import Annotated, Any

from pydantic import AfterValidator, AllowInfNan, Field, Strict, StrictBool, StrictInt, StrictStr, TypeAdapter

from tyler.tasks.answers.boxed import UnreadableAnswerError, UnreadableGoldError, letter, plain
from tyler.tasks.answers.expressions import value
from tyler.tasks.answers.readings import listed, numbers, truth, unfinished
from tyler.tasks.data_files import Row
from tyler.tasks.problem import Problem
from tyler.tasks.task import GradeOptions, Mode, Source, Task, boxed

INSTRUCTION = (
    "The answer is one of these: a number such as 0.1, without a unit; a list of numbers such as [2, 3, 4]; "
    "True or False; an option such as (a)."
)
"""The forms the official prompt names, the same for every question, so that it does not give away the answer's type."""

Finite = Annotated[float, Strict(), AllowInfNan(False)]
_TOLERANCE = Fraction(4, 100)
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


# ---------------------------------------------------------------------------------------------------------- grading


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
    typed_gold=True,
)
