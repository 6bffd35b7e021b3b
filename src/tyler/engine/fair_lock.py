"""A lock that its holder cannot take again before those who wait for it, and a guard that lets nobody wait."""

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


class SoleUser:
    """A guard around what only one thread at a time may do: a second one gets a RuntimeError instead of a mixture."""

    def __init__(self) -> None:
        self._taken = threading.Lock()

    def __enter__(self) -> None:
        if not self._taken.acquire(blocking=False):
            raise RuntimeError(
                "this Engine is taking a step in another thread; give each thread an engine of its own, or call "
                "`solve` and `stream` of the model, which threads may share"
            )

    def __exit__(self, *_: object) -> None:
        self._taken.release()
