"""The rows of the store: an answer, and an answer with the verdict on it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from operator import attrgetter, itemgetter
from typing import Any

from tyler.engine.trajectory import Invocation
from tyler.tasks import Outcome, Problem, Verdict

Key = tuple[str, str, int]
"""Names an answer within an evaluation: the task, the problem's id, and which sample of its answers it is."""

FAILED = "failed"
"""Begins the finish reason of an answer that a server refused to give; it counts as wrong."""

TIMES = ("seconds", "synthesis_seconds", "engine_seconds")


def three_digits(seconds: float) -> float:
    """A time as it is kept: to half a per cent, for more digits would take more room than the text of an answer."""
    return float(f"{seconds:.3g}")


@dataclass(frozen=True, kw_only=True)
class Answer:
    """One answer to a problem, ungraded: a row of the store.

    Tokens are counts, times are seconds: `seconds` from the answer's start to its end; `engine_seconds` of the passes
    that served it, each split over the rows it served (None where it was not kept), `synthesis_seconds` of that in
    operators; `elapsed` since this evaluation began (or resumed, for the `session`-th time) until it was answered.
    `sample` counts the answers to one problem from 0, `seed` is that of its random stream. `thought_open` says whether
    the prompt ends inside a thought. `text` is None where only the verdict was kept, `invocations` where the calls were
    not.
    """

    task: str
    id: str
    sample: int = 0
    seed: int | None = None
    family: str = ""
    level: int = 0
    prompt: str = ""
    gold: str = ""
    text: str | None = None
    finish_reason: str = ""
    thought_open: bool = False
    visible_tokens: int = 0
    latents: int = 0
    invocations: tuple[Invocation, ...] | None = ()
    seconds: float = 0.0
    synthesis_seconds: float = 0.0
    engine_seconds: float | None = None
    elapsed: float = 0.0
    session: int = 0
    rank: int = 0

    @property
    def key(self) -> Key:
        return self.task, self.id, self.sample

    @property
    def problem(self) -> tuple[str, str]:
        """Names the problem: several answers to it have this in common."""
        return self.task, self.id

    @property
    def calls(self) -> tuple[Invocation, ...]:
        """The operator calls that are known."""
        return self.invocations or ()

    @property
    def truncated(self) -> bool:
        """Whether the answer stopped at its length limit."""
        return self.finish_reason == "length"

    @classmethod
    def to(cls, problem: Problem, **columns: Any) -> Answer:
        """An answer to a problem, with the other columns that are known of it."""
        of_problem = {name: getattr(problem, name) for name in ("task", "id", "sample", "family", "level", "prompt")}
        times = {name: three_digits(columns[name]) for name in TIMES if columns.get(name) is not None}
        return cls(**of_problem, gold=problem.answer, **columns | times)

    @classmethod
    def from_row(cls, row: Mapping[str, Any], where: str) -> Answer:
        """A line or a Parquet row. Raises ValueError, naming `where`, for a row of another format."""
        if differing := sorted(row.keys() ^ set(ORDER)):
            raise ValueError(f"{where} is not an answer of this version of tyler; columns that differ: {differing}")
        calls = row["invocations"]
        invocations = None if calls is None else tuple(Invocation(**call) for call in calls)
        return cls(**{**row, "invocations": invocations})

    def row(self) -> dict[str, Any]:
        """Its columns, in plain types."""
        calls = None if self.invocations is None else [asdict(call) for call in self.invocations]
        return {name: getattr(self, name) for name in ORDER} | {"invocations": calls}

    def graded(self, verdict: Verdict) -> Record:
        """The answer with a verdict."""
        return Record(**{name: getattr(self, name) for name in ORDER}, **vars(verdict))


ORDER = tuple(field.name for field in fields(Answer))
VERDICT = tuple(field.name for field in fields(Verdict))
"""The columns of an answer, and those of a verdict beside the ones that name its answer."""


@dataclass(frozen=True, kw_only=True)
class Record(Answer):
    """An answer and the verdict on it: what reports, comparisons and pages are made of.

    `answer` is what the grader read, `reason` why it could not be read or why a program failed.
    """

    outcome: Outcome
    answer: str | None = None
    reason: str = ""

    @property
    def correct(self) -> bool:
        return self.outcome is Outcome.CORRECT

    def verdict_row(self) -> dict[str, Any]:
        """The columns of its verdict."""
        return {name: getattr(self, name) for name in ("task", "id", "sample", *VERDICT)}


GRADED = ("task", "id", "sample", "text", "gold", "finish_reason", "thought_open")
"""The columns of an answer on which a verdict depends."""


def digest(answers: Iterable[Answer]) -> str:
    """A hash of what verdicts depend on, of answers in any order."""
    hashed = hashlib.sha256()
    for row in sorted(map(attrgetter(*GRADED), answers), key=itemgetter(0, 1, 2)):
        hashed.update(json.dumps(row).encode())
    return hashed.hexdigest()[:16]
