"""One JSON line for each request: who asked for what, how it was decoded, what was invoked where, and what it cost.

A thread of its own writes, a line at a time: a line that is counted as written outlives the server. No answer waits for
it. Lines that wait are bounded in bytes; when the disk is full or too slow, lines are lost and counted.
"""

import errno
import json
import logging
import os
import threading
from logging.handlers import QueueListener, RotatingFileHandler
from pathlib import Path
from queue import SimpleQueue
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


class AuditLog(RotatingFileHandler):
    """Appends to `path`; a file of `max_bytes` becomes `path.1`, that one `path.2`, up to `files` in all."""

    def __init__(self, path: Path, metrics: Metrics, *, max_bytes: int, files: int) -> None:
        check_writable(path)
        super().__init__(path, maxBytes=max_bytes, backupCount=files - 1)
        self._metrics, self._counting, self._waiting, self._ended = metrics, threading.Lock(), 0, False
        queue = SimpleQueue[logging.LogRecord | None]()
        self._put, self._listener = queue.put, QueueListener(queue, self)
        self._listener.start()

    def add(self, record: dict[str, Any]) -> None:
        """Queue a line; returns at once."""
        line = json.dumps(record, ensure_ascii=False)
        with self._counting:
            if self._waiting + len(line) > MOST_WAITING:
                self._metrics.log_lost.inc()
                return
            self._waiting += len(line)
        self._put(logging.makeLogRecord({"msg": line}))

    def close(self) -> None:
        """Write what is queued, and stop; Python closes every handler once more at its end."""
        if not self._ended:
            self._ended = True
            self._listener.stop()
        super().close()

    def emit(self, record: logging.LogRecord) -> None:
        """In the listener's thread: write a whole line, after a rotation where that is due, or count it as lost."""
        try:
            if self.shouldRollover(record):
                self.doRollover()
            self.stream = self.stream or self._open()
            file, line = self.stream.fileno(), (record.msg + "\n").encode(errors="backslashreplace")
            size = os.fstat(file).st_size
            if os.write(file, line) < len(line):
                os.ftruncate(file, size)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            self._metrics.log_lost.inc()
            logger.error("a line of the audit log is lost: %s", error)
        else:
            self._metrics.log_lines.inc()
        with self._counting:
            self._waiting -= len(record.msg)

    def _open(self) -> Any:
        return open(self.baseFilename, "a", opener=private)
