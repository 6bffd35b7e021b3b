"""Two evaluations on the same problems: the paired difference, and whether it may be chance."""

from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from statistics import fmean

from rich.console import Console

from tyler.evaluation.answers import Record
from tyler.evaluation.budget_matching import TOLERANCE, cost_of, is_close
from tyler.evaluation.reports import by_problem, for_terminal, percent
from tyler.evaluation.statistics import Paired, holm
from tyler.evaluation.store import read_records
from tyler.tasks.problem import Mode

COLUMNS = ("task", "n", "1st", "2nd", "points", "95% CI", "better 1st/2nd", "p")
HOLM = "Holm's p"
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
    question = attrgetter("gold", "prompt")
    if changed := [key for key in common if question(left[key][0]) != question(right[key][0])]:
        raise ValueError(f"problem {changed[0]} is not the same in both evaluations ({len(changed)} such problems)")
    pairs = []
    for task in dict.fromkeys(task for task, _ in common):
        keys = [key for key in common if key[0] == task]
        shares = [tuple(fmean(record.correct for record in side[key]) for key in keys) for side in (left, right)]
        mine, others = (cost_of([record for key in keys for record in side[key]]) for side in (left, right))
        pairs.append(Pair(task, Paired(*shares), (mine, others)))
    return pairs


def rows(pairs: Sequence[Pair], adjusted: Sequence[float] = ()) -> list[tuple[str, ...]]:
    """The heads of the columns, then one row per pair; where pairs are of a family, with their adjusted p-values."""
    if not adjusted:
        return [COLUMNS, *map(_row, pairs)]
    return [(*COLUMNS, HOLM), *((*_row(pair), f"{p:.2g}") for pair, p in zip(pairs, adjusted, strict=True))]


def _row(pair: Pair) -> tuple[str, ...]:
    counts = pair.counts
    low, high = counts.interval()
    return (
        pair.task,
        str(counts.count),
        *(percent(fmean(shares)) for shares in (counts.first_shares, counts.second_shares)),
        f"{100 * counts.difference:+.1f}",
        f"{100 * low:+.1f} to {100 * high:+.1f}",
        f"{counts.only_first}/{counts.only_second}",
        f"{counts.p_value():.2g}",
    )


def run(first: Path, *others: Path, mode: Mode = "official") -> list[Pair]:
    """`tyler eval --compare FIRST OTHER ...`: print the paired difference of each of the others to the first.

    All tasks of all of them are one family, whose p-values have Holm's adjustment beside them.
    """
    console, base = Console(), read_records(first, mode)
    records = {other: read_records(other, mode) for other in others}
    against = {other: pair(base, some) for other, some in records.items()}
    family = [compared for pairs in against.values() for compared in pairs]
    adjusted = iter(holm([compared.counts.p_value() for compared in family]))
    several = f" {HOLM} is of the {len(family)} comparisons made here." if len(family) > 1 else ""
    for other, pairs in against.items():
        lines = rows(pairs, [next(adjusted) for _ in pairs] if several else ())
        console.print(f"1st: {first}\n2nd: {other}\n", highlight=False, soft_wrap=True)
        console.print(for_terminal(lines, caption=CAPTION + several, caption_justify="left"))
        for compared in pairs:
            console.print(cost_in_words(compared), highlight=False)
        if unmatched := by_problem(base).keys() ^ by_problem(records[other]).keys():
            console.print(f"left out: {len(unmatched)} problems that only one of them answered")
    return family


def cost_in_words(compared: Pair) -> str:
    """The tokens of both sides, and whether they are close."""
    first, second = compared.tokens
    close = "within" if is_close(second, first) else "not within"
    ratio = f"ratio {second / first:.2f}, {close} {TOLERANCE:.0%}" if first else "there is no ratio to none"
    return f"{compared.task}: {first:.1f} and {second:.1f} tokens per answer, visible and latent; {ratio}"
