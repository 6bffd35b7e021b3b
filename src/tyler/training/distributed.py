"""One run on several devices: processes that a launcher started, each with its share of every batch.

`torchrun` and `accelerate launch` start the processes and tell each its place; accelerate connects them, here and in
evaluation. Inside `joined` they train as one: their gradients are added up, their weights start equal and so stay
equal, and only the first process writes. In a process that is alone every function here gives what that process has.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist
from accelerate import PartialState, utils
from torch import Tensor, nn

from tyler.config.sections import DevicesConfig
from tyler.engine.sampling import seed_of

Item = TypeVar("Item")


class LostPeer(ConnectionError):
    """Another process of the run stopped or does not answer."""


def rank() -> int:
    """The place of this process among those of the run, from 0."""
    return dist.get_rank() if dist.is_initialized() else 0


def world() -> int:
    """The number of processes that train as one."""
    return dist.get_world_size() if dist.is_initialized() else 1


# --- joining --------------------------------------------------------------------------------------------------------


@contextmanager
def joined(config: DevicesConfig) -> Iterator[None]:
    """Let the processes that a launcher started work as one, each on its own device; alone, nothing happens.

    A process that leaves with an error drops its connections, and the others raise LostPeer. Raises ValueError where
    there are more processes than devices, or one device is named for all.
    """
    launched = int(os.environ.get("WORLD_SIZE", "1"))
    if launched == 1 or dist.is_initialized():
        yield
        return
    if config.device is not None:
        raise ValueError(
            f"devices.device={config.device!r} names one device, and {launched} processes were started, each of "
            "which takes its own; leave it null"
        )
    if cuda := torch.cuda.is_available():
        check_device(int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count())
    PartialState._reset_state()  # one for the whole process, perhaps from before this was one of several
    with translated_errors():
        state = PartialState(cpu=not cuda, timeout=timedelta(minutes=config.timeout))
        state.wait_for_everyone()  # one that left with an error now would leave others without a peer
    yield
    state.destroy_process_group()
    PartialState._reset_state()


def check_device(local_rank: int, count: int) -> None:
    """Raise ValueError where this machine has more processes than devices."""
    if local_rank >= count:
        raise ValueError(
            f"a process of this machine has local rank {local_rank}, and there are {count} CUDA devices; start at most "
            "as many processes on a machine as it has devices (--nproc-per-node)"
        )


# --- shares and sums ------------------------------------------------------------------------------------------------


def share(items: Sequence[Item]) -> Sequence[Item]:
    """This process's part of a batch: neighbours, in order, and no process has more than one more than another."""
    first, end = (len(items) * place // world() for place in (rank(), rank() + 1))
    return items[first:end]


def local_fraction(count: int) -> float:
    """This process's part of a count over all of them; every process must call this."""
    return count / max(1, sum(gather(count)))


def gather(item: Item) -> list[Item]:
    """What every process has, in the order of their ranks; every process must call this."""
    if world() == 1:
        return [item]
    with translated_errors():
        return list(utils.gather_object([item]))


def average(metrics: Mapping[str, float], weight: int) -> dict[str, float]:
    """Means over all processes of what each has as the mean over `weight` things; of seconds the longest."""
    if world() == 1:
        return dict(metrics)
    parts = [(part, count) for part, count in gather((dict(metrics), weight)) if count > 0]
    total = sum(count for _, count in parts)
    return {
        name: max(part[name] for part, _ in parts)
        if name.endswith("_seconds")
        else sum(part[name] * count for part, count in parts) / total
        for name in parts[0][0]
    }


def add_up(terms: Mapping[str, float], names: Sequence[str]) -> dict[str, float]:
    """Terms of a batch's loss by their `names`, summed over all processes; of one that has none, 0."""
    parts = gather(dict(terms))
    return {name: sum(part.get(name, 0.0) for part in parts) for name in names}


def sum_gradients(parameters: Sequence[nn.Parameter]) -> None:
    """Let every gradient be the sum over all processes, in one message of float32.

    An operator that was drawn nowhere keeps no gradient, so that the optimizer leaves it alone as in one process.
    """
    if world() == 1:
        return
    device = parameters[0].device
    gradients = [torch.zeros_like(one) if one.grad is None else one.grad for one in parameters]
    has_gradient = torch.tensor([float(one.grad is not None) for one in parameters], device=device)
    message = torch.cat([*(gradient.flatten().float() for gradient in gradients), has_gradient])
    with translated_errors():
        message = utils.reduce(message, reduction="sum")
    *sums, found = message.split([*(one.numel() for one in parameters), len(parameters)])
    for parameter, total, count in zip(parameters, sums, found.tolist(), strict=True):
        parameter.grad = total.view_as(parameter).to(parameter.dtype) if count else None


def broadcast_from_rank_zero(tensors: Iterable[Tensor]) -> None:
    """Let every process have the first one's values."""
    if world() > 1:
        with translated_errors():
            utils.broadcast([tensor.data for tensor in tensors])


def run_on_rank_zero(action: Callable[[], Item]) -> Item | None:
    """What `action` gives the first process; None in the others, which wait until it is done there.

    What it raises stops the others too, with a LostPeer that says what it was.
    """
    result, failure = None, None
    if rank() == 0:
        try:
            result = action()
        except Exception as error:
            failure = error
    message = gather(None if failure is None else str(failure))[0]
    if failure is not None:
        raise failure
    if message is not None:
        raise LostPeer(f"the first process stopped: {message}")
    return result


def seed_rank_rng(seed: int, step: int) -> None:
    """Start this process's random draws of a step, of LoRA dropout, from its rank: no two drop the same.

    They follow from seed, rank and step, so a checkpoint need not hold them. The first process continues with the
    generator that a single process has.
    """
    if rank() > 0:
        torch.manual_seed(seed_of(seed, "process", rank(), step))


@contextmanager
def translated_errors() -> Iterator[None]:
    """What torch raises where other processes cannot be reached comes out as LostPeer, which says where to look."""
    try:
        yield
    except RuntimeError as error:
        place = f"process {rank()} of {world()}" if dist.is_initialized() else "this process"
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise LostPeer(
            f"{place} lost the others: one of them stopped, and its own message says why, or did not answer within "
            f"devices.timeout ({reason})"
        ) from error
