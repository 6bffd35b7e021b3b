"""The lint of words: what it finds, and what it leaves in peace."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="module")
def lint(root: Path) -> dict[str, Any]:
    return runpy.run_path(str(root / "scripts" / "plain_words.py"))


@pytest.mark.parametrize(
    "text, phrase",
    [
        ("Whoever waits takes a step.", "Whoever"),
        ("Leave it away.\nTo be quick, leave --router and --budget away.", "leave --router and --budget away"),
        ("# a path that\n    # is none of ours", "is none"),
        ("the value is no\nnumber", "is no number"),
        ("an id that is no token", "is no token"),
        ("a step is whole or is not there", "is whole or is not there"),
    ],
)
def test_a_phrase_is_found_also_over_two_lines(lint: dict[str, Any], text: str, phrase: str) -> None:
    (fault,) = lint["phrases"]("a page", text)
    assert fault.text == phrase and fault.instead


@pytest.mark.parametrize(
    "text",
    ["There is no folder.", "where there\nare no tokens", "It is no longer read.", "is no faster than", "None is None"],
)
def test_plain_english_is_left_in_peace(lint: dict[str, Any], text: str) -> None:
    assert not list(lint["phrases"]("a page", text))


def test_a_fault_names_its_line(lint: dict[str, Any]) -> None:
    (fault,) = lint["phrases"]("page.md", "first\n\nthird has\nnobody\n")
    assert str(fault).startswith("page.md:4: 'nobody': ")


def test_names_that_say_nothing_are_found_where_they_are_defined(lint: dict[str, Any]) -> None:
    code = "def found(told):\n    for one in told:\n        total = one\n    return [x for place in total]\n"
    faults = list(lint["names"]("a.py", code))
    assert sorted((fault.line, fault.text) for fault in faults) == [(1, "found"), (1, "told"), (2, "one"), (4, "place")]
    assert not list(lint["names"]("a.py", "x = found.one\nprint(told)\n")), "a use is its definition's fault"
