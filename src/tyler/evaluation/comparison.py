"""Two evaluations on the same problems: the paired difference, and whether it may be chance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from rich.console import Console
from rich.table import Table

from tyler.evaluation.answers import Record
from tyler.evaluation.budget_matching import TOLERANCE, cost_of, is_close
from tyler.evaluation.samples import by_problem
from tyler.evaluation.statistics import Paired, holm
from tyler.evaluation.store import read_records
from tyler.tasks.task import Mode

COLUMNS = ("task", "n", "1st", "2nd", "points", "95% CI", "better 1st/2nd", "p")
CAPTION = (
    "1st and 2nd: the share of right answers. Points: second less first, with a 95% bootstrap interval over problems; "
    "where no problem differs, what so many problems resolve. Better 1st/2nd: problems that one of them solves more "
    "often. p: sign flips of the mean difference over problems, two-sided; with one answer each it is McNemar's."
)


@dataclass(frozen=True)
class Pair:
    """Two evaluations on the problems of one task that both answered."""

    task: str
    counts: Paired
    unmatched: int
    """Problems that only one of them answered; they are left out."""
    tokens: tuple[float, float]
    """Mean visible tokens and latents per answer, of each."""


def pair(first: Sequence[Record], second: Sequence[Record]) -> list[Pair]:
    """Match the records of two evaluations by task and problem.

    Raises ValueError when they have no problem in common, or one problem has two gold answers.
    """
    left, right = by_problem(first), by_problem(second)
    common = [key for key in left if key in right]
    if not common:
        raise ValueError("the two evaluations have no problem in common; evaluate both on the same task and split")
    if changed := [key for key in common if _question(left[key]) != _question(right[key])]:
        raise ValueError(f"problem {changed[0]} is not the same in both evaluations ({len(changed)} such problems)")
    pairs = []
    for task in dict.fromkeys(task for task, _ in common):
        keys = [key for key in common if key[0] == task]
        counts = _counted([left[key] for key in keys], [right[key] for key in keys])
        in_either = sum(key[0] == task for key in {*left, *right})
        first_tokens, second_tokens = (cost_of([one for key in keys for one in side[key]]) for side in (left, right))
        tokens = first_tokens, second_tokens
        pairs.append(Pair(task, counts, in_either - len(keys), tokens))
    return pairs


Answers = Sequence[Record]
"""All answers to one problem."""


def _question(answers: Answers) -> tuple[str, str]:
    return answers[0].gold, answers[0].prompt


def _counted(first: Sequence[Answers], second: Sequence[Answers]) -> Paired:
    """The share of right answers to each problem."""
    return Paired(*(tuple(fmean(one.correct for one in answers) for answers in side) for side in (first, second)))


def rows(pairs: Sequence[Pair]) -> list[tuple[str, ...]]:
    """One row per pair, as in COLUMNS."""
    lines: list[tuple[str, ...]] = []
    for one in pairs:
        counts = one.counts
        low, high = counts.interval()
        lines.append(
            (
                one.task,
                str(counts.count),
                *(f"{100 * fmean(shares):.1f}%" for shares in (counts.first_shares, counts.second_shares)),
                f"{100 * counts.difference:+.1f}",
                f"{100 * low:+.1f} to {100 * high:+.1f}",
                f"{counts.only_first}/{counts.only_second}",
                f"{counts.p_value():.2g}",
            )
        )
    return lines


def table(pairs: Sequence[Pair]) -> Table:
    """Paired differences, for the terminal."""
    result = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for column in COLUMNS:
        result.add_column(column, justify="left" if column == "task" else "right", no_wrap=True)
    for line in rows(pairs):
        result.add_row(*line)
    result.caption, result.caption_justify = CAPTION, "left"
    return result


def run(first: Path, *others: Path, mode: Mode = "official") -> list[Pair]:
    """`tyler eval --compare FIRST OTHER ...`: print the paired difference of each of the others to the first.

    Several comparisons are a family: their p-values are told with Holm's adjustment.
    """
    console, base = Console(), read_records(first, mode)
    found: list[Pair] = []
    for other in others:
        pairs = pair(base, read_records(other, mode))
        console.print(f"1st: {first}\n2nd: {other}\n", highlight=False, soft_wrap=True)
        console.print(table(pairs))
        for one in pairs:
            console.print(cost_in_words(one), highlight=False)
        if unmatched := sum(one.unmatched for one in pairs):
            console.print(f"left out: {unmatched} problems that only one of them answered")
        found += pairs
    if len(found) > 1:
        adjusted = ", ".join(f"{p:.2g}" for p in holm([one.counts.p_value() for one in found]))
        console.print(f"{len(found)} comparisons; Holm's p, in their order: {adjusted}", highlight=False)
    return found


def cost_in_words(one: Pair) -> str:
    """The tokens of both sides, and whether they are close."""
    first, second = one.tokens
    close = "within" if is_close(second, first) else "not within"
    ratio = f"ratio {second / first:.2f}, {close} {TOLERANCE:.0%}" if first else "there is no ratio to none"
    return f"{one.task}: {first:.1f} and {second:.1f} tokens per answer, visible and latent; {ratio}"
