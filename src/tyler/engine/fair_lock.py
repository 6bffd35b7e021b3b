"""A lock that its holder cannot take again before those who wait for it."""

from __future__ import annotations

import threading


class FairLock:
    """`with lock:` as with any other; whoever releases it and asks again comes after the one who waits.

    Python's own locks usually go back to the thread that just released them, and a loop over one starves the rest.
    """

    def __init__(self) -> None:
        self._entrance, self._room = threading.Lock(), threading.Lock()

    def __enter__(self) -> None:
        with self._entrance:
            self._room.acquire()

    def __exit__(self, *error: object) -> None:
        self._room.release()

    def try_acquire(self) -> bool:
        """Take the lock if it is free; `release` gives it back."""
        return self._room.acquire(blocking=False)

    def release(self) -> None:
        """Give back what `try_acquire` took."""
        self._room.release()
