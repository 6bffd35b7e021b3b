"""Files of lines that one process adds to while it works: never half a line, and resumed after a kill."""

import errno
import fcntl
import os
from pathlib import Path

from tyler.runs.atomic_files import write_all
from tyler.runs.checkpoints import RunError


class LineFile:
    """A file that this process alone adds lines to; the first one that is added replaces one that a kill cut short.

    Every line begins with `beginning`. Raises RunError where it cannot be written, another process writes it, or it
    ends in a piece of a line that begins otherwise, which is then left as it is.
    """

    def __init__(self, path: Path, beginning: str) -> None:
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            # Unbuffered: what a full disk did not take must not come back when the file is closed.
            self._file = open(path, "ab", buffering=0)  # noqa: SIM115 - closed in close()
        except OSError as error:
            raise RunError(f"cannot write to {path}: {error.strerror}; choose another place") from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.close()
            raise RunError(f"another process is writing {path}; wait for it or choose another place") from None
        content, begins = path.read_bytes(), beginning.encode()
        self._whole = content.rfind(b"\n") + 1
        """Bytes of whole lines."""
        piece = content[self._whole :]
        if not (piece.startswith(begins) or begins.startswith(piece)):
            self._file.close()
            raise RunError(f"{path} ends in text that this command did not write; choose another place")

    def add(self, line: str) -> None:
        """Add a line: it is on its way to the disk when this returns. Raises RunError where the disk refuses it."""
        os.ftruncate(self._file.fileno(), self._whole)
        try:
            write_all(self._file, f"{line}\n".encode())
        except OSError as error:
            os.ftruncate(self._file.fileno(), self._whole)  # half a line does not count
            raise not_written(self.path, error) from error
        self._whole = os.fstat(self._file.fileno()).st_size

    def close(self) -> None:
        """Let other processes have the file."""
        self._file.close()


def not_written(path: Path, error: OSError) -> RunError:
    """What to raise where the disk refused a line: why, and that nothing is lost."""
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    why = f"the disk of {path.parent} is full" if full else f"cannot write {path}: {error.strerror}"
    remedy = "make room" if full else "once that is mended"
    return RunError(f"{why}; every answer before is whole in {path.name}: {remedy} and run the same command again")
