"""The machine at hand as a `Device`: three short measurements, a second or two together."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import psutil
import torch

from tyler.engine.request import Request
from tyler.engine.routing import Never
from tyler.model import Tyler
from tyler.modeling.architectures import MINI, located
from tyler.modeling.backbone import best_device, dtype_name, resolve_dtype
from tyler.modeling.random_init import random_backbone, read_tokenizer
from tyler.planning.hardware import COMPUTE, STREAMING, Device
from tyler.planning.roofline import CHOICE_LAYERS
from tyler.tasks.prompts import Prompt

REPEATS = 3
ROWS, INNER, OUTER = 256, 1024, 4096
"""The product that the rate is taken from."""
STREAMED = 8192
"""Rows and columns of the matrix that the bandwidth is taken from: larger than a CPU's caches."""
STEPS = 16
"""Of decoding with a random `mini`, whose layers have next to no work in them: what starting a layer costs."""


@torch.no_grad()
def this_device(dtype: str = "auto") -> Device:
    """Measure this machine in one dtype; both rates of the device are that dtype's.

    A large product and a large matrix times a vector show what is possible; as with data sheets, a plan counts on a
    share of it.
    """
    place = best_device()
    chosen = resolve_dtype(dtype, place)
    left = torch.ones(ROWS, INNER, dtype=chosen, device=place)
    right = torch.ones(INNER, OUTER, dtype=chosen, device=place)
    rate = 2 * ROWS * INNER * OUTER / seconds(lambda: left @ right)
    table = torch.ones(STREAMED, STREAMED, dtype=chosen, device=place)
    bandwidth = table.nbytes / seconds(lambda: table @ table[0])
    cuda = place.type == "cuda"
    return Device(
        name=torch.cuda.get_device_name() if cuda else f"this CPU, {torch.get_num_threads()} threads",
        memory=torch.cuda.mem_get_info()[1] if cuda else psutil.virtual_memory().total,
        bandwidth=bandwidth * STREAMING,
        bfloat16=rate * COMPUTE,
        float32=rate * COMPUTE,
        launch=starting_seconds(small_model(dtype_name(chosen), place)),
        source=f"of the {bandwidth / 1e9:.3g} GB/s and {rate / 1e12:.3g} TFLOP/s measured in {dtype_name(chosen)}",
        queued=cuda,
    )


def small_model(dtype: str, place: torch.device) -> Tyler:
    """`mini` with random weights, whose answers never end."""
    tokenizer = read_tokenizer(Path(located(MINI)))
    tokenizer.eos_token = None
    backbone = random_backbone(MINI, tokenizer, dtype=dtype, device=place)
    return Tyler.start(backbone, prompt=Prompt(""))


def starting_seconds(model: Tyler) -> float:
    """What one layer of a decoding step costs that the host starts: STEPS steps more against STEPS fewer."""

    def decoding(steps: int) -> Callable[[], object]:
        return lambda: model.engine(slots=1).run([Request([0], Never(), max_new_tokens=steps)])

    more = seconds(decoding(2 * STEPS)) - seconds(decoding(STEPS))
    return max(0.0, more) / (STEPS * (model.backbone.num_layers + CHOICE_LAYERS))


def seconds(work: Callable[[], object]) -> float:
    """The fastest of a few calls, after one that is not counted: what the machine can do, even if others use it."""
    clock, times = best_clock(), []
    for _ in range(REPEATS + 1):
        synchronize()
        started = clock()
        work()
        synchronize()
        times.append(clock() - started)
    return min(times[1:])


def best_clock() -> Callable[[], float]:
    """Seconds of the processor where one of its threads does everything, which no neighbour disturbs; else the time."""
    alone = not torch.cuda.is_available() and torch.get_num_threads() == 1
    return time.process_time if alone else time.perf_counter


def synchronize() -> None:
    """Wait until the GPU has done what it was asked, where there is one."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
