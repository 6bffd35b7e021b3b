r"""GSM8K (Cobbe et al., 2021), https://github.com/openai/grade-school-math: 7,473 training and 1,319 test problems.

A line as published:

    {"question": "Natalia sold clips to 48 of her friends in April, and then she sold half as many clips in May. ...",
     "answer": "Natalia sold 48/2 = <<48/2=24>>24 clips in May.\nNatalia sold 48+24 = <<48+24=72>>72 ...\n#### 72"}
"""

from __future__ import annotations

import re
from fractions import Fraction
from pathlib import Path

from tyler.tasks.answers import UnreadableAnswerError, UnreadableGoldError, exact_number, plain
from tyler.tasks.problem import Problem
from tyler.tasks.traces import final_paragraph, rows

_CALCULATION = re.compile(r"<<[^<>]*>>")
_CURRENCY = r"(?:\\?[$€£] ?)?"
_UNIT = r"(?:\\?[%$€£] ?)?(?:[/(-]? ?[A-Za-z°][A-Za-z ./'()°-]*)?"
_QUANTITY = re.compile(rf"{_CURRENCY}(?P<sign>[+-]? ?){_CURRENCY}(?P<number>\S.*?(?<=[0-9.}}])) ?(?P<unit>{_UNIT})")
_NUMERAL = re.compile(r"\b(?:hundred|thousand|million|billion|trillion|or|to)\b", re.IGNORECASE)


def read(path: str | Path, split: str) -> list[Problem]:
    """The problems of one published file (`train.jsonl`, `test.jsonl`), with ids `{split}-{line}`.

    Raises ValueError naming the file, the line and the field of the first line that is broken.
    """
    problems = []
    for line, row in rows(path, ("question", "answer")):
        steps, mark, gold = row["answer"].rpartition("#### ")
        if not mark or exact_number(gold) is None:
            raise ValueError(
                f"{path}, line {line}: field 'answer' must end in '#### NUMBER', got {row['answer']!r:.80}"
            )
        problems.append(
            Problem(f"{split}-{line}", "gsm8k", prompt=row["question"], answer=gold, solution=trace(steps, gold))
        )
    return problems


def trace(steps: str, gold: str) -> str:
    """The target: the steps of the source without calculator annotations, one paragraph each, and the boxed answer."""
    # Deviation: the source separates steps by a single newline, which is not a reasoning-step boundary of the paper
    # (O_s follows a blank line); each step becomes a paragraph, so that O_s has positions to be trained at.
    lines = [line.strip() for line in _CALCULATION.sub("", steps).splitlines()]
    return "\n\n".join([*filter(None, lines), final_paragraph(gold)])


def equal(answer: str, gold: str) -> bool:
    r"""Whether two quantities are the same exact number, after stripping `$`, `%`, units and thousands separators.

    Raises UnreadableAnswerError or UnreadableGoldError where one is not a single number.
    """
    expected = quantity(gold)
    if expected is None:
        raise UnreadableGoldError(f"the gold answer {gold!r:.80} is not a number")
    given = quantity(answer)
    if given is None:
        raise UnreadableAnswerError(f"the answer {answer!r:.80} is not a number")
    return given == expected


def quantity(text: str) -> Fraction | None:
    r"""The number of a quantity such as `\$1,234.50`, `10\%`, `18 \text{ dollars per day}` or `12 \text{ cm}^2`.

    None where it is not one number: `3 or 4`, `x = 5`, `2 million` (a unit must not scale the number).
    """
    if len(text) > 256:
        return None
    bare = re.sub(r"(?<=[A-Za-z]) ?\^\{?[23]\}?$", "", plain(re.sub(r"\^\{?\\circ\}?", "°", text)))
    found = _QUANTITY.fullmatch(bare)
    if found is None or _NUMERAL.search(found["unit"]):
        return None
    return exact_number(found["sign"] + found["number"])
