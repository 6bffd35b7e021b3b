"""The table of trainings, against the functions and the settings that it names."""

import json
import subprocess
import sys
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

SETTINGS = """
from tyler.config.loops import TracesConfig


class ToyConfig(TracesConfig):
    factor: float = 1.0
    '''Of the loss.'''
"""
TRAINER = """
from tyler.reasoners.method import Training
from tyler.reasoners.sft import SftTrainer, prepared
from tyler.runs.metrics import SPEED, Metrics, from_traces
from tyler.training.command import lora_model, training_command
from tyler.training.planned import sft

METRICS = Metrics("toy", from_traces("toy", "eta", SPEED), sections=("toy",))


class ToyTrainer(SftTrainer):
    title, metrics = "toy", METRICS

    def batch_loss(self, part, num_targets):
        return self.loop.factor * super().batch_loss(part, num_targets)


@training_command
def run(config):
    return prepared(config, config.toy, ToyTrainer)


def rehearsed(backbone, config, trace):
    return ToyTrainer(lora_model(config, backbone, "sft"), (), config.toy), trace
"""
TOY = f"""{SETTINGS}{TRAINER}
TOY = Training("a toy", run, "toy", ("lora", "toy"), ToyConfig, planned=sft, rehearsed=rehearsed)
BARE = Training("a bare one", run, "toy", settings=ToyConfig)
LOST = Training("a lost one", run, "nowhere")
TWICE = Training("one too many", run, "softcot", settings=ToyConfig)
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
        ("toy.py:NOTHING", "not a tyler.reasoners.method.Training, but a int"),
        ("toy.py:MISSING", "there is no training 'toy.py:MISSING': AttributeError"),
        ("absent.py:TOY", "there is no training 'absent.py:TOY': FileNotFoundError"),
        ("toy.py:LOST", "no config has the section 'nowhere' of 'a lost one'; give its class as `settings`"),
        ("toy.py:TWICE", "a config has a section 'softcot' already; give the loop of 'one too many' another"),
    ):
        assert main.main(["train", method, "mini"]) == 2
        assert words in capsys.readouterr().err
    assert main.main([*COMMAND, "--toy.facto", "2"]) == 2
    assert "there is no key 'toy.facto'; did you mean 'factor'?" in capsys.readouterr().err
    assert main.main(COMMAND) == 0
    find_training.cache_clear()
    (toy / "toy.py").write_text(TOY + "# edited")
    assert main.main([*COMMAND, "--resume"]) == 2
    assert "the method's file toy.py" in capsys.readouterr().err


def test_a_method_of_ones_own_file_is_planned_and_takes_a_step_in_a_dry_run(toy: Path, capsys) -> None:
    assert main.main(["plan", "mini", "--method", "toy.py:TOY", "--hardware", "this", "--toy.batch_size", "2"]) == 0
    assert "toy.py:TOY" in capsys.readouterr().out
    assert main.main([*COMMAND, "--dry-run", "--length", "32"]) == 0
    shown = capsys.readouterr().out
    assert "toy.py:TOY step" in shown and "activations" in shown and not (toy / "runs").exists()
    for command in (["plan", "mini", "--method", "toy.py:BARE"], ["train", "toy.py:BARE", "mini", "--dry-run"]):
        assert main.main(command) == 2
        assert "'a bare one' has no `" in capsys.readouterr().err


# ---------------------------------------------------------------------------------------- a package among the methods

DECLARED = """
from tyler.reasoners.method import Training

TRAININGS = {
    "toy": Training(
        "a toy", "tyler.reasoners.toy.trainer:run", "toy", ("lora", "toy"), "tyler.reasoners.toy.settings:ToyConfig",
        planned="tyler.training.planned:sft", rehearsed="tyler.reasoners.toy.trainer:rehearsed",
    )
}
"""
AMONG_THE_METHODS = """
import sys
from tyler import reasoners

reasoners.__path__.append(sys.argv[1])
from tyler.cli import main
from tyler.experiments.cells import SECTIONS
from tyler.reasoners.table import METHODS, every_metrics

assert SECTIONS["toy"] == ("lora", "toy") and "toy" not in METHODS and "toy" in every_metrics()
assert main.main(["config", "mini", "--toy.factor", "0.5"]) == main.main(["plan", "mini"]) == 0
assert main.main([*sys.argv[2:], "--dry-run", "--length", "32"]) == main.main(sys.argv[2:]) == 0
"""


def test_a_package_among_the_methods_is_all_that_a_trained_method_needs(tmp_path: Path) -> None:
    package = tmp_path / "methods" / "toy"
    package.mkdir(parents=True)
    for name, text in (("settings", SETTINGS), ("trainer", TRAINER), ("__init__", DECLARED)):
        (package / f"{name}.py").write_text(text)
    command = [sys.executable, "-c", AMONG_THE_METHODS, str(package.parent), "train", "toy", *COMMAND[2:]]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert ran.returncode == 0, ran.stderr
    assert "factor: 0.5" in ran.stdout and ran.stdout.count("toy step") == 2
    assert (tmp_path / "runs" / "mini-toy" / "checkpoints" / "step-2").is_dir()
