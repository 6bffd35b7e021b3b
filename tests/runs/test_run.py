import errno
import fcntl
import json
import operator
import os
import shutil
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from tyler.config.files import dump, load_config
from tyler.config.schema import Config
from tyler.runs.checkpoints import (
    Best,
    RunError,
    best_checkpoint,
    checkpoint_step,
    latest_checkpoint,
    whole_checkpoints,
)
from tyler.runs.json_lines import read_jsonl
from tyler.runs.run import Run, TrainedRun, release, take_lock
from tyler.training.command import opened_run

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
        run.log_trajectories(step, [{"text": f"answer {step}"}])
        if step % save_every == 0:
            run.save_checkpoint(step, write_state)


def test_a_new_run_holds_its_config_and_its_environment(tmp_path: Path) -> None:
    with Run.create(tmp_path / "deep" / "run", CONFIG) as run:
        assert (run.path / "config.yaml").read_text() == CONFIG
        (start,) = json.loads((run.path / "environment.json").read_text())
    installed, running = (version.partition("+")[0] for version in (start["packages"]["torch"], torch.__version__))
    assert installed == running, "a wheel's metadata may leave out what it is built for"
    assert start["threads"] == torch.get_num_threads()
    assert {"python", "platform", "device", "processor", "cores", "thread_settings", "command"} <= set(start)


def test_values_that_are_not_finite_become_null_and_the_log_goes_on(tmp_path: Path) -> None:
    metrics = {"loss": float("nan"), "norm": torch.tensor(float("inf")), "ok": np.float32(0.5), "parts": [1, np.nan]}
    with Run.create(tmp_path, CONFIG) as run:
        run.log(1, metrics)
        run.log(
            2, {"loss": torch.tensor(2.0), "by_operator": {"global": 3}, "note": "fine", "flag": True, "none": None}
        )
        assert read_jsonl(tmp_path / "metrics.jsonl") == [  # on disk line by line
            {"step": 1, "loss": None, "norm": None, "ok": 0.5, "parts": [1, None]},
            {"step": 2, "loss": 2.0, "by_operator": {"global": 3}, "note": "fine", "flag": True, "none": None},
        ]


def test_a_run_is_never_started_over_another_or_over_other_files(tmp_path: Path) -> None:
    Run.create(tmp_path / "run", CONFIG).close()
    with pytest.raises(RunError, match=r"already holds a run; resume it \(--resume\)"):
        Run.create(tmp_path / "run", CONFIG)
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.tex").touch()
    for start in (Run.create, partial(Run.create, replace=True)):
        with pytest.raises(RunError, match="is not empty"):
            start(tmp_path / "thesis", CONFIG)
    assert [entry.name for entry in (tmp_path / "thesis").iterdir()] == ["chapter.tex"], "nothing was left there"


def test_a_start_that_was_killed_at_once_can_be_repeated(tmp_path: Path) -> None:
    (tmp_path / ".lock").touch()
    (tmp_path / ".config.yaml.123").write_text(CONFIG[:5])
    Run.create(tmp_path, CONFIG).close()
    assert (tmp_path / "config.yaml").read_text() == CONFIG


def test_replacing_a_run_drops_what_it_wrote_and_keeps_what_is_somebody_elses(tmp_path: Path) -> None:
    with Run.create(tmp_path, CONFIG) as run:
        train(run, 1, 4)
    for name in ("report.html", "notes.txt"):
        (tmp_path / name).touch()
    with Run.create(tmp_path, "new: true\n", replace=True) as run:
        assert run.latest_checkpoint() is None
        assert sorted(path.name for path in tmp_path.iterdir() if not path.name.startswith(".")) == [
            "config.yaml", "environment.json", "metrics.jsonl", "notes.txt",
        ]  # fmt: skip
        assert (tmp_path / "metrics.jsonl").read_text() == ""
        assert (tmp_path / "config.yaml").read_text() == "new: true\n"


def test_a_kill_while_a_run_is_replaced_leaves_one_that_can_be_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def kill(*arguments: object, **more: object) -> None:
        raise SystemExit(137)

    with Run.create(tmp_path, CONFIG) as run:
        train(run, 1, 4)
    with monkeypatch.context() as patch:
        patch.setattr("tyler.runs.run.shutil.rmtree", kill)
        with pytest.raises(SystemExit):
            Run.create(tmp_path, "new: true\n", replace=True)
    Run.create(tmp_path, "new: true\n", replace=True).close()
    assert (tmp_path / "config.yaml").read_text() == "new: true\n"


def test_a_command_does_not_both_resume_and_replace(tmp_path: Path) -> None:
    with (
        pytest.raises(RunError, match="cannot both resume and replace"),
        opened_run(Config(), tmp_path, resume=True, replace=True),
    ):
        pass


def test_two_processes_cannot_write_one_run(tmp_path: Path) -> None:
    code = f"from tyler.runs.run import Run; Run.create({str(tmp_path)!r}, {CONFIG!r})"
    with Run.create(tmp_path, CONFIG):
        second = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert f"is being written by process {os.getpid()}" in second.stderr
    with Run.resume(tmp_path, CONFIG):
        pass


def test_a_run_that_is_closed_leaves_its_record_and_no_lock(tmp_path: Path) -> None:
    with Run.create(tmp_path / "run", CONFIG) as run:
        assert (tmp_path / "run" / ".lock").exists()
        run.log(1, {"loss": 1.0})
    assert {path.name for path in (tmp_path / "run").iterdir()} == {"config.yaml", "environment.json", "metrics.jsonl"}
    with Run.resume(tmp_path / "run", CONFIG) as run:
        run.log_trajectories(1, [{"text": "one"}])
        run.save_checkpoint(1, lambda folder: (folder / "weights").write_text("w"))
    with Run.resume(tmp_path / "run", CONFIG):
        pass
    assert len(read_jsonl(tmp_path / "run" / "trajectories.jsonl.gz")) == 1
    assert not (tmp_path / "run" / ".lock").exists()


def test_a_lock_that_its_run_has_just_removed_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between opening the file and locking it the run that had it may end: the next one would lock another file."""
    opened, open_file = [], os.open

    def late(path: Path, *arguments: int) -> int:
        lock = open_file(path, *arguments)
        if not opened:
            Path(path).unlink()
        opened.append(lock)
        return lock

    monkeypatch.setattr(os, "open", late)
    lock = take_lock(tmp_path)
    assert len(opened) == 2 and lock == opened[1]
    with pytest.raises(RunError, match="is being written"):
        take_lock(tmp_path)
    release(tmp_path, lock)
    assert not list(tmp_path.iterdir())


def test_a_directory_that_cannot_be_written_is_reported_before_anything_starts(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match=r"cannot write to .*choose another directory"):
        Run.create(tmp_path / "file" / "run", CONFIG)


def test_checkpoints_are_whole_and_the_newest_are_kept(tmp_path: Path) -> None:
    with Run.create(tmp_path, CONFIG, keep_checkpoints=2) as run:
        assert run.latest_checkpoint() is None
        train(run, 1, 20)
        assert [path.name for path in whole_checkpoints(run.path)] == ["step-18", "step-20"]
        newest = run.latest_checkpoint()
    assert newest == latest_checkpoint(tmp_path)
    assert newest is not None and checkpoint_step(newest) == 20
    assert (newest / "deeper" / "more.txt").read_text() == "more"
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["step-18", "step-20"]


FULL = "is full; step-2 is whole; free some space and resume with --resume"


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (RuntimeError("boom"), RuntimeError, "boom"),
        (KeyboardInterrupt(), KeyboardInterrupt, ""),
        (OSError(errno.ENOSPC, "No space left on device"), RunError, FULL),
    ],
)
def test_a_checkpoint_that_fails_half_way_is_never_visible(
    tmp_path: Path, error: BaseException, kind: type[BaseException], message: str
) -> None:
    with Run.create(tmp_path, CONFIG) as run:
        train(run, 1, 2)
        with pytest.raises(kind, match=message):
            run.save_checkpoint(3, fail_with(error))
        assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-2"]


FILL = """
import resource
import sys
import numpy
from pathlib import Path
from safetensors.numpy import save_file
from tyler.runs.run import Run, RunError
path, limit, writer = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
big = "x" * 400_000
writers = {
    "tensors": lambda folder: save_file({"a": numpy.zeros(100_000)}, folder / "model.safetensors"),
    "text": lambda folder: (folder / "text").write_text(big),
}
with Run.create(path, "{}") as run:
    run.log(1, {"loss": 1})
    run.save_checkpoint(1, lambda folder: (folder / "state").write_text("state"))
    if limit:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    try:
        if writer == "metrics":
            run.log(2, {"note": big})
        else:
            run.save_checkpoint(2, writers[writer])
    except RunError as error:
        print(error)
"""


def fill(path: Path, limit: int, writer: str) -> str:
    """What a process says whose disk takes no more than `limit` bytes of a file."""
    done = subprocess.run([sys.executable, "-c", FILL, str(path), str(limit), writer], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("writer", ["tensors", "text", "metrics"])
def test_a_file_that_cannot_be_written_costs_no_checkpoint_and_says_how_to_go_on(tmp_path: Path, writer: str) -> None:
    said = fill(tmp_path, 50_000, writer)
    assert (tmp_path / "metrics.jsonl").read_text() == '{"step": 1, "loss": 1}\n', "no torn line"
    assert "File too large" in said
    assert f"step-1 is whole; fix that and resume with --resume --output {tmp_path}" in said
    with Run.resume(tmp_path, "{}") as run:
        assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-1"]
        assert read_jsonl(tmp_path / "metrics.jsonl") == [{"step": 1, "loss": 1}]
        run.log(2, {"loss": 2})
        run.save_checkpoint(2, write_state)


@pytest.mark.parametrize("writer", ["tensors", "text", "metrics"])
def test_a_disk_that_is_really_full_costs_no_checkpoint_either(tmp_path: Path, writer: str) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    if (
        shutil.which("mount") is None
        or subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=256k", "tyler-test", str(disk)], capture_output=True
        ).returncode
    ):
        pytest.skip("a small disk cannot be mounted here")
    try:
        said = fill(disk / "run", 0, writer)
        assert f"the disk of {disk / 'run'} is full; step-1 is whole; free some space and resume with --resume" in said
        with Run.resume(disk / "run", "{}") as run:
            assert [path.name for path in (disk / "run" / "checkpoints").iterdir()] == ["step-1"]
            run.save_checkpoint(2, write_state)
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_the_space_for_all_checkpoints_is_asked_for_before_training(tmp_path: Path) -> None:
    free = shutil.disk_usage(tmp_path).free
    with Run.create(tmp_path, CONFIG, keep_checkpoints=3) as run:
        run.require_space(free // 10)
        with pytest.raises(
            RunError, match=r"5 checkpoints of \d+ MiB each need \d+ MiB; make room.*keep=3\) and resume with --resume"
        ):
            run.require_space(free // 4)
        train(run, 1, 4)
        with pytest.raises(RunError, match="3 checkpoints of"):
            run.require_space(free)


# -------------------------------------------------------------------------------------- the best checkpoint


def judged(run: Run, first: int, accuracies: list[float], save_every: int = 1) -> None:
    """Steps from `first` with these development accuracies, saved as the training loops save them."""
    for step, accuracy in enumerate(accuracies, start=first):
        run.log(step, {"accuracy": accuracy})
        run.record_best(step, "accuracy", accuracy, operator.gt)
        if step % save_every == 0 or (run.best is not None and run.best.step == step):
            run.save_checkpoint(step, write_state)


def names(path: Path) -> list[str]:
    return sorted(path.name for path in (path / "checkpoints").iterdir())


def test_the_best_checkpoint_stays_beside_the_newest_and_of_equal_ones_the_earliest(tmp_path: Path) -> None:
    with Run.create(tmp_path, CONFIG, keep_checkpoints=2) as run:
        judged(run, 1, [0.1, 0.5, 0.3])
        assert names(tmp_path) == ["best", "step-2", "step-3"]
        judged(run, 4, [0.5, float("nan"), 0.2])
        assert names(tmp_path) == ["best", "step-2", "step-5", "step-6"]
        assert best_checkpoint(tmp_path) == tmp_path / "checkpoints" / "step-2"
        assert run.best == Best(2, "accuracy", 0.5)
        assert latest_checkpoint(tmp_path) == tmp_path / "checkpoints" / "step-6"
        judged(run, 7, [0.6])
        assert names(tmp_path) == ["best", "step-6", "step-7"]
    note = json.loads((tmp_path / "checkpoints" / "best" / "best.json").read_text())
    assert note == {"step": 7, "metric": "accuracy", "value": 0.6}


def test_of_losses_the_lowest_is_the_best(tmp_path: Path) -> None:
    with Run.create(tmp_path, CONFIG) as run:
        for step, loss in enumerate([3.0, 2.0, 2.0, 2.5], start=1):
            run.record_best(step, "loss", loss, operator.lt)
        assert run.best == Best(2, "loss", 2.0)
        run.record_best(5, "loss", -float("inf"), operator.lt)
        assert run.best == Best(2, "loss", 2.0), "a loss that is not finite is never the best"


def test_a_resumed_run_knows_the_best_of_its_checkpoint_and_not_of_what_it_lost(tmp_path: Path) -> None:
    with Run.create(tmp_path, CONFIG) as run:
        judged(run, 1, [0.1, 0.5, 0.3])
        run.record_best(4, "accuracy", 0.9, operator.gt)  # and killed before its checkpoint
    with Run.resume(tmp_path, CONFIG) as run:
        assert run.best == Best(2, "accuracy", 0.5)
        judged(run, 4, [0.9])
        assert best_checkpoint(tmp_path) == tmp_path / "checkpoints" / "step-4"
    Run.create(tmp_path, CONFIG, replace=True).close()
    assert best_checkpoint(tmp_path) is None


def test_a_kill_between_a_checkpoint_and_its_link_is_mended(tmp_path: Path) -> None:
    with Run.create(tmp_path, CONFIG) as run:
        judged(run, 1, [0.1, 0.5])
    link = tmp_path / "checkpoints" / "best"
    link.unlink()
    link.symlink_to("step-1")
    link.with_name(".best.123").symlink_to("step-2")
    with Run.resume(tmp_path, CONFIG):
        assert names(tmp_path) == ["best", "step-1", "step-2"]
        assert best_checkpoint(tmp_path) == tmp_path / "checkpoints" / "step-2"


def test_a_run_that_goes_back_behind_its_best_checkpoint_drops_the_link(tmp_path: Path) -> None:
    with Run.create(tmp_path, CONFIG, keep_checkpoints=5) as run:
        judged(run, 1, [0.1, 0.5])
    shutil.rmtree(tmp_path / "checkpoints" / "step-2")
    with Run.resume(tmp_path, CONFIG) as run:
        assert run.best == Best(1, "accuracy", 0.1)
        assert best_checkpoint(tmp_path) == tmp_path / "checkpoints" / "step-1"
    shutil.rmtree(tmp_path / "checkpoints" / "step-1")
    with Run.resume(tmp_path, CONFIG) as run:
        assert run.best is None and names(tmp_path) == []


def test_what_no_weight_depends_on_may_change_when_a_run_goes_on(tmp_path: Path) -> None:
    old = CONFIG + "checkpoints:\n  keep: 2\ntracking:\n  tool: wandb\n"
    old += "decoding:\n  slots: 16\n  budget: 3\nmemgen:\n  trigger:\n    micro_batch_size: 8\n"
    new = old.replace("keep: 2", "keep: 5").replace("wandb", "none").replace("slots: 16", "slots: 4")
    new = new.replace("micro_batch_size: 8", "micro_batch_size: 1")
    Run.create(tmp_path, old).close()
    Run.resume(tmp_path, new).close()
    assert (tmp_path / "config.yaml").read_text() == new
    with pytest.raises(RunError, match=r"another config: decoding.budget was 3, now 4$"):
        Run.resume(tmp_path, new.replace("budget: 3", "budget: 4"))


def test_a_best_step_whose_checkpoint_is_gone_can_be_beaten_by_any(tmp_path: Path) -> None:
    with Run.create(tmp_path, CONFIG, keep_checkpoints=1) as run:
        judged(run, 1, [0.5, 0.1])
    shutil.rmtree(tmp_path / "checkpoints" / "step-1")
    with Run.resume(tmp_path, CONFIG) as run:
        assert run.best is None
        judged(run, 3, [0.3])
        assert best_checkpoint(tmp_path) == tmp_path / "checkpoints" / "step-3"


def test_listeners_hear_every_line_of_the_metrics(tmp_path: Path) -> None:
    heard = []
    with Run.create(tmp_path, CONFIG) as run:
        run.also_log(lambda step, metrics: heard.append((step, dict(metrics))))
        run.log(3, {"loss": 0.5})
        run.log_trajectories(3, [{"text": "unheard"}])
    assert heard == [(3, {"loss": 0.5})]


def test_a_killed_run_leaves_no_half_checkpoint_and_resumes_at_the_last_whole_one(tmp_path: Path) -> None:
    code = f"""
import os, signal
from tyler.runs.run import Run
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
        assert read_jsonl(tmp_path / "metrics.jsonl") == [{"step": 1, "loss": 1}]
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
    for name in ("metrics.jsonl", "trajectories.jsonl.gz", "config.yaml"):
        assert (tmp_path / "cut" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    assert (tmp_path / "cut" / "trajectories.jsonl.gz").read_bytes().startswith(b"\x1f\x8b"), "compressed"
    assert len(json.loads((tmp_path / "cut" / "environment.json").read_text())) == 2


@pytest.mark.parametrize(
    ("file", "content"),
    [("best.json", "{}"), ("best.json", "{"), ("log_lengths.json", ""), ("log_lengths.json", "[3]")],
)
def test_a_damaged_checkpoint_is_named_with_the_one_before_it(tmp_path: Path, file: str, content: str) -> None:
    with Run.create(tmp_path, CONFIG) as run:
        for step in (1, 2):
            run.record_best(step, "accuracy", 0.5, operator.gt)
            run.save_checkpoint(step, write_state)
    newest = tmp_path / "checkpoints" / "step-2"
    (newest / file).write_text(content)
    with pytest.raises(RunError, match=r"step-2 is damaged \(.*\); .* the run resumes from step-1"):
        Run.resume(tmp_path, CONFIG)
    newest.rename(newest.with_name("step-2-damaged"))
    with Run.resume(tmp_path, CONFIG) as run:
        assert [one.name for one in whole_checkpoints(run.path)] == ["step-1"]


def test_a_run_does_not_resume_from_a_state_in_which_a_byte_changed(tmp_path: Path) -> None:
    def write(folder: Path) -> None:
        (folder / "policy").mkdir()
        for name in ("state.safetensors", "policy/adapter_model.safetensors", "README.md"):
            (folder / name).write_bytes(b"weights")

    with Run.create(tmp_path, CONFIG) as run:
        run.save_checkpoint(1, write)
    newest = tmp_path / "checkpoints" / "step-1"
    (newest / "README.md").write_text("mine")
    Run.resume(tmp_path, CONFIG).close()
    for name in ("state.safetensors", "policy/adapter_model.safetensors", "log_lengths.json"):
        whole = (newest / name).read_bytes()
        (newest / name).write_bytes(bytes([whole[0] ^ 1]) + whole[1:])
        with pytest.raises(RunError, match=rf"step-1 is damaged \({name} changed since it was written\)"):
            Run.resume(tmp_path, CONFIG)
        (newest / name).write_bytes(whole)
    (newest / "digests.json").write_text("3")
    with pytest.raises(RunError, match=r"step-1 is damaged \(digests.json is no JSON object\)"):
        Run.resume(tmp_path, CONFIG)


@pytest.mark.parametrize(("file", "content"), [("config.yaml", "a: ["), ("environment.json", "[{")])
def test_a_damaged_file_of_a_run_is_named(tmp_path: Path, file: str, content: str) -> None:
    Run.create(tmp_path, CONFIG).close()
    (tmp_path / file).write_text(content)
    with pytest.raises(RunError, match=f"{file} is damaged"):
        Run.resume(tmp_path, CONFIG)


def test_a_run_learns_from_one_thing_until_it_is_replaced(tmp_path: Path) -> None:
    with Run.create(tmp_path, CONFIG) as run:
        run.check_provenance({"the problems": "a", "the model": "m"})
    with Run.resume(tmp_path, CONFIG) as run:
        run.check_provenance({"the problems": "a", "the model": "m"})
        with pytest.raises(RunError, match="cannot resume: the problems changed since it was started"):
            run.check_provenance({"the problems": "b", "the model": "m"})
    with Run.create(tmp_path, CONFIG, replace=True) as run:
        run.check_provenance({"the problems": "b"})


def test_a_run_that_may_not_resume_stays_as_it_was(tmp_path: Path) -> None:
    with Run.create(tmp_path, CONFIG) as run:
        run.check_provenance({"the problems": "a"})
        train(run, 1, 4)
        run.log(5, {"loss": 0.1})  # and killed before its checkpoint
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    with pytest.raises(RunError, match="cannot resume: the problems changed since it was started"):
        Run.resume(tmp_path, CONFIG, origin={"the problems": "b"})
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()} == before


@pytest.mark.parametrize("separator", ["\u2028", "\u2029", "\x85", "\x0c", "\r", "\n"])
def test_a_record_is_one_line_whatever_is_in_its_text(tmp_path: Path, separator: str) -> None:
    with Run.create(tmp_path, CONFIG) as run:
        run.log_trajectories(1, [{"text": f"one{separator}two"}])
    assert read_jsonl(tmp_path / "trajectories.jsonl.gz") == [{"step": 1, "text": f"one{separator}two"}]


def test_compressed_records_are_read_up_to_where_a_kill_cut_them(tmp_path: Path) -> None:
    with Run.create(tmp_path / "run", "seed: 1\n") as run:
        for step in (1, 2):
            run.log_trajectories(step, [{"text": f"answer {step}"}])
    file = tmp_path / "run" / "trajectories.jsonl.gz"
    whole, records = file.read_bytes(), read_jsonl(file)
    assert len(records) == 2
    for length in range(len(whole)):
        file.write_bytes(whole[:length])
        found = read_jsonl(file)
        assert found == records[: len(found)] and len(found) >= (length > len(whole) - 8)


def test_a_log_line_that_is_no_record_is_named(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n{"step": \n{"st')
    with pytest.raises(RunError, match=r"metrics\.jsonl, line 2 is damaged"):
        read_jsonl(tmp_path / "metrics.jsonl")


def test_resuming_needs_a_run(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="holds no run to resume"):
        Run.resume(tmp_path, CONFIG)
    assert list(tmp_path.iterdir()) == []


def test_a_setting_that_is_newer_than_the_run_had_its_default_there(tmp_path: Path) -> None:
    Run.create(tmp_path, "a: 1\n").close()
    defaults = "{a: 5, section: {newer: false}, unused: 7}"
    Run.resume(tmp_path, "{a: 1, section: {newer: false}}", defaults_text=defaults).close()
    with pytest.raises(RunError, match=r"another config: section.newer was False, now True$"):
        Run.resume(tmp_path, "{a: 1, section: {newer: true}}", defaults_text=defaults)


def test_resuming_refuses_logs_shorter_than_the_checkpoint_saw(tmp_path: Path) -> None:
    with Run.create(tmp_path, CONFIG) as run:
        train(run, 1, 2)
    (tmp_path / "metrics.jsonl").write_text("")
    with pytest.raises(RunError, match="holds 0 bytes"):
        Run.resume(tmp_path, CONFIG)


# ------------------------------------------------------------------------------------------- what a resume changes


def test_a_resume_notes_what_it_changed_and_the_step_it_goes_on_from(tmp_path: Path) -> None:
    first = dump(load_config("mini", ["stage2.learning_rate=1e-4", "stage2.steps=4"]))
    with Run.create(tmp_path, first) as run:
        run.save_checkpoint(4, lambda folder: None)
    second = dump(load_config("mini", ["stage2.learning_rate=5e-5", "stage2.steps=6"]))
    Run.resume(tmp_path, second).close()
    start = json.loads((tmp_path / "environment.json").read_text())[-1]
    assert start["resumed_at"] == 4
    assert start["changes"] == {"stage2.steps": [4, 6], "stage2.learning_rate": [1e-4, 5e-5]}
    assert (tmp_path / "config.yaml").read_text() == second


def test_a_directory_without_locks_is_written_when_nobody_asks_for_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(
        RunError, match=r"cannot lock .*: No locks available; choose a directory on another .* --no-lock"
    ):
        Run.create(tmp_path / "locked", CONFIG)
    with Run.create(tmp_path / "free", CONFIG, lock=False) as run:
        run.log(1, {"loss": 0.5})
    assert read_jsonl(tmp_path / "free" / "metrics.jsonl") == [{"step": 1, "loss": 0.5}]


def test_a_run_without_a_checkpoint_resumes_from_its_start_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Run.create(tmp_path, CONFIG) as run:
        train(run, 1, 1)
    with Run.resume(tmp_path, CONFIG):
        assert (tmp_path / "metrics.jsonl").read_text() == ""
    assert "has no checkpoint: it starts from its beginning" in caplog.text


def test_a_process_that_follows_reads_checkpoints_and_writes_nothing(tmp_path: Path) -> None:
    with Run.create(tmp_path, CONFIG) as run:
        run.save_checkpoint(2, lambda folder: None)
        before = sorted(str(path) for path in tmp_path.rglob("*"))
        followed = TrainedRun(tmp_path)
        followed.log(3, {"loss": 1.0})
        followed.log_trajectories(3, [{"text": "nothing"}])
        followed.note_at_start({"training": "nothing"})
        assert followed.latest_checkpoint() == run.latest_checkpoint()
        assert sorted(str(path) for path in tmp_path.rglob("*")) == before
