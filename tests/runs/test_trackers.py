"""Trackers: what each package is asked, that a missing one stops a run early and a failing one never."""

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tyler.config.files import ConfigError, load_config
from tyler.config.schema import Config
from tyler.config.sections import TrackingConfig
from tyler.runs.json_lines import read_jsonl
from tyler.runs.trackers import TOOLS, TrackerError, check_tracker, open_tracker
from tyler.training.command import opened_run

METRICS = {"stage1/loss": 0.5, "note": "text", "ok": True, "none": None}
NUMBERS = {"stage1/loss": 0.5, "ok": 1.0}


class Recorder:
    """Stands in for the run or writer of a package; `fails` makes every call of it fail."""

    def __init__(self, name: str = "taken-1", fails: bool = False) -> None:
        self.name, self.fails = name, fails
        self.calls: list[tuple[Any, ...]] = []

    def _call(self, *call: Any) -> None:
        self.calls.append(call)
        if self.fails:
            raise ConnectionError("no network")

    def log(self, metrics: dict[str, Any], step: int | None = None) -> None:
        self._call("log", metrics, step)

    def add_scalar(self, tag: str, scalar_value: float, global_step: int | None = None) -> None:
        self._call("add_scalar", tag, scalar_value, global_step)

    def finish(self) -> None:
        self._call("finish")

    def flush(self) -> None:
        """What accelerate does after each step."""

    def close(self) -> None:
        self._call("close")


class Package(ModuleType):
    """Stands in for wandb, trackio or torch.utils.tensorboard."""

    def __init__(self, name: str, recorder: Recorder) -> None:
        super().__init__(name)
        self.recorder = recorder
        self.started: list[dict[str, Any]] = []
        self.init = self.SummaryWriter = self._start

    def _start(self, folder: str = "", **settings: Any) -> Recorder:
        self.started.append({"log_dir": folder, **settings} if folder else settings)
        return self.recorder


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch):
    def install(name: str, fails: bool = False) -> Package:
        package = Package(name, Recorder(fails=fails))
        monkeypatch.setitem(sys.modules, name, package)
        parent, _, child = name.rpartition(".")
        if parent:  # where the real one was imported before
            monkeypatch.setattr(sys.modules[parent], child, package, raising=False)
        return package

    return install


def tracker(tool: str, run: Path, steps_done: int = 0, **settings: Any):
    return open_tracker(TrackingConfig(tool=tool, **settings), run, {"lora": {"rank": 8}}, steps_done=steps_done)


def test_no_tool_is_no_tracker_and_no_folder(tmp_path: Path) -> None:
    check_tracker(TrackingConfig())
    assert tracker("none", tmp_path) is None and list(tmp_path.iterdir()) == []


def test_tensorboard_gets_a_scalar_for_each_number_and_hides_the_steps_that_are_redone(tmp_path: Path, package) -> None:
    board = package("torch.utils.tensorboard")
    first = tracker("tensorboard", tmp_path)
    first.log(3, METRICS)
    first.finish()
    assert board.recorder.calls == [("add_scalar", "stage1/loss", 0.5, 3), ("add_scalar", "ok", 1.0, 3), ("close",)]
    tracker("tensorboard", tmp_path, steps_done=2)
    folder = str(tmp_path / "tracking")
    assert board.started == [{"log_dir": folder, "purge_step": 0}, {"log_dir": folder, "purge_step": 3}]


def test_wandb_finds_its_run_again_by_the_id_in_the_run_directory(tmp_path: Path, package) -> None:
    wandb = package("wandb")
    run = tmp_path / "mine"
    run.mkdir()
    first = tracker("wandb", run)
    first.log(3, METRICS)
    first.finish()
    assert wandb.recorder.calls == [("log", NUMBERS, 3), ("finish",)]
    tracker("wandb", run, steps_done=2, project="p", name="n")
    one, other = wandb.started
    identity = (run / "tracking" / "wandb-id").read_text()
    assert identity.isalnum()
    common = {"config": {"lora": {"rank": 8}}, "dir": str(run / "tracking"), "id": identity, "resume": "allow"}
    assert one == {"project": "tyler", "name": "mine", **common}
    assert other == {"project": "p", "name": "n", **common}


def test_trackio_finds_its_run_again_by_the_name_it_was_given(tmp_path: Path, package) -> None:
    trackio = package("trackio")
    first = tracker("trackio", tmp_path, name="wanted")
    first.log(3, METRICS)
    first.finish()
    assert trackio.recorder.calls == [("log", NUMBERS, 3), ("finish",)]
    tracker("trackio", tmp_path, name="wanted", steps_done=2)
    asked = [(start["project"], start["name"], start["resume"]) for start in trackio.started]
    assert asked == [("tyler", "wanted", "never"), ("tyler", "taken-1", "allow")]
    assert trackio.started[0]["config"] == {"lora": {"rank": 8}}


@pytest.mark.parametrize(("tool", "module"), [(tool, found.module) for tool, found in TOOLS.items()])
def test_a_missing_package_is_told_before_anything_is_loaded(
    tool: str, module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tyler.training import stage1, stage2

    monkeypatch.setitem(sys.modules, module, None)  # what importing it then finds
    config = Config(tracking=TrackingConfig(tool=tool))
    config = config.model_copy(update={"backbone": config.backbone.model_copy(update={"id": "nowhere"})})
    with pytest.raises(TrackerError, match=rf"tracking.tool={tool} needs.*`pip install {TOOLS[tool].package}`"):
        stage1.run(config, output=tmp_path / "run")
    with pytest.raises(TrackerError, match=rf"`pip install {TOOLS[tool].package}`"):
        stage2.run(config, start="nowhere", output=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_tracker_that_cannot_start_stops_the_run_before_training(tmp_path: Path, monkeypatch) -> None:
    def init(**_: Any) -> None:
        raise RuntimeError("not logged in")

    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=init))
    with pytest.raises(
        TrackerError, match=r"wandb cannot start: not logged in; .*\(tracking.tool=none\), and .* --resume"
    ):
        tracker("wandb", tmp_path)


def test_a_tracker_that_fails_while_training_is_told_once_and_the_metrics_go_on(
    tmp_path: Path, package, caplog: pytest.LogCaptureFixture
) -> None:
    wandb = package("wandb", fails=True)
    config = Config(tracking=TrackingConfig(tool="wandb"))
    with opened_run(config, tmp_path / "run") as run:
        for step in (1, 2, 3):
            run.log(step, {"loss": 1 / step})
    assert [line["step"] for line in read_jsonl(tmp_path / "run" / "metrics.jsonl")] == [1, 2, 3]
    told = "wandb fails (ConnectionError: no network); the run continues without it, metrics.jsonl has all"
    assert caplog.messages == [told]
    assert len(wandb.recorder.calls) == 1


def test_a_tracker_that_fails_at_the_end_does_not_fail_the_run(tmp_path: Path, package, caplog) -> None:
    package("trackio", fails=True)
    with opened_run(Config(tracking=TrackingConfig(tool="trackio")), tmp_path / "run"):
        pass
    assert "trackio fails" in caplog.text


def test_a_training_run_tells_its_tracker_what_it_logs_and_where_it_goes_on(tmp_path: Path, package) -> None:
    board = package("torch.utils.tensorboard")
    config = Config(tracking=TrackingConfig(tool="tensorboard"))
    with opened_run(config, tmp_path) as run:
        run.log(1, {"loss": 1.0})
        run.save_checkpoint(1, lambda folder: None)
    with opened_run(config, tmp_path, resume=True) as run:
        run.log(2, {"loss": 0.5})
    with opened_run(config, tmp_path, replace=True):
        pass
    scalars = [call[1:] for call in board.recorder.calls if call[0] == "add_scalar"]
    assert scalars == [("loss", 1.0, 1), ("loss", 0.5, 2)]
    assert [start["purge_step"] for start in board.started] == [0, 2, 0]


def test_an_unknown_tool_is_refused_with_those_there_are() -> None:
    with pytest.raises(ConfigError, match=r"tracking.tool.*'none', 'tensorboard', 'trackio', 'wandb' or 'mlflow'"):
        load_config("mini", ["tracking.tool=notebook"])
