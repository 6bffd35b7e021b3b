r"""GPQA-Diamond (Rein et al., 2023), https://github.com/idavidrein/gpqa: 198 questions with four options each.

The authors ask that no example be shown in plain text, so none is shown here, and messages never show content. Columns:
`Question`, `Correct Answer`, `Incorrect Answer 1`, `Incorrect Answer 2`, `Incorrect Answer 3`, `Explanation`,
`Subdomain`, `High-level domain`, `Record ID`. The data is gated: accept its terms on the Hub, then log in.
"""

import hashlib
from dataclasses import replace
from itertools import permutations

from tyler.tasks.answers.boxed import UnreadableAnswerError, UnreadableGoldError, letter
from tyler.tasks.data_files import Row
from tyler.tasks.problem import GradeOptions, Problem, Verdict
from tyler.tasks.task import Source, Task, boxed, either_way

LETTERS = "ABCD"
INSTRUCTION = "Give only the letter of the correct option as the final answer."

_OPTIONS = ("Correct Answer", "Incorrect Answer 1", "Incorrect Answer 2", "Incorrect Answer 3")
_ORDERS = tuple(permutations(range(len(LETTERS))))


def problem(row: Row, split: str) -> Problem:
    """A row as a problem, its options in the order of its Record ID; `split` does not matter.

    Raises ValueError, without content, for a field that is missing or empty and for options that are not distinct.
    """
    options = [row.text(name) for name in _OPTIONS]
    for at, option in enumerate(options):
        if option in options[:at]:
            raise row.error(_OPTIONS[at], f"must differ from field {_OPTIONS[options.index(option)]!r}")
    record = row.text("Record ID")
    ordered = order(record)
    listed = "\n".join(f"{name}) {options[index]}" for name, index in zip(LETTERS, ordered, strict=True))
    return Problem(
        id=record,
        task="gpqa",
        prompt=f"{row.text('Question')}\n\n{listed}\n\n{INSTRUCTION}",
        answer=LETTERS[ordered.index(0)],
        family=row.text("High-level domain"),
        question=row.text("Question"),
    )


def order(record: str) -> tuple[int, ...]:
    """The order of the options of a record: which of them (0 is the correct one) stands at A, at B, and so on.

    SHA-256 of the Record ID, as a number modulo 24, picks from the permutations in lexicographic order. So it is the
    same on every machine and in every run, and depends on no other row.
    """
    return _ORDERS[int.from_bytes(hashlib.sha256(record.encode()).digest(), "big") % len(_ORDERS)]


def equal(answer: str, gold: str, options: GradeOptions) -> bool:
    """Whether the answer chooses the gold letter. Raises UnreadableAnswerError where it chooses no single letter."""
    if gold not in tuple(LETTERS):
        raise UnreadableGoldError(f"the gold answer must be one of {', '.join(LETTERS)}")
    chosen = letter(answer, LETTERS)
    if chosen is None:
        raise UnreadableAnswerError(f"the answer is not a single letter of {', '.join(LETTERS)}")
    return chosen == gold


_boxed = boxed(equal)


def verdict(completion: str, gold: str, options: GradeOptions) -> Verdict:
    """The verdict on the last box, of which the letter is kept and no more: the option's text may stand beside it."""
    graded = _boxed(completion, gold, options)
    return replace(graded, answer=None if graded.answer is None else letter(graded.answer, LETTERS))


TASK = Task(
    name="gpqa",
    title="GPQA-Diamond",
    sources={
        "test": Source(
            files=("gpqa_diamond.csv",),
            hub_id="Idavidrein/gpqa",
            hub_subset="gpqa_diamond",
            hub_split="train",
            num_rows=198,
            gated=True,
        )
    },
    problem=problem,
    verdict=verdict,
    same=either_way(equal),
    private=True,
)
