"""Comparisons at equal cost: what is searched, on which problems, and what is said of it."""

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests import tiny

from stored import interrupt, keep, write_lines, write_problems
from tyler.evaluation import budget_matching, command, comparison
from tyler.evaluation.budget_matching import Match, Trial, is_close
from tyler.evaluation.options import Answering, EvaluationRequest, Matching, Questions
from tyler.evaluation.store import read_records
from tyler.reasoners.method import LengthSetting
from tyler.reasoners.registry import Loaded
from tyler.tasks import Problem

PROBLEMS = [Problem(f"p{i}", "jsonl", f"How many {i} x?", "5") for i in range(4)]


@dataclass(frozen=True)
class Settings:
    """Of a method whose answers have 20 tokens, `thoughts` latents, and at most `steps` tokens where it is given."""

    thoughts: int = 4
    steps: int | None = None


def method(
    *length_settings: LengthSetting, settings: Settings = Settings(), longest: int = 100, seen: list[Any] | None = None
) -> Loaded:
    def build(settings: Settings, longest: int) -> Any:
        def solve(problems: Sequence[Problem]) -> list[SimpleNamespace]:
            if seen is not None:
                seen.append((settings.thoughts, settings.steps, longest))
            lengths = [min(20 + place, longest, settings.steps or 99) for place, _ in enumerate(problems)]
            return [SimpleNamespace(num_visible=length, num_latents=settings.thoughts) for length in lengths]

        return SimpleNamespace(solve=solve)

    return Loaded("m", settings, longest, None, length_settings, build)


THOUGHTS, STEPS = LengthSetting("thoughts", lowest=1), LengthSetting("steps", lowest=1, only_shortens=True)


def test_the_cost_counts_visible_tokens_and_latents() -> None:
    assert budget_matching.cost(method().reasoner, PROBLEMS) == 21.5 + 4


@pytest.mark.parametrize("target", [24.0, 30.6, 45.1, 64.2])
def test_the_nearest_value_of_the_knob_is_found(target: float) -> None:
    found = budget_matching.match(method(THOUGHTS), target, PROBLEMS)
    best = min(range(1, 200), key=lambda n: abs((21.5 + n) / target - 1))
    if abs(25.5 / target - 1) <= 0.1:
        assert found.best == Trial("", None, 25.5), "nothing is changed where the costs are equal already"
    else:
        assert (found.best.setting, found.best.value, found.best.tokens) == ("thoughts", best, 21.5 + best)
    assert found.reached and len(found.trials) <= 10
    changed = budget_matching.with_setting(method(THOUGHTS), found)
    assert changed.settings.thoughts == (found.best.value or 4)


def test_a_method_that_cannot_get_longer_is_left_as_it_is_and_says_so() -> None:
    seen: list[Any] = []
    found = budget_matching.match(method(STEPS, seen=seen), 60.0, PROBLEMS)
    assert seen == [(4, None, 100)], "a cap lengthens nothing and is not tried"
    assert not found.reached and found.best.value is None
    assert budget_matching.with_setting(method(STEPS), found).settings == Settings()


def test_answers_that_are_too_long_are_capped_by_the_methods_own_knob_first() -> None:
    found = budget_matching.match(method(STEPS), 14.0, PROBLEMS)
    assert (found.best.setting, found.best.value, found.best.tokens) == ("steps", 10, 14.0)
    found = budget_matching.match(method(), 14.0, PROBLEMS)
    assert (found.best.setting, found.best.value, found.best.tokens) == ("max_new_tokens", 10, 14.0)
    assert budget_matching.with_setting(method(), found).max_new_tokens == 10
    long = budget_matching.match(method(settings=Settings(thoughts=0)), 21.0, PROBLEMS)
    assert long.best.setting == "", "21.5 tokens are near enough"


def test_a_knob_that_does_not_reach_gives_way_to_the_next() -> None:
    stiff = LengthSetting("thoughts", lowest=3, highest=6)
    found = budget_matching.match(method(stiff), 14.0, PROBLEMS)
    assert {trial.setting for trial in found.trials} == {"", "thoughts", "max_new_tokens"}
    assert found.best.setting == "max_new_tokens" and found.reached
    enough = budget_matching.match(method(THOUGHTS, STEPS), 23.0, PROBLEMS)
    assert {trial.setting for trial in enough.trials} == {"", "thoughts"}


def test_the_nearest_trial_is_by_ratio_and_the_first_of_equals() -> None:
    found = Match(10.0, (Trial("", None, 20.0), Trial("a", 1, 5.0), Trial("a", 2, 5.1)))
    assert found.best == Trial("a", 2, 5.1) and not found.reached
    assert replace(found, trials=found.trials[:2]).best.value is None
    assert [budget_matching.is_close(tokens, 10.0) for tokens in (8.9, 9.1, 10.9, 11.1)] == [False, True, True, False]


# ---------------------------------------------------------------------------------- in an evaluation


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A backbone, problems, development problems, and an evaluation of 12 tokens per answer to match."""
    folder = tmp_path_factory.mktemp("matching")
    tiny.save(tiny.build_backbone("qwen3", tiny.SEEDS["qwen3"]), folder / "backbone")
    write_problems(folder / "test.jsonl", range(7))
    write_problems(folder / "dev.jsonl", range(50, 57))
    evaluate(folder, "target", max_new_tokens=12)
    return folder


def evaluate(place: Path, name: str, matching: Matching = Matching(), **answering: Any) -> Any:  # noqa: B008
    questions = Questions(("jsonl",), data=place / "test.jsonl")
    asked = EvaluationRequest(questions, Answering(**answering), matching=matching)
    return command.run(str(place / "backbone"), asked, output=place / name)


def test_the_setting_is_found_on_development_problems_and_kept(place: Path, capsys, monkeypatch) -> None:
    asked: list[Sequence[Problem]] = []
    cost = budget_matching.cost
    monkeypatch.setattr(budget_matching, "cost", lambda reasoner, some: asked.append(some) or cost(reasoner, some))
    equality = Matching(place / "target", "train", place / "dev.jsonl")
    monkeypatch.setattr(budget_matching, "SEARCHED", 5)
    target = budget_matching.cost_of(read_records(place / "target"))
    assert target > 9
    evaluate(place, "matched", equality, max_new_tokens=64)
    settings = json.loads((place / "matched" / "settings.json").read_text())
    assert settings["matching"]["setting"] == "max_new_tokens"
    assert settings["matching"]["value"] == settings["max_new_tokens"] < 20
    assert settings["matching"]["target"] == pytest.approx(target)
    texts = {problem.prompt for problems in asked for problem in problems}
    assert texts == {f"How many {i} x?" for i in range(50, 55)}, "never the evaluation's own"
    here = budget_matching.cost_of(read_records(place / "matched"))
    shown = " ".join(capsys.readouterr().out.split())
    told = f"visible and latent: {here:.1f} here, {target:.1f} to match, ratio {here / target:.2f}"
    assert told in shown and told in (place / "matched" / "report.json").read_text()


def test_what_cannot_be_matched_is_refused(place: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="7 of the 7 problems of 'train' are evaluated too, first train-1"):
        evaluate(place, "x", Matching(place / "target", "train", place / "test.jsonl"))
    one = EvaluationRequest(Questions(count=1), Answering(max_new_tokens=2))
    mini = command.run(str(place / "backbone"), one, output=tmp_path)
    assert len(mini) == 1
    with pytest.raises(ValueError, match="no answers of 'jsonl' to match"):
        evaluate(place, "x", Matching(tmp_path, "train", place / "dev.jsonl"))
    with pytest.raises(ValueError, match="one task at a time, not for mini, jsonl"):
        both = Questions(("mini", "jsonl"), count=1)
        command.run(str(place / "backbone"), EvaluationRequest(both, matching=Matching(tmp_path)), output=place / "x")


def test_an_evaluation_that_was_stopped_is_not_matched(place: Path, tmp_path: Path) -> None:
    shutil.copytree(place / "target", tmp_path / "stopped")
    records = read_records(tmp_path / "stopped")
    interrupt(tmp_path / "stopped", 2)
    with pytest.raises(ValueError, match="stopped holds 2 of 7 answers: let its evaluation finish first"):
        evaluate(place, "x", Matching(tmp_path / "stopped", "train", place / "dev.jsonl"))
    write_lines(tmp_path / "stopped", records[2:], rank="-2")
    evaluate(place, "several", Matching(tmp_path / "stopped", "train", place / "dev.jsonl"), max_new_tokens=64)


def test_answers_without_a_token_have_no_cost_to_match_or_to_compare(place: Path, tmp_path: Path, capsys) -> None:
    records, none = read_records(place / "target"), {"visible_tokens": 0, "latents": 0}
    keep(tmp_path / "empty", [replace(one, **none) for one in records])
    comparison.run(tmp_path / "empty", place / "target")
    assert "there is no ratio to none" in " ".join(capsys.readouterr().out.split())
    assert not is_close(1.0, 0.0) and is_close(0.0, 0.0)


def test_a_verdict_says_when_the_target_was_not_reached(place: Path) -> None:
    records = read_records(place / "target")
    tokens = budget_matching.cost_of(records)
    short = Match(4 * tokens, (Trial("", None, tokens),))
    assert "ratio 0.25, NOT within 10% (nothing changed" in budget_matching.verdict(short, records)
    assert "have fewer tokens by themselves" in budget_matching.verdict(short, records)
    even = Match(tokens, (Trial("thoughts", 3, tokens),))
    assert "ratio 1.00, within 10% (thoughts = 3" in budget_matching.verdict(even, records)
    assert "by themselves" not in budget_matching.verdict(even, records)


def test_a_comparison_of_two_evaluations_says_whether_they_cost_the_same(place: Path, capsys) -> None:
    evaluate(place, "short", max_new_tokens=3)
    comparison.run(place / "target", place / "short")
    shown = " ".join(capsys.readouterr().out.split())
    assert "and 3.0 tokens per answer, visible and latent; ratio 0." in shown and "not within 10%" in shown
