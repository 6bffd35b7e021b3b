"""What a task says of itself: where its rows come from, how a row becomes a problem, and how an answer is graded."""

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tyler.tasks.answers.boxed import UnreadableAnswerError, UnreadableGoldError, boxed_answer, plain
from tyler.tasks.data_files import Row
from tyler.tasks.problem import GradeOptions, Outcome, Problem, Verdict

Equal = Callable[[str, str, GradeOptions], bool]
"""Whether an answer and a gold answer are the same; raises UnreadableAnswerError, UnreadableGoldError, TimeoutError."""
Same = Callable[[str, str], bool]
"""Whether two answers, of which neither is the gold one, say the same; raises nothing."""


def either_way(equal: Equal) -> Same:
    """Two answers are the same where the grader would take either of them for a gold answer that is the other."""

    def same(answer: str, other: str) -> bool:
        return plain(answer) == plain(other) or _accepted(equal, answer, other) or _accepted(equal, other, answer)

    return same


def _accepted(equal: Equal, answer: str, gold: str) -> bool:
    try:
        return equal(answer, gold, GradeOptions(deadline=1.0))
    except (ArithmeticError, MemoryError, RecursionError, TimeoutError, ValueError):
        return False


@dataclass(frozen=True)
class Source:
    """Where the rows of one split come from: a file in a data directory, or the Hub."""

    files: tuple[str, ...]
    """Names that the split's file has in official releases, or patterns for several (`train-*.parquet`); the first
    that is there is read. Where the ending differs (`.csv` for `.jsonl`), the file is found too."""
    hub_id: str | None = None
    """None where the Hub does not have it: then the file is needed, and `url` says where it is."""
    hub_subset: str | None = None
    hub_split: str = "test"
    num_rows: int | None = None
    """Problems expected in the whole split; None where any number will do."""
    gated: bool = False
    url: str | None = None
    """Where the authors publish the file."""


@dataclass(frozen=True, kw_only=True)
class Graded:
    """What tasks of both kinds say of themselves."""

    name: str
    title: str
    """As papers write it; it can be named by it too."""
    verdict: Callable[[str, str, GradeOptions], Verdict]
    """Completion and gold answer to a verdict: outcome and answer."""
    same: Same = operator.eq
    """Whether two answers share a ballot in a majority vote."""
    private: bool = False
    """The authors ask that no example be shown in plain text: prompts and completions stay out of records."""
    typed_gold: bool = False
    """`grade` takes gold answers as booleans, numbers and lists too, which are read as JSON."""
    runs_code: bool = False
    """Grading runs the programs of the model, where that is allowed."""


@dataclass(frozen=True, kw_only=True)
class Task(Graded):
    """One benchmark. Its module in `tyler.tasks.benchmarks` defines one as TASK and has its name."""

    sources: Mapping[str, Source]
    """By split; the first is the one evaluations report. None for a task that reads whatever file it is given."""
    problem: Callable[[Row, str], Problem | None]
    """A row and its split to a problem, or None for rows the split leaves out (pictures). Raises ValueError."""


@dataclass(frozen=True, kw_only=True)
class Generated(Graded):
    """A task that makes its own problems. A module of one defines it as TASK too."""

    sources: Mapping[str, Source | None]
    """By split, whose rows the problems are made from, or None; the first split is the one evaluations report."""
    load: Callable[[str, int | None, int, Sequence[Row]], list[Problem]]
    """The problems of a split: `count` of them (None: its default), drawn with a seed, from the rows of its source."""


def boxed(equal: Equal) -> Callable[[str, str, GradeOptions], Verdict]:
    """A verdict from the last box of a completion, compared by `equal`."""

    def verdict(completion: str, gold: str, options: GradeOptions) -> Verdict:
        answer = boxed_answer(completion)
        if answer is None:
            return Verdict(Outcome.NO_BOX)
        try:
            return Verdict(Outcome.CORRECT if equal(answer, gold, options) else Outcome.WRONG, answer)
        except UnreadableAnswerError as error:
            return Verdict(Outcome.UNPARSABLE, answer, reason=str(error))
        except UnreadableGoldError as error:
            return Verdict(Outcome.GOLD_ERROR, answer, reason=str(error))
        except TimeoutError as error:
            return Verdict(Outcome.TIMEOUT, answer, reason=str(error))

    return verdict


def mathematical(equal: Equal) -> dict[str, Any]:
    """How a task grades whose boxed answers are mathematics, compared by `equal`, in votes too."""
    return {"verdict": boxed(equal), "same": either_way(equal)}
