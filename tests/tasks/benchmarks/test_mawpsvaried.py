"""MAWPS and ASDiv-A with other numbers and names: right, plausible, and like no held-out problem."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tyler.tasks import Problem, grade, load_problems
from tyler.tasks.benchmarks.mawpsvaried import problems
from tyler.tasks.data_files import Row
from tyler.tasks.templates import alike, template

NUMBER = re.compile(r"[0-9]+(?:\.[0-9]+)?")


def rows(*texts: tuple[str, str, str, str]) -> list[Row]:
    """Rows of question, numbers, equation and answer."""
    fields = ("Question", "Numbers", "Equation", "Answer")
    return [Row(dict(zip(fields, one, strict=True)), f"line {n}", n) for n, one in enumerate(texts, start=2)]


BEGINNINGS = "So Now Look Well Listen Think Guess Hello Please Today Here"
"""Groups of more than ten like problems are never held out: with so many beginnings a text is a training problem."""
JOSH = (
    "Joshua had number0 pencils . He gave number1 pencils to Dorothy . How many pencils does Joshua have left ?",
    "142.0 31.0",
    "- number0 number1",
    "111.0",
)


def made(*texts: tuple[str, str, str, str], count: int = 100, seed: int = 0) -> list[Problem]:
    like = [(f"{beginning} : {question}", *more) for question, *more in texts for beginning in BEGINNINGS.split()]
    return problems("train", count, seed, rows(*like))


def operands(problem: Problem) -> list[str]:
    return NUMBER.findall(problem.prompt)


def test_every_problem_is_solved_by_its_trace_and_asks_what_the_published_one_asks():
    found = made(JOSH)
    assert len({one.prompt for one in found}) == 100
    for one in found:
        assert one.solution is not None and grade("mawpsvaried", one.solution, one.answer).correct
        first, second = map(int, operands(one)[:2])
        assert one.solution.startswith(f"Step 1: ${first}-{second}={first - second}$") and first > second
        assert "Joshua" not in one.prompt and "Dorothy" not in one.prompt


def test_one_more_step_computes_on_with_what_is_left():
    longer = [one for one in made(JOSH, count=400) if one.level == 2]
    assert {one.family for one in longer} == {"Subtraction", "Addition", "Multiplication", "Common-Division"}
    for one in longer:
        assert one.solution is not None
        steps = re.findall(r"\$([0-9]+)[-+*/]([0-9]+)=([0-9]+)\$", one.solution)
        assert steps[0][2] == steps[1][0] and steps[1][1] in operands(one)[2:]
        assert steps[1][2] == one.answer and int(one.answer) > 0
        assert one.prompt.count("How many") == 1 and one.prompt.endswith("?")


def test_a_whole_quotient_stays_whole_and_money_keeps_its_cents():
    split = ("Amy has number0 cards in number1 boxes . How many are in each box ?", "40 8", "/ number0 number1", "5")
    price = ("A pen costs $ number0 and a pad $ number1 . What do both cost ?", "1.25 3.5", "+ number0 number1", "4.75")
    assert all(one.answer.isdigit() for one in made(split))
    for one in made(price):
        assert all(len(number.partition(".")[2]) <= 2 for number in [*operands(one), one.answer])


def test_the_same_seed_makes_the_same_problems_and_fewer_of_them_are_the_first():
    assert made(JOSH, count=30) == made(JOSH, count=50)[:30]
    assert made(JOSH, count=30) != made(JOSH, count=30, seed=1)


def test_there_is_a_training_split_alone(tmp_path: Path):
    with pytest.raises(ValueError, match="has no split 'test'; allowed: train"):
        load_problems("mawpsvaried", "test", path=tmp_path)
    with pytest.raises(ValueError, match=r"mawps_asdiv_train\.csv"):
        load_problems("mawpsvaried", path=tmp_path)


def test_rows_that_cannot_make_so_many_problems_are_refused():
    with pytest.raises(ValueError, match=r"none of the 11 rows"):
        made(("How much is 1 and number0 ?", "1", "+ 1 number0", "2"), count=3)
    with pytest.raises(ValueError, match=r"no more than about [0-9]+ different problems"):
        made(("How much is half of number0 ?", "2", "/ number0 2", "1"), count=100)


def held_out(data: Path) -> list[str]:
    return sorted(
        {template(one.prompt) for split in ("dev", "test") for one in load_problems("mawps", split, path=data)}
    )


def test_no_template_is_like_one_of_a_held_out_problem(data_dir: Path):
    """With other numbers and names a template is one that is trained on; where a step is added it is new."""
    known = {template(one.prompt) for one in load_problems("mawps", "train", path=data_dir)}
    found = load_problems("mawpsvaried", path=data_dir, count=2000, seed=5)
    apart = held_out(data_dir)
    for one in {template(one.prompt) for one in found}:
        assert not any(alike([one, other]) for other in apart)
    shorter = [one for one in found if template(one.prompt) in known]
    assert len(shorter) > 0.9 * len(found)


def test_real_problems_are_right_and_different(data_dir: Path):
    found = load_problems("mawpsvaried", path=data_dir, count=2000, seed=5)
    assert len({one.prompt for one in found}) == len({one.id for one in found}) == 2000
    assert all(one.solution and grade("mawpsvaried", one.solution, one.answer).correct for one in found)
    assert not any(re.search(r"number[0-9]", one.prompt) for one in found)
