"""How many threads fit the cores that are free. Without torch.

A loop on several threads is as slow as the slowest of them. On a core that another program uses, a few microseconds of
work take a time slice of milliseconds. So a command starts with a thread for each core that is free, and threads that
wait sleep (`tyler/__init__.py`): one that spins keeps the others from running.
"""

import logging
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import psutil

logger = logging.getLogger(__name__)

VARIABLE = "OMP_NUM_THREADS"
QUOTA = Path("/sys/fs/cgroup/cpu.max")
SECOND_LOOK = 0.2
"""Seconds: what a program that ends used just before a command must not cost that command a thread to its end."""


def cores() -> int:
    """Those that this process may use, by its affinity and the quota of its container."""
    allowed = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    try:
        quota, period = QUOTA.read_text().split()
        return max(1, min(allowed, round(int(quota) / int(period))))
    except (OSError, ValueError):  # no such file, or "max"
        return allowed


@dataclass(frozen=True)
class CoreUse:
    """The machine's clock, and what the cores of this process have been free and it has used so far, in seconds."""

    time: float
    free: float
    own: float

    @classmethod
    def now(cls) -> Self | None:
        """None where the system does not say. What runs at low priority gives way, and counts as free."""
        if sys.platform != "linux" or not Path("/proc/stat").exists():
            return None
        times, niced = psutil.cpu_times(percpu=True), os.getpriority(os.PRIO_PROCESS, 0) > 0
        ours = [times[core] for core in os.sched_getaffinity(0)]
        free = sum(core.idle + core.iowait + (0.0 if niced else core.nice) for core in ours)
        return cls(time.monotonic(), free, time.process_time())

    def busy_until(self, later: Self) -> float:
        """How many cores other programs have used in the mean from now to `later`."""
        seconds = later.time - self.time
        total = len(os.sched_getaffinity(0))
        return max(0.0, total - (later.free - self.free + later.own - self.own) / seconds) if seconds > 0 else 0.0


_at_start = CoreUse.now()
_chosen: list[int] = []


def fit() -> None:
    """Let torch, not imported yet, start with a thread for each core that is free since this module was imported.

    Changes nothing where the user or a launcher has set OMP_NUM_THREADS.
    """
    now = CoreUse.now()
    if VARIABLE in os.environ or "torch" in sys.modules or _at_start is None or now is None:
        return
    threads = threads_beside(_at_start.busy_until(now))
    if threads < cores():
        time.sleep(SECOND_LOOK)
        later = CoreUse.now()
        threads = max(threads, threads_beside(now.busy_until(later or now)))
    _chosen.append(threads)
    os.environ[VARIABLE] = str(threads)


def threads_beside(busy: float) -> int:
    """Threads that fit beside programs that use so many cores."""
    return max(1, int(cores() - busy + 0.5))


def keep(threads: object) -> None:
    """Go on with the threads that a run was started with, whose sums its weights depend on, unless the user chose."""
    import torch

    if _chosen and isinstance(threads, int) and threads != torch.get_num_threads():
        torch.set_num_threads(threads)
        logger.info("%s threads, as this run was started with; %s sets another number", threads, VARIABLE)
