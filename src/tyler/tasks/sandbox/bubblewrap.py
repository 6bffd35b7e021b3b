"""Starting the worker in bubblewrap: its namespaces, its files, its filter of system calls, and its user.

A process of root is exempt from the kernel's limit on processes, whatever bubblewrap calls its user inside. So where
root starts it, the sandbox gets a second, unprivileged user, and the worker becomes that user first.
"""

import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO

from tyler.tasks.sandbox import seccomp

WORKER = Path(__file__).with_name("worker.py")
NOBODY = 65534
PACKAGES = "/packages"
"""Where the packages that a program may import stand in the sandbox."""

_SYSTEM = ("/usr", "/lib", "/lib32", "/lib64", "/nix/store", "/etc/ld.so.cache")
_HIDDEN = ("/proc/keys", "/proc/key-users")
"""The caller's keys by name: the kernel shows them to every process of the same user."""


class SandboxError(OSError):
    """The sandbox could not be started; the program has not run, so nothing is known about it."""


def obstacle() -> str:
    """Why no sandbox can be tried here, and what to do; "" where one can."""
    if sys.platform != "linux":
        return f"bubblewrap runs on Linux, this is {sys.platform}; use a Linux machine or container"
    if shutil.which("bwrap") is None:
        return "bubblewrap is not installed; install the package 'bubblewrap' (see docs/sandbox.md)"
    if seccomp.library() is None:
        return "libseccomp is not installed; install the package 'libseccomp2' (see docs/sandbox.md)"
    return ""


def start(order: IO[bytes], result: int, scratch: int, packages: Sequence[Path] = ()) -> subprocess.Popen[bytes]:
    """The worker, started in a sandbox with `scratch` bytes in /tmp: it reads `order` and writes to `result`.

    `packages` are folders that can be imported from. Raises SandboxError where its users cannot be set up.
    """
    binds = [word for path in packages for word in ("--ro-bind", str(path), f"{PACKAGES}/{path.name}")]
    offered = ["--dir", PACKAGES, *binds]  # bubblewrap would make the folder private
    with ExitStack() as stack:
        filtering = _filter(stack)
        if not has_own_user():
            return _popen(order, result, scratch, [*offered, "--seccomp", str(filtering), *_PLAIN_USER], [filtering])
        (info, info_end), (wait_end, go) = pipe(stack), pipe(stack)
        ends = [filtering, info_end.fileno(), wait_end.fileno()]
        names = ("--seccomp", "--info-fd", "--userns-block-fd")
        options = offered + [word for name, end in zip(names, ends, strict=True) for word in (name, str(end))]
        process = _popen(order, result, scratch, [*options, *_OWN_USER], ends)
        info_end.close()  # so that reading ends where bubblewrap does
        try:
            _map_users(info)
        except OSError as error:
            os.killpg(process.pid, signal.SIGKILL)  # its child waits, and would not notice
            process.communicate()
            raise SandboxError(
                f"the users of a sandbox that root starts cannot be set up ({error.strerror}); start it as another "
                "user, or with the capabilities SETUID, SETGID and SETFCAP"
            ) from error
        with suppress(BrokenPipeError):
            go.write(b"1")
        return process


def own_processes() -> int:
    """The sandbox's own processes that the kernel counts with the program's: worker, program, bubblewrap's init."""
    return 2 if has_own_user() else 3


@functools.cache
def has_own_user() -> bool:
    """Whether the sandbox is started by root, and so has a user of its own, where there is one to have."""
    return os.geteuid() == 0 and all(_is_mapped(NOBODY, Path(f"/proc/self/{kind}_map")) for kind in ("uid", "gid"))


def _is_mapped(user: int, table: Path) -> bool:
    rows = [list(map(int, line.split())) for line in table.read_text().splitlines()]
    return any(first <= user < first + count for first, _, count in rows)


def _filter(stack: ExitStack) -> int:
    """The end of a pipe that holds the filter; it is smaller than what a pipe holds."""
    reading, writing = pipe(stack)
    writing.write(seccomp.program())
    writing.close()
    return reading.fileno()


def pipe(stack: ExitStack) -> tuple[IO[bytes], IO[bytes]]:
    """Both ends of a new pipe, which close with `stack`."""
    reading, writing = os.pipe()
    return stack.enter_context(os.fdopen(reading, "rb", 0)), stack.enter_context(os.fdopen(writing, "wb", 0))


def _map_users(info: IO[bytes]) -> None:
    """Give the sandbox its users, root (during the set-up) and an unprivileged one; silent where it has ended.

    Raises OSError where this process may not.
    """
    content = b""
    while not content.rstrip().endswith(b"}"):
        if not (piece := info.read(4096)):
            return
        content += piece
    process = json.loads(content)["child-pid"]
    for kind in ("gid", "uid"):
        Path(f"/proc/{process}/{kind}_map").write_text(f"0 0 1\n{NOBODY} {NOBODY} 1\n")


_PLAIN_USER = ("--cap-drop", "ALL", "--uid", str(NOBODY), "--gid", str(NOBODY))
_OWN_USER = ("--cap-drop", "ALL", "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID", "--uid", "0", "--gid", "0")


def _popen(order: IO[bytes], result: int, scratch: int, options: list[str], ends: list[int]) -> subprocess.Popen[bytes]:
    command = [*_command(scratch, options), *python(), "/judge.py", str(result), str(seccomp.number("keyctl"))]
    return subprocess.Popen(
        command, stdin=order, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env={}, pass_fds=(result, *ends),
        start_new_session=True,
    )  # fmt: skip


def _command(scratch: int, options: list[str]) -> list[str]:
    bwrap = shutil.which("bwrap")
    assert bwrap is not None
    return [
        bwrap, "--unshare-all", "--unshare-user", "--die-with-parent", "--new-session", "--clearenv",
        "--setenv", "MALLOC_ARENA_MAX", "1",  # glibc gives each thread 64 MB of address space, which has a limit
        "--setenv", "OPENBLAS_NUM_THREADS", "1",  # each thread of BLAS would count as a process, and take as much
        "--hostname", "sandbox", *options,
        *_read_only(), "--ro-bind", str(WORKER), "/judge.py", "--proc", "/proc", *_hidden(),
        "--dev", "/dev", "--size", str(scratch), "--tmpfs", "/tmp", "--chdir", "/tmp",
        "--remount-ro", "/dev", "--remount-ro", "/",
    ]  # fmt: skip


def python() -> list[str]:
    """The base interpreter, isolated and without site-packages: nothing of a virtual environment is needed."""
    return [os.path.realpath(getattr(sys, "_base_executable", sys.executable)), "-I", "-S"]


def _read_only() -> Iterator[str]:
    """The system's libraries, and of the interpreter its executable and its library folders."""
    executable, prefix = python()[0], Path(sys.base_prefix)
    for path in _SYSTEM:
        if os.path.islink(path):
            yield from ("--symlink", os.readlink(path), path)
        elif os.path.exists(path):
            yield from ("--ro-bind", path, path)
    for path in (executable, str(prefix / "lib"), str(prefix / "lib64"), sysconfig.get_path("stdlib")):
        if os.path.exists(path) and not path.startswith(("/usr/", "/nix/store/")):
            for folder in reversed(Path(path).parents[:-1]):  # bubblewrap would make them private, as a home folder is
                yield from ("--dir", str(folder))
            yield from ("--ro-bind", path, path)


def _hidden() -> Iterator[str]:
    for path in _HIDDEN:
        if os.path.exists(path):
            yield from ("--ro-bind", "/dev/null", path)
