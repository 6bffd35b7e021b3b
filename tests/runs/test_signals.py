"""Who asks a loop to stop, and who does not."""

import errno
import os
import pickle
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tyler.runs.signals import Interrupted, interruptible, unwinding


@pytest.fixture(autouse=True)
def _nobody_has_silenced_hang_ups() -> Iterator[None]:
    """`nohup make test` has."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


def test_another_process_is_told_all_of_it() -> None:
    told = pickle.loads(pickle.dumps(Interrupted("saved step 3", signal.SIGTERM, resumes=False)))
    assert (str(told), told.signum, told.resumes) == ("saved step 3", signal.SIGTERM, False)


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_first_signal_asks_a_loop_to_stop_and_the_second_stops_it(signum: signal.Signals, capsys) -> None:
    before = signal.getsignal(signum)
    with interruptible() as interruption:
        assert not interruption.requested
        os.kill(os.getpid(), signum)
        assert interruption.requested
        assert "stopping after this step" in capsys.readouterr().err
        stop = interruption.stop("saved step 3; resume with --resume")
        assert isinstance(stop, Interrupted) and stop.signum == signum
        with pytest.raises(Interrupted, match="stopped at once; what came after the newest checkpoint") as stopped:
            os.kill(os.getpid(), signum)
        assert stopped.value.signum == signum
    assert signal.getsignal(signum) is before


def test_a_hang_up_that_nohup_has_silenced_stays_so() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with interruptible() as interruption:
            os.kill(os.getpid(), signal.SIGHUP)
            assert not interruption.requested
    finally:
        signal.signal(signal.SIGHUP, before)


class HungUp:
    """A terminal that is gone."""

    def write(self, text: str) -> int:
        raise OSError(errno.EIO, "Input/output error")

    def flush(self) -> None:
        self.write("")


def test_a_signal_is_heard_although_the_terminal_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", HungUp())
    with interruptible() as interruption:
        os.kill(os.getpid(), signal.SIGHUP)
        assert interruption.requested


def test_a_loop_in_a_thread_is_never_asked_to_stop() -> None:
    seen = []

    def loop() -> None:
        with interruptible() as interruption:
            seen.append(interruption.requested)

    thread = threading.Thread(target=loop)
    thread.start()
    thread.join()
    assert seen == [False]


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGHUP])
def test_a_command_is_ended_in_order_and_what_it_was_writing_is_removed(signum: signal.Signals, tmp_path: Path) -> None:
    before = signal.signal(signum, signal.SIG_DFL)
    try:
        with pytest.raises(Interrupted, match=f"ended by {signum.name}") as ended, unwinding():
            with tempfile.TemporaryDirectory(dir=tmp_path):
                os.kill(os.getpid(), signum)
        assert (ended.value.signum, ended.value.resumes, list(tmp_path.iterdir())) == (signum, False, [])
        assert signal.getsignal(signum) is signal.SIG_DFL
    finally:
        signal.signal(signum, before)


def test_what_others_handle_or_ignore_stays_theirs() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with unwinding():
            os.kill(os.getpid(), signal.SIGHUP)
            with interruptible() as interruption:
                os.kill(os.getpid(), signal.SIGTERM)
                assert interruption.signum == signal.SIGTERM
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
