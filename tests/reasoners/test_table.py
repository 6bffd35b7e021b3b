"""The table of trainings, against the functions and the settings that it names."""

from __future__ import annotations

import json
from operator import attrgetter
from pathlib import Path

import pytest

from tyler.cli import main
from tyler.config.schema import Config
from tyler.model import Tyler
from tyler.reasoners.table import TRAININGS, every_metrics, find_training


@pytest.mark.parametrize("name", TRAININGS)
def test_a_trainer_names_a_training_and_settings_that_there_are(name: str) -> None:
    trainer, config = TRAININGS[name], Config()
    assert callable(trainer.load())
    assert trainer.loop in config.loops and trainer.loop.partition(".")[0] in trainer.reads
    for setting in trainer.reads:
        attrgetter(setting)(config)  # there is one of this name


def test_metrics_name_settings_that_there_are() -> None:
    for metrics in every_metrics().values():
        assert metrics.sections and set(metrics.sections) <= set(Config.model_fields)


# ------------------------------------------------------------------------------------ a training outside the package

TOY = """
from tyler.config.loops import TracesConfig
from tyler.config.schema import Config
from tyler.reasoners.sft import SftTrainer, prepared
from tyler.reasoners.table import Training
from tyler.runs.metrics import SPEED, Metrics, from_traces
from tyler.training.command import training_command


class ToyConfig(TracesConfig):
    factor: float = 1.0


class MyConfig(Config):
    toy: ToyConfig = ToyConfig()


class ToyTrainer(SftTrainer):
    title, metrics = "toy", Metrics("toy", from_traces("toy", "eta", SPEED), sections=("toy",))

    def batch_loss(self, part, num_targets):
        return self.loop.factor * super().batch_loss(part, num_targets)


@training_command
def run(config):
    return prepared(config, config.toy, ToyTrainer)


TOY = Training("a toy", run, "toy", config=MyConfig)
NOTHING = 3
"""
COMMAND = ["train", "toy.py:TOY", "mini", "--toy.steps", "2", "--toy.batch_size", "2", "--data.count", "8"]


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    find_training.cache_clear()
    (tmp_path / "toy.py").write_text(TOY)
    return tmp_path


def test_a_method_of_ones_own_file_is_trained_resumed_read_and_reported(toy: Path) -> None:
    assert main.main([*COMMAND, "--toy.factor", "0.5"]) == 0
    run = toy / "runs" / "mini-TOY"
    logged = [json.loads(line)["toy/loss"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert main.main(["train", "sft", "mini", "--sft.steps", "2", "--sft.batch_size", "2", "--data.count", "8"]) == 0
    plain = (toy / "runs" / "mini-sft" / "metrics.jsonl").read_text().splitlines()
    assert logged[0] == 0.5 * json.loads(plain[0])["sft/loss"] and len(logged) == 2
    assert main.main([*COMMAND, "--toy.factor", "0.5", "--toy.steps", "3", "--resume"]) == 0
    assert (run / "checkpoints" / "step-3").is_dir()
    assert main.main(["config", str(run)]) == main.main(["report", str(run)]) == 0
    assert Tyler.from_pretrained(run).stage == "sft"


def test_a_method_that_was_edited_or_cannot_be_used_is_refused_by_name(toy: Path, capsys) -> None:
    for method, words in (
        ("toy.py:NOTHING", "not a tyler.reasoners.table.Training, but a int"),
        ("toy.py:MISSING", "there is no training 'toy.py:MISSING': AttributeError"),
        ("absent.py:TOY", "there is no training 'absent.py:TOY': FileNotFoundError"),
    ):
        assert main.main(["train", method, "mini"]) == 2
        assert words in capsys.readouterr().err
    assert main.main([*COMMAND, "--toy.facto", "2"]) == 2
    assert "there is no key 'toy.facto'; did you mean 'factor'?" in capsys.readouterr().err
    assert main.main([*COMMAND, "--dry-run"]) == 2
    assert main.main(COMMAND) == 0
    find_training.cache_clear()
    (toy / "toy.py").write_text(TOY + "# edited")
    assert main.main([*COMMAND, "--resume"]) == 2
    assert "the method's file toy.py" in capsys.readouterr().err
