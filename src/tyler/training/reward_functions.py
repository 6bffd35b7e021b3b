"""Rewards of one's own, each in a process of its own: one that hangs can be ended, one that prints disturbs nothing."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as DeadlineError
from pathlib import Path
from typing import Any

WORKER = Path(__file__).with_name("reward_worker.py")
START_SECONDS = 120.0
"""A function may load a model of its own before its first answer."""


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
        self._process = subprocess.Popen(
            [sys.executable, str(WORKER), *path.rpartition(":")[::2]],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
        )
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="reward")
        try:
            self.parameters = self._reply(None, START_SECONDS)
        except BaseException:
            self.close()
            raise

    def __call__(self, **columns: list[Any]) -> list[Any]:
        """What the function gives for these columns. Raises RewardError where it fails or takes too long."""
        values = self._reply(columns, self.seconds)
        if not isinstance(values, list):
            raise RewardError(f"the reward {self.path} gave {values!r:.80}; it must give a list, a number an answer")
        return values

    def _reply(self, columns: Mapping[str, Any] | None, seconds: float) -> Any:
        """The process's answer to one line. Raises RewardError."""
        try:
            line = self._pool.submit(self._exchange, columns).result(seconds)
        except DeadlineError:
            self._process.kill()
            raise RewardError(
                f"the reward {self.path} took more than {seconds:g} seconds and was ended; make it faster, or raise "
                "reward_seconds"
            ) from None
        except OSError:
            line = b""
        if not line:
            raise RewardError(f"the process of the reward {self.path} ended (exit code {self._process.wait()})")
        reply = json.loads(line)
        if "error" in reply:
            raise RewardError(f"the reward {self.path} failed: {reply['error']}")
        return reply["value"]

    def _exchange(self, columns: Mapping[str, Any] | None) -> bytes:
        assert self._process.stdin is not None and self._process.stdout is not None
        if columns is not None:
            self._process.stdin.write(json.dumps(columns).encode() + b"\n")
            self._process.stdin.flush()
        return self._process.stdout.readline()

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._pool.shutdown()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        self._process.wait()

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
