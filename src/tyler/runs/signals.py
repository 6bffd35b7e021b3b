"""Ctrl-C, SIGTERM and SIGHUP: a loop is asked to stop, finishes the step at hand and saves; all else ends in order."""

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from types import FrameType


class Interrupted(KeyboardInterrupt):
    """A command stopped because it was asked to; says what is saved.

    `signum` is the signal that asked; `resumes` whether there is a run to resume.
    """

    def __init__(self, message: str, signum: int = signal.SIGINT, resumes: bool = True) -> None:
        super().__init__(message)
        self.signum, self.resumes = signum, resumes


@dataclass
class Interruption:
    """Whether the user (Ctrl-C) or the system (SIGTERM, SIGHUP) asked a loop to stop; a loop looks between steps."""

    signum: int | None = None

    @property
    def requested(self) -> bool:
        return self.signum is not None

    def stop(self, message: str, resumes: bool = True) -> Interrupted:
        """The exception to raise once everything is saved; `message` says how to resume, where `resumes`."""
        return Interrupted(message, self.signum or signal.SIGINT, resumes)


@contextmanager
def unwinding() -> Iterator[None]:
    """SIGTERM and SIGHUP raise Interrupted, as SIGINT raises KeyboardInterrupt: files in the making are removed.

    A signal that something else handles, or that is ignored, stays as it is.
    """

    def end(signum: int, frame: FrameType | None) -> None:
        raise Interrupted(f"ended by {signal.Signals(signum).name}", signum, resumes=False)

    here = threading.current_thread() is threading.main_thread()
    heard = [each for each in (signal.SIGTERM, signal.SIGHUP) if here and signal.getsignal(each) is signal.SIG_DFL]
    with ExitStack() as before:
        for signum in heard:
            before.callback(signal.signal, signum, signal.signal(signum, end))
        yield


@contextmanager
def interruptible() -> Iterator[Interruption]:
    """Turn the first SIGINT, SIGTERM or SIGHUP into `requested`; a second one raises Interrupted at once.

    A SIGHUP that is ignored stays so: that is what `nohup` is for. Signals reach only the main thread; elsewhere
    nothing is ever requested.
    """
    interruption = Interruption()
    if threading.current_thread() is not threading.main_thread():
        yield interruption
        return

    def request(signum: int, frame: FrameType | None) -> None:
        if interruption.requested:
            raise Interrupted("stopped at once; what came after the newest checkpoint is lost", signum)
        interruption.signum = signum
        with suppress(OSError):  # a terminal that hung up takes no words
            print("stopping after this step; press Ctrl-C again to stop at once", file=sys.stderr, flush=True)

    heard = [signal.SIGINT, signal.SIGTERM]
    heard += [signal.SIGHUP] * (signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN)
    with ExitStack() as before:
        for signum in heard:
            before.callback(signal.signal, signum, signal.signal(signum, request))
        yield interruption
