"""Rewards of one's own, each in a process of its own: one that hangs can be ended, one that prints disturbs nothing."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterable
from contextlib import suppress
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

WORKER = Path(__file__).with_name("reward_worker.py")
START_SECONDS = 120.0
"""A function may load a model of its own before its first answer."""
STDERR = 2
"""Where what a function prints goes."""


class RewardError(ValueError):
    """A reward that cannot be used; says which, and what it did."""


class RewardFunction:
    """A function `FILE.py:NAME` or `package.module:NAME` in a process that answers one call within `seconds`.

    Raises RewardError for a source or a function that is not there. Use it with `with`.
    """

    def __init__(self, path: str, seconds: float) -> None:
        self.path, self.seconds = path, seconds
        source_of(path)
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)}
        self._pipe, theirs = Pipe()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, str(WORKER), *path.rpartition(":")[::2], str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=STDERR,
                env=environment,
            )
        try:
            self.parameters = self._reply(START_SECONDS)
        except BaseException:
            self.close()
            raise

    def __call__(self, **columns: list[Any]) -> list[Any]:
        """What the function gives for these columns. Raises RewardError where it fails or takes too long."""
        with suppress(OSError):  # the process has ended, which its reply says
            self._pipe.send(columns)
        values = self._reply(self.seconds)
        if not isinstance(values, Iterable):
            raise RewardError(f"the reward {self.path} gave {values!r:.80}; it must give a list, a number an answer")
        return list(values)

    def _reply(self, seconds: float) -> Any:
        """What the process sends. Raises RewardError."""
        if not self._pipe.poll(seconds):
            self._process.kill()
            raise RewardError(
                f"the reward {self.path} took more than {seconds:g} seconds and was ended; make it faster, or raise "
                "reward_seconds"
            )
        try:
            value, fault = self._pipe.recv()
        except (EOFError, OSError):
            raise RewardError(
                f"the process of the reward {self.path} ended (exit code {self._process.wait()})"
            ) from None
        if fault is not None:
            raise RewardError(f"the reward {self.path} failed: {fault}")
        return value

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()
        self._pipe.close()

    def __enter__(self) -> RewardFunction:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def source_of(path: str) -> Path:
    """The file that holds the function at `path`. Raises RewardError if it is not found."""
    module, _, _ = path.rpartition(":")
    if module.endswith(".py"):
        if not Path(module).is_file():
            raise RewardError(f"the reward {path}: there is no file {module!r} (from {Path.cwd()})")
        return Path(module)
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError) as error:
        raise RewardError(f"the reward {path}: {error}") from error
    if spec is None or spec.origin is None:
        raise RewardError(f"the reward {path}: there is no module {module!r}; a file ends in .py")
    return Path(spec.origin)


def source_digest(path: str) -> str:
    """The sha256 of the source that holds the function at `path`. Raises RewardError if it is not found."""
    return hashlib.sha256(source_of(path).read_bytes()).hexdigest()
