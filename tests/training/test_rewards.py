"""Rewards: the built-in ones, functions of one's own, and what each wrong one is told."""

import sys
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tyler.config.files import dump
from tyler.config.loops import GrpoConfig, RewardConfig
from tyler.config.schema import Config
from tyler.engine.trajectory import Invocation, Trajectory
from tyler.runs.checkpoints import RunError
from tyler.runs.run import Run
from tyler.tasks.problem import Outcome, Problem, Verdict
from tyler.training import verdicts
from tyler.training.rewards import RewardError, Rewards, Weighted, budget_penalty, origins, with_sources


def test_only_successes_pay_and_only_for_invocations_over_the_budget():
    success = torch.tensor([True, True, True, False, False])
    num_invocations = torch.tensor([3, 5, 9, 9, 0])
    assert budget_penalty(success, num_invocations, budget=5).tolist() == [0, 0, 4, 0, 0]
    assert budget_penalty(success, num_invocations, budget=0).tolist() == [3, 5, 9, 0, 0]


# ------------------------------------------------------------------------------------------- rewards of a config


PROBLEMS = [Problem("p0", "jsonl", "one?", "1"), Problem("p1", "jsonl", "two?", "2")]


def answer(text: str, calls: int = 0, tokens: int = 4) -> Trajectory:
    """An answer of some tokens with some operator calls at its end."""
    invocations = tuple(Invocation("state", tokens, 4, tokens + call) for call in range(calls))
    actions, kinds = [1] * tokens + [9] * calls, [False] * tokens + [True] * calls
    return Trajectory(
        [1], actions, [0.0] * len(actions), kinds, invocations, [torch.zeros(4, 2)] * calls, text, "eos", 9, (True,)
    )


ANSWERS = [answer("\\boxed{1}", calls=7), answer("\\boxed{3}", calls=7)]


def scored(settings: list[dict[str, Any]], seconds: float = 20.0) -> Any:
    """What two answers earn, a right one and a wrong one of seven calls each."""
    rewards = tuple(RewardConfig(**one) for one in settings)
    grpo = GrpoConfig(reward_seconds=seconds)
    with closing(Rewards.of(grpo, rewards, grpo, 8, operators=True)) as found:
        return found(PROBLEMS, ANSWERS)


@pytest.fixture
def source(tmp_path: Path) -> Any:
    """Writes a reward file; returns the path of its function `f`."""

    def write(body: str, parameters: str = "prompts, completions, **columns") -> str:
        file = tmp_path / "mine.py"
        file.write_text(f"import math, os, time\n\ndef f({parameters}):\n    {body}\n")
        return f"{file}:f"

    return write


def test_the_default_is_the_verifier_less_the_penalty_of_the_paper() -> None:
    total, _, verdicts = scored([{"name": "verifier"}, {"name": "budget"}])
    torch.testing.assert_close(total, torch.tensor([1.0 - 0.1 * 2, 0.0]))
    assert [verdict.correct for verdict in verdicts if verdict] == [True, False]


def test_a_function_of_a_file_takes_its_columns_and_is_weighed_beside_the_others(source: Any) -> None:
    path = source("return [calls * ok for calls, ok in zip(num_invocations, success)]", "success, num_invocations")
    total, parts, _ = scored([{"name": "verifier"}, {"path": path, "weight": 0.5}, {"name": "length", "weight": 0.0}])
    torch.testing.assert_close(total, torch.tensor([1 + 0.5 * 7, 0.0]))
    assert {name: part.tolist() for name, part in parts.items()} == {
        "verifier": [1.0, 0.0],
        "f": [7.0, 0.0],
        "length": [-0.5, -0.5],
    }


def test_none_leaves_an_answer_out(source: Any) -> None:
    total, _, _ = scored([{"name": "verifier"}, {"path": source("print('heard'); return [None, 1]")}])
    assert total.isnan().tolist() == [True, False]
    total, _, _ = scored([{"name": "verifier"}, {"path": source("return [None, 1]"), "weight": 0.0}])
    assert total.tolist() == [1.0, 0.0], "what is only reported leaves nothing out"


@pytest.mark.parametrize("given", ["torch.tensor([2.0, 3.0])", "[torch.tensor(2.0), torch.tensor(3.0)]"])
def test_a_function_may_give_tensors(given: str, source: Any) -> None:
    total, _, _ = scored([{"path": source(f"import torch; return {given}")}])
    assert total.tolist() == [2.0, 3.0]


@pytest.mark.parametrize("name", ["rewards", "loop", "packing"])
def test_a_module_of_ones_own_hides_behind_none_of_tylers(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / f"{name}.py").write_text("def mine(completions):\n    return [2.0] * len(completions)\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", *sys.path])  # as an interactive Python has it
    monkeypatch.delitem(sys.modules, name, raising=False)
    assert scored([{"path": f"{name}:mine"}])[0].tolist() == [2.0, 2.0]


@pytest.mark.parametrize(
    "body, fault",
    [
        ("raise KeyError('lost')", r"mine.py:f failed: KeyError: 'lost' \(.*mine.py, line 4\)"),
        ("return [1.0]", r"'f' gave 1 values for 2 answers"),
        ("return [1.0, math.nan]", r"'f' gave nan for answer 2 of 2"),
        ("return ['good', 1]", r"'f' gave .*good.* for answer 1 of 2"),
        ("return [1, '0.5']", r"'f' gave '0.5' for answer 2 of 2; give a number below 1e\+15"),
        ("return [1, 10 ** 400]", r"'f' gave 1000.{75}0 for answer 2 of 2"),
        ("return [1, -1e20]", r"'f' gave -1e\+20 for answer 2 of 2"),
        ("return 3", r"mine.py:f gave 3; it must give a list"),
        ("return '10'", r"mine.py:f gave '10'; it must give a list"),
        ("return {1: 'a', 2: 'b'}", r"mine.py:f gave \{1: 'a', 2: 'b'\}; it must give a list"),
        ("os._exit(3)", r"the process of the reward .*mine.py:f ended \(exit code 3\)"),
    ],
)
def test_a_function_that_does_wrong_is_named_with_what_it_did(body: str, fault: str, source: Any) -> None:
    with pytest.raises(RewardError, match=fault):
        scored([{"path": source(body)}])


def test_a_function_that_hangs_is_ended_at_its_deadline(source: Any) -> None:
    path, started = source("time.sleep(60)"), time.perf_counter()
    with pytest.raises(RewardError, match=r"mine.py:f took more than 0.5 seconds and was ended"):
        scored([{"path": path}], seconds=0.5)
    assert time.perf_counter() - started < 30


def test_what_is_not_there_is_refused_before_anything_is_loaded(source: Any, tmp_path: Path) -> None:
    file = source("return [1, 1]").removesuffix(":f")
    for path, fault in (
        (f"{tmp_path}/none.py:f", r"there is no file '.*none.py'"),
        (f"{file}:g", r"there is no function 'g' in .*mine.py; it defines f"),
        ("no.such.module:f", "No module named 'no'"),
    ):
        with pytest.raises(RewardError, match=fault):
            with_sources(Config(rewards=(RewardConfig(path=path),)))
    unknown = r"'f' asks for the column 'sucess', which does not exist; there are prompts"
    for wanting in ("completions, sucess", "completions, sucess, **others"):
        with pytest.raises(RewardError, match=unknown):
            with_sources(Config(rewards=(RewardConfig(path=source("return [1, 1]", wanting)),)))


def test_functions_of_this_process_are_rewards_too() -> None:
    def short(completions: list[str]) -> list[float]:
        return [-float(len(one)) for one in completions]

    rewards = Rewards((Weighted("short", 0.1, short, ("completions",)),))
    total, _, _ = rewards(PROBLEMS, ANSWERS)
    torch.testing.assert_close(total, torch.tensor([-0.9, -0.9]))


# ---------------------------------------------------------------------------------------------- many verdicts


def test_a_thought_that_never_ends_and_the_question_itself_are_no_success() -> None:
    problems = [PROBLEMS[0], PROBLEMS[0], Problem("p2", "math500", "The derivative?", "3x^2")]
    thought = answer("Let me try \\boxed{1}, no wait")
    answers = [thought, replace(thought, thought_open=True), answer(r"\boxed{\frac{d}{dx} x^3}")]
    assert [one is not None and one.correct for one in verdicts.Verifier()(problems, answers)] == [True, False, False]


def test_a_fault_of_the_grader_is_no_verdict_on_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    outcomes = iter([Outcome.GOLD_ERROR, Outcome.TIMEOUT])
    monkeypatch.setattr(verdicts, "grade", lambda *_, **__: Verdict(next(outcomes)))
    total, _, _ = scored([{"name": "verifier"}])
    assert total.isnan().all()


def test_answers_that_are_slow_to_judge_hold_up_no_other_and_have_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(task: str, text: str, gold: str, **_: object) -> Verdict:
        time.sleep(1.5 if text == "slow" else 0.0)
        return Verdict(Outcome.CORRECT)

    monkeypatch.setattr(verdicts, "grade", slow)
    monkeypatch.setattr(verdicts, "cores", lambda: 2)
    answers = [answer("slow"), *(answer(str(index)) for index in range(20))]
    found = verdicts.Verifier(seconds=0.5)([PROBLEMS[0]] * 21, answers)
    assert [one is None for one in found] == [True] + [False] * 20


def test_code_is_judged_only_where_the_config_names_the_reward() -> None:
    coding = [Problem("c", "humaneval", "x", "{}")]
    with pytest.raises(ValueError, match=r"allow it by naming the reward: rewards: \[\{name: code\}\]"):
        verdicts.Verifier().check(coding)


def test_programs_may_import_what_the_config_names(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    monkeypatch.setattr(verdicts, "grade", lambda *_, packages, **__: seen.append(packages))
    verdicts.Verifier(runs_code=True, packages=GrpoConfig(packages=("scipy",)).packages)._verdict(
        "t", "", "", False, False
    )
    assert seen == [("scipy",)]


@pytest.mark.parametrize("settings", [{}, {"name": "verifier", "path": "a.py:f"}, {"path": "a.py"}, {"name": "none"}])
def test_a_reward_that_is_named_badly_is_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        RewardConfig(**settings)


def test_rewards_that_share_a_name_or_weigh_nothing_are_refused() -> None:
    with pytest.raises(ValueError, match="two rewards are called 'f'"):
        Config(rewards=(RewardConfig(path="a.py:f"), RewardConfig(path="b.py:f")))
    with pytest.raises(ValueError, match="every weight is 0"):
        Config(rewards=(RewardConfig(name="verifier", weight=0.0),))


def test_a_reward_that_a_training_without_operators_cannot_earn_is_said_or_refused(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    with_sources(Config(), operators=True)
    assert not caplog.text
    with_sources(Config())
    assert "the reward 'budget' has no effect: this training has no operators" in caplog.text
    for others in ((), (RewardConfig(name="verifier", weight=0.0),)):
        with pytest.raises(RewardError, match="nothing would be learned: the reward 'budget' is on operators"):
            with_sources(Config(rewards=(RewardConfig(name="budget"), *others)))


def test_a_run_that_goes_on_with_another_reward_or_without_it_is_refused(source: Any, tmp_path: Path) -> None:
    path = source("return [1.0] * len(prompts)")
    config = with_sources(Config(rewards=(RewardConfig(path=path),)))
    with Run.create(tmp_path / "run", dump(config)) as run:
        run.check_provenance(origins(config.rewards))
    source("return [2.0] * len(prompts)")
    edited = with_sources(Config(rewards=(RewardConfig(path=path),)))
    with pytest.raises(RunError, match=r"rewards was .*sha256.*, now"):
        Run.resume(tmp_path / "run", dump(edited), origin=origins(edited.rewards))
    with pytest.raises(RunError, match=r"rewards was .*mine.py:f.*, now .*verifier"):
        Run.resume(tmp_path / "run", dump(Config()), origin={})
