"""Errors of the rule `structure` on published texts, whose true openings are known: the table of docs/boundaries.md."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tyler.boundaries.scanner import find_boundaries
from tyler.tasks import load_problems

FORMULAS = re.compile(
    r"\[asy\].*?\[/asy\]|\\begin\{((?:align|eqnarray|equation|gather|multline)\*?)\}.*?\\end\{\1\}"
    r"|\\\[.*?\\\]|\\\(.*?\\\)|\$\$.*?\$\$|\$(?:\\.|[^\\$])*\$|\\.",
    re.DOTALL,
)
"""MATH's delimiters are balanced, and a `$` that is not a delimiter is escaped."""


def fields(path: Path, name: str) -> list[str]:
    return [json.loads(line)[name] for line in path.read_text(encoding="utf-8").splitlines()]


def published(folder: Path) -> list[str]:
    return fields(folder / "gsm8k_train.jsonl", "answer")


def traces(folder: Path) -> list[str]:
    return [problem.solution or "" for problem in load_problems("gsm8k", "test", path=folder / "gsm8k_test.jsonl")]


def mathematics(folder: Path) -> list[str]:
    return fields(folder / "math500_test.jsonl", "solution")


def openings(text: str) -> set[int]:
    return {match.start() for match in FORMULAS.finditer(text) if len(match[0]) > 2}


@pytest.mark.parametrize(
    ("read", "truth", "counts"),
    [
        (published, lambda text: set(), (13_375, 0, 2, 0)),
        (traces, lambda text: {text.rindex(r"$\boxed")}, (5_263, 1_319, 1, 1)),
        (mathematics, openings, (7_930, 4_206, 0, 13)),
    ],
    ids=["gsm8k as published", "gsm8k as traces", "math500"],
)
def test_false_and_missed_openings_are_those_of_the_page(
    read: Callable[[Path], list[str]],
    truth: Callable[[str], set[int]],
    counts: tuple[int, int, int, int],
    data_dir: Path,
    root: Path,
) -> None:
    texts = read(data_dir)
    pairs = [({boundary.position for boundary in find_boundaries(text, ["structure"])}, truth(text)) for text in texts]
    signs, true = sum(text.count("$") for text in texts), sum(len(true) for _, true in pairs)
    false, missed = sum(len(got - true) for got, true in pairs), sum(len(true - got) for got, true in pairs)
    assert (signs, true, false, missed) == counts
    row = " | ".join(f"{count:,}" for count in counts)
    assert f"| {row} |" in (root / "docs" / "boundaries.md").read_text()
