"""Threads fit the cores that are free; a run goes on with those it was started with."""

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from tyler.runs import threads
from tyler.runs.threads import CoreUse, threads_beside

linux = pytest.mark.skipif(sys.platform != "linux", reason="the use of cores is read from /proc")


@pytest.mark.parametrize(
    "cores, busy, expected", [(2, 0, 2), (2, 0.4, 2), (2, 1, 1), (2, 2, 1), (8, 3.2, 5), (1, 0, 1), (4, 9, 1)]
)
def test_there_is_a_thread_for_each_free_core_and_always_one(
    cores: int, busy: float, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threads, "cores", lambda: cores)
    assert threads_beside(busy) == expected


@linux
def test_what_others_use_is_neither_free_nor_our_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    before = CoreUse(time=100.0, free=50.0, own=3.0)
    assert before.busy_until(CoreUse(time=110.0, free=59.0, own=4.0)) == pytest.approx(1.0)
    assert before.busy_until(CoreUse(time=110.0, free=69.0, own=4.5)) == 0


@linux
def test_the_clock_of_the_cores_goes_forward() -> None:
    first, second = CoreUse.now(), CoreUse.now()
    assert first is not None and second is not None
    assert second.time >= first.time and second.free >= first.free and second.own >= first.own


@linux
@pytest.mark.parametrize("quota, expected", [("150000 100000", 2), ("50000 100000", 1), ("max 100000", 4), ("", 4)])
def test_a_container_has_the_cores_of_its_quota(
    quota: str, expected: int, monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(4)))
    monkeypatch.setattr(threads, "QUOTA", SimpleNamespace(read_text=lambda: quota))
    assert threads.cores() == expected


SHOW = "import os; print(os.environ['OMP_WAIT_POLICY'], os.environ['OMP_NUM_THREADS'])"


def started(code: str, **variables: str) -> list[str]:
    """What a fresh interpreter prints, without this one's settings of threads."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("OMP", "MKL", "KMP", "OPENBLAS"))}
    out = subprocess.run([sys.executable, "-c", code], env=kept | variables, capture_output=True, text=True, check=True)
    return out.stdout.split()


@linux
def test_a_command_starts_torch_with_the_threads_that_fit_and_they_sleep_while_they_wait() -> None:
    fit = "import tyler; from tyler.runs import threads; threads.threads_beside = lambda busy: 1; threads.fit(); "
    assert started(fit + SHOW) == ["PASSIVE", "1"]
    assert started(fit + SHOW, OMP_NUM_THREADS="3", OMP_WAIT_POLICY="ACTIVE") == ["ACTIVE", "3"]


@linux
@pytest.mark.parametrize("busy, expected", [((1, 0), "2"), ((1, 1), "1"), ((0,), "2")])
def test_who_was_busy_only_before_a_command_takes_no_thread_from_it(busy: tuple[int, ...], expected: str) -> None:
    code = (
        "import tyler; from tyler.runs import threads; threads.cores = lambda: 2; "
        f"seen = iter({busy}); threads.CoreUse.busy_until = lambda *_: next(seen); threads.fit(); "
    )
    assert started(code + SHOW) == ["PASSIVE", expected]


def test_a_resumed_run_has_the_threads_of_its_first_start_unless_the_user_chose(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = torch.get_num_threads()
    try:
        threads.keep(before + 1)
        assert torch.get_num_threads() == before, "this process was given its number"
        monkeypatch.setattr(threads, "_chosen", [before])
        threads.keep(before + 1)
        assert torch.get_num_threads() == before + 1
        threads.keep(None)
        assert torch.get_num_threads() == before + 1
    finally:
        torch.set_num_threads(before)
