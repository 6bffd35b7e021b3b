"""Worker processes of one server: each with the model, an engine and a port on loopback of its own, looked after.

A replica that ends is started again, after a pause that grows while it keeps ending. Each ends with the process that
started it, whatever ends that one.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

from tyler.serving.settings import ServerSettings, log_of

POLL_SECONDS = 0.5
LONGEST_PAUSE = 30.0
STEADY_SECONDS = 60.0
"""A replica that lived so long is started again at once."""

logger = logging.getLogger(__name__)


class ReplicaError(RuntimeError):
    """A replica that could not be started, in its own words."""


@dataclass(frozen=True)
class Plan:
    """What a replica is: the arguments of `registry.load`, and its settings."""

    load: Mapping[str, Any]
    settings: ServerSettings


def plans(load: Mapping[str, Any], settings: ServerSettings, count: int, key: str, devices: int) -> list[Plan]:
    """One for each of `count` replicas, on the device that `load` names, else over `devices` GPUs in turn.

    Each listens on loopback at a port that is free, takes only requests with `key`, and writes a log of its own:
    audit.jsonl becomes audit-0.jsonl and so on.
    """
    made = []
    for number in range(count):
        log = settings.log and log_of(settings.log, number)
        own = replace(settings, host="127.0.0.1", port=0, api_key=key, hosts=(), origins=(), log=log)
        device = load.get("device") or (f"cuda:{number % devices}" if devices else None)
        made.append(Plan({**load, "device": device}, own))
    return made


class Replica:
    """One worker process, over all its lives. `ready` says whether it takes requests now."""

    def __init__(self, number: int, plan: Plan, threads: int) -> None:
        self.number, self.ready, self.restarts = number, False, 0
        self.url = ""
        self._plan, self._threads = plan, threads
        self._process: BaseProcess | None = None
        self._pipe: Connection | None = None

    async def start(self) -> None:
        """Start a process, and return when it listens. Raises ReplicaError where it does not come to that."""
        context = multiprocessing.get_context("spawn")
        if self._pipe is not None:
            self._pipe.close()
        self._pipe, far = context.Pipe()
        arguments = (self._plan, self._threads, far)
        self._process = context.Process(target=work, args=arguments, name=f"tyler-replica-{self.number}")
        self._process.start()
        far.close()
        await readable(self._pipe.fileno())
        try:
            port, error = self._pipe.recv()
        except EOFError:
            port, error = 0, "it ended without a word"
        if error:
            raise ReplicaError(error)
        self.url = f"http://127.0.0.1:{port}"

    async def ended(self) -> None:
        """Return when the process has ended."""
        assert self._process is not None
        await readable(self._process.sentinel)
        self.ready = False
        self._process.join()

    def signal(self, number: int) -> None:
        """Send the process a signal, if it lives."""
        if self.lives and self.pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """End the process, if it lives, without waiting for its answers, and return when it is gone."""
        if self._process is not None:
            self._process.kill()
            self._process.join()

    @property
    def lives(self) -> bool:
        """Whether its process has not ended."""
        return self._process is not None and self._process.is_alive()

    @property
    def pid(self) -> int | None:
        """The number of its present process."""
        return None if self._process is None else self._process.pid

    async def look_after(self, is_ready: Callable[[Replica], Awaitable[bool]]) -> None:
        """Keep it running, and `ready` true to what `is_ready` finds, until this is cancelled."""
        pause = 0.0
        while True:
            began = time.monotonic()
            watching = asyncio.create_task(self._watch(is_ready))
            try:
                await self.ended()
            finally:
                watching.cancel()
            pause = 0.0 if time.monotonic() - began > STEADY_SECONDS else min(LONGEST_PAUSE, 2 * pause + 0.5)
            logger.error("replica %d ended; it is started again in %g s", self.number, pause)
            await asyncio.sleep(pause)
            self.restarts += 1
            try:
                await self.start()
            except (ReplicaError, OSError) as error:  # OSError: no process can be made just now
                logger.error("replica %d could not be started: %s", self.number, error)

    async def _watch(self, is_ready: Callable[[Replica], Awaitable[bool]]) -> None:
        while True:
            self.ready = await is_ready(self)
            await asyncio.sleep(POLL_SECONDS)


async def readable(descriptor: int) -> None:
    """Return when there is something to read, or the other end has gone."""
    seen = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_reader(descriptor, seen.set)
    try:
        await seen.wait()
    finally:
        loop.remove_reader(descriptor)


# ------------------------------------------------------------------------------------------------ in the replica


def work(plan: Plan, threads: int, pipe: Connection) -> None:
    """The life of a replica: load, listen, tell the port, serve until SIGTERM or until nobody holds the pipe."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.setsid()  # Ctrl-C in a terminal is for the router, which lets answers in flight finish first
    import torch

    from tyler.reasoners import registry
    from tyler.serving import server

    torch.set_num_threads(threads)
    try:
        loaded = registry.load(**plan.load)
        listening = server.listen(plan.settings)
        running = server.made(loaded, plan.settings)
    except Exception as error:  # whatever it is, whoever waits is told
        pipe.send((0, f"{type(error).__name__}: {error}"))
        return
    server.forget_what_stays()
    pipe.send((listening.getsockname()[1], ""))
    threading.Thread(target=end_with, args=(pipe,), daemon=True).start()
    running.run([listening])


def end_with(pipe: Connection) -> None:
    """End this process, in order, when the one that started it has gone."""
    with contextlib.suppress(EOFError, OSError):
        pipe.recv()
    os.kill(os.getpid(), signal.SIGTERM)


def threads_each(count: int) -> int:
    """Torch's threads in each of `count` replicas: those that are asked for, or the cores shared out."""
    given = os.environ.get("OMP_NUM_THREADS", "")
    return int(given) if given.isdecimal() and int(given) else max(1, (os.cpu_count() or 1) // count)
