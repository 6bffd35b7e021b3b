"""The problems that the skill of `smollm2-tyler` learned from: their steps are right, and none is a held-out one."""

import ast
import random
import re
import runpy
from fractions import Fraction
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from tyler.tasks import load_problems
from tyler.tasks.data_files import Row
from tyler.tasks.word_problems import alike, template


@pytest.fixture(scope="module")
def script(root: Path) -> dict[str, Any]:
    return runpy.run_path(str(root / "scripts" / "skill_problems.py"))


def gsm8k(question: str, answer: str) -> Row:
    return Row({"question": question, "answer": answer}, "gsm8k_train.jsonl, line 7", 7)


def test_a_calculation_of_several_operations_becomes_a_step_each(script: dict[str, Any]) -> None:
    problem = script["simple"](gsm8k("How much is left?", "He has 100 - (5+5)*2 = <<100-(5+5)*2=80>>80 left.\n#### 80"))
    assert problem.id == "train-7" and problem.answer == "80"
    assert [line.partition(":")[2].strip() for line in problem.solution.split("\n\n")[:-1]] == [
        "$5+5=10$",
        "$10*2=20$",
        "$100-20=80$",
    ]


@pytest.mark.parametrize(
    "solution",
    [
        "No calculation.\n#### 5",
        "He has 10/3 = <<10/3=3.33>>3.33.\n#### 3",
        "He has 2+3 = <<2+3=5>>5.\n#### 6",
        "He has <<2-2=0>>0.\n#### 0",
        "Much: <<1+1+1+1+1+1=6>>6.\n#### 6",
        "Powers: <<2**3=8>>8.\n#### 8",
        "Names: <<x+3=8>>8.\n#### 8",
        "Nothing: <<3/0=8>>8.\n#### 8",
    ],
)
def test_what_has_no_simple_calculation_is_left_out(script: dict[str, Any], solution: str) -> None:
    assert script["simple"](gsm8k("How many?", solution)) is None


def test_every_template_gives_a_problem_whose_answer_is_its_formula_s(script: dict[str, Any]) -> None:
    rng = random.Random(7)
    for line in script["TEMPLATES"]:
        formula, form = line.split(" | ", 1)
        numbers, steps = script["drawn"](formula, form, rng)
        text = script["filled"](form, numbers, rng)
        expected = eval(formula, {name: Fraction(number) for name, number in numbers.items()})
        assert steps[-1].result == expected and len(steps) == len(re.findall(r"[-+*/]", formula)), line
        assert "{" not in text and all(f"{float(number):g}" in text for number in numbers.values()), text
        assert {node.id for node in ast.walk(ast.parse(formula)) if isinstance(node, ast.Name)} <= numbers.keys()


def test_no_problem_of_our_own_is_like_a_held_out_one(script: dict[str, Any], data_dir: Path) -> None:
    held_out = [held.prompt for split in ("dev", "test") for held in load_problems("mawps", split, path=data_dir)]
    templates = [template(text) for text in held_out]
    problems = list(islice(script["own"](random.Random(1), templates), 60))
    assert len({problem.prompt for problem in problems}) == 60
    assert not any(alike([template(problem.prompt), other]) for problem in problems for other in templates)
    first = template(problems[0].prompt)
    assert problems[0].prompt != next(script["own"](random.Random(1), [first])).prompt
