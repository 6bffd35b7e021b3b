"""Running a program that a model wrote: in bubblewrap, under limits, with a success that cannot be forged.

`docs/sandbox.md` says what is isolated, what is not, and how to install bubblewrap. What happens inside the sandbox is
in `tyler.tasks.sandbox.worker`.
"""

from __future__ import annotations

import functools
import json
import os
import re
import secrets
import select
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from math import ceil
from pathlib import Path
from typing import IO

import psutil

_JUDGE = Path(__file__).with_name("worker.py")
_SYSTEM = ("/usr", "/lib", "/lib32", "/lib64", "/nix/store", "/etc/ld.so.cache")
_LOOK_SECONDS = 0.05
_MAX_SIGNAL_BYTES = 8192
_MAX_COMPLAINT_BYTES = 4096


@dataclass(frozen=True)
class Limits:
    """What one program may use. Sizes are bytes."""

    seconds: float = 5.0
    """Wall-clock time, from the start of the sandbox to the end of the test."""
    memory: int = 2**30
    """Address space of each process, and resident memory of all of them together."""
    processes: int = 16
    """Processes beside the sandbox's own; threads count too where the kernel counts them per sandbox."""
    file: int = 2**24
    """The largest file."""
    scratch: int = 2**26
    """All files in /tmp together, the only folder that can be written to."""
    open_files: int = 64

    def of_each_process(self) -> dict[str, int]:
        """The part that the kernel watches, by the names of `resource.RLIMIT_*`."""
        return {
            "AS": self.memory,
            "CPU": ceil(self.seconds) + 1,
            "NPROC": self.processes,
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


@dataclass(frozen=True)
class Report:
    """What came of one program: its ending, the reason in words ("" for PASSED), and the seconds it took."""

    ending: Ending
    why: str
    seconds: float


@dataclass(frozen=True)
class Availability:
    """Whether the sandbox works here, and if not, why and what to do."""

    available: bool
    reason: str


def execute(
    program: str, *, entry_point: str, test: str, prelude: str = "", limits: Limits | None = None, unsafe: bool = False
) -> Report:
    """Run a program and test its function `entry_point`: `test` defines `check(candidate)`, which raises or returns.

    `prelude` is trusted code that runs before the program and before the test. The test sees what the function returns
    as plain data. `unsafe` runs it without the sandbox where there is none, with a warning. Raises RuntimeError where
    there is no sandbox otherwise.
    """
    limits = limits or Limits()
    token = secrets.token_hex(32)
    order = {"token": token, "prelude": prelude, "program": program, "entry_point": entry_point, "test": test}
    with tempfile.TemporaryFile() as paper, _command(limits, unsafe) as (command, folder):
        paper.write(json.dumps(order | {"limits": limits.of_each_process()}).encode())
        paper.seek(0)
        return _run(command, folder, paper, token, limits)


@functools.cache
def probe() -> Availability:
    """Whether bubblewrap runs a program here; tried once."""
    if sys.platform != "linux":
        return Availability(
            False, f"bubblewrap runs on Linux, this is {sys.platform}; use a Linux machine or container"
        )
    if shutil.which("bwrap") is None:
        return Availability(
            False, "bubblewrap is not installed; install the package 'bubblewrap' (see docs/sandbox.md)"
        )
    with tempfile.TemporaryFile() as paper:
        order = {"token": "probe", "prelude": "", "program": "def f(): return 1", "entry_point": "f", "limits": {}}
        paper.write(json.dumps(order | {"test": "def check(f): assert f() == 1"}).encode())
        paper.seek(0)
        report = _run(_bubblewrap(Limits()), None, paper, "probe", Limits(seconds=30))
    if report.ending is Ending.PASSED:
        return Availability(True, f"bubblewrap {'.'.join(map(str, _version()))}")
    return Availability(False, f"bubblewrap does not work here ({report.why}); see docs/sandbox.md")


# ---------------------------------------------------------------------------------------------------------- one process


def _run(command: list[str], folder: str | None, order: IO[bytes], token: str, limits: Limits) -> Report:
    """Run the judge under `command`, which gets the number of the pipe for its signal as its last argument."""
    start = time.monotonic()
    with _pipe() as (listen, speak):
        with speak:
            process = subprocess.Popen(
                [*command, str(speak.fileno())], stdin=order, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                env={}, cwd=folder, pass_fds=(speak.fileno(),), start_new_session=True,
            )  # fmt: skip
        with process:
            try:
                ending, why = _wait(process, listen.fileno(), token, limits, start + limits.seconds)
            finally:
                _end(process)
    return Report(ending, why, time.monotonic() - start)


@contextmanager
def _pipe() -> Iterator[tuple[IO[bytes], IO[bytes]]]:
    listen, speak = os.pipe()
    with os.fdopen(listen, "rb", 0) as reading, os.fdopen(speak, "wb", 0) as writing:
        yield reading, writing


def _wait(
    process: subprocess.Popen[bytes], listen: int, token: str, limits: Limits, deadline: float
) -> tuple[Ending, str]:
    """Wait for the judge's signal, and meanwhile look after what the kernel does not count."""
    said = b""
    news = select.poll()
    news.register(listen, select.POLLIN)
    while (left := deadline - time.monotonic()) > 0:
        if not news.poll(1000 * min(left, _LOOK_SECONDS)):
            if excess := _excess(process.pid, limits):
                return Ending.STOPPED, excess
            continue
        piece = os.read(listen, _MAX_SIGNAL_BYTES)
        said += piece
        if said.endswith(b"\n"):
            return _signal(said, token)
        if not piece or len(said) > _MAX_SIGNAL_BYTES:
            return Ending.FAILED, _complaint(process)
    return Ending.TIMEOUT, f"it ran for more than {limits.seconds:g} s"


def _signal(said: bytes, token: str) -> tuple[Ending, str]:
    with suppress(ValueError, KeyError, TypeError):
        signal = json.loads(said)
        if secrets.compare_digest(signal["token"], token):
            return Ending(signal["ending"]), signal["why"]
    return Ending.FAILED, "the signal did not come from the judge"


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
    said = b""
    with suppress(BlockingIOError):
        said = os.read(process.stderr.fileno(), _MAX_COMPLAINT_BYTES)
    lines = said.decode(errors="replace").splitlines()
    return lines[-1] if lines else f"the sandbox ended with status {process.returncode}"


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill the session. Under bubblewrap this ends all of its processes: they die with the namespace's first one."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


# --------------------------------------------------------------------------------------------------------- the command


@contextmanager
def _command(limits: Limits, unsafe: bool) -> Iterator[tuple[list[str], str | None]]:
    """The command that starts the judge, and the folder it starts in."""
    found = probe()
    if found.available:
        yield _bubblewrap(limits), None
        return
    if not unsafe:
        raise RuntimeError(
            f"programs of the model cannot run safely: {found.reason}. To run them without a sandbox, where they can "
            "read, write and send whatever you can, give allow_unsafe_code_execution=True "
            "(--allow-unsafe-code-execution)"
        )
    _warn_once(found.reason)
    with tempfile.TemporaryDirectory(prefix="tyler-") as folder:
        yield [*_python(), str(_JUDGE)], folder


@functools.cache
def _warn_once(reason: str) -> None:
    warnings.warn(f"programs of the model run WITHOUT a sandbox, as your user: {reason}", RuntimeWarning, stacklevel=2)


def _python() -> list[str]:
    """The base interpreter, isolated and without site-packages: nothing of a virtual environment is needed."""
    return [os.path.realpath(getattr(sys, "_base_executable", sys.executable)), "-I", "-S"]


def _bubblewrap(limits: Limits) -> list[str]:
    bwrap = shutil.which("bwrap")
    assert bwrap is not None
    return [
        bwrap, "--unshare-all", "--unshare-user", "--die-with-parent", "--new-session", "--cap-drop", "ALL",
        "--clearenv", "--uid", "65534", "--gid", "65534", "--hostname", "sandbox",
        *(["--disable-userns"] if _version() >= (0, 8) else []),
        *_read_only(), "--ro-bind", str(_JUDGE), "/judge.py",
        "--proc", "/proc", "--dev", "/dev", *(["--size", str(limits.scratch)] if _version() >= (0, 6) else []),
        "--tmpfs", "/tmp", "--chdir", "/tmp", "--remount-ro", "/dev", "--remount-ro", "/",
        *_python(), "/judge.py",
    ]  # fmt: skip


def _read_only() -> Iterator[str]:
    """The system's libraries, and of the interpreter its executable and its library folders."""
    executable, prefix = _python()[0], Path(sys.base_prefix)
    for path in _SYSTEM:
        if os.path.islink(path):
            yield from ("--symlink", os.readlink(path), path)
        elif os.path.exists(path):
            yield from ("--ro-bind", path, path)
    for path in (executable, str(prefix / "lib"), str(prefix / "lib64"), sysconfig.get_path("stdlib")):
        if os.path.exists(path) and not path.startswith(("/usr/", "/nix/store/")):
            yield from ("--ro-bind", path, path)


@functools.cache
def _version() -> tuple[int, ...]:
    bwrap = shutil.which("bwrap")
    assert bwrap is not None
    printed = subprocess.run([bwrap, "--version"], capture_output=True, text=True, check=False).stdout
    return tuple(map(int, re.findall(r"\d+", printed)[:3]))
