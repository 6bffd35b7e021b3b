"""The rules by which failures are classed: exact on mini, where the right solution is known."""

from __future__ import annotations

import pytest

from tyler.experiments.failures import kind, steps
from tyler.tasks import Outcome, load_problems

RIGHT = "Step 1: $56 - 9 = 47$\n\nStep 2: $47 + 5 = 52$\n\nThe answer is $\\boxed{52}$"


def changed(old: str, new: str) -> str:
    assert old in RIGHT
    return RIGHT.replace(old, new)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (changed("boxed{52}", "boxed{53}"), "other"),
        (changed("47 + 5 = 52", "47 + 5 = 53"), "state"),
        (changed("47 + 5 = 52", "46 + 5 = 51"), "state"),
        (changed("56 - 9 = 47", "56 - 9 = 46"), "state"),
        (changed("47 + 5 = 52", "47 - 5 = 42"), "procedure"),
        (changed("Step 2: $47 + 5 = 52$\n\n", ""), "procedure"),
        (changed("The answer", "Step 3: $52 + 1 = 53$\n\nThe answer"), "procedure"),
        (changed("56 - 9 = 47", "65 - 9 = 56"), "strategy"),
        ("$56 - 9 + 5 = 53$\n\n$\\boxed{53}$", "strategy"),
        ("$\\boxed{53}$", "strategy"),
    ],
)
def test_the_first_step_that_differs_decides(text: str, expected: str) -> None:
    assert kind(Outcome.WRONG, text, RIGHT) == expected


@pytest.mark.parametrize("outcome", [outcome for outcome in Outcome if outcome not in (Outcome.CORRECT, Outcome.WRONG)])
def test_an_answer_without_a_verdict_wrong_fails_by_its_format(outcome: Outcome) -> None:
    assert kind(outcome, "", RIGHT) == "format"


def test_a_number_in_front_of_a_step_is_no_step() -> None:
    assert steps("1. 56 - 9 = 47\n\n2. 47 + 5 = 52") == steps(RIGHT) == ["56-9=47", "47+5=52"]


def test_steps_of_every_family_are_found() -> None:
    found = {problem.family: steps(problem.solution or "") for problem in load_problems("mini", "harder", count=5)}
    assert {family: len(one) for family, one in found.items()} == {
        "arithmetic": 5,
        "algebra": 5,
        "science": 4,
        "theorems": 5,
        "programs": 5,
    }
    assert found["programs"][2] == "39>55isFalse" and found["science"][:2] == ["voltage=current*resistance", "4*7=28"]


def test_a_condition_that_is_read_wrongly_is_a_state_and_another_law_another_strategy() -> None:
    _, _, science, _, programs = (problem.solution or "" for problem in load_problems("mini", "harder", count=5))
    assert kind(Outcome.WRONG, programs.replace("is False", "is True"), programs) == "state"
    assert kind(Outcome.WRONG, science.replace("current * resistance", "current * charge"), science) == "strategy"
    assert kind(Outcome.WRONG, science.replace("2 * 28 = 56", "2 * 28 = 65"), science) == "state"
