r"""Reasoning traces from a JSON Lines file, one object a line, for training and for grading (the task `jsonl`):

    {"problem": "What is 2 + 3?", "solution": "We add.\n\n2 + 3 = 5, so the answer is $\\boxed{5}$.", "answer": "5"}

Other keys are ignored. A target has to teach the model to box its answer: where the solution has no box, the paragraph
"The answer is $\boxed{...}$." is appended; where its last box contradicts the answer, the line is refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from tyler.tasks.answers import boxed_answer, exact_number, plain
from tyler.tasks.problem import Problem

_LOOSE_SPACE = re.compile(r" (?=[^\w\s])|(?<=[^\w\s]) ")


def read(path: str | Path, split: str) -> list[Problem]:
    """The problems of a JSONL file, with ids `{split}-{line}`.

    Raises ValueError naming the file, the line and the field of the first line that is broken.
    """
    return [
        Problem(
            id=f"{split}-{line}",
            task="jsonl",
            prompt=row["problem"],
            answer=row["answer"],
            solution=_boxed_solution(row["solution"], row["answer"], f"{path}, line {line}"),
        )
        for line, row in rows(path, ("problem", "solution", "answer"))
    ]


def equal(answer: str, gold: str) -> bool:
    """Whether two answers are the same text up to LaTeX dress and loose spaces, or else the same exact number."""
    if _normalised(answer) == _normalised(gold):
        return True
    number = exact_number(answer)
    return number is not None and number == exact_number(gold)


def final_paragraph(answer: str) -> str:
    r"""How a trace ends that has no box of its own: "The answer is $\boxed{...}$."."""
    return f"The answer is $\\boxed{{{answer}}}$."


def rows(path: str | Path, fields: Sequence[str]) -> Iterator[tuple[int, dict[str, str]]]:
    """Line number (from 1) and the stripped text `fields` of each line; blank lines may only end the file.

    Raises ValueError naming file, line and field for a line that is not UTF-8, not JSON, not an object, or whose field
    is missing, not a string, or empty; and for a file without any line.
    """
    lines = Path(path).read_bytes().removeprefix(b"\xef\xbb\xbf").rstrip().split(b"\n")
    if lines == [b""]:
        raise ValueError(f"{path} is empty; expected one JSON object a line with the fields {', '.join(fields)}")
    for number, line in enumerate(lines, start=1):
        where = f"{path}, line {number}"
        row = _json_object(line, where)
        yield number, {field: _text(row, field, where) for field in fields}


def _json_object(line: bytes, where: str) -> dict[str, object]:
    try:
        row = json.loads(line.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where}: not JSON ({error}); expected one object a line, in UTF-8") from error
    if not isinstance(row, dict):
        raise ValueError(f"{where}: expected a JSON object, got {type(row).__name__}")
    return row


def _text(row: dict[str, object], field: str, where: str) -> str:
    if field not in row:
        raise ValueError(f"{where}: field {field!r} is missing; there is {', '.join(row) or 'none'}")
    text = row[field]
    if not isinstance(text, str):
        raise ValueError(f"{where}: field {field!r} must be a string, got {type(text).__name__} {text!r:.40}")
    if not text.strip():
        raise ValueError(f"{where}: field {field!r} is empty")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ValueError(f"{where}: field {field!r} is not valid Unicode ({error})") from error
    return text.strip()


def _boxed_solution(solution: str, answer: str, where: str) -> str:
    """The solution as a target: ending in a box where it had none, refused where its box is another answer."""
    boxed = boxed_answer(solution)
    if boxed is None:
        return f"{solution}\n\n{final_paragraph(answer)}"
    if not equal(boxed, answer):
        raise ValueError(
            f"{where}: field 'solution' ends in the box {boxed!r:.80}, but field 'answer' is {answer!r:.80}; "
            "correct one of them or drop the line"
        )
    return solution


def _normalised(text: str) -> str:
    """`text` without LaTeX dress, a final period, and spaces that touch punctuation; words stay apart."""
    return _LOOSE_SPACE.sub("", plain(text).removesuffix("."))
