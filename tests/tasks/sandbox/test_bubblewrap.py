"""What is refused where the sandbox cannot have its keyring or its users, and what of it is not the program's doing."""

from __future__ import annotations

import errno
import json
import os
import re
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from tyler.tasks.sandbox import bubblewrap, sandbox, seccomp
from tyler.tasks.sandbox.bubblewrap import SandboxError
from tyler.tasks.sandbox.sandbox import Ending, Limits, Report, execute, probe

needs_sandbox = pytest.mark.skipif(not probe().available, reason=probe().reason)
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
    found = sandbox.probe.__wrapped__()
    assert not found.available
    assert "no keyring of its own" in found.reason


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
    found = sandbox.probe.__wrapped__()
    assert not found.available
    assert "a program could start 20 processes, not 16" in found.reason


def test_a_worker_outside_of_a_sandbox_runs_without_a_keyring_of_its_own(tmp_path: Path) -> None:
    order = {"prelude": "", "program": "def f(): return 42", **RIGHT, "limits": {}, "packages": ""}
    reading, writing = os.pipe()
    subprocess.run(
        [sys.executable, "-I", "-S", str(bubblewrap.WORKER), str(writing)],
        input=json.dumps({"token": "t", "order": order}), text=True, check=True, pass_fds=(writing,), cwd=tmp_path,
    )  # fmt: skip
    os.close(writing)
    with os.fdopen(reading) as lines:
        assert lines.readline() == "ready\n"
        assert json.loads(lines.readline())["ending"] == "passed"


MACHINES = tuple(seccomp.MACHINES)
HEADERS = {
    "x86_64": Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"),
    "aarch64": Path("/usr/include/asm-generic/unistd.h"),
}
ALLOW, KILL = 0x7FFF0000, 0x80000000
LOAD, EQUAL, AT_LEAST, ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06


def refused(number: int = errno.EPERM) -> int:
    return 0x00050000 | number


def verdict(machine: str, number: int, *arguments: int, architecture: int | None = None) -> int:
    """What the filter returns for a call, by interpreting it: struct seccomp_data is number, architecture, pointer and
    six arguments."""
    architecture = seccomp.MACHINES[machine] if architecture is None else architecture
    six = [*arguments, *[0] * (6 - len(arguments))]
    data = struct.pack("<IIQ6Q", number & 0xFFFFFFFF, architecture, 0, *six)
    program, at, loaded = list(struct.iter_unpack("=HBBI", seccomp.program(machine))), 0, 0
    tests = {EQUAL: int.__eq__, AT_LEAST: int.__ge__, ANY_BIT: lambda a, b: bool(a & b)}
    while True:
        operation, if_true, if_false, operand = program[at]
        if operation == RETURN:
            return operand
        if operation == LOAD:
            loaded = struct.unpack_from("<I", data, operand)[0]
            at += 1
        else:
            at += 1 + (if_true if tests[operation](loaded, operand) else if_false)


def numbers(machine: str) -> dict[str, int]:
    place = MACHINES.index(machine)
    return {name: row[place] for name, row in seccomp.NUMBERS.items() if row[place] is not None}


@pytest.mark.parametrize("machine", MACHINES)
def test_every_call_of_the_table_is_refused_and_no_other(machine: str) -> None:
    table = numbers(machine)
    assert {verdict(machine, number) for number in table.values()} == {refused()}
    ruled = {
        row[MACHINES.index(machine)] for row in (seccomp.CLONE3, seccomp.KEYCTL, seccomp.SOCKET, seccomp.SOCKETPAIR)
    }
    others = set(range(500)) - set(table.values()) - ruled
    assert {verdict(machine, number) for number in others} == {ALLOW}


@pytest.mark.parametrize("machine", MACHINES)
def test_a_process_may_join_a_new_keyring_and_ask_nothing_else_of_keys(machine: str) -> None:
    keyctl = seccomp.KEYCTL[MACHINES.index(machine)]
    assert verdict(machine, keyctl, 1, 0) == ALLOW
    assert verdict(machine, keyctl, 1, 0x1000) == refused()  # by name: an existing one
    assert verdict(machine, keyctl, 1, 0x7F0000000000) == refused()
    assert {verdict(machine, keyctl, command, 0) for command in range(64) if command != 1} == {refused()}


@pytest.mark.parametrize("machine", MACHINES)
def test_processes_may_start_but_not_in_namespaces_of_their_own(machine: str) -> None:
    place = MACHINES.index(machine)
    clone, clone3 = seccomp.CLONE[place], seccomp.CLONE3[place]
    threads, fork = 0x3D0F00, 0x1200011  # as glibc's pthread_create and fork call it
    assert verdict(machine, clone, threads) == verdict(machine, clone, fork) == ALLOW
    for bit in (0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000):
        assert verdict(machine, clone, fork | bit) == refused()
    assert verdict(machine, clone3) == refused(errno.ENOSYS)


@pytest.mark.parametrize("machine", MACHINES)
def test_sockets_are_of_families_that_a_network_namespace_holds(machine: str) -> None:
    for call in (seccomp.SOCKET, seccomp.SOCKETPAIR):
        verdicts = {family: verdict(machine, call[MACHINES.index(machine)], family) for family in range(64)}
        assert {family for family, said in verdicts.items() if said == ALLOW} == {1, 2, 10, 16}
        assert {said for said in verdicts.values()} == {ALLOW, refused(errno.EAFNOSUPPORT)}


@pytest.mark.parametrize("machine", MACHINES)
def test_nothing_is_typed_on_the_callers_terminal(machine: str) -> None:
    ioctl = seccomp.IOCTL[MACHINES.index(machine)]
    assert verdict(machine, ioctl, 0, 0x5412) == verdict(machine, ioctl, 0, 0x541C) == refused()
    assert verdict(machine, ioctl, 0, 0x5412 | 1 << 32) == refused()  # the kernel reads the lower half
    assert verdict(machine, ioctl, 0, 0x5413) == ALLOW


def test_calls_of_another_convention_end_the_process() -> None:
    i386, arm = 0x40000003, 0x40000028
    assert verdict("x86_64", 20, architecture=i386) == verdict("aarch64", 20, architecture=arm) == KILL
    assert verdict("x86_64", 39, architecture=seccomp.MACHINES["aarch64"]) == KILL
    assert verdict("x86_64", 0x40000000 | 39) == verdict("x86_64", -1) == KILL


def test_there_is_no_filter_for_a_machine_whose_numbers_are_not_known() -> None:
    with pytest.raises(ValueError, match="no system-call filter for riscv64, only for x86_64 and aarch64"):
        seccomp.program("riscv64")


@pytest.mark.parametrize("machine", MACHINES)
def test_the_numbers_are_those_of_the_kernels_headers(machine: str) -> None:
    if not HEADERS[machine].is_file():
        pytest.skip(f"there is no {HEADERS[machine]}")
    found = dict(re.findall(r"#define __NR\w*?_(\w+)\s+(\d+)\s", HEADERS[machine].read_text()))
    rules = {"keyctl": "KEYCTL", "clone": "CLONE", "clone3": "CLONE3", "socket": "SOCKET", "socketpair": "SOCKETPAIR"}
    named = numbers(machine) | {name: getattr(seccomp, rule)[MACHINES.index(machine)] for name, rule in rules.items()}
    known = {name: int(found[name]) for name in named if name in found}
    assert known == {name: named[name] for name in known}
    assert len(known) > len(named) - 8, "headers older than the newest calls lack a few"


# ---------------------------------------------------------------------------------------------------- the kernel's word


def run(program: str, test: str) -> Report:
    return execute(program, entry_point="f", test=f"def check(f):\n    {test}\n", limits=Limits(seconds=30))


@needs_sandbox
def test_the_kernel_refuses_every_call_of_the_table() -> None:
    table = numbers(os.uname().machine)
    program = """
import ctypes
def f(numbers):
    libc, refused = ctypes.CDLL(None, use_errno=True), {}
    for name, number in numbers.items():
        ctypes.set_errno(0)
        refused[name] = libc.syscall(ctypes.c_long(number), *[ctypes.c_long(0)] * 6) == -1 and ctypes.get_errno()
    return refused
"""
    report = run(program, f"given = f({table}); assert set(given.values()) == {{1}}, given")
    assert report.ending is Ending.PASSED, report


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
    assert run(program, "assert f() == 42") == Report(Ending.PASSED, "", pytest.approx(0, abs=40))
