"""What every task is made of: a problem with its gold answer, and the verdict on one completion."""

import hashlib
import re
import unicodedata
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal


@dataclass(frozen=True)
class Problem:
    """One problem of a task.

    `id` is unique within the task; `prompt` is what the model is asked, before any chat template; `answer` is the gold
    answer as the task's grader wants it; `solution` is a worked trace for training, or None; `family` and `level` group
    problems in reports ("" and 0 where a task has neither). `instruction` replaces the one that is otherwise added to
    every prompt, for a task whose answer is not a box; None keeps the other. `question` is what is asked, where the
    prompt adds options or an instruction to it; None where the prompt is the question. `sample` says which of several
    answers to it is meant: each has a random stream of its own.
    """

    id: str
    task: str
    prompt: str
    answer: str
    solution: str | None = None
    family: str = ""
    level: int = 0
    instruction: str | None = None
    question: str | None = None
    sample: int = 0

    @property
    def key(self) -> tuple[str, str, int]:
        """Names an answer to it."""
        return self.task, self.id, self.sample

    def content(self) -> tuple[object, ...]:
        """What a run learns from it."""
        return self.id, self.prompt, self.answer, self.solution, self.instruction


class Outcome(StrEnum):
    """How one completion fared. Only CORRECT scores; a gold answer that cannot be read is GOLD_ERROR."""

    CORRECT = "correct"
    WRONG = "wrong"
    NO_BOX = "no_box"
    TRUNCATED = "truncated"
    UNPARSABLE = "unparsable"
    TIMEOUT = "timeout"
    GOLD_ERROR = "gold_error"
    TOO_LONG = "too_long"
    """The problem leaves no room for an answer in the model's context, and was not asked."""


@dataclass(frozen=True)
class Verdict:
    """The grader's word on one completion: the outcome and the answer it read (None where it found none).

    `reason` says why an answer could not be read or a program failed, in words; "" where nothing is to be said.
    """

    outcome: Outcome
    answer: str | None = None
    reason: str = ""

    @property
    def correct(self) -> bool:
        return self.outcome is Outcome.CORRECT


_DRESS = re.compile(r"\\(?:[,;:!() \[\]]|(?:left|right|displaystyle|q?quad)(?![A-Za-z])|[dt](?=frac))|[~\s]+")
_PUNCTUATION = re.compile(r"[;:!?\"'`$\\{}‘’“”]|(?<!\d)[.,]|[.,](?!\d)|,(?=\d{3}(?!\d))")


def fingerprint(text: str) -> bytes:
    """A hash of a problem's text that case, spaces (LaTeX's too), math delimiters and punctuation do not change.

    Operators, parentheses and decimal points stay, so that `2 + 3` is not `2 - 3`, nor `1.5` the same as `15`.
    """
    text = _PUNCTUATION.sub("", _DRESS.sub("", unicodedata.normalize("NFKC", text)))
    return hashlib.sha256(text.casefold().encode("utf-8", "surrogatepass")).digest()


_THINK, _END_OF_THOUGHT = "<think>", "</think>"


def leaves_thought_open(prompt: str) -> bool:
    """Whether a rendered prompt ends in an open thought, as chat templates write it for reasoning models."""
    return prompt.rstrip().endswith(_THINK)


def after_thought(completion: str, *, opened: bool = False) -> str:
    """What follows the thought that a completion begins with; "" where that thought never ends.

    `opened`: the prompt has opened the thought (`leaves_thought_open`), and all up to `</think>` belongs to it. Else
    the thought is a leading `<think>...</think>`, or what stands before a `</think>` that no `<think>` precedes.
    """
    before, end, after = completion.partition(_END_OF_THOUGHT)
    if opened or before.lstrip().startswith(_THINK) or (end and _THINK not in before):
        return after
    return completion


Mode = Literal["official", "strict"]
"""How TheoremQA compares; `tyler.tasks.benchmarks.theoremqa` says what each means."""


@dataclass(frozen=True)
class GradeOptions:
    """How answers are graded."""

    mode: Mode = "official"
    """How TheoremQA compares numbers: with its official tolerance, or to the digits that are given."""
    deadline: float = 5.0
    """Seconds that grading one answer may take; then the verdict is TIMEOUT."""
    allow_code_execution: bool = False
    """Let humaneval run the programs of the model, in a sandbox."""
    allow_unsafe_code_execution: bool = False
    """Run them without a sandbox where this machine has none."""
    packages: tuple[str, ...] = ("numpy",)
    """Packages of this environment that programs may import, beside Python's own; an empty list for none."""
