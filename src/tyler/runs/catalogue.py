"""A run directory read: how it stands, from its records alone, without opening it."""

import fcntl
import json
import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import yaml

from tyler.runs.checkpoints import Best, checkpoint_step, latest_checkpoint, read_best
from tyler.runs.json_lines import read_jsonl
from tyler.runs.metrics import SHARED
from tyler.runs.run import CONFIG, ENVIRONMENT, LOCK, METRICS

Status = Literal["running", "finished", "interrupted"]


@dataclass(frozen=True)
class TrainingRun:
    """A run directory, read."""

    path: Path

    @cached_property
    def config(self) -> dict[str, Any]:
        """The resolved config. Raises ValueError, naming the file, where it is not YAML."""
        try:
            return dict(yaml.safe_load((self.path / CONFIG).read_text(encoding="utf-8")))
        except (yaml.YAMLError, TypeError) as error:
            raise ValueError(f"{self.path / CONFIG} is damaged: {' '.join(str(error).split())}") from error

    @cached_property
    def metrics(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl; none where nothing was logged yet."""
        file = self.path / METRICS
        return read_jsonl(file) if file.exists() else []

    @cached_property
    def starts(self) -> list[dict[str, Any]]:
        """The entries of environment.json."""
        file = self.path / ENVIRONMENT
        return list(json.loads(file.read_text(encoding="utf-8"))) if file.exists() else []

    @property
    def loop(self) -> str | None:
        """The prefix of its own metrics; None where nothing was logged."""
        keys = (key.partition("/") for entry in reversed(self.metrics) for key in entry)
        return next((prefix for prefix, slash, _ in keys if slash and prefix not in SHARED), None)

    @property
    def what(self) -> str:
        """What it trains, as in "Stage 2"."""
        return str(self._noted("training") or "training")

    def _noted(self, fact: str) -> Any:
        """What its newest start noted that says so."""
        return next((start[fact] for start in reversed(self.starts) if fact in start), None)

    @property
    def budget(self) -> int | None:
        """B_O, where it learns from rewards with a budget."""
        return self.config["grpo"]["budget"] if self.loop == "stage2" else None

    @property
    def step(self) -> int:
        """The last step that was logged or saved."""
        saved = latest_checkpoint(self.path)
        logged = self.metrics[-1]["step"] if self.metrics else 0
        return max(logged, 0 if saved is None else checkpoint_step(saved))

    @property
    def total(self) -> int | None:
        """The steps that it is to take; None where none of its starts came to its loop."""
        return self._noted("steps")

    @property
    def status(self) -> Status:
        """Whether a process is writing it; else whether its last step is saved."""
        if is_locked(self.path / LOCK):
            return "running"
        saved = latest_checkpoint(self.path)
        done = saved is not None and (self.total is None or checkpoint_step(saved) >= self.total)
        return "finished" if done else "interrupted"

    @property
    def best(self) -> Best | None:
        """The step that was best on development problems, where there were any."""
        return read_best(latest_checkpoint(self.path))


def is_locked(file: Path) -> bool:
    """Whether a process holds the lock of a file; one that is not there is held by none."""
    try:
        descriptor = os.open(file, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False
