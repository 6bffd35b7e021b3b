import pytest

from tyler.tasks.answers.boxed import boxed_answer, boxed_span


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
        r"\boxed{7\}", r"\boxed{\frac{1}{2}", r"\boxed $", r"\boxed{1} no, wait: \boxed{2",
    ],
)  # fmt: skip
def test_there_is_no_answer_outside_a_last_box_that_is_finished(completion):
    assert boxed_answer(completion) is None


@pytest.mark.parametrize(
    "before, behind", [("", ""), ("7 ", " 7"), ("<think>\\boxed{7} 7</think>7 ", ""), ("\\boxed{7} ", " \\boxedness 7")]
)
def test_a_span_is_where_the_answer_stands_and_not_where_the_same_stands_too(before: str, behind: str) -> None:
    for box, start in (("\\boxed{7}", 7), ("\\boxed{ 7 }", 8), ("\\fbox 7", 6)):
        assert boxed_span(before + box + behind) == (len(before) + start, len(before) + start + 1)


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
