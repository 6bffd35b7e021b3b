"""One JSON line for each request: who asked for what, how it was decoded, what was invoked where, and what it cost.

A thread of its own writes, a line at a time: a line that is counted as written outlives the server. No answer waits for
it. Lines that wait are bounded in bytes; when the disk is full or too slow, lines are lost and counted.
"""

from __future__ import annotations

import json
import logging
import os
import queue
import threading
from contextlib import suppress
from logging.handlers import QueueListener, RotatingFileHandler
from pathlib import Path
from typing import Any

from tyler.serving.metrics import Metrics

MOST_WAITING = 16 * 2**20
"""Bytes of lines that may wait for the disk."""

logger = logging.getLogger(__name__)


def check_writable(path: Path) -> None:
    """Raise OSError for a log that cannot be written; one that is missing is made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    os.close(private(str(path), os.O_WRONLY | os.O_CREAT | os.O_APPEND))


def private(path: str, flags: int) -> int:
    """An opener: only its owner may read the questions."""
    return os.open(path, flags, 0o600)


class LineHandler(RotatingFileHandler):
    """A file of lines that only its owner may read."""

    def _open(self) -> Any:
        return open(self.baseFilename, "a", encoding=self.encoding, errors=self.errors, opener=private)

    def write(self, record: logging.LogRecord) -> None:
        """Write a whole line, after a rotation where it would make the file too large. Raises OSError for none."""
        size = None
        try:
            if self.shouldRollover(record):
                self.doRollover()
            stream = self.stream = self.stream or self._open()
            size = stream.tell()
            stream.write(record.msg + "\n")
            stream.flush()
        except OSError:
            self._discard(size)
            raise

    def _discard(self, size: int | None) -> None:
        """Take back what was written of a line, and open the file anew for the next one."""
        stream, self.stream = self.stream, None
        if stream is not None:
            with suppress(OSError):
                stream.close()
        if size is not None:
            with suppress(OSError):
                os.truncate(self.baseFilename, size)


class AuditLog:
    """Appends to `path`; a file of `max_bytes` becomes `path.1`, that one `path.2`, up to `files` in all."""

    def __init__(self, path: Path, metrics: Metrics, *, max_bytes: int, files: int) -> None:
        check_writable(path)
        self._metrics, self._lock, self._waiting = metrics, threading.Lock(), 0
        self._queue = queue.SimpleQueue[logging.LogRecord | None]()
        options: dict[str, Any] = {"encoding": "utf-8", "errors": "backslashreplace"}
        self._file = LineHandler(path, maxBytes=max_bytes, backupCount=files - 1, **options)
        self._losing = False
        self._listener = QueueListener(self._queue, self._file)
        self._listener.handle = self._write  # type: ignore[method-assign]
        self._listener.start()

    def add(self, record: dict[str, Any]) -> None:
        """Queue a line; returns at once."""
        line = json.dumps(record, ensure_ascii=False)
        with self._lock:
            if self._waiting + len(line) > MOST_WAITING:
                self._metrics.log_lost.inc()
                return
            self._waiting += len(line)
        self._queue.put(logging.makeLogRecord({"msg": line}))

    def close(self) -> None:
        """Write what is queued, and stop."""
        self._listener.stop()
        self._file.close()

    def _write(self, record: logging.LogRecord) -> None:
        try:
            self._file.write(record)
        except OSError:
            self._metrics.log_lost.inc()
            if not self._losing:
                logger.error("lines of the audit log are lost until it can be written", exc_info=True)
            self._losing = True
        else:
            self._metrics.log_lines.inc()
            self._losing = False
        with self._lock:
            self._waiting -= len(record.msg)
