"""Both adapters as a path beside a frozen linear map of vLLM: out = W x + B (m * A x).

The columns of A are those of the policy's eta, then those of the synthesizer's phi, for each map that vLLM multiplies
at once (q, k and v; gate and up); the mask m leaves to each token the columns of its own reader. A batch without calls
needs the policy's alone, and no mask. vLLM's own LoRA does the same for many adapters and halves the speed of decoding
on a CPU.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from vllm.distributed import tensor_model_parallel_all_reduce
from vllm.model_executor.layers.linear import LinearBase, RowParallelLinear

from tyler.modeling.additions import Adapter

PARTS: Mapping[str, Mapping[str, tuple[object, ...]]] = {
    "qkv_proj": {"q_proj": ("q",), "k_proj": ("k",), "v_proj": ("v",)},
    "gate_up_proj": {"gate_proj": (0,), "up_proj": (1,)},
}
"""Maps of the backbone that vLLM multiplies at once, and what its loaders call each of them."""


class LowRank(nn.Module):
    """Mixed into the class of a linear map that adapters reach."""

    maps: tuple[str, ...]
    a: Tensor  # [2 x maps x rank, in]
    b: Tensor  # [out, 2 x maps x rank]
    readers: Tensor  # [most tokens of a batch, 2]; one for all layers
    told: Mapping[str, Any]  # "has_calls": whether a call is in the batch

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        out, bias = super().forward(x)
        if torch.compiler.is_compiling() or self.told.get("has_calls"):  # what is compiled serves every batch
            by_reader = linear(x, self.a).unflatten(-1, (2, -1)) * self.readers[: x.shape[0], :, None]
            low_rank, b = by_reader.flatten(-2), self.b
        else:
            low_rank, b = linear(x, self.a[: len(self.a) // 2]), self.b[:, : self.b.shape[1] // 2]
        if isinstance(self, RowParallelLinear) and self.tp_size > 1:
            return out + tensor_model_parallel_all_reduce(linear(low_rank, b)), bias
        return out.addmm_(low_rank, b.T), bias


def adapt(model: nn.Module, targets: Sequence[str], rank: int, readers: Tensor, told: Mapping[str, Any]) -> None:
    """Give every linear map that holds a target the low-rank path; it adds nothing until `load_adapter`.

    Its class changes, not its place: weights load, and are quantised, as they always are.
    """
    for name, module in list(model.named_modules()):
        maps = tuple(one for one in parts_of(name) if one in targets)
        if maps and isinstance(module, LinearBase):
            module.__class__ = type(f"LowRank{type(module).__name__}", (LowRank, type(module)), {})
            module.maps, module.readers, module.told, columns = maps, readers, told, 2 * len(maps) * rank
            inputs = getattr(module, "input_size_per_partition", module.input_size)
            for buffer, shape in (("a", (columns, inputs)), ("b", (sum(module.output_partition_sizes), columns))):
                module.register_buffer(buffer, torch.zeros(shape, dtype=readers.dtype), persistent=False)


@torch.no_grad()
def load_adapter(model: nn.Module, reader: int, adapter: Adapter) -> None:
    """Copy the adapter of one reader (0: policy, 1: synthesizer) into the low-rank paths, this worker's part of it."""
    for name, module in model.named_modules():
        if not isinstance(module, LowRank):
            continue
        rank = len(module.a) // (2 * len(module.maps))
        for place, one in enumerate(module.maps):
            start = (reader * len(module.maps) + place) * rank
            module.a[start : start + rank], module.b[:, start : start + rank] = 0, 0
            if (tensors := adapter.get(f"{name.rpartition('.')[0]}.{one}")) is None:
                continue
            a, b = tensors
            own_a, own_b = module.a[start : start + len(a)], module.b[:, start : start + len(a)]
            if isinstance(module, RowParallelLinear):
                load_part(module, own_a, a, "input_dim", 1)
                own_b.copy_(b)
            else:
                own_a.copy_(a)
                load_part(module, own_b, b, "output_dim", 0, *parts_of(name)[one])


def load_part(module: Any, into: Tensor, tensor: Tensor, split: str, dim: int, *part: object) -> None:
    """Copy the part of a weight split along `dim` that vLLM loads on this worker."""
    setattr(into, split, dim)
    module.weight_loader(into, tensor.to(into), *part)


def parts_of(name: str) -> Mapping[str, tuple[object, ...]]:
    """The backbone's maps that a module of vLLM holds, and what its loader calls each."""
    last = name.rpartition(".")[2]
    return PARTS.get(last, {last: ()})
