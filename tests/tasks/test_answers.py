from __future__ import annotations

import importlib
import subprocess
import sys
import time
from fractions import Fraction
from pathlib import Path

import pytest

from tyler.tasks import TASKS, Outcome, grade, grading
from tyler.tasks.answers import boxed_answer, exact_number
from tyler.tasks.gsm8k import quantity

# ------------------------------------------------------------------------------------------------------- extraction


@pytest.mark.parametrize(
    ("completion", "answer"),
    [
        (r"so \boxed{7}.", "7"),
        (r"so \fbox{7}.", "7"),
        (r"\boxed {7}", "7"),
        (r"\boxed{ 7 }", "7"),
        (r"$\boxed 7$", "7"),
        (r"\boxed 7.", "7"),
        (r"\boxed7", "7"),
        (r"\boxed -1.5, as asked", "-1.5"),
        (r"\boxed \frac{1}{2} of it", r"\frac{1}{2}"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{\left\{1, 2\right\}}", r"\left\{1, 2\right\}"),
        (r"\boxed{\}}", r"\}"),
        (r"\boxed{a \{ b}", r"a \{ b"),
        (r"\boxed{\begin{pmatrix} 1 \\{2} \end{pmatrix}}", r"\begin{pmatrix} 1 \\{2} \end{pmatrix}"),
        (r"\boxed{}", ""),
        (r"first \boxed{1}, then \boxed{2}", "2"),
        (r"first \boxed{1}, then \fbox{2}", "2"),
        (r"\boxed{\boxed{3}}", "3"),
        ("\\boxed{1\n2}", "1\n2"),
    ],
)
def test_the_answer_is_the_content_of_the_last_box(completion, answer):
    assert boxed_answer(completion) == answer


@pytest.mark.parametrize(
    "completion",
    [
        "",
        "the answer is 7",
        "#### 7",
        "$7$",
        "boxed{7}",
        r"\boxedx{7}",
        r"\boxed",
        r"\boxed{",
        r"\boxed{7",
        r"\boxed{7\}",
        r"\boxed{\frac{1}{2}",
        r"\boxed $",
    ],
)
def test_there_is_no_answer_outside_a_finished_box(completion):
    assert boxed_answer(completion) is None


def test_an_earlier_box_never_stands_in_for_an_unfinished_last_one():
    assert boxed_answer(r"\boxed{1} no, wait: \boxed{2") is None


@pytest.mark.parametrize(
    ("completion", "answer"),
    [
        (r"<think>\boxed{1}</think>\boxed{2}", "2"),
        ("\n <think>\n\\boxed{1}\n</think>\n\nIt is \\boxed{2}.", "2"),
        (r"<think>\boxed{1}</think>It is 2.", None),
        (r"<think>\boxed{1}", None),
        (r"\boxed{1} <think>no</think>", "1"),
    ],
)
def test_boxes_in_a_leading_thought_do_not_count(completion, answer):
    assert boxed_answer(completion) == answer


HOSTILE = {
    "braces": "\\boxed{" + "{" * 100_000,
    "pairs": "\\boxed{" + "{}" * 50_000 + "}",
    "escapes": "\\boxed{" + "\\{" * 50_000 + "}",
    "boxes": "\\boxed{" * 15_000,
    "bare boxes": "\\boxed " * 15_000,
    "thoughts": "<think>" * 15_000,
    "spaces": "\\boxed" + " " * 100_000,
    "dollars": "\\boxed{" + "$" * 100_000 + "}",
    "texts": "\\boxed{" + "\\text{" * 15_000 + "}" * 15_001,
    "digits": "\\boxed{" + "9" * 100_000 + "}",
    "commas": "\\boxed{1" + ",000" * 25_000 + "}",
    "units": "\\boxed{7" + ".a" * 50_000 + "!}",
    "power": "\\boxed{9e999999999}",
    "code": "\\boxed{__import__('os').system('exit 1')}",
}


@pytest.mark.parametrize("task", sorted(TASKS))
@pytest.mark.parametrize("completion", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_answers_are_graded_at_once_and_never_correct(task, completion):
    start = time.process_time()
    verdict = grade(task, completion, "7")
    assert not verdict.correct
    assert time.process_time() - start < 1


# ---------------------------------------------------------------------------------------------------------- numbers


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("7", 7),
        ("-7", -7),
        ("\u22127", -7),
        ("+7", 7),
        ("007", 7),
        ("7.", 7),
        ("7.50", Fraction(15, 2)),
        (".5", Fraction(1, 2)),
        ("-.5", Fraction(-1, 2)),
        ("0.1", Fraction(1, 10)),
        ("3.5e4", 35000),
        ("1e-7", Fraction(1, 10**7)),
        ("1,234", 1234),
        (r"1\,234", 1234),
        ("1{,}234", 1234),
        ("1 234", 1234),
        (r"1,\!234", 1234),
        ("1,234,567.5", Fraction(2469135, 2)),
        ("$1,234$", 1234),
        (r"\(12\)", 12),
        (r"\text{12}", 12),
        ("1/2", Fraction(1, 2)),
        (r"-\frac{1}{2}", Fraction(-1, 2)),
        (r"\dfrac{4}{2}", 2),
    ],
)
def test_exact_number_reads_a_single_number_exactly(text, number):
    assert exact_number(text) == number


@pytest.mark.parametrize(
    "text",
    [
        "",
        ".",
        "-",
        "e5",
        "12,34",
        "1,2345",
        "1234,567",
        "0,123",
        "1, 234",
        "1,234 567",
        "1 2",
        "3+4",
        "1/0",
        "1/2/3",
        r"1\frac{1}{2}",
        "12:00",
        "2516_8",
        "2004!",
        "x",
        "x=5",
        "junk or 0",
        "nan",
        "inf",
        "1e9999",
        "9" * 300,
        "\u0664",
        "10%",
        "5 cm",
    ],
)
def test_exact_number_reads_nothing_else(text):
    assert exact_number(text) is None


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("$18", 18),
        (r"\$18", 18),
        ("18$", 18),
        (r"\$1,234.50", Fraction(2469, 2)),
        ("-$5", -5),
        ("$-5", -5),
        ("$72$", 72),
        ("10%", 10),
        (r"10\%", 10),
        (r"$10\%$", 10),
        ("18 dollars", 18),
        (r"18\text{ dollars per day}", 18),
        (r"\$18 \text{ per day}", 18),
        ("5 miles/hour", 5),
        ("5/hour", 5),
        (r"12\text{ cm}^2", 12),
        ("12 cm^{2}", 12),
        (r"45^\circ", 45),
        ("7 dozen", 7),
        ("5 eggs", 5),
        (r"1\,234 \text{ clips}", 1234),
        ("72.", 72),
        ("72 clips.", 72),
        ("1/2 cup", Fraction(1, 2)),
        ("7 (apples)", 7),
    ],
)
def test_a_quantity_is_its_number_without_currency_percent_and_unit(text, number):
    assert quantity(text) == number


@pytest.mark.parametrize(
    "text",
    ["", "clips", "x = 5", "3 or 4", "7 or more", "3 to", "5 and 7", "5-7", "5-", "2 million", "12,34", "3+4", "5$7"],
)
def test_what_is_not_one_number_is_no_quantity(text):
    assert quantity(text) is None


# ---------------------------------------------------------------------------------------------------------- verdicts


@pytest.mark.parametrize(
    ("task", "completion", "gold", "outcome"),
    [
        ("gsm8k", r"\boxed{1,234}", "1234", Outcome.CORRECT),
        ("gsm8k", r"\boxed{1234.0}", "1,234", Outcome.CORRECT),
        ("gsm8k", r"\boxed{0.1}", "0.10000000000000000001", Outcome.WRONG),
        ("gsm8k", r"\boxed{12,34}", "1234", Outcome.UNPARSABLE),
        ("gsm8k", r"\boxed{}", "7", Outcome.UNPARSABLE),
        ("gsm8k", r"\boxed{3+4}", "7", Outcome.UNPARSABLE),
        ("gsm8k", r"\boxed{8}", "7", Outcome.WRONG),
        ("gsm8k", r"\boxed{7}", "seven", Outcome.GOLD_ERROR),
        ("gsm8k", "the answer is 7", "7", Outcome.NO_BOX),
        ("jsonl", r"\boxed{Evelyn}", r"\text{Evelyn}", Outcome.CORRECT),
        ("jsonl", r"\boxed{\left( 3, \dfrac{\pi}{2} \right)}", r"(3,\frac{\pi}{2})", Outcome.CORRECT),
        ("jsonl", r"\boxed{0.5}", r"\frac12", Outcome.WRONG),
        ("jsonl", r"\boxed{0.5}", r"\frac{1}{2}", Outcome.CORRECT),
        ("jsonl", r"\boxed{1,234}", "1234", Outcome.CORRECT),
        ("jsonl", r"\boxed{1 2}", "12", Outcome.WRONG),
        ("jsonl", r"\boxed{live}", "evil", Outcome.WRONG),
        ("jsonl", r"\boxed{(1,2)}", r"\{1,2\}", Outcome.WRONG),
        ("jsonl", r"\boxed{5 cm}", "5 kg", Outcome.WRONG),
        ("jsonl", r"\boxed{10\%}", "10", Outcome.WRONG),
        ("jsonl", r"\boxed{3+4}", "7", Outcome.WRONG),
        ("mini", r"\boxed{7}", "7", Outcome.CORRECT),
        ("mini", r"\boxed{8}", "7", Outcome.WRONG),
    ],
)
def test_each_task_grades_by_its_own_equality(task, completion, gold, outcome):
    assert grade(task, completion, gold).outcome is outcome


@pytest.mark.parametrize("completion", ["thinking", r"\boxed{1} or \boxed{2", r"<think>\boxed{7}"])
def test_a_missing_box_is_truncated_only_at_the_length_limit(completion):
    assert grade("gsm8k", completion, "7").outcome is Outcome.NO_BOX
    assert grade("gsm8k", completion, "7", truncated=True).outcome is Outcome.TRUNCATED


def test_a_finished_box_counts_even_at_the_length_limit():
    assert grade("gsm8k", r"\boxed{7} and then", "7", truncated=True).correct


def test_the_verdict_carries_the_answer_that_was_read():
    assert grade("gsm8k", r"\boxed{ 1{,}234 }", "7").answer == "1{,}234"
    assert grade("gsm8k", "none", "7").answer is None


def test_an_equality_that_runs_out_of_time_is_a_timeout(monkeypatch):
    def slow(answer: str, gold: str) -> bool:
        raise TimeoutError

    monkeypatch.setattr(importlib.import_module(grading.TASKS["jsonl"]), "equal", slow)
    assert grade("jsonl", r"\boxed{7}", "7").outcome is Outcome.TIMEOUT


def test_an_unknown_task_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match="unknown task 'gms8k'; known tasks are gsm8k, jsonl, mini"):
        grade("gms8k", r"\boxed{7}", "7")


@pytest.mark.parametrize("task", sorted(TASKS))
def test_every_task_in_the_tables_has_its_functions(task):
    module = importlib.import_module(TASKS[task])
    assert callable(module.equal)
    assert callable(module.load if task in grading.GENERATED_TASKS else module.read)


def test_importing_the_tasks_imports_nothing_heavy():
    heavy = ("torch", "transformers", "numpy", "tyler.tasks.mini", "tyler.tasks.gsm8k")
    code = f"import sys, tyler.tasks; print([name for name in {heavy} if name in sys.modules])"
    source = Path(grading.__file__).parents[2]
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=source, check=True)
    assert printed.stdout == "[]\n"
