"""One JSON line for each request: what was asked for, what was invoked where, and what it cost.

A thread of its own writes, one line at a time, unbuffered: a line that is counted as written outlives the server. No
answer waits for it: when the disk is full or too slow, lines are lost and counted.
"""

from __future__ import annotations

import json
import logging
import os
import queue
import threading
from pathlib import Path
from typing import Any

from tyler.serving.metrics import Metrics

MOST_WAITING = 10_000
"""Lines that may wait for the disk."""


def check_writable(path: Path) -> None:
    """Raise OSError for a log that cannot be written; one that is missing is made."""
    os.close(opened(path))


def opened(path: Path) -> int:
    """The file, for adding lines: nobody but its owner reads what was asked."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)


class AuditLog:
    """Appends to `path`. A file of more than `max_bytes` becomes `path.1`, that one `path.2`, up to `files` in all."""

    def __init__(self, path: Path, metrics: Metrics, *, max_bytes: int, files: int) -> None:
        self._path, self._metrics, self._max_bytes, self._files = path, metrics, max_bytes, files
        self._lines = queue.Queue[str | None](MOST_WAITING)
        self._descriptor = opened(path)  # raises OSError here, where somebody is told
        self._thread = threading.Thread(target=self._write_all, name="tyler-audit-log", daemon=True)
        self._thread.start()

    def add(self, record: dict[str, Any]) -> None:
        """Queue a line; returns at once."""
        try:
            self._lines.put_nowait(json.dumps(record, ensure_ascii=False) + "\n")
        except queue.Full:
            self._metrics.log_lost.inc()

    def close(self) -> None:
        """Write what is queued, and stop."""
        self._lines.put(None)
        self._thread.join()
        os.close(self._descriptor)

    def _write_all(self) -> None:
        losing = False
        while (line := self._lines.get()) is not None:
            try:
                # Half a surrogate pair, which no UTF-8 has, is written as JSON's escape for it.
                self._write(line.encode(errors="backslashreplace"))
                self._metrics.log_lines.inc()
                losing = False
            except Exception as error:  # whatever it is, the next line is written
                self._metrics.log_lost.inc()
                if not losing:
                    logging.getLogger(__name__).error(
                        "lines of the audit log are lost until it can be written: %s", error
                    )
                losing = True

    def _write(self, line: bytes) -> None:
        """Append one whole line, or none of it."""
        size = os.fstat(self._descriptor).st_size
        if size and size + len(line) > self._max_bytes:
            self._rotate()
            size = 0
        try:
            if os.write(self._descriptor, line) < len(line):
                raise OSError("the disk is full")
        except OSError:
            os.ftruncate(self._descriptor, size)  # no torn line
            raise

    def _rotate(self) -> None:
        if self._path.exists():  # it does not where an earlier attempt ended here
            self._rename()
        newer = opened(self._path)  # before the old one is closed: where this fails, the log goes on in the old one
        os.close(self._descriptor)
        self._descriptor = newer

    def _rename(self) -> None:
        """Make way for a new file."""
        for number in range(self._files - 1, 0, -1):
            older = self._path.with_name(f"{self._path.name}.{number}")
            newer = self._path.with_name(f"{self._path.name}.{number - 1}") if number > 1 else self._path
            if newer.exists():
                newer.replace(older)
        if self._files == 1:
            self._path.unlink(missing_ok=True)
