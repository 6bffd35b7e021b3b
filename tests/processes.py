"""Processes of a test, forked from one that has imported everything and has no other thread.

A fork of the test's own process could begin while one of its threads holds a lock, which nothing would ever release.
What they are given is pickled: functions of modules, not lambdas.
"""

import faulthandler
import multiprocessing
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState

from tyler.cli.main import main

FRESH = multiprocessing.get_context("forkserver")
FRESH.set_forkserver_preload(["pytest", "tyler.cli.main", "tyler.training.stage1", "tyler.training.stage2"])


class Started:
    """`tyler ...`, or another command, in a process of its own, which writes what it says to `out`."""

    def __init__(self, arguments: list[str], out: Path, command: Callable[[list[str]], int] = main) -> None:
        self._out = out
        out.touch()
        self._process = FRESH.Process(target=_command, args=(arguments, out, command))
        self._process.start()

    @property
    def running(self) -> bool:
        return self._process.is_alive()

    @property
    def output(self) -> str:
        return self._out.read_text()

    def until(self, condition: Callable[[], Any], seconds: float = 120) -> Any:
        """What `condition` returns as soon as that is true. Raises AssertionError where it does not come to it."""
        deadline = time.monotonic() + seconds
        while not (value := condition()):
            assert self.running and time.monotonic() < deadline, self.output
            time.sleep(0.005)
        return value

    def send(self, signum: signal.Signals) -> None:
        os.kill(self._process.pid or 0, signum)

    def wait(self, seconds: float = 120) -> int | None:
        """The exit status; the number of a signal, negated, that ended it; None where it still runs."""
        self._process.join(seconds)
        return self._process.exitcode

    def kill(self) -> None:
        self._process.kill()
        self._process.join()


def _command(arguments: list[str], out: Path, command: Callable[[list[str]], int]) -> None:
    with open(out, "a", buffering=1) as both:
        os.dup2(both.fileno(), 1)
        os.dup2(both.fileno(), 2)
        sys.stdout = sys.stderr = both
        status = 1
        torch.set_num_threads(1)  # those of the parent are not there
        try:
            status = command(arguments)
        except SystemExit as exit:
            status = exit.code if isinstance(exit.code, int) else 1
        except BaseException:
            traceback.print_exc()
        both.flush()
        os._exit(status)


def together(world: int, work: Callable[..., Any], *arguments: Any, seconds: float = 120) -> list[Any]:
    """What `work(*arguments)` returns in each of `world` processes.

    An exception comes back as its text with its traceback; a process that does not end is killed and gives "hung".
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    started = []
    for rank in range(world):
        mine, theirs = FRESH.Pipe(duplex=False)
        process = FRESH.Process(target=_child, args=(theirs, rank, world, port, seconds, work, arguments))
        process.start()
        theirs.close()
        started.append((process, mine))
    results = []
    for _, mine in started:
        results.append(_received(mine) if mine.poll(seconds) else "hung")
        mine.close()
    for process, _ in started:
        process.join(5)
        process.kill()
        process.join()
    return results


def _received(pipe: Connection) -> Any:
    try:
        return pipe.recv()
    except EOFError:
        return "died"


def _child(
    pipe: Connection, rank: int, world: int, port: int, seconds: float, work: Callable[..., Any], arguments: Any
) -> None:
    faulthandler.dump_traceback_later(0.9 * seconds, file=2)  # where it hangs, in what the test captured
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}
    PartialState._reset_state()  # what the parent knew of processes
    torch.set_num_threads(1)
    try:
        pipe.send(work(*arguments))
    except BaseException:
        pipe.send(traceback.format_exc())
    pipe.close()
    os._exit(0)
