"""`tyler serve --replicas N`: workers and the router before them, from the start to the end of a server process."""

from __future__ import annotations

import asyncio
import secrets
import signal
import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from tyler.serving.replicas import Replica, ReplicaError, plans, threads_each
from tyler.serving.router import Router, create_app
from tyler.serving.server import Server, announce, listen
from tyler.serving.settings import ServerSettings

ENDING_SECONDS = 5.0
"""How long replicas have to end once nobody is answered any more."""


def run(load: Mapping[str, Any], settings: ServerSettings, count: int) -> None:
    """Serve `count` replicas of a model until a signal ends it; `load` are the arguments of `registry.load`.

    Raises ValueError where a replica cannot be started, and OSError where the router cannot listen.
    """
    if count < 2:
        raise ValueError(f"replicas={count}; it must be 2 or more, and a server of one process needs none")
    key = secrets.token_urlsafe(32)  # nobody but the router may ask a replica
    devices = torch.cuda.device_count() if torch.cuda.is_available() else 0
    made = plans(load, settings, count, key, devices)
    replicas = [Replica(number, plan, threads_each(count)) for number, plan in enumerate(made)]
    listening = listen(settings)
    try:
        asyncio.run(begin(replicas))
        announce(settings, listening, f", {count} replicas,")
        Server(create_app(Router(replicas, settings, key)), settings).run([listening])
    finally:
        listening.close()
        end(replicas)


async def begin(replicas: Sequence[Replica]) -> None:
    """Start all replicas at once. Raises ValueError, in a replica's own words, where one does not start."""
    try:
        await asyncio.gather(*(one.start() for one in replicas))
    except ReplicaError as error:
        raise ValueError(f"a replica could not be started: {error}") from error


def end(replicas: Sequence[Replica]) -> None:
    """Let every replica end in order, and kill those that do not."""
    for one in replicas:
        one.signal(signal.SIGTERM)
    until = time.monotonic() + ENDING_SECONDS
    while any(one.lives for one in replicas) and time.monotonic() < until:
        time.sleep(0.05)
    for one in replicas:
        one.kill()
