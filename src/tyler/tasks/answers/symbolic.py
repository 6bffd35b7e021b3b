"""Whether two LaTeX expressions have the same value, asked of a process of its own that can be killed.

Algebra on a model's output may take for ever or all memory. A worker process (`symbolic_worker.py`) loads what it needs
once, answers one question at a time and keeps the deadline; here its processes are started when first needed, lent to
one thread at a time, replaced when they break, and ended with this process.
"""

import atexit
import json
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Literal

Relation = Literal["equal", "proportional", "positive"]
"""What is asked: the same value, or the same up to a constant factor, or up to a positive one."""
Waited = Callable[[float], None]
"""Is told the seconds that a question waited for a worker."""

_WORKER = Path(__file__).with_name("symbolic_worker.py")
_START = 120.0
"""Seconds a worker may take to load; a slow disk is not the answer's fault."""
_GRACE = 1.0
"""Seconds beyond the deadline in which the worker must have replied."""


class _Worker:
    def __init__(self) -> None:
        # The worker must find its libraries wherever this process does: in a virtual environment, or on PYTHONPATH.
        environment = {
            "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry),
            "PYTHONHASHSEED": "0",
            "PATH": os.environ.get("PATH", os.defpath),
        }
        self.process = subprocess.Popen(
            [sys.executable, "-P", str(_WORKER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            bufsize=0,
            start_new_session=True,
        )
        if self._reply(_START) != b"r":
            self.process.kill()
            _, message = self.process.communicate()
            raise RuntimeError(
                "the algebra worker did not start; is latex2sympy2_extended installed?\n"
                + message.decode("utf-8", "replace")[-2000:]
            )

    def ask(self, relation: Relation, answer: str, gold: str, seconds: float) -> bytes:
        """The worker's reply; empty where it has died or is silent."""
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):
            self.process.stdin.write(json.dumps([relation, answer, gold, seconds]).encode() + b"\n")
        return self._reply(seconds + _GRACE)

    def _reply(self, seconds: float) -> bytes:
        assert self.process.stdout is not None
        poll = select.poll()
        poll.register(self.process.stdout, select.POLLIN)
        return self.process.stdout.read(1) or b"" if poll.poll(1000 * seconds) else b""

    def end(self) -> None:
        """Kill the process; its child ends with its pipe, or with its time."""
        with self.process:  # which closes the pipes
            self.process.kill()


class _Pool:
    """As many workers as there are processors, started when needed."""

    def __init__(self) -> None:
        self.idle: list[_Worker] = []
        self.free = threading.BoundedSemaphore(os.cpu_count() or 1)

    def take(self) -> _Worker:
        while self.idle:
            worker = self.idle.pop()
            if worker.process.poll() is None:
                return worker
            worker.end()
        return _Worker()

    def end(self) -> None:
        """End the workers that are idle; one in use ends when its pipe closes."""
        while self.idle:
            self.idle.pop().end()


def _start_anew() -> None:
    """Let go of workers that belong to the process this one was forked from."""
    global _pool
    for worker in _pool.idle:
        with worker.process:  # which closes the pipes
            worker.process.returncode = 0  # not our child: nothing to wait for, nothing to warn of
    _pool = _Pool()


_pool = _Pool()
atexit.register(lambda: _pool.end())
os.register_at_fork(after_in_child=_start_anew)


def equal(
    answer: str, gold: str, deadline: float, *, relation: Relation = "equal", waited: Waited = lambda seconds: None
) -> bool:
    """Whether two LaTeX expressions without `$` have the same value; False too where one cannot be read.

    May be called from any thread; waiting for a worker, of which the first takes a second or two to start, does not
    count, and `waited` is told how long it was. Raises TimeoutError after `deadline` seconds, or when the memory
    allowed runs out, and RuntimeError where no worker will start.
    """
    if deadline <= 0:
        raise TimeoutError("no time is left for the comparison")
    started = time.monotonic()
    with _pool.free:
        worker = _pool.take()
        waited(time.monotonic() - started)
        try:
            reply = worker.ask(relation, answer, gold, deadline)
        except BaseException:  # its late reply must not answer the next question
            worker.end()
            raise
        if reply:
            _pool.idle.append(worker)
        else:
            worker.end()
    if reply not in (b"0", b"1"):
        raise TimeoutError(f"the comparison took more than {deadline:.1f} s or too much memory")
    return reply == b"1"
