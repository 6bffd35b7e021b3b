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
from tyler.evaluation.statistics import Paired, PairedShares, holm
from tyler.evaluation.store import read_records
from tyler.tasks.task import Mode

COLUMNS = ("task", "n", "1st", "2nd", "points", "95% CI", "only 1st/2nd", "p")
CAPTION = (
    "1st and 2nd: problems solved of n. Points: second less first, with Newcombe's paired 95% interval. Only 1st/2nd: "
    "problems that one of them alone solved. p: exact McNemar test, two-sided. "
    "Where no problem differs the interval is what so many problems resolve."
)
SAMPLES_CAPTION = (
    "Of several answers to a problem: 1st and 2nd are mean shares of right ones, the interval is a bootstrap over "
    "problems, only 1st/2nd counts problems that one solves more often, and p is of sign flips of the mean difference "
    "over problems."
)


@dataclass(frozen=True)
class Pair:
    """Two evaluations on the problems of one task that both answered."""

    task: str
    counts: Paired | PairedShares
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


def _counted(first: Sequence[Answers], second: Sequence[Answers]) -> Paired | PairedShares:
    """Right and wrong of each problem; or shares, where a problem has several answers."""
    samples = max(map(len, first)), max(map(len, second))
    if samples == (1, 1):
        return Paired.of([one[0].correct for one in first], [one[0].correct for one in second])
    shares = (tuple(fmean(one.correct for one in answers) for answers in side) for side in (first, second))
    return PairedShares(*shares)


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
                *_solved(counts),
                f"{100 * counts.difference:+.1f}",
                f"{100 * low:+.1f} to {100 * high:+.1f}",
                f"{counts.only_first}/{counts.only_second}",
                f"{counts.p_value():.2g}",
            )
        )
    return lines


def _solved(counts: Paired | PairedShares) -> tuple[str, str]:
    """Problems solved of n, or where they have several answers the mean share of right ones."""
    if isinstance(counts, Paired):
        return str(counts.first), str(counts.second)
    return f"{100 * fmean(counts.first_shares):.1f}%", f"{100 * fmean(counts.second_shares):.1f}%"


def table(pairs: Sequence[Pair]) -> Table:
    """Paired differences, for the terminal."""
    result = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for column in COLUMNS:
        result.add_column(column, justify="left" if column == "task" else "right", no_wrap=True)
    for line in rows(pairs):
        result.add_row(*line)
    several = any(isinstance(one.counts, PairedShares) for one in pairs)
    result.caption, result.caption_justify = SAMPLES_CAPTION if several else CAPTION, "left"
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
