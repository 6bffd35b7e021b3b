"""One process at a time writes a directory: a file that is locked while it does, and gone afterwards."""

import fcntl
import os
from pathlib import Path

from tyler.runs.checkpoints import RunError

LOCK = ".lock"


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
