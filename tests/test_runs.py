from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch

from tyler import runs
from tyler.runs import (
    Interrupted,
    Run,
    RunError,
    atomic_write,
    checkpoint_step,
    interruptible,
    latest_checkpoint,
    open_run,
)

CONFIG = "grpo:\n  kl_weight: 0.03\nstage1:\n  steps: 4\n"


def write_state(folder: Path) -> None:
    (folder / "state.txt").write_text("state")
    (folder / "deeper").mkdir()
    (folder / "deeper" / "more.txt").write_text("more")


def fail_with(error: BaseException):
    def write(folder: Path) -> None:
        (folder / "half.txt").write_text("half")
        raise error

    return write


def train(run: Run, first: int, last: int, save_every: int = 2) -> None:
    for step in range(first, last + 1):
        run.log(step, {"loss": 1 / step})
        run.log_trajectory(step, {"text": f"answer {step}"})
        if step % save_every == 0:
            run.save_checkpoint(step, write_state)


def test_a_new_run_holds_its_config_and_its_environment(tmp_path: Path) -> None:
    with Run.create(tmp_path / "deep" / "run", CONFIG) as run:
        assert (run.path / "config.yaml").read_text() == CONFIG
        (start,) = json.loads((run.path / "environment.json").read_text())
    assert start["packages"]["torch"] == torch.__version__
    assert start["threads"] == 1
    assert {"python", "platform", "device", "cores", "thread_settings", "command"} <= set(start)


def test_metrics_are_on_disk_line_by_line(tmp_path: Path) -> None:
    with Run.create(tmp_path, CONFIG) as run:
        run.log(1, {"loss": 0.5})
        assert runs.read_jsonl(tmp_path / "metrics.jsonl") == [{"step": 1, "loss": 0.5}]


def test_values_that_are_not_finite_become_null_and_the_log_goes_on(tmp_path: Path) -> None:
    metrics = {"loss": float("nan"), "norm": torch.tensor(float("inf")), "ok": np.float32(0.5), "parts": [1, np.nan]}
    with Run.create(tmp_path, CONFIG) as run:
        run.log(1, metrics)
        run.log(
            2, {"loss": torch.tensor(2.0), "by_operator": {"global": 3}, "note": "fine", "flag": True, "none": None}
        )
    assert runs.read_jsonl(tmp_path / "metrics.jsonl") == [
        {"step": 1, "loss": None, "norm": None, "ok": 0.5, "parts": [1, None]},
        {"step": 2, "loss": 2.0, "by_operator": {"global": 3}, "note": "fine", "flag": True, "none": None},
    ]


def test_a_run_is_never_started_over_another_or_over_other_files(tmp_path: Path) -> None:
    Run.create(tmp_path / "run", CONFIG).close()
    with pytest.raises(RunError, match=r"already holds a run; resume it \(--resume\)"):
        Run.create(tmp_path / "run", CONFIG)
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.tex").touch()
    for start in (Run.create, Run.replace):
        with pytest.raises(RunError, match="is not empty"):
            start(tmp_path / "thesis", CONFIG)
    assert (tmp_path / "thesis" / "chapter.tex").exists()


def test_replacing_a_run_drops_what_it_wrote(tmp_path: Path) -> None:
    with Run.create(tmp_path, CONFIG) as run:
        train(run, 1, 4)
    with Run.replace(tmp_path, "new: true\n") as run:
        assert run.latest_checkpoint() is None
        assert (tmp_path / "metrics.jsonl").read_text() == ""
        assert (tmp_path / "config.yaml").read_text() == "new: true\n"


def test_a_command_creates_resumes_or_replaces(tmp_path: Path) -> None:
    with open_run(tmp_path, CONFIG) as run:
        train(run, 1, 2)
    with open_run(tmp_path, CONFIG, resume=True) as run:
        assert run.latest_checkpoint() is not None
    with open_run(tmp_path, CONFIG, replace=True) as run:
        assert run.latest_checkpoint() is None
    with pytest.raises(RunError, match="cannot both resume and replace"):
        open_run(tmp_path, CONFIG, resume=True, replace=True)


def test_two_processes_cannot_write_one_run(tmp_path: Path) -> None:
    code = f"from tyler.runs import Run; Run.create({str(tmp_path)!r}, {CONFIG!r})"
    with Run.create(tmp_path, CONFIG):
        second = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert f"is being written by process {os.getpid()}" in second.stderr
    with Run.resume(tmp_path, CONFIG):
        pass


def test_a_directory_that_cannot_be_written_is_reported_before_anything_starts(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match=r"cannot write to .*choose another directory"):
        Run.create(tmp_path / "file" / "run", CONFIG)


def test_a_full_disk_is_reported_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="MiB of disk left, and a run needs"):
        Run.create(tmp_path, CONFIG, min_free_bytes=2**62)
    with Run.create(tmp_path, CONFIG):  # the failed attempt left no lock behind
        pass


def test_checkpoints_are_whole_and_the_newest_are_kept(tmp_path: Path) -> None:
    with Run.create(tmp_path, CONFIG, keep_checkpoints=2) as run:
        assert run.latest_checkpoint() is None
        train(run, 1, 20)
        assert [path.name for path in run.checkpoints()] == ["step-18", "step-20"]
        newest = run.latest_checkpoint()
    assert newest == latest_checkpoint(tmp_path)
    assert newest is not None and checkpoint_step(newest) == 20
    assert (newest / "deeper" / "more.txt").read_text() == "more"
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["step-18", "step-20"]


@pytest.mark.parametrize("error", [RuntimeError("boom"), KeyboardInterrupt()])
def test_a_checkpoint_that_fails_half_way_is_never_visible(tmp_path: Path, error: BaseException) -> None:
    with Run.create(tmp_path, CONFIG) as run:
        train(run, 1, 2)
        with pytest.raises(type(error)):
            run.save_checkpoint(3, fail_with(error))
        assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-2"]


def test_a_disk_that_fills_up_names_the_checkpoint_that_is_whole(tmp_path: Path) -> None:
    with Run.create(tmp_path, CONFIG) as run:
        train(run, 1, 2)
        with pytest.raises(RunError, match="is full; step-2 is whole; make room and resume"):
            run.save_checkpoint(3, fail_with(OSError(errno.ENOSPC, "No space left on device")))


def test_a_killed_run_leaves_no_half_checkpoint_and_resumes_at_the_last_whole_one(tmp_path: Path) -> None:
    code = f"""
import os, signal
from tyler.runs import Run
run = Run.create({str(tmp_path)!r}, {CONFIG!r})
run.log(1, {{"loss": 1}})
run.save_checkpoint(1, lambda folder: (folder / "state.txt").write_text("state"))
run.log(2, {{"loss": 2}})
def die(folder):
    (folder / "state.txt").write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)
run.save_checkpoint(2, die)
"""
    assert subprocess.run([sys.executable, "-c", code]).returncode == -signal.SIGKILL
    with Run.resume(tmp_path, CONFIG) as run:
        assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-1"]
        assert runs.read_jsonl(tmp_path / "metrics.jsonl") == [{"step": 1, "loss": 1}]
        assert run.latest_checkpoint() == tmp_path / "checkpoints" / "step-1"


def test_a_resumed_run_writes_what_an_uninterrupted_one_writes(tmp_path: Path) -> None:
    with Run.create(tmp_path / "whole", CONFIG) as run:
        train(run, 1, 8)
    with Run.create(tmp_path / "cut", CONFIG) as run:
        train(run, 1, 5)
    with open(tmp_path / "cut" / "metrics.jsonl", "a") as log:
        log.write('{"step": 6, "lo')  # killed while writing
    with Run.resume(tmp_path / "cut", CONFIG) as run:
        newest = run.latest_checkpoint()
        assert newest is not None
        train(run, checkpoint_step(newest) + 1, 8)
    for name in ("metrics.jsonl", "trajectories.jsonl", "config.yaml"):
        assert (tmp_path / "cut" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    assert len(json.loads((tmp_path / "cut" / "environment.json").read_text())) == 2


def test_a_run_without_a_checkpoint_resumes_from_its_start(tmp_path: Path) -> None:
    with Run.create(tmp_path, CONFIG) as run:
        train(run, 1, 1)
    with Run.resume(tmp_path, CONFIG):
        assert (tmp_path / "metrics.jsonl").read_text() == ""


def test_resuming_needs_a_run_with_the_same_config(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="holds no run to resume"):
        Run.resume(tmp_path, CONFIG)
    assert list(tmp_path.iterdir()) == []
    Run.create(tmp_path, CONFIG).close()
    with pytest.raises(RunError, match=r"another config: grpo.kl_weight was 0.03, now 0.5$"):
        Run.resume(tmp_path, CONFIG.replace("0.03", "0.5"))


def test_resuming_refuses_logs_shorter_than_the_checkpoint_saw(tmp_path: Path) -> None:
    with Run.create(tmp_path, CONFIG) as run:
        train(run, 1, 2)
    (tmp_path / "metrics.jsonl").write_text("")
    with pytest.raises(RunError, match="holds 0 bytes"):
        Run.resume(tmp_path, CONFIG)


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_asks_a_loop_to_stop_and_the_second_stops_it(signum: signal.Signals, capsys) -> None:
    before = signal.getsignal(signum)
    with interruptible() as interruption:
        assert not interruption.requested
        os.kill(os.getpid(), signum)
        assert interruption.requested
        assert "stopping after this step" in capsys.readouterr().err
        stop = interruption.stop("saved step 3; resume with --resume")
        assert isinstance(stop, Interrupted) and stop.signum == signum
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signum)
    assert signal.getsignal(signum) is before


def test_a_loop_in_a_thread_is_never_asked_to_stop() -> None:
    seen = []

    def loop() -> None:
        with interruptible() as interruption:
            seen.append(interruption.requested)

    thread = threading.Thread(target=loop)
    thread.start()
    thread.join()
    assert seen == [False]


def test_an_atomic_write_leaves_the_old_file_or_the_new_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    atomic_write(tmp_path / "file", "old")

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="full"):
        atomic_write(tmp_path / "file", b"new")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_text() == "old"
