"""Accuracies as tables tell them: per cent with intervals, unweighted averages over tasks, differences to a row."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import yaml

from tyler.evaluation.statistics import middle95, resampled, resolution, sign_flips
from tyler.experiments.cells import ACCURACY
from tyler.experiments.experiment import MISSING, Measured, Results, Table, adjust, chance, entry_of, in_order

DRAWS = 2000
BESIDE = "Qwen3-4B"
"""The paper's backbone of most tables, whose numbers stand beside those of a backbone that the paper does not have."""


# --- the paper's numbers ----------------------------------------------------------------------------------------------


PUBLISHED = yaml.safe_load(Path(__file__).with_name("published.yaml").read_text(encoding="utf-8"))
"""Their columns and rows by table, and the problems of each task."""


def shown(table: str, group: str, row: str, column: str, form: str = ".2f") -> str:
    """One printed number, with a dagger where no count of right answers gives it; empty where the paper has none."""
    problems, columns, rows = PUBLISHED["problems"], PUBLISHED[table]["columns"], PUBLISHED[table]["rows"]
    values = (rows.get(group) or rows.get(BESIDE, {})).get(row)
    if values is None or column not in columns or (number := values[columns.index(column)]) is None:
        return ""
    return f"{number:{form}}{'†' if column in problems and not is_share(number, problems[column]) else ''}"


def is_share(percent: float, count: int) -> bool:
    """Whether some k of `count` is this many per cent, rounded or cut off to the paper's two decimals."""
    nearest = round(percent * count / 100)
    shares = [100 * k / count for k in (nearest - 1, nearest, nearest + 1)]
    printed = {f"{number:.2f}" for share in shares for number in (share, int(share * 100) / 100)}
    return f"{percent:.2f}" in printed


def with_paper(text: str, published: str) -> str:
    """Ours, and the paper's in brackets where it has one."""
    return f"{text} [{published}]" if published else text


# --- ours -------------------------------------------------------------------------------------------------------------


def accuracy(entry: Mapping[str, Any] | None) -> float | None:
    """Per cent right over all seeds."""
    return None if entry is None else 100 * sum(entry["k"]) / (entry["n"] * len(entry["k"]))


def share_text(entry: Mapping[str, Any] | None, published: str = "") -> str:
    """Per cent right, its 95% interval over problems, and the paper's in brackets."""
    text = MISSING if entry is None else f"{accuracy(entry):.1f} ({entry['low']:.1f}–{entry['high']:.1f})"
    return with_paper(text, published)


def accuracy_table(results: Results, name: str, caption: str, published: str, group: str) -> Table:
    """Rows by tasks, with the average and the difference to the base row; the paper's in brackets."""
    columns = in_order(results, "column")
    rows = []
    for row in in_order(results, "row"):
        entries = {column: entry_of(results, group, row, column) for column in columns}
        shares = [share_text(entry, shown(published, group, row, column)) for column, entry in entries.items()]
        ends = (
            with_paper(averaged(results, group, row, columns), shown(published, group, row, "Average")),
            with_paper(difference(results, group, row), shown(published, group, row, "Difference", "+.2f")),
        )
        rows.append((row, *shares, *ends))
    return Table(name, caption, ("method", *columns, "average", "difference to CoT"), tuple(rows))


def average(results: Results, group: str, row: str, columns: Sequence[str]) -> tuple[float, float, float] | None:
    """The unweighted mean over tasks in per cent, as the paper averages, and its 95% interval; None where one is
    missing.

    Intervals (l, u) over problems of the shares p go together as l' = m - sqrt(sum (p - l)^2) / T and
    u' = m + sqrt(sum (u - p)^2) / T over T tasks of mean m (Newcombe 1998, Statistics in Medicine 17, 873-890).
    """
    there = [entry for column in columns if (entry := entry_of(results, group, row, column)) is not None]
    if len(there) < len(columns):
        return None
    shares = np.array([accuracy(entry) for entry in there])
    low, high = np.array([(entry["low"], entry["high"]) for entry in there]).T
    below, above = (float(np.sqrt(((side - shares) ** 2).sum())) / len(columns) for side in (low, high))
    middle = float(shares.mean())
    return middle, middle - below, middle + above


def averaged(results: Results, group: str, row: str, columns: Sequence[str]) -> str:
    """An unweighted mean over tasks with its interval, as text."""
    mean = average(results, group, row, columns)
    return MISSING if mean is None else "{:.2f} ({:.1f}–{:.1f})".format(*mean)


def mean_of(results: Results, group: str, row: str, columns: Sequence[str], key: str) -> float | None:
    """The unweighted mean over tasks of another number of an entry, such as its seconds; None where one is missing."""
    entries = [entry_of(results, group, row, column) for column in columns]
    return None if None in entries else fmean(entry[key] for entry in entries if entry is not None)


def written(number: float | None, form: str) -> str:
    """A number as text."""
    return MISSING if number is None else f"{number:{form}}"


def held_against(base: str, measured: Sequence[Measured]) -> dict[str, Any]:
    """Every row's average less that of the row `base`, in points, with a 95% bootstrap interval; of rows whose tasks
    have all been measured.

    Problems are drawn anew within each task, the same for both rows, and a problem counts by its share of seeds.
    """
    shares: dict[tuple[str, str], dict[str, list[float]]] = {}
    for each in (each for each in measured if each.entry.cells[0].measure == ACCURACY):
        shares.setdefault((each.entry.group, each.entry.row), {})[each.entry.column] = each.shares()
    compared = [
        {"group": group, "row": row, "to": base, **macro_difference(list(tasks.values()), list(other.values()))}
        for (group, row), tasks in shares.items()
        if row != base and (other := shares.get((group, base), {})).keys() == tasks.keys()
        if all(tasks.values()) and all(other.values())
    ]
    adjust(compared, "group")
    return {"differences": compared}


def macro_difference(ours: Sequence[Sequence[float]], theirs: Sequence[Sequence[float]]) -> dict[str, float]:
    """The difference of two macro averages in points, with its percentile interval and the p of sign flips.

    Where no problem differs, the interval is what so many problems of each task resolve.
    """
    source = np.random.default_rng(0)
    gains = [np.asarray(own) - np.asarray(other) for own, other in zip(ours, theirs, strict=True)]
    low, high = middle95(np.mean([resampled(gain, DRAWS, source).mean(axis=1) for gain in gains], axis=0))
    if not any(map(np.any, gains)):
        high = math.hypot(*(resolution(len(gain))[1] for gain in gains)) / len(gains)
        low = -high
    p = sign_flips(np.concatenate([gain / len(gain) for gain in gains]).tolist())
    middle = fmean(float(gain.mean()) for gain in gains)
    return {"points": round(100 * middle, 4), "low": round(100 * low, 4), "high": round(100 * high, 4), "p": p}


def difference(results: Results, group: str, row: str) -> str:
    """A row's difference as text, with Holm's p and of how many comparisons it is."""
    for finding in results["differences"]:
        if (finding["group"], finding["row"]) == (group, row):
            ends = f"{finding['low']:+.1f} to {finding['high']:+.1f}"
            p = f"Holm's p {chance(finding['holm'])} of {finding['family']}"
            return f"{finding['points']:+.1f} ({ends}; {p})"
    return MISSING
