"""Both adapters as a path beside a frozen linear map of vLLM: out = W x + B (m * A x).

The columns of A are those of the policy's eta, then those of the synthesizer's phi, for each map that vLLM multiplies
at once (q, k and v; gate and up); the mask m leaves to each token the columns of its own reader. vLLM's own LoRA does
the same for many adapters and halves the speed of decoding on a CPU.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from vllm.distributed import tensor_model_parallel_all_reduce
from vllm.model_executor.layers.linear import LinearBase, MergedColumnParallelLinear, QKVParallelLinear

Adapter = Mapping[str, tuple[Tensor, Tensor]]
"""Of each adapted map of the backbone, by its name: A [rank, in] and scaled B [out, rank]."""

PARTS = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}
"""Maps of the backbone that vLLM multiplies at once."""


class LowRank(nn.Module):
    """Mixed into the class of a linear map that adapters reach."""

    maps: tuple[str, ...]
    a: Tensor  # [in, 2 x maps x rank]
    b: Tensor  # [2 x maps x rank, out]
    readers: Tensor  # [most tokens of a batch, 2]; one for all layers

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        out, bias = super().forward(x)
        by_reader = (x @ self.a).unflatten(-1, (2, -1)) * self.readers[: x.shape[0], :, None]
        added = by_reader.flatten(-2) @ self.b
        return out + (tensor_model_parallel_all_reduce(added) if splits_input(self) else added), bias


def adapt(model: nn.Module, targets: Sequence[str], rank: int, readers: Tensor) -> None:
    """Give every linear map that holds a target the low-rank path; it adds nothing until `load_adapters`.

    Its class changes, not its place: weights load, and are quantised, as they always are.
    """
    for name, module in list(model.named_modules()):
        maps = tuple(m for m in maps_of(name) if m in targets)
        if maps and isinstance(module, LinearBase):
            module.__class__ = type(f"LowRank{type(module).__name__}", (LowRank, type(module)), {})
            columns, sizes = 2 * len(maps) * rank, (local_input(module), sum(local_sizes(module)))
            module.maps, module.readers = maps, readers
            for buffer, shape in (("a", (sizes[0], columns)), ("b", (columns, sizes[1]))):
                module.register_buffer(buffer, torch.zeros(shape, dtype=readers.dtype), persistent=False)


@torch.no_grad()
def load_adapter(model: nn.Module, reader: int, adapter: Adapter) -> None:
    """Copy the adapter of one reader (0: policy, 1: synthesizer) into the low-rank paths, this worker's part of it."""
    for name, module in model.named_modules():
        if not isinstance(module, LowRank):
            continue
        rank = module.a.shape[1] // (2 * len(module.maps))
        for place, one in enumerate(module.maps):
            columns = slice((reader * len(module.maps) + place) * rank, (reader * len(module.maps) + place + 1) * rank)
            module.a[:, columns], module.b[columns] = 0, 0
            tensors = adapter.get(f"{name.rpartition('.')[0]}.{one}")
            if tensors is None:
                continue
            a, b = tensors
            into = slice(columns.start, columns.start + len(a))
            module.a[:, into] = input_part(module, a).T
            outputs, rows = output_range(module, one)
            module.b[into, outputs] = b[rows].T.to(module.b)


def maps_of(name: str) -> tuple[str, ...]:
    """The backbone's maps that a module of vLLM holds."""
    last = name.rpartition(".")[2]
    return PARTS.get(last, (last,))


def local_input(module: LinearBase) -> int:
    """Inputs on this worker."""
    return int(getattr(module, "input_size_per_partition", module.input_size))


def splits_input(module: LinearBase) -> bool:
    """Whether each worker has a part of the input, and the sum of all is the output."""
    return bool(local_input(module) < module.input_size)


def local_sizes(module: LinearBase) -> list[int]:
    """Outputs of each map on this worker."""
    if isinstance(module, QKVParallelLinear):
        keys = module.num_kv_heads
        return [module.num_heads * module.head_size, keys * module.head_size, keys * module.v_head_size]
    if isinstance(module, MergedColumnParallelLinear):
        return [size // module.tp_size for size in module.output_sizes]
    return [getattr(module, "output_size_per_partition", module.output_size)]


def output_range(module: LinearBase, one: str) -> tuple[slice, slice]:
    """Where a map's outputs are on this worker, and which of all its outputs they are."""
    maps, sizes = maps_of(module.prefix), local_sizes(module)
    place = maps.index(one)
    start, size = sum(sizes[:place]), sizes[place]
    part = 0 if splits_input(module) else getattr(module, "tp_rank", 0)
    if isinstance(module, QKVParallelLinear) and one != "q_proj":
        part //= module.num_kv_head_replicas
    return slice(start, start + size), slice(part * size, (part + 1) * size)


def input_part(module: LinearBase, a: Tensor) -> Tensor:
    """The columns of A [rank, in] that this worker's part of the input meets."""
    size = local_input(module)
    part = module.tp_rank if splits_input(module) else 0
    return a[:, part * size : (part + 1) * size]
