"""What is refused where the sandbox cannot have its keyring or its users, and what of it is not the program's doing."""

import errno
import os
from pathlib import Path

import pytest

from tyler.tasks.sandbox import bubblewrap, sandbox, seccomp
from tyler.tasks.sandbox.bubblewrap import SandboxError
from tyler.tasks.sandbox.sandbox import Ending, Limits, Report, execute, probe

needs_sandbox = pytest.mark.skipif(bool(probe()), reason=probe())
RIGHT = {"entry_point": "f", "test": "def check(f): assert f() == 42"}


def broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """A bubblewrap that does what `script` says."""
    path = tmp_path / "bwrap"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    monkeypatch.setattr(bubblewrap.shutil, "which", lambda name: str(path))


@needs_sandbox
def test_a_sandbox_that_does_not_start_is_no_failure_of_the_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken(tmp_path, monkeypatch, "echo 'bwrap: Resource temporarily unavailable' >&2; exit 1")
    with pytest.raises(SandboxError, match="bwrap: Resource temporarily unavailable"):
        execute("def f(): return 42", **RIGHT)


@pytest.mark.parametrize(
    ("platform", "path", "reason"),
    [
        ("darwin", "/usr/bin/bwrap", "this is darwin"),
        ("linux", None, "bubblewrap is not installed"),
        ("linux", "/usr/bin/bwrap", "libseccomp is not installed; install the package 'libseccomp2'"),
    ],
)
def test_the_probe_says_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, platform: str, path: str | None, reason: str
) -> None:
    monkeypatch.setattr(bubblewrap.sys, "platform", platform)
    monkeypatch.setattr(bubblewrap.shutil, "which", lambda name: path)
    monkeypatch.setattr(seccomp, "library", lambda: None)
    assert reason in sandbox.probe.__wrapped__()


def test_the_probe_repeats_what_a_broken_bubblewrap_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(bubblewrap.sys, "platform", "linux")
    broken(tmp_path, monkeypatch, "echo 'bwrap: No permissions to create new namespace' >&2; exit 1")
    assert "No permissions to create new namespace" in sandbox.probe.__wrapped__()


@needs_sandbox
def test_a_sandbox_without_a_keyring_of_its_own_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    worker = tmp_path / "worker.py"
    written = bubblewrap.WORKER.read_text().replace(
        "_KEYCTL_JOIN_SESSION_KEYRING = 1", "_KEYCTL_JOIN_SESSION_KEYRING = 5"
    )
    worker.write_text(written)  # another request, which the filter refuses
    monkeypatch.setattr(bubblewrap, "WORKER", worker)
    with pytest.raises(SandboxError, match=r"no keyring of its own can be had \(Operation not permitted\)"):
        execute("def f(): return 42", **RIGHT)
    obstacle = sandbox.probe.__wrapped__()
    assert "no keyring of its own" in obstacle


@needs_sandbox
@pytest.mark.skipif(os.geteuid() != 0, reason="only root's sandboxes have users of their own")
def test_root_without_the_right_to_map_users_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(info: object) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(bubblewrap, "_map_users", refuse)
    with pytest.raises(SandboxError, match=r"cannot be set up \(Operation not permitted\); start it as another user"):
        execute("def f(): return 42", **RIGHT)


@needs_sandbox
def test_a_sandbox_that_lets_more_processes_start_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bubblewrap, "own_processes", lambda: 6)
    obstacle = sandbox.probe.__wrapped__()
    by_program, by_host = "a program could start 20 processes, not 16", "it started more than 16 processes"
    assert by_program in obstacle or by_host in obstacle


# ---------------------------------------------------------------------------------------------------- the kernel's word


def run(program: str, test: str) -> Report:
    return execute(program, entry_point="f", test=f"def check(f):\n    {test}\n", limits=Limits(seconds=30))


CALLS = """
import ctypes
def f(calls):
    libc, said = ctypes.CDLL(None, use_errno=True), []
    for number, *arguments in calls:
        ctypes.set_errno(0)
        libc.syscall(ctypes.c_long(number), *map(ctypes.c_long, arguments), *[ctypes.c_long(0)] * (6 - len(arguments)))
        said.append(ctypes.get_errno())
    return said
"""


def errors(*calls: tuple[str, *tuple[int, ...]]) -> list[int]:
    """The errors that a program gets for calls, by name and with arguments, of those that this machine has."""
    numbered = [(seccomp.number(name), *arguments) for name, *arguments in calls if seccomp.number(name) >= 0]
    report = run(CALLS, f"raise ValueError(' '.join(map(str, f({numbered}))))")
    return [int(word) for word in report.why.removeprefix("ValueError: ").split()]


@needs_sandbox
def test_the_kernel_refuses_every_call_of_the_list() -> None:
    assert len([name for name in seccomp.REFUSED if seccomp.number(name) >= 0]) > 50
    assert set(errors(*((name,) for name in seccomp.REFUSED))) == {errno.EPERM}


@needs_sandbox
def test_a_process_may_join_a_new_keyring_and_ask_nothing_else_of_keys() -> None:
    joining, *others = errors(("keyctl", 1), ("keyctl", 1, 0x1000), *(("keyctl", what) for what in range(2, 34)))
    assert joining in (0, errno.ENOSYS) and set(others) == {errno.EPERM}


@needs_sandbox
def test_processes_do_not_start_in_namespaces_of_their_own() -> None:
    flags = (0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000)
    assert set(errors(*(("clone", 0x1200011 | flag) for flag in flags))) == {errno.EPERM}
    assert errors(("clone3",)) == [errno.ENOSYS]


@needs_sandbox
@pytest.mark.parametrize("call", ["socket", "socketpair"])
def test_sockets_are_of_families_that_a_network_namespace_holds(call: str) -> None:
    errnos = errors(*((call, family, 0xFFFF) for family in (*range(64), 64, 1000, 1 << 32 | 40)))
    assert {family for family, error in enumerate(errnos) if error != errno.EAFNOSUPPORT} == {1, 2, 10, 16}


@needs_sandbox
def test_nothing_is_typed_on_the_callers_terminal() -> None:
    *refused, other = errors(*(("ioctl", 0, request) for request in (0x5412, 0x541C, 0x5412 | 1 << 32, 0x5413)))
    assert refused == [errno.EPERM] * 3 and other == errno.ENOTTY  # the kernel reads the lower half


@needs_sandbox
@pytest.mark.skipif(os.uname().machine != "x86_64", reason="these conventions are x86-64's")
@pytest.mark.parametrize(
    "call",
    [
        "ctypes.CDLL(None).syscall(ctypes.c_long(0x40000000 | 39))",
        # mov eax, 20; int 0x80; ret: getpid as a 32-bit program calls it
        "ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(memory)))()",
    ],
)
def test_the_kernel_ends_a_process_that_calls_by_another_convention(call: str) -> None:
    program = f"""
import ctypes, mmap
memory = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
memory.write(b"\\xb8\\x14\\x00\\x00\\x00\\xcd\\x80\\xc3")
def f():
    {call}
    return 42
"""
    report = run(program, "assert f() == 42")
    assert (report.ending, report.why) == (Ending.FAILED, "the program ended by itself")


@needs_sandbox
def test_threads_and_subprocesses_work_under_the_filter() -> None:
    program = """
import concurrent.futures, subprocess, sys
def f():
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        said = sum(pool.map(int, ["10", "20"]))
    return said + int(subprocess.run([sys.executable, "-I", "-S", "-c", "print(12)"], capture_output=True).stdout)
"""
    assert run(program, "assert f() == 42") == Report(Ending.PASSED, "")
