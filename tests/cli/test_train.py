import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tyler.cli import main


@pytest.fixture
def training(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Training commands train nothing, but leave a run whose second step was the best."""
    monkeypatch.chdir(tmp_path)

    def run(config: Any, *, output: Path, **_: Any) -> None:
        for step in (2, 3):
            (output / "checkpoints" / f"step-{step}").mkdir(parents=True)
        best = {"step": 2, "metric": "stage1/development_loss", "value": 0.25}
        (output / "checkpoints" / "step-3" / "best.json").write_text(json.dumps(best))

    for module in ("tyler.training.stage1", "tyler.training.stage2", "tyler.reasoners.memgen.sft"):
        monkeypatch.setattr(f"{module}.run", run)


def test_a_trained_stage_says_what_it_does_what_is_kept_what_was_best_and_what_to_run_next(training, capsys) -> None:
    assert main.main(["stage1", "mini", "--output", "my runs/a", "--stage1.steps", "3", "--data.count", "9"]) == 0
    assert capsys.readouterr().err.splitlines() == [
        "Stage 1 of mini, in my runs/a: loading ...",
        "Stage 1 of mini is trained: my runs/a/checkpoints/step-3",
        "best on the development problems: step 2, stage1/development_loss 0.25: my runs/a/checkpoints/best",
        "next: tyler train stage2 mini --start 'my runs/a' --data.count 9",
        "      tyler solve 'my runs/a' QUESTION",
    ]


def test_a_stage_in_its_own_place_is_found_by_the_next_one_without_being_named(training, capsys) -> None:
    assert main.main(["stage1", "mini"]) == 0
    assert "next: tyler train stage2 mini\n" in capsys.readouterr().err
    assert main.main(["stage2", "mini"]) == 0
    assert "next: tyler eval runs/mini-stage2 --task mini --split eval\n" in capsys.readouterr().err


def test_a_trained_weaver_names_the_two_methods_that_continue_from_it(training, capsys) -> None:
    assert main.main(["train", "memgen", "mini"]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert lines[-4:] == [
        "next: tyler train memgen-weaver-grpo mini",
        "      tyler train memgen-trigger mini",
        "      tyler eval runs/mini-memgen --task mini --split eval",
        "      tyler solve runs/mini-memgen QUESTION",
    ]


def test_quiet_training_says_nothing(training, capsys) -> None:
    assert main.main(["stage1", "mini", "--quiet"]) == 0
    assert capsys.readouterr() == ("", "")


def test_a_quiet_evaluation_says_only_what_came_of_it(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    stand_in = SimpleNamespace(run=lambda *_, **__: print("the table"))
    monkeypatch.setattr("tyler.evaluation.command.run", stand_in.run)
    assert main.main(["eval", "mini", "--quiet"]) == 0
    assert capsys.readouterr() == ("the table\n", "")
    assert main.main(["eval", "mini"]) == 0
    assert capsys.readouterr() == ("the table\n", "loading mini ...\n")


@pytest.mark.parametrize(
    ("settings", "warning", "without"),
    [
        (
            "--stage1.epochs 1",
            "stage1.epochs = 1 has no effect: stage1.steps = 250 says how long to train; add --stage1.steps null",
            "--stage1.epochs 1 --stage1.steps null",
        ),
        (
            "--stage1.epochs 1",
            "stage1.epochs = 1 has no effect: stage1.steps = 250 says how long to train; add --stage1.steps null",
            "--stage1.epochs null",
        ),
        (
            "--decoding.temperature 0.7",
            "decoding.temperature = 0.7 is not read in training: rollouts are sampled at grpo.temperature, and "
            "development problems are answered greedily",
            "",
        ),
    ],
)
def test_a_setting_without_effect_is_told(settings: str, warning: str, without: str, training, capsys) -> None:
    assert main.main(["stage1", "mini", *settings.split()]) == 0
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("warning")]
    assert lines == [f"warning: {warning}"]
    assert main.main(["stage1", "mini", *without.split(), "--output", "other"]) == 0
    assert "warning" not in capsys.readouterr().err
