"""The machine at hand as a `Device`: three short measurements, about a second together."""

from __future__ import annotations

import time
from collections.abc import Callable

import psutil
import torch
from torch import nn
from transformers import Qwen3Config

from tyler.backbone import best_device, resolve_dtype
from tyler.hardware import Device
from tyler.shapes import materialize, skeleton

REPEATS = 5
ROWS, INNER, OUTER = 256, 1024, 4096
"""The product that the rate is taken from."""
STREAMED = 8192
"""Rows and columns of the matrix that the bandwidth is taken from: larger than a CPU's caches."""
LAYERS = 8
"""Of the small decoder that shows what starting a layer costs."""


@torch.no_grad()
def this_device(dtype: str = "auto") -> Device:
    """Measure this machine in one dtype; both rates of the device are that dtype's."""
    place = best_device()
    chosen = resolve_dtype(dtype, place)
    cuda = place.type == "cuda"
    left = torch.ones(ROWS, INNER, dtype=chosen, device=place)
    right = torch.ones(INNER, OUTER, dtype=chosen, device=place)
    rate = 2 * ROWS * INNER * OUTER / seconds(lambda: left @ right)
    table = torch.ones(STREAMED, STREAMED, dtype=chosen, device=place)
    bandwidth = table.nbytes / seconds(lambda: table @ table[0])
    decoder, one = small_decoder(chosen, place), torch.zeros(1, 1, 64, dtype=chosen, device=place)
    launch = seconds(lambda: decoder(inputs_embeds=one, use_cache=False)) / LAYERS
    name = torch.cuda.get_device_name() if cuda else f"this CPU, {torch.get_num_threads()} threads"
    memory = torch.cuda.mem_get_info()[1] if cuda else psutil.virtual_memory().total
    return Device(
        name, memory, bandwidth, rate, rate, launch, f"measured in {chosen}".replace("torch.", ""), queued=cuda
    )


def small_decoder(dtype: torch.dtype, place: torch.device) -> nn.Module:
    """Layers with next to no work in them."""
    config = Qwen3Config(
        vocab_size=8,
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=LAYERS,
        num_attention_heads=1,
        num_key_value_heads=1,
        head_dim=64,
    )
    model = skeleton(config, dtype)
    materialize(model, place)
    return model.base_model


def seconds(work: Callable[[], object]) -> float:
    """The fastest of a few calls, after one that is not counted: what the machine can, whoever else is using it."""
    times = []
    for _ in range(REPEATS + 1):
        synchronize()
        started = time.perf_counter()
        work()
        synchronize()
        times.append(time.perf_counter() - started)
    return min(times[1:])


def synchronize() -> None:
    """Wait until the GPU has done what it was asked, where there is one."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
