"""Several answers to each problem: pass@k, and what a majority of them says."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

from tyler.evaluation.answers import Record
from tyler.evaluation.statistics import clustered, pass_at
from tyler.tasks import ballots


@dataclass(frozen=True)
class Estimate:
    """A share over problems with its 95% interval, all in [0, 1]."""

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, shares: Sequence[float], samples: int = 1) -> Estimate:
        """The mean over problems; see `statistics.clustered`."""
        return cls(fmean(shares), *clustered(shares, samples))


def by_problem(records: Iterable[Record]) -> dict[tuple[str, str], list[Record]]:
    """The answers to each problem in the order of their samples."""
    found: defaultdict[tuple[str, str], list[Record]] = defaultdict(list)
    for record in records:
        found[record.problem].append(record)
    return {problem: sorted(answers, key=lambda one: one.sample) for problem, answers in found.items()}


def powers(samples: int) -> list[int]:
    """The k of pass@k and maj@k that are reported: 1, 2, 4, ... and all of them."""
    return sorted({*(2**n for n in range(samples.bit_length()) if 2**n <= samples), samples})


def pass_at_k(records: Sequence[Record]) -> dict[int, Estimate]:
    """The chance that one of k answers is right, by k, without bias; over as many answers as every problem has."""
    return _estimates(records, lambda answers, k: pass_at(k, sum(one.correct for one in answers), len(answers)))


def majority_at_k(records: Sequence[Record]) -> dict[int, Estimate]:
    """How often the answer that most of k gave is right, by k: the mean over as many groups of k as there are."""
    return _estimates(records, lambda answers, k: fmean(vote(group) for group in _groups(answers, k)))


def _estimates(records: Sequence[Record], share: Callable[[list[Record], int], float]) -> dict[int, Estimate]:
    problems = by_problem(records).values()
    fewest = min(map(len, problems))
    return {k: Estimate.of([share(answers, k) for answers in problems], max(1, fewest // k)) for k in powers(fewest)}


def _groups(answers: list[Record], k: int) -> list[list[Record]]:
    """Answers in groups of k, in their order; what is left over is in none."""
    return [answers[start : start + k] for start in range(0, len(answers) - k + 1, k)]


def vote(answers: Sequence[Record]) -> float:
    """The chance that the most frequent answer is right, where a tie is broken by lot; 0 where none has an answer.

    Answers are the same where their task's grader says so (`tyler.tasks.grading`); the gold answer has no say in that.
    """
    given = [one for one in answers if one.answer is not None]
    cast = ballots(given[0].task, [one.answer or "" for one in given]) if given else []
    most = max(map(len, cast), default=0)
    shares = [fmean(given[place].correct for place in ballot) for ballot in cast if len(ballot) == most]
    return fmean(shares) if shares else 0.0
