"""The trackers with their real packages, where those are installed: a run is opened, logged into and gone on with."""

import json
import sqlite3
from pathlib import Path

import pytest

from tyler.config.sections import TrackingConfig
from tyler.runs.trackers import open_tracker


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run directory."""
    (tmp_path / "run").mkdir()
    return tmp_path / "run"


def logged_twice(tool: str, run: Path) -> None:
    """Steps 1 and 2, then a resumed run that stands after step 1 and logs step 2 anew."""
    settings = TrackingConfig(tool=tool, project="tyler-tests", name="a-run")
    for steps_done, losses in ((0, {1: 3.0, 2: 2.0}), (1, {2: 1.5})):
        tracker = open_tracker(settings, run, {"seed": 42}, steps_done=steps_done)
        for step, loss in losses.items():
            tracker.log(step, {"stage1/loss": loss, "note": "text"})
        tracker.finish()


def test_tensorboard_shows_a_resumed_run_once(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("tensorboard", reason="the package tensorboard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    logged_twice("tensorboard", run)
    events = EventAccumulator(str(run / "tracking"))
    events.Reload()
    assert events.Tags()["scalars"] == ["stage1/loss"]
    assert [(event.step, event.value) for event in events.Scalars("stage1/loss")] == [(1, 3.0), (2, 1.5)]
    assert "warning" not in capsys.readouterr().err


def test_wandb_goes_on_with_the_run_it_began(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("wandb", reason="the package wandb is not installed")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    logged_twice("wandb", run)
    identity = (run / "tracking" / "wandb-id").read_text()
    folders = sorted((run / "tracking" / "wandb").glob("offline-run-*"))
    assert folders and all(folder.name.endswith(identity) for folder in folders)
    assert "warning: wandb" not in capsys.readouterr().err


def test_trackio_keeps_every_step_under_one_name(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    trackio = pytest.importorskip("trackio", reason="the package trackio is not installed")
    logged_twice("trackio", run)
    name = (run / "tracking" / "trackio-name").read_text()
    (found,) = [one for one in trackio.Api().runs("tyler-tests") if one.name == name]
    assert found.config is not None and found.config["seed"] == 42
    assert "warning: trackio" not in capsys.readouterr().err
    lines = [line for path in (tmp_path / "trackio").glob("*.db") for line in logged_in(path)]
    assert [line["stage1/loss"] for line in lines] == [3.0, 2.0, 1.5]


def test_mlflow_goes_on_with_the_run_it_began(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow", reason="the package mlflow is not installed")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri((tmp_path / "mlruns").as_uri())
    logged_twice("mlflow", run)
    client = mlflow.MlflowClient()
    (experiment,) = [one for one in client.search_experiments() if one.name == "tyler-tests"]
    (found,) = client.search_runs([experiment.experiment_id])
    assert found.info.run_id == (run / "tracking" / "mlflow-id").read_text()
    assert (found.info.run_name, found.data.params["seed"]) == ("a-run", "42")
    history = client.get_metric_history(found.info.run_id, "stage1/loss")
    assert [(one.step, one.value) for one in history] == [(1, 3.0), (2, 2.0), (2, 1.5)]


def logged_in(database: Path) -> list[dict[str, float]]:
    """The metrics in trackio's own file, in their order."""
    with sqlite3.connect(database) as connection:
        return [json.loads(text) for (text,) in connection.execute("select metrics from metrics order by id")]
