"""Several processes of one training, started as a launcher starts them, but forked: nothing is imported again."""

from __future__ import annotations

import multiprocessing
import os
import socket
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import torch

FORK = multiprocessing.get_context("fork")


def together(world: int, work: Callable[..., Any], *arguments: Any, seconds: float = 120) -> list[Any]:
    """What `work(*arguments)` returns in each of `world` processes.

    An exception comes back as its text with its traceback; a process that does not end is killed and gives "hung".
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    started = []
    for rank in range(world):
        mine, theirs = FORK.Pipe(duplex=False)
        process = FORK.Process(target=_child, args=(theirs, rank, world, port, work, arguments))
        process.start()
        theirs.close()
        started.append((process, mine))
    results = []
    for _, mine in started:
        results.append(_received(mine) if mine.poll(seconds) else "hung")
        mine.close()
    for process, _ in started:
        process.join(5)
        process.kill()
        process.join()
    return results


def _received(pipe: Connection) -> Any:
    try:
        return pipe.recv()
    except EOFError:
        return "died"


def _child(pipe: Connection, rank: int, world: int, port: int, work: Callable[..., Any], arguments: Any) -> None:
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}
    torch.set_num_threads(1)
    try:
        pipe.send(work(*arguments))
    except BaseException:
        pipe.send(traceback.format_exc())
    pipe.close()
    os._exit(0)
