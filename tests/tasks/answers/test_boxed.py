from __future__ import annotations

from fractions import Fraction

import pytest

from tyler.tasks.answers.boxed import boxed_answer, boxed_span, plain
from tyler.tasks.answers.numbers import number as read_number

# ------------------------------------------------------------------------------------------------------- extraction


@pytest.mark.parametrize(
    ("completion", "answer"),
    [
        (r"so \boxed{7}.", "7"), (r"so \fbox{7}.", "7"), (r"\boxed {7}", "7"), (r"\boxed{ 7 }", "7"),
        (r"\boxed{7\ }", "7"), (r"\boxed{7 \ \ }", "7"), ("\\boxed{7 \\\\ }", "7 \\\\"), (r"$\boxed 7$", "7"),
        (r"\boxed 7.", "7"), (r"\boxed7", "7"), (r"\boxed -1.5, as asked", "-1.5"),
        (r"\boxed \frac{1}{2} of it", r"\frac{1}{2}"), (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{\left\{1, 2\right\}}", r"\left\{1, 2\right\}"), (r"\boxed{\}}", r"\}"),
        (r"\boxed{a \{ b}", r"a \{ b"),
        (r"\boxed{\begin{pmatrix} 1 \\{2} \end{pmatrix}}", r"\begin{pmatrix} 1 \\{2} \end{pmatrix}"), (r"\boxed{}", ""),
        (r"first \boxed{1}, then \boxed{2}", "2"), (r"first \boxed{1}, then \fbox{2}", "2"),
        (r"\boxed{\boxed{3}}", "3"), ("\\boxed{1\n2}", "1\n2"),
    ],
)  # fmt: skip
def test_the_answer_is_the_content_of_the_last_box(completion, answer):
    assert boxed_answer(completion) == answer


@pytest.mark.parametrize(
    "completion",
    [
        "", "the answer is 7", "#### 7", "$7$", "boxed{7}", r"\boxedx{7}", r"\boxed", r"\boxed{", r"\boxed{7",
        r"\boxed{7\}", r"\boxed{\frac{1}{2}", r"\boxed $",
    ],
)  # fmt: skip
def test_there_is_no_answer_outside_a_finished_box(completion):
    assert boxed_answer(completion) is None


def test_an_earlier_box_never_stands_in_for_an_unfinished_last_one():
    assert boxed_answer(r"\boxed{1} no, wait: \boxed{2") is None


@pytest.mark.parametrize(
    "before, behind",
    [("", ""), ("7 ", " 7"), ("<think>\\boxed{7} 7</think>7 ", ""), ("\\boxed{7} ", " \\boxedness 7")],
)
def test_a_span_is_where_the_answer_stands_and_not_where_the_same_stands_too(before: str, behind: str) -> None:
    for box, place in (("\\boxed{7}", 7), ("\\boxed{ 7 }", 8), ("\\fbox 7", 6)):
        assert boxed_span(before + box + behind) == (len(before) + place, len(before) + place + 1)


@pytest.mark.parametrize(
    ("completion", "answer"),
    [
        (r"<think>\boxed{1}</think>\boxed{2}", "2"),
        ("\n <think>\n\\boxed{1}\n</think>\n\nIt is \\boxed{2}.", "2"),
        (r"<think>\boxed{1}</think>It is 2.", None),
        (r"<think>\boxed{1}", None),
        (r"\boxed{1} <think>no</think>", "1"),
        (r"Maybe \boxed{1}.</think>It is \boxed{2}.", "2"),
        (r"Maybe \boxed{1}.</think>It is 2.", None),
        (r"\boxed{1} <think>\boxed{2}</think> so", "2"),
    ],
)
def test_boxes_in_a_leading_thought_do_not_count(completion, answer):
    assert boxed_answer(completion) == answer


# ---------------------------------------------------------------------------------------------------------- numbers


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("7", 7), ("-7", -7), ("\u22127", -7), ("+7", 7), ("007", 7), ("7.", 7), ("7.50", Fraction(15, 2)),
        (".5", Fraction(1, 2)), ("-.5", Fraction(-1, 2)), ("0.1", Fraction(1, 10)), ("3.5e4", 35000),
        ("1e-7", Fraction(1, 10**7)), ("1,234", 1234), (r"1\,234", 1234), ("1{,}234", 1234), ("1 234", 1234),
        (r"1,\!234", 1234), ("1,234,567.5", Fraction(2469135, 2)), ("$1,234$", 1234), (r"\(12\)", 12),
        (r"\text{12}", 12), ("1/2", Fraction(1, 2)), (r"-\frac{1}{2}", Fraction(-1, 2)), (r"\dfrac{4}{2}", 2),
    ],
)  # fmt: skip
def test_a_single_number_is_read_exactly(text, number):
    assert read_number(plain(text)) == number


@pytest.mark.parametrize(
    "text",
    [
        "", ".", "-", "e5", "12,34", "1,2345", "1234,567", "0,123", "1, 234", "1,234 567", "1 2", "3+4", "1/0", "1/2/3",
        "12:00", "2516_8", "2004!", "x", "x=5", "junk or 0", "nan", "inf", "1e9999", "9" * 300, "\u0664", "10%", "5 cm",
    ],
)  # fmt: skip
def test_nothing_else_is_read_as_a_number(text):
    assert read_number(plain(text)) is None
