"""What is refused where the sandbox cannot have its keyring or its users, and what of it is not the program's doing."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tyler.tasks.sandbox import bubblewrap, sandbox
from tyler.tasks.sandbox.bubblewrap import SandboxError
from tyler.tasks.sandbox.sandbox import execute, probe

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
