"""The paper's own numbers, and which of them no count of right answers can give."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

import yaml

FILE = "published.yaml"
DECIMALS = 2
"""To which the paper rounds its accuracies."""
DAGGER = "†"
"""Marks a printed accuracy that no k of n is."""


class Published(NamedTuple):
    """One printed number and its place."""

    table: str
    group: str
    row: str
    column: str
    value: float


@cache
def contents() -> dict[str, Any]:
    """The file as it is."""
    text = (files("tyler.experiments") / FILE).read_text(encoding="utf-8")
    found: dict[str, Any] = yaml.safe_load(text)
    return found


@cache
def numbers() -> dict[tuple[str, str, str, str], float]:
    """Every printed number by table, group, row and column."""
    return {
        (table, group, row, column): value
        for table, content in contents().items()
        if table != "problems"
        for group, rows in content["rows"].items()
        for row, values in rows.items()
        for column, value in zip(content["columns"], values, strict=True)
        if value is not None
    }


def value(table: str, group: str, row: str, column: str) -> float | None:
    """One printed number; None where the paper has none."""
    return numbers().get((table, group, row, column))


def shown(table: str, group: str, row: str, column: str, form: str = ".2f") -> str:
    """One printed number as text, with a dagger where no count gives it; empty where the paper has none."""
    found = value(table, group, row, column)
    if found is None:
        return ""
    return f"{found:{form}}{DAGGER if (table, group, row, column) in {one[:4] for one in impossible()} else ''}"


def is_share(percent: float, count: int, decimals: int = DECIMALS) -> bool:
    """Whether some k of `count` is this many per cent, rounded or cut off to `decimals`."""
    scale = 10**decimals
    nearest = round(percent * count / 100)
    shares = [100 * k / count for k in (nearest - 1, nearest, nearest + 1)]
    printed = {f"{share:.{decimals}f}" for share in shares} | {
        f"{int(share * scale) / scale:.{decimals}f}" for share in shares
    }
    return f"{percent:.{decimals}f}" in printed


@cache
def impossible() -> tuple[Published, ...]:
    """The printed accuracies that no number of right answers can give."""
    problems = contents()["problems"]
    return tuple(
        Published(*place, percent)
        for place, percent in numbers().items()
        if place[3] in problems and not is_share(percent, problems[place[3]])
    )
