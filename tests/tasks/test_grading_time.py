"""Reading an answer takes time linear in it, or nearly: long strings of every kind of character, for every task."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import suppress

import pytest

from tyler.tasks.answers.program import NoProgramError, read_program
from tyler.tasks.grading import grade

GOLDS = {
    "math500": ["7", r"\text{Evelyn}", "(1,2)", r"(1,2)\cup(3,4)", "x=5"],
    "openr1": ["7"],
    "gsm8k": ["7"],
    "gpqa": ["B"],
    "theoremqa": ["7", "0.5", "[1, 2]", "true", '"(c)"'],
    "mini": ["7"],
    "jsonl": ["7"],
}
PIECES = [
    "a", " ", "7", "`", "*", "\n", ",", "\\", "\\\\", "{", "}", "{}", "(", ")", "()", "[", "|", "-", "+", "=", "<", "_",
    "^", "'", '"', ".", ":", ";", "/", "!", "$", "%", "\u00e9", "a b ", "ab ", "7 ", "7,", "7, ", "1,000,", "/a", "a=",
    "x<", "x^2", "a_1 ", "= ", "or ", "and ", "A) ", "(A) ", "is ", "the answer is ", "1e", r"\$", r"\ ", r"\,",
    r"\text{a}",
    r"\text{ab} ", r"\text{ or }", r"\frac", r"\frac{1}{2}", r"\sqrt", r"\pi ", r"\infty ", r"\pm ", r"\cup ", r"\in ",
    r"\left(", r"\approx ", r"\begin{pmatrix}", r"\color{", r"a b\text{ab}", r"7 cm ", "a b=", "7 ab,", "million ",
    "7 million ", "base ", "<think>", "</think>", "```\n", "    x = 1\n", "~~~\n", 
    "def f():\n", "x = 1\n", "class A:\n", "\"\"\"\n", "if x: ", "x, ", "x.y", "\\boxed", "true, ",
]  # fmt: skip
BOUND = 0.5
"""Processor seconds of one answer: far above linear time on the longest, far below quadratic time."""
WRAPPERS = ["{}", "7 {}", "{}!", "{} =7", "x={}", "({})"]


def least_seconds(call: Callable[[], object]) -> float:
    """Processor seconds of one call, the least of three where it is slow: a collection of garbage may fall into one."""
    seconds = math.inf
    for _ in range(3):
        start = time.process_time()
        call()
        seconds = min(seconds, time.process_time() - start)
        if seconds <= BOUND:
            break
    return seconds


@pytest.mark.parametrize("length", [2_000, 20_000])
@pytest.mark.parametrize("task", GOLDS)
def test_long_answers_are_graded_at_once(task, length):
    assert grade(task, r"\boxed{x+x}", GOLDS[task][0]).outcome != "timeout"  # starting the worker does not count
    slow = {}
    for at, piece in enumerate(PIECES):
        text = (piece * length)[: length - 20]
        answer = WRAPPERS[at % len(WRAPPERS)].format(text)
        for gold in GOLDS[task]:
            completion = f"\\boxed{{{answer}}}"
            seconds = least_seconds(
                lambda completion=completion, gold=gold: grade(task, completion, gold, deadline=0.2)
            )
            if seconds > BOUND:
                slow[piece, gold] = seconds
    assert slow == {}


@pytest.mark.parametrize("length", [2_000, 20_000])
def test_the_program_of_a_long_completion_is_found_at_once(length):
    def read(completion: str) -> None:
        with suppress(NoProgramError):
            read_program(completion, "def f():\n", "f")

    slow = {}
    for piece in PIECES:
        completion = (piece * length)[:length]
        if (seconds := least_seconds(lambda completion=completion: read(completion))) > BOUND:
            slow[piece] = seconds
    assert slow == {}
