"""Running a program that a model wrote: in bubblewrap, under limits, with a success that cannot be forged.

`docs/sandbox.md` says what is isolated, what is not, and how to install bubblewrap. How it is started is in
`tyler.tasks.sandbox.bubblewrap`, the calls that are refused in `seccomp`, what happens inside in `worker`.
"""

import functools
import json
import os
import secrets
import select
import signal
import subprocess
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from enum import StrEnum
from importlib.util import find_spec
from math import ceil
from pathlib import Path
from typing import IO, NamedTuple

import psutil

from tyler.tasks.sandbox import bubblewrap
from tyler.tasks.sandbox.bubblewrap import SandboxError


def folders_of(names: Sequence[str]) -> tuple[Path, ...]:
    """What has to be there to import these packages: their folders or files, and the libraries that wheels bring along.

    Raises ValueError for a package that is not installed here.
    """
    return tuple(path for name in names for path in _parts_of(name))


@functools.cache
def _parts_of(name: str) -> tuple[Path, ...]:
    spec = find_spec(name) if name.isidentifier() else None
    if spec is None or spec.origin in (None, "built-in", "frozen"):
        raise ValueError(f"package {name!r} is not installed here, so programs cannot import it; install it or omit it")
    location = Path(spec.submodule_search_locations[0]) if spec.submodule_search_locations else Path(str(spec.origin))
    return location, *location.parent.glob(f"{name}.libs")


_LOOK_SECONDS = 0.05
_MAX_SIGNAL_BYTES = 8192
_MAX_COMPLAINT_BYTES = 4096
_READY = b"ready\n"
"""What the worker writes when it has secluded itself: from then on, an end without a verdict is the program's doing."""


@dataclass(frozen=True)
class Limits:
    """What one program may use. Sizes are bytes."""

    seconds: float = 5.0
    """Wall-clock time, from the start of the sandbox to the end of the test."""
    memory: int = 2**30
    """Address space of each process, and resident memory of all of them together."""
    processes: int = 16
    """Processes that a program may start; its threads count too."""
    file: int = 2**24
    """The largest file."""
    scratch: int = 2**26
    """All files in /tmp together, the only folder that can be written to."""
    open_files: int = 64

    def of_each_process(self, own: int = 0) -> dict[str, int]:
        """The part that the kernel watches, by the names of `resource.RLIMIT_*`.

        `own` of the processes that it counts are the sandbox's and not started by the program.
        """
        return {
            "AS": self.memory,
            "CPU": ceil(self.seconds) + 1,
            "NPROC": self.processes + own,
            "FSIZE": self.file,
            "NOFILE": self.open_files,
            "CORE": 0,
        }


class Ending(StrEnum):
    """How a run ended. FAILED is a failed test, an exception, or a program that ended its own process."""

    PASSED = "passed"
    FAILED = "failed"
    UNREADABLE = "unreadable"
    """The program does not compile."""
    TIMEOUT = "timeout"
    STOPPED = "stopped"
    """It took more processes or memory than allowed."""


class Report(NamedTuple):
    """What came of one program: its ending, and the reason in words ("" for PASSED)."""

    ending: Ending
    why: str


def execute(
    program: str,
    *,
    entry_point: str,
    test: str,
    prelude: str = "",
    limits: Limits | None = None,
    packages: Sequence[str] = (),
    unsafe: bool = False,
) -> Report:
    """Run a program and test its function `entry_point`: `test` defines `check(candidate)`, which raises or returns.

    `prelude` is trusted code that runs before the program and before the test. The test sees what the function returns
    as plain data. The program may import `packages` of this environment. `unsafe` runs it without a sandbox where
    none works, with a warning. Raises SandboxError where no sandbox works otherwise, or where it could not be
    started this time, and ValueError for a package that is not installed.
    """
    require(unsafe=unsafe)
    limits = limits or Limits()
    order = {"prelude": prelude, "program": program, "entry_point": entry_point, "test": test}
    if not (obstacle := probe()):
        return _contained(order, limits, packages)
    _warn_once(obstacle)
    temporary = functools.partial(tempfile.TemporaryDirectory, prefix="tyler-")
    with temporary() as folder, temporary() as offered:
        for source in folders_of(packages):
            (Path(offered) / source.name).symlink_to(source)
        bare = {**order, "limits": limits.of_each_process(), "packages": offered}
        return _run(functools.partial(_start_bare, folder), bare, limits)


def require(*, unsafe: bool = False) -> None:
    """Raises SandboxError, with what to do, where no program can run; `unsafe` allows to do without a sandbox."""
    if (obstacle := probe()) and not unsafe:
        raise SandboxError(
            f"programs of the model cannot run safely: {obstacle}. To run them without a sandbox, where they can "
            "read, write and send whatever you can, give allow_unsafe_code_execution=True "
            "(--allow-unsafe-code-execution)"
        )


@functools.cache
def probe() -> str:
    """Why no sandbox works here, and what to do; "" where one runs a program and holds it to its number of processes.

    Tried once.
    """
    if obstacle := bubblewrap.obstacle():
        return obstacle
    order = {"prelude": "", "program": _FORKS, "entry_point": "f", "test": _FORKS_TEST}
    try:
        report = _contained(order, Limits(seconds=30))
    except SandboxError as error:
        return f"bubblewrap does not work here ({error}); see docs/sandbox.md"
    passed = report.ending is Ending.PASSED
    return "" if passed else f"bubblewrap does not work here ({report.why}); see docs/sandbox.md"


_FORKS = f"""
import fractions, os, time
def f():
    for started in range(2 * {Limits.processes}):
        try:
            if os.fork() == 0: time.sleep(60)
        except OSError: return started
    return started + 1
"""
_FORKS_TEST = f"""
def check(f):
    started = f()
    assert started <= {Limits.processes}, f"a program could start {{started}} processes, not {Limits.processes}"
"""


def _contained(order: Mapping[str, object], limits: Limits, packages: Sequence[str] = ()) -> Report:
    order = {**order, "limits": limits.of_each_process(bubblewrap.own_processes()), "packages": bubblewrap.PACKAGES}
    start = functools.partial(bubblewrap.start, scratch=limits.scratch, packages=folders_of(packages))
    return _run(start, order, limits)


def _start_bare(folder: str, order: IO[bytes], result: int) -> subprocess.Popen[bytes]:
    """The worker without a sandbox, in a folder of its own."""
    return subprocess.Popen(
        [*bubblewrap.python(), str(bubblewrap.WORKER), str(result)], stdin=order, stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE, env={"OPENBLAS_NUM_THREADS": "1"}, cwd=folder, pass_fds=(result,),
        start_new_session=True,
    )  # fmt: skip


@functools.cache
def _warn_once(reason: str) -> None:
    warnings.warn(f"programs of the model run WITHOUT a sandbox, as your user: {reason}", RuntimeWarning, stacklevel=2)


def _run(start: Callable[[IO[bytes], int], subprocess.Popen[bytes]], order: object, limits: Limits) -> Report:
    """Have the worker that `start` starts carry out an order; it signals through a pipe that only it may write to."""
    deadline, token = time.monotonic() + limits.seconds, secrets.token_hex(32)
    with tempfile.TemporaryFile() as paper, ExitStack() as stack:
        listen, speak = bubblewrap.pipe(stack)
        paper.write(json.dumps({"token": token, "order": order}).encode())
        paper.seek(0)
        with speak:
            process = start(paper, speak.fileno())
        with process:
            try:
                return _wait(process, listen.fileno(), token, limits, deadline)
            finally:
                _end(process)


def _wait(process: subprocess.Popen[bytes], listen: int, token: str, limits: Limits, deadline: float) -> Report:
    """Wait for the judge's signal, and meanwhile look after what the kernel does not count."""
    received = b""
    news = select.poll()
    news.register(listen, select.POLLIN)
    while (left := deadline - time.monotonic()) > 0:
        if not news.poll(1000 * min(left, _LOOK_SECONDS)):
            if excess := _excess(process.pid, limits):
                return Report(Ending.STOPPED, excess)
            continue
        piece = os.read(listen, _MAX_SIGNAL_BYTES)
        received += piece
        if received.endswith(b"\n") and received != _READY:
            return _signal(received.removeprefix(_READY), token)
        if not piece and not received.startswith(_READY):
            raise SandboxError(_complaint(process))
        if not piece or len(received) > _MAX_SIGNAL_BYTES:
            return Report(Ending.FAILED, _complaint(process))
    return Report(Ending.TIMEOUT, f"it ran for more than {limits.seconds:g} s")


def _signal(received: bytes, token: str) -> Report:
    with suppress(ValueError, KeyError, TypeError):
        signal = json.loads(received)
        if secrets.compare_digest(signal["token"], token):
            return Report(Ending(signal["ending"]), signal["why"])
    return Report(Ending.FAILED, "the signal did not come from the judge")


def _excess(pid: int, limits: Limits) -> str:
    """What the processes under `pid` take beyond their limits together, or ""."""
    memory = count = 0
    with suppress(psutil.Error):
        for child in psutil.Process(pid).children(recursive=True):
            count += 1
            with suppress(psutil.Error):
                memory += child.memory_info().rss
    if count > limits.processes + 3:  # bubblewrap's init, the judge, the program
        return f"it started more than {limits.processes} processes"
    return f"it used more than {limits.memory} bytes of memory" if memory > limits.memory else ""


def _complaint(process: subprocess.Popen[bytes]) -> str:
    """The last line on standard error: bubblewrap's or the judge's own, as the program has none."""
    _end(process)
    assert process.stderr is not None
    os.set_blocking(process.stderr.fileno(), False)  # without a sandbox, something may still hold the other end
    content = b""
    with suppress(BlockingIOError):
        content = os.read(process.stderr.fileno(), _MAX_COMPLAINT_BYTES)
    lines = content.decode(errors="replace").splitlines()
    return lines[-1] if lines else f"the sandbox ended with status {process.returncode}"


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill the session. Under bubblewrap this ends all of its processes: they die with the namespace's first one."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
