"""What is kept of every slot: x_t as embeddings, and the keys and values that a decoder has read of it.

A slot is one request's for as long as it is answered, and nothing in it ever moves. All are made once, as large as the
memory allows. On a CPU they are not touched before they are written, so that what no answer reaches costs nothing.
"""

import math
import mmap
from dataclasses import dataclass
from typing import Self

import psutil
import torch
from torch import Tensor
from transformers import PreTrainedConfig

from tyler.modeling.architectures import head_dim
from tyler.modeling.attention import cache_dtype
from tyler.modeling.backbone import Backbone
from tyler.modeling.memory_errors import is_out_of_memory

SHARE = 0.5
"""Of the memory that is free when an engine is made: what it takes by default."""


@dataclass(frozen=True)
class Room:
    """`slots` requests at once, each of at most `capacity` positions; a position takes `position_bytes`."""

    slots: int
    capacity: int
    position_bytes: int

    @classmethod
    def of(cls, backbone: Backbone, slots: int, memory: int | None, positions: int | None) -> Self:
        """At most `slots` within `memory` bytes. Each has the positions that are asked for, and more where there is
        memory for them, up to the model's own limit. Raises ValueError where not even one slot fits."""
        bound = int(free_bytes(backbone.device) * SHARE) if memory is None else memory
        size, longest = bytes_of_position(backbone), backbone.max_positions
        capacity = min(longest, max(positions or 1, bound // (slots * size)))
        if capacity * size > bound:
            raise ValueError(
                f"an answer of up to {capacity:,} positions needs {capacity * size:,} bytes of context and caches, and "
                f"memory={bound:,}; lower max_new_tokens or raise memory"
            )
        return cls(min(slots, bound // (capacity * size)), capacity, size)

    def zeros(self, leading: int, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
        """[leading, slots, *shape]. Raises MemoryError that says what was asked, and what changes it."""
        whole = (leading, self.slots, *shape)
        size = math.prod(whole) * dtype.itemsize
        try:
            if device.type == "cpu":
                return untouched(size).view(dtype).view(whole)
            return torch.zeros(whole, dtype=dtype, device=device)
        except (MemoryError, OSError, RuntimeError) as error:
            if not isinstance(error, OSError) and not is_out_of_memory(error):
                raise
            raise MemoryError(
                f"{size:,} bytes for {self.slots} slots of {self.capacity:,} positions are not free on {device}; "
                f"an engine of these takes {self.slots * self.capacity * self.position_bytes:,}: lower memory or slots"
            ) from error


class Context:
    """x_t of every slot as embeddings [slots, capacity, dim]: what both decoders read."""

    def __init__(self, room: Room, dim: int, dtype: torch.dtype, device: torch.device) -> None:
        self.room = room
        self.embeds = room.zeros(1, (room.capacity, dim), dtype, device)[0]
        self.flat = self.embeds.view(-1, dim)

    def write(self, slot: int, start: int, embeds: Tensor) -> None:
        self.embeds[slot, start : start + len(embeds)] = embeds.to(self.embeds.dtype)


class KeyValueCache:
    """Keys and values [layers, slots, kv_heads, capacity, head_dim] of one decoder; `groups` query heads share one.

    What a head reads lies together: with few heads a step of decoding on a CPU takes half as long as side by side.
    """

    def __init__(self, room: Room, config: PreTrainedConfig, dtype: torch.dtype, device: torch.device) -> None:
        self.room, self.groups = room, config.num_attention_heads // config.num_key_value_heads
        shape = (config.num_key_value_heads, room.capacity, head_dim(config))
        self.keys = room.zeros(config.num_hidden_layers, shape, dtype, device)
        self.values = room.zeros(config.num_hidden_layers, shape, dtype, device)
        self.head_starts = torch.arange(shape[0], device=device) * room.capacity
        """Where the positions of each head lie behind those of the first."""
        self.flat_keys = self.keys.flatten(1, 3).unbind(0)
        self.flat_values = self.values.flatten(1, 3).unbind(0)


def untouched(size: int) -> Tensor:
    """Zeros of the system's, a page when it is written first; torch and numpy would write all, or large pages."""
    private = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_PRIVATE") else {}
    memory = mmap.mmap(-1, size, **private)
    if hasattr(mmap, "MADV_NOHUGEPAGE"):
        memory.madvise(mmap.MADV_NOHUGEPAGE)
    return torch.frombuffer(memory, dtype=torch.uint8)


def bytes_of_position(backbone: Backbone) -> int:
    """Bytes that a position takes in the context, and as keys and values in the caches of both decoders."""
    config, kept = backbone.model.config, cache_dtype(backbone.dtype, backbone.device)
    cached = 2 * config.num_hidden_layers * config.num_key_value_heads * head_dim(config) * kept.itemsize
    return 2 * cached + backbone.dim * backbone.dtype.itemsize


def free_bytes(device: torch.device) -> int:
    """Memory that is free now."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    if device.type == "mps":
        return torch.mps.recommended_max_memory() - torch.mps.driver_allocated_memory()
    return psutil.virtual_memory().available
