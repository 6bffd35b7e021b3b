"""Equal answers share a ballot, by the equality of their own task."""

from __future__ import annotations

import pytest

from tyler.tasks import TASKS, ballots


@pytest.mark.parametrize(
    ("task", "answers", "together"),
    [
        ("gsm8k", ["18", r"\$18", r"18\text{ dollars}", "17", "17"], [[0, 1, 2], [3, 4]]),
        ("svamp", ["2.5", r"\frac{5}{2}", r"2\frac{1}{2}", "2 1/2", "clips", "clips"], [[0, 1, 2, 3], [4, 5]]),
        ("mawps", ["3", "4", "3.0"], [[0, 2], [1]]),
        ("math500", [r"2\sqrt3", r"\sqrt{12}", "3", "x=3"], [[0, 1], [2, 3]]),
        ("math500", [r"\text{(B)}", "B", "C"], [[0, 1], [2]]),
        ("math500", ["(1, 2", "(1, 2", "3"], [[0, 1], [2]]),
        ("openr1", ["(x+1)^2", "(1+x)^2", "x^2"], [[0, 1], [2]]),
        ("jsonl", ["0.5", r"\frac12", "half"], [[0, 1], [2]]),
        ("gpqa", [r"\text{(B)}", "B", "A"], [[0, 1], [2]]),
        ("theoremqa", ["True", "yes", "no"], [[0, 1], [2]]),
        ("theoremqa", ["0.5", r"50\%", r"\frac12", "0.51"], [[0, 1, 2], [3]]),
        ("theoremqa", ["[1, 2]", "1, 2", "(2, 1)", "1"], [[0, 1], [2], [3]]),
        ("theoremqa", ["(c)", "C", "(a)"], [[0, 1], [2]]),
        ("mini", ["7", "07", "8"], [[0, 1], [2]]),
        ("humaneval", ["def f(): pass", "def f(): pass", "def f(): return 1"], [[0, 1], [2]]),
    ],
)
def test_answers_are_grouped_as_the_task_compares_them(
    task: str, answers: list[str], together: list[list[int]]
) -> None:
    assert ballots(task, answers) == together


def test_every_task_has_ballots_and_none_raises_on_what_no_one_can_read() -> None:
    odd = ["", "{", "\0", "9" * 5000, r"\frac{", "\ud800", "x", "9^{9^{9}}"]
    for task in TASKS:
        assert sorted(index for ballot in ballots(task, odd) for index in ballot) == list(range(len(odd)))
