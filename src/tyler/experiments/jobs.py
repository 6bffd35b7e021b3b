"""A grid on several processes: every training and every cell is a job, and starts when what it needs is finished.

What times its answers runs last and alone, for another process would be in its seconds. When the process that started
the others ends, however it ends, so do they, and a training saves its step: nothing goes on beside a grid that resumes.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Hashable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Protocol

import torch

from tyler.experiments.cells import ALONE, UNTRAINED, Cell, Training
from tyler.runs import signals

LOGS = "logs"
"""Beside the records: what each process says while it works."""


@dataclass(frozen=True)
class Job:
    """One training or one cell, with the trainings that must be finished before it."""

    key: Hashable
    needs: frozenset[Hashable]
    cell: Cell
    training: Training | None = None
    """What is trained; None where the cell is answered."""
    name: str = ""
    """The record's, where the cell is answered."""
    identity: Mapping[str, Any] | None = None

    @property
    def alone(self) -> bool:
        """Whether nothing else may run beside it."""
        return self.training is None and self.cell.measure in ALONE


class Works(Protocol):
    """What does the jobs: a grid. It is sent to every process."""

    @property
    def records(self) -> Path:
        """Where the records go."""

    def train(self, training: Training, cell: Cell) -> None:
        """Make the model of a training that a cell needs, or resume its run."""

    def record(self, cell: Cell, name: str, identity: dict[str, Any]) -> None:
        """Measure a cell and write its record."""


def jobs_of(pending: Mapping[str, tuple[Cell, dict[str, Any]]]) -> list[Job]:
    """Every training that the cells need, once, and every cell, in the order of the cells."""
    found: dict[Hashable, Job] = {}
    for name, (cell, identity) in pending.items():
        before = frozenset[Hashable]()
        for training in cell.training.stages if cell.training.method != UNTRAINED else ():
            key = (training, cell.preset, cell.seed)
            found.setdefault(key, Job(key, before, cell, training))
            before = frozenset({key})
        found[name] = Job(name, before, cell, None, name, identity)
    return list(found.values())


def run(
    works: Works,
    pending: Mapping[str, tuple[Cell, dict[str, Any]]],
    processes: int,
    begun: Callable[[Job], None],
    finished: Callable[[Job], None],
) -> None:
    """Run all cells on some processes; `begun` and `finished` hear of every job in this process.

    An error in a job lets the jobs that run finish, starts no other, and is raised here; the records stay, and the same
    call resumes.
    """
    jobs, done = jobs_of(pending), set[Hashable]()
    beside, last = [job for job in jobs if not job.alone], [job for job in jobs if job.alone]
    for some, workers in ((beside, processes), (last, 1)):
        if some:
            with _executor(works, workers) as executor:
                _run(executor, some, done, workers, begun, finished)


def _run(
    executor: Executor,
    waiting: list[Job],
    done: set[Hashable],
    workers: int,
    begun: Callable[[Job], None],
    finished: Callable[[Job], None],
) -> None:
    running: dict[Future[None], Job] = {}
    while waiting or running:
        for job in _startable(waiting, done, workers - len(running)):
            waiting = [one for one in waiting if one is not job]
            running[executor.submit(_work, job)] = job
            begun(job)
        assert running, "what a job needs is a job before it"
        for future in wait(running, return_when=FIRST_COMPLETED).done:
            job = running.pop(future)
            future.result()
            done.add(job.key)
            finished(job)


def _startable(waiting: list[Job], done: set[Hashable], free: int) -> list[Job]:
    """The first jobs that need nothing unfinished, as many as there are free processes."""
    return [job for job in waiting if job.needs <= done][:free]


@contextmanager
def _executor(works: Works, processes: int) -> Iterator[Executor]:
    """Processes that end with this one: each reads a pipe whose other end only this process has."""
    threads = max(1, torch.get_num_threads() // processes)
    context = multiprocessing.get_context("spawn")
    reader, writer = context.Pipe(duplex=False)
    with reader, writer, ProcessPoolExecutor(processes, context, _begin, (works, threads, reader)) as executor:
        try:
            yield executor
        except KeyboardInterrupt:
            writer.close()
            raise


_works: Works | None = None
"""What a process of the executor works with."""
_working = threading.Lock()
"""Held while a job is done."""


def _begin(works: Works, threads: int, pipe: Connection) -> None:
    """Make a process ready: its share of the cores, and a file for what it says."""
    global _works
    _works = works
    torch.set_num_threads(threads)
    folder = works.records.parent / LOGS
    folder.mkdir(parents=True, exist_ok=True)
    _redirect(folder / f"process-{os.getpid()}.log")
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's `&` has it ignored, and it stops an answering
    os.setsid()  # Ctrl-C in a terminal is for the process that started this one, which tells through the pipe
    threading.Thread(target=_end_with, args=(pipe,), daemon=True).start()


def _end_with(pipe: Connection) -> None:
    """Stop working when the process that started this one has closed its end of the pipe, or is gone.

    A training saves its step, an answering stops. The executor then ends this process, unless it is gone itself. (A
    process that ended before would break the executor, which would kill those that still save.)
    """
    with suppress(EOFError, OSError):
        pipe.recv()
    if not signals.ask_to_stop() and _working.locked():
        os.kill(os.getpid(), signal.SIGINT)
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    _working.acquire()
    os._exit(128 + signal.SIGTERM)


def _redirect(path: Path) -> None:
    """Send both streams to a file: bars of several trainings in one terminal would overwrite each other."""
    sys.stdout.flush()
    sys.stderr.flush()
    with path.open("a", encoding="utf-8") as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)


def _work(job: Job) -> None:
    assert _works is not None, "a process of the executor begins with _begin"
    with _working:
        if job.training is not None:
            _works.train(job.training, job.cell)
        else:
            _works.record(job.cell, job.name, dict(job.identity or {}))
