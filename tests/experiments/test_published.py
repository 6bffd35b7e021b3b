"""The paper's numbers are those of its source, and the check of shares finds what no count gives."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tyler.experiments import published

LABELS = {
    "main": ("tab:main", "tab:qwen25-main"),
    "ablation": ("tab:unified-ablation",),
    "budget": ("tab:efficiency-budget",),
    "efficiency": ("tab:efficiency-overhead",),
    "continual": ("tab:continual-learning",),
}
PLAIN = re.compile(r"\\(textbf|underline|multirow|emph|rowcolor|cellcolor|cmidrule|quad|scriptsize|textcolor)\b")
NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


@pytest.fixture
def source() -> str:
    """The paper's LaTeX."""
    path = os.environ.get("TYLER_PAPER")
    if not path:
        pytest.skip("the paper's source is not here; set TYLER_PAPER to its .tex file")
    return Path(path).read_text()


def printed(source: str, label: str) -> list[list[float]]:
    """The numbers of each row of a table, differences with their sign."""
    end = source.index(rf"\label{{{label}}}")
    table = source[source.rindex(r"\begin{table", 0, end) : end]
    rows = re.findall(r"^(?!%).*\\\\", table[table.index(r"\midrule") :], re.MULTILINE)
    return [numbers for row in rows if (numbers := numbers_of(row))]


def numbers_of(row: str) -> list[float]:
    """Those of the cells after a row's name."""
    row = re.sub(r"\\(rowcolor|cellcolor|textcolor)\{[^}]*\}", "", row.rstrip("\\ "))
    row = row.replace(r"$\downarrow$", "-").replace(r"$\uparrow$", "")
    found = []
    for cell in row.split("&"):
        cell = re.sub(r"\\multirow\{\d+\}\{\*\}", "", cell)
        plain = re.sub(r"\\[a-zA-Z]+|[{}$()+\s]", " ", cell)
        if re.fullmatch(r"[\s\d.,-]*\d[\s\d.,-]*", plain.strip()):
            found += [float(number) for number in NUMBER.findall(plain)]
    return found


def test_every_number_is_the_papers(source: str) -> None:
    for table, labels in LABELS.items():
        rows = [row for label in labels for row in printed(source, label)]
        typed = [row for group in published.contents()[table]["rows"].values() for row in group.values()]
        width = len(published.contents()[table]["columns"])
        assert [row[-len([v for v in ours if v is not None]) :] for row, ours in zip(rows, typed, strict=True)] == [
            [value for value in row if value is not None] for row in typed
        ], table
        assert all(len(row) == width for row in typed)


@pytest.mark.parametrize(
    ("percent", "count", "possible"),
    [
        (30.50, 198, False),
        (30.30, 198, True),
        (33.50, 198, False),
        (85.21, 1319, True),
        (89.65, 1319, False),
        (100, 7, True),
    ],
)
def test_a_share_is_k_of_n_or_is_not(percent: float, count: int, possible: bool) -> None:
    """85.21 is 1124/1319 = 85.216... cut off; 60/198 is 30.30 and 61/198 is 30.81, so 30.50 is neither."""
    assert published.is_share(percent, count) is possible


def test_impossible_numbers_are_marked_where_they_are_shown() -> None:
    assert published.shown("main", "SmolLM3-3B", "Tyler, Stage 1", "GPQA-Diamond") == "30.50†"
    assert published.shown("main", "SmolLM3-3B", "CoT", "GSM8K") == "58.91"
    assert published.shown("main", "Qwen3-4B", "SFT", "Difference", "+.2f") == "-2.29"
    assert published.shown("main", "mini", "CoT", "eval") == ""


def test_averages_are_those_of_their_rows() -> None:
    """To the rounding: the paper's averages follow from its own cells, but for those that are listed."""
    wrong = []
    for table in ("main", "ablation"):
        for group, rows in published.contents()[table]["rows"].items():
            for row, (*shares, mean, _) in rows.items():
                if abs(sum(shares) / 4 - mean) > 0.0101:
                    wrong.append((group, row))
    assert wrong == []
