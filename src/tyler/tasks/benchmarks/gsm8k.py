r"""GSM8K (Cobbe et al., 2021), https://github.com/openai/grade-school-math: 7,473 training and 1,319 test problems.

A line as published:

    {"question": "Natalia sold clips to 48 of her friends in April, and then she sold half as many clips in May. ...",
     "answer": "Natalia sold 48/2 = <<48/2=24>>24 clips in May.\nNatalia sold 48+24 = <<48+24=72>>72 ...\n#### 72"}
"""

import re
from fractions import Fraction

from tyler.tasks.answers.boxed import UnreadableAnswerError, UnreadableGoldError, bare
from tyler.tasks.answers.expressions import value
from tyler.tasks.answers.quantities import MAX_LENGTH, number, read_quantity, unlabelled
from tyler.tasks.benchmarks.jsonl import final_paragraph
from tyler.tasks.data_files import Row
from tyler.tasks.problem import GradeOptions, Problem
from tyler.tasks.task import Source, Task, mathematical

_CALCULATION = re.compile(r"<<[^<>]*>>")
_THOUSANDS = re.compile(r"[0-9] ?(?:[kKM]|bn)(?![A-Za-z])")


def problem(row: Row, split: str) -> Problem:
    """A published row as a problem, with id `{split}-{line}`. Raises ValueError by file, line and field."""
    answer = row.text("answer")
    steps, mark, gold = answer.rpartition("#### ")
    if not mark or quantity(gold) is None:
        raise row.error("answer", f"must end in '#### NUMBER', got{row.shown(answer)}")
    return Problem(f"{split}-{row.number}", "gsm8k", row.text("question"), gold, solution=trace(steps, gold))


def trace(steps: str, gold: str) -> str:
    """The target: the steps of the source without calculator annotations, one paragraph each, and the boxed answer."""
    # Deviation: the source separates steps by a single newline, which is not a reasoning-step boundary of the paper
    # (O_s follows a blank line); each step becomes a paragraph, so that O_s has positions to be trained at.
    lines = [line.strip() for line in _CALCULATION.sub("", steps).splitlines()]
    return "\n\n".join([*filter(None, lines), final_paragraph(gold)])


def equal(answer: str, gold: str, options: GradeOptions) -> bool:
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
    r"""The exact number of a quantity such as `\$1,234.50`, `10\%`, `x = 5`, `18 \text{ dollars}` or `5 \frac{1}{2}`.

    A true calculation may come before it (`9 \times 2 = 18`), and `2 million` is 2000000. None where it is not one
    number: `3 or 4`, `3 + 4`, `3:30`, `12,34`, `2k` and `2 dozen` (a unit must not scale the number).
    """
    if len(text) > MAX_LENGTH:
        return None
    *before, last = unlabelled(bare(text)).split("=")
    last = unlabelled(last)
    read = None if _THOUSANDS.search(last) else read_quantity(last, number)
    if read is None or any(value(side.replace(r"\$", "")) != read[0] for side in before):
        return None
    return read[0]


TASK = Task(
    name="gsm8k",
    title="GSM8K",
    sources={
        split: Source(
            files=(f"gsm8k_{split}.jsonl", f"{split}.jsonl", f"main/{split}-*.parquet"),
            hub_id="openai/gsm8k",
            hub_subset="main",
            hub_split=split,
            num_rows=num_rows,
        )
        for split, num_rows in (("test", 1319), ("train", 7473))
    },
    problem=problem,
    **mathematical(equal),
)
