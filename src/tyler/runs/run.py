"""A run directory: what a run was, what it measured and what it can resume from.

    run/
      config.yaml         the resolved config
      origin.json         hashes of what it learns from
      environment.json    one entry per start: Python, packages, platform, device, threads
      metrics.jsonl       one line per logged step
      trajectories.jsonl.gz  one line per trajectory: the audit trail, where there are any
      checkpoints/step-N  whole or not there at all
      checkpoints/best    a link to the one that was best on the development problems, where there are any
      tracking/           what a tracker keeps here, where the config names one

One process at a time may write a run. A resumed run drops the lines that came after its checkpoint, so that its files
end up equal to those of a run that was never interrupted. docs/runs.md says what holds and what does not.
"""

import errno
import fcntl
import gzip
import json
import logging
import math
import os
import platform
import shlex
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from io import FileIO
from pathlib import Path
from typing import Any, Self

import yaml
from safetensors import SafetensorError

from tyler.config.files import changes, differences
from tyler.runs import threads
from tyler.runs.atomic_files import atomic_write, sync, sync_tree, write_all
from tyler.runs.checkpoints import (
    BEST_NOTE,
    CHECKPOINTS,
    Best,
    RunError,
    best_checkpoint,
    best_so_far,
    check_digests,
    checkpoint_step,
    drop_half_written,
    latest_checkpoint,
    link_best,
    reading,
    remove_checkpoint,
    whole_checkpoints,
    write_digests,
)
from tyler.runs.environment import environment
from tyler.runs.json_lines import json_line, parsed

CONFIG, ENVIRONMENT = "config.yaml", "environment.json"
METRICS, TRAJECTORIES, TRACKING, ORIGIN = "metrics.jsonl", "trajectories.jsonl.gz", "tracking", "origin.json"
LOCK = ".lock"
"""What is locked while a process writes the run, and gone afterwards."""
REPORT = "report.html"
"""What commands draw of a run beside it."""
HALF_A_CONFIG = f".{CONFIG}.*"
"""What a start that was killed at once leaves."""
LOG_LENGTHS = "log_lengths.json"
"""In each checkpoint: the length in bytes of the run's logs when it was written."""

logger = logging.getLogger(__name__)

Listener = Callable[[int, Mapping[str, Any]], None]
"""Is told every line of metrics.jsonl: the step and its metrics."""


class TrainedRun:
    """A run as every process of a training has it. This one reads it and writes nothing, for another process does."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.best = best_so_far(path)

    def record_best(self, step: int, metric: str, value: float, better: Callable[[float, float], bool]) -> None:
        """Note what the model reached on development problems after `step`; the best step's checkpoint stays.

        `better(a, b)` says whether a beats b (operator.gt for an accuracy, operator.lt for a loss). The checkpoint of
        `step` must be the next one to be saved.
        """
        if math.isfinite(value) and (self.best is None or better(value, self.best.value)):
            self.best = Best(step, metric, value)

    def latest_checkpoint(self) -> Path | None:
        """The checkpoint to resume from, or None at the start of a run."""
        return latest_checkpoint(self.path)

    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Nothing: the writer logs."""

    def log_trajectories(self, step: int, trajectories: Sequence[Mapping[str, Any]]) -> None:
        """Nothing: the writer logs."""

    def note_at_start(self, facts: Mapping[str, Any]) -> None:
        """Nothing: the writer notes it."""

    def require_space(self, checkpoint_bytes: int) -> None:
        """Nothing: the writer needs it."""

    def save_checkpoint(self, step: int, write: Callable[[Path], None]) -> None:
        """Nothing: the writer saves it."""


class Run(TrainedRun):
    """A run directory open for writing. Make one with `create` or `resume`, and close it, or use `with`."""

    def __init__(self, path: Path, held: ExitStack, keep_checkpoints: int) -> None:
        super().__init__(path)
        self._keep_checkpoints = keep_checkpoints
        self._listeners: list[Listener] = []
        # Unbuffered: what a full disk did not take must not come back when the file is closed.
        self._metrics = held.enter_context(FileIO(path / METRICS, "ab"))
        self._trajectories: FileIO | None = None  # most runs log none
        self._held = held.pop_all()
        """The lock and the logs, which are this run's from now on."""

    @classmethod
    def create(
        cls, path: str | Path, config_text: str, *, keep_checkpoints: int = 2, lock: bool = True, replace: bool = False
    ) -> Self:
        """Start a run in a new or empty directory; with `replace`, drop what an earlier run left there, and only that.

        `config_text` is the resolved config in YAML; the `keep_checkpoints` newest checkpoints are kept. Raises
        RunError when the directory holds something else, cannot be written or is in use; without `lock` nothing says
        whether it is in use.
        """
        path = Path(path)
        _refuse_other_files(path)
        with ExitStack() as held:
            _open_directory(path, lock, held)
            if (path / CONFIG).exists():
                if not replace:
                    raise RunError(
                        f"{path} already holds a run; resume it (--resume) or choose another directory (--output)"
                    )
                _drop_run(path)
            for leftover in path.glob(HALF_A_CONFIG):
                leftover.unlink()
            atomic_write(path / CONFIG, config_text)
            _note_start(path)
            return cls(path, held, keep_checkpoints)

    @classmethod
    def resume(
        cls,
        path: str | Path,
        config_text: str,
        *,
        keep_checkpoints: int = 2,
        lock: bool = True,
        defaults_text: str = "{}",
        origin: Mapping[str, str] | None = None,
    ) -> Self:
        """Open a run again at its newest checkpoint, or at its start where it has none.

        `defaults_text` is a config of defaults: a setting that the run does not name, because it is older than the
        setting, had its default. Raises RunError when there is no run, when its config differs from `config_text`
        (naming the keys) in more than may change (`files.CHANGEABLE`), when it has learned from something else than
        `origin` says (`check_provenance`), and as `create` does; the run is then as it was.
        """
        path = Path(path)
        if not (path / CONFIG).is_file():
            raise RunError(f"{path} holds no run to resume (no {CONFIG}); start it without --resume")
        with ExitStack() as held:
            _open_directory(path, lock, held)
            before = _read_config(path / CONFIG)
            if changed := differences(before, config_text, defaults_text):
                raise RunError(f"{path} was started with another config: {'; '.join(changed)}")
            _refuse_another_origin(path, origin or {})
            drop_half_written(path / CHECKPOINTS)
            link_best(path, best_so_far(path))
            _rewind_logs(path)
            atomic_write(path / CONFIG, config_text)
            _note_start(path, changes(before, config_text, defaults_text))
            return cls(path, held, keep_checkpoints)

    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Add one line to metrics.jsonl. What is not finite becomes null: a loss gone bad must not stop the log."""
        self._append(self._metrics, METRICS, json_line({"step": step, **metrics}).encode("utf-8"))
        for listener in self._listeners:
            listener(step, metrics)

    def log_trajectories(self, step: int, trajectories: Sequence[Mapping[str, Any]]) -> None:
        """Add a line for each to trajectories.jsonl.gz; those of a step are one gzip member, whole or absent."""
        if not trajectories:
            return
        if self._trajectories is None:
            self._trajectories = self._held.enter_context(FileIO(self.path / TRAJECTORIES, "ab"))
        lines = "".join(json_line({"step": step, **trajectory}) for trajectory in trajectories)
        self._append(self._trajectories, TRAJECTORIES, gzip.compress(lines.encode("utf-8"), mtime=0))

    def also_log(self, listener: Listener) -> None:
        """Tell `listener` of every line that `log` adds from now on."""
        self._listeners.append(listener)

    def note_at_start(self, facts: Mapping[str, Any]) -> None:
        """Add to this start's entry in environment.json."""
        *before, start = parsed((self.path / ENVIRONMENT).read_bytes(), str(self.path / ENVIRONMENT))
        atomic_write(self.path / ENVIRONMENT, json.dumps([*before, {**start, **facts}], indent=2) + "\n")

    def check_provenance(self, origin: Mapping[str, str]) -> None:
        """Note hashes of what the run learns from. Raises RunError where it has learned from something else before.

        A config names files and folders; what is in them may have changed since.
        """
        before = _refuse_another_origin(self.path, origin)
        atomic_write(self.path / ORIGIN, json.dumps({**before, **origin}, indent=2) + "\n")

    def require_space(self, checkpoint_bytes: int) -> None:
        """Raise RunError unless the disk has room for the checkpoints of this run, each of about `checkpoint_bytes`.

        That is those that are kept, the best one, and the one being written; less what is there already.
        """
        count = self._keep_checkpoints + 2 - len(whole_checkpoints(self.path))
        needed, free = count * checkpoint_bytes, shutil.disk_usage(self.path).free
        if free < needed:
            raise RunError(
                f"{self.path} has {free / 2**20:.0f} MiB of disk left, and {count} checkpoints of "
                f"{checkpoint_bytes / 2**20:.0f} MiB each need {needed / 2**20:.0f} MiB; make room or keep fewer "
                f"(checkpoints.keep={self._keep_checkpoints}) and resume with {resume_hint(self.path)}, "
                "or choose another directory"
            )

    def save_checkpoint(self, step: int, write: Callable[[Path], None]) -> None:
        """Write `checkpoints/step-N` through `write`, which fills the folder it is given.

        The folder appears under its name only when everything in it is on disk. A step that has a checkpoint keeps it.
        Older ones beyond `keep_checkpoints` are removed, but for the best one. Raises RunError when the disk refuses
        it; those written before are unharmed.
        """
        final = self.path / CHECKPOINTS / f"step-{step}"
        if final.exists():
            return
        half_written = final.with_name(f".{final.name}.{os.getpid()}")
        try:
            half_written.mkdir(parents=True)
            write(half_written)
            (half_written / LOG_LENGTHS).write_text(json.dumps(self._log_lengths()))
            if self.best is not None:
                (half_written / BEST_NOTE).write_text(json.dumps(asdict(self.best)))
            write_digests(half_written)
            sync_tree(half_written)
            os.rename(half_written, final)
            sync(final.parent)
            link_best(self.path, self.best)
        except (OSError, SafetensorError) as error:
            raise self._not_written(final, error) from error
        finally:
            shutil.rmtree(half_written, ignore_errors=True)
        best = best_checkpoint(self.path)
        for old in whole_checkpoints(self.path)[: -self._keep_checkpoints]:
            if old != best:
                remove_checkpoint(old)

    def close(self) -> None:
        self._held.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _append(self, log: FileIO, name: str, content: bytes) -> None:
        before = os.fstat(log.fileno()).st_size
        try:
            write_all(log, content)
        except OSError as error:
            os.ftruncate(log.fileno(), before)  # half a line does not count
            raise self._not_written(self.path / name, error) from error

    def _log_lengths(self) -> dict[str, int]:
        lengths = {}
        for log in (self.path / METRICS, self.path / TRAJECTORIES):
            if log.exists():
                sync(log)
            lengths[log.name] = log.stat().st_size if log.exists() else 0
        return lengths

    def _not_written(self, what: Path, error: Exception) -> RunError:
        """What to raise where the disk refused `what`: why, what is safe, and how to resume."""
        full = any(sign in str(error) for sign in (os.strerror(errno.ENOSPC), os.strerror(errno.EDQUOT)))
        why = f"the disk of {self.path} is full" if full else f"cannot write {what}: {error}"
        newest = self.latest_checkpoint()
        state = f"{newest.name} is whole" if newest else "there is no checkpoint yet"
        remedy = "free some space and resume" if full else "fix that and resume"
        return RunError(f"{why}; {state}; {remedy} with {resume_hint(self.path)}")


def resume_hint(path: Path) -> str:
    """The flags with which a run's command resumes it."""
    return f"--resume --output {shlex.quote(str(path))}"


# --- what is on the disk ----------------------------------------------------------------------------------------------


def _drop_run(path: Path) -> None:
    """Remove a run but for its config, which stays until a new one replaces it: a kill leaves a run."""
    for folder in (CHECKPOINTS, TRACKING):
        shutil.rmtree(path / folder, ignore_errors=True)
    for name in (METRICS, TRAJECTORIES, ENVIRONMENT, ORIGIN, REPORT):
        (path / name).unlink(missing_ok=True)


def _note_start(path: Path, changed: Mapping[str, tuple[Any, Any]] | None = None) -> None:
    """Add this start to environment.json, with what it changed in the config and the step that it goes on from."""
    kept = path / ENVIRONMENT
    starts = parsed(kept.read_bytes(), str(kept)) if kept.exists() else []
    if starts:
        threads.keep(starts[0].get("threads"))
    start = environment()
    if starts:
        newest = latest_checkpoint(path)
        start["resumed_at"] = checkpoint_step(newest) if newest else 0
        start["changes"] = {key: list(pair) for key, pair in (changed or {}).items()}
    atomic_write(path / ENVIRONMENT, json.dumps([*starts, start], indent=2) + "\n")


def _refuse_another_origin(path: Path, origin: Mapping[str, str]) -> dict[str, str]:
    """What the run has noted of what it learns from. Raises RunError where `origin` says otherwise."""
    noted = path / ORIGIN
    before: dict[str, str] = parsed(noted.read_bytes(), str(noted)) if noted.exists() else {}
    if changed := [name for name, value in origin.items() if before.get(name, value) != value]:
        raise RunError(
            f"{path} cannot resume: {' and '.join(changed)} changed since it was started; bring back what it was "
            "started with, or start anew (another --output)"
        )
    return before


def _refuse_other_files(path: Path) -> None:
    """Raise RunError for a directory that holds something, but no run; nothing is left in it."""
    if not path.is_dir() or (path / CONFIG).exists():
        return
    if entries := sorted(
        entry.name for entry in path.iterdir() if entry.name != LOCK and not entry.match(HALF_A_CONFIG)
    ):
        raise RunError(f"{path} is not empty (it holds {', '.join(entries[:3])}); choose another directory (--output)")


def _read_config(path: Path) -> str:
    """The config of a run. Raises RunError where it is not YAML any more."""
    try:
        text = path.read_text(encoding="utf-8")
        yaml.safe_load(text)
    except (ValueError, yaml.YAMLError) as error:
        raise RunError(f"{path} is damaged ({' '.join(str(error).split())}); restore it or start anew") from error
    return text


def _open_directory(path: Path, locked: bool, held: ExitStack) -> None:
    """Make the directory and prove that it can be written; take its lock, which `held` lets go of."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        lock = take_lock(path) if locked else None
    except OSError as error:
        raise RunError(f"cannot write to {path}: {error.strerror}; choose another directory (--output)") from error
    if lock is not None:
        held.callback(release, path, lock)
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()} on {platform.node()}".encode(), 0)


def take_lock(path: Path) -> int:
    """The descriptor of the directory's lock, which is made for it.

    Raises RunError while another process has it and where the file system has no locks, OSError where it cannot be
    made.
    """
    while True:
        lock = os.open(path / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if (path / LOCK).exists() and os.path.samestat(os.fstat(lock), os.stat(path / LOCK)):
                return lock
            os.close(lock)  # the run that had it ended meanwhile, and removed it
        except BlockingIOError:
            owner = os.pread(lock, 256, 0).decode() or "unknown"
            os.close(lock)
            raise RunError(
                f"{path} is being written by process {owner}; wait for it or choose another directory (--output)"
            ) from None
        except OSError as error:  # some network file systems have no locks
            os.close(lock)
            raise RunError(
                f"cannot lock {path}: {error.strerror}; choose a directory on another file system (--output), or say "
                "--no-lock, and see to it that one process writes it"
            ) from error


def release(path: Path, lock: int) -> None:
    """Remove the lock while it is still held, and let go of it."""
    (path / LOCK).unlink(missing_ok=True)
    os.close(lock)


def _rewind_logs(path: Path) -> None:
    """Cut the logs back to what they held when the newest checkpoint was written."""
    newest = latest_checkpoint(path)
    lengths = {METRICS: 0, TRAJECTORIES: 0}
    if newest is None and (lost := (path / METRICS).stat().st_size if (path / METRICS).exists() else 0):
        logger.warning("%s has no checkpoint: it starts from its beginning, and %d bytes of %s go", path, lost, METRICS)
    if newest:
        check_digests(newest)
        with reading(newest):
            lengths |= json.loads((newest / LOG_LENGTHS).read_text())
    for name, length in lengths.items():
        log = path / name
        size = log.stat().st_size if log.exists() else 0
        if size < length:
            raise RunError(
                f"{log} holds {size} bytes, but {newest} was written after {length}; restore it or start anew"
            )
        if log.exists():
            os.truncate(log, length)
