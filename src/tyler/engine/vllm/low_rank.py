"""Both adapters as a path beside a frozen linear map of vLLM: out = W x + B (m * A x).

The columns of A are those of the policy's eta and of the synthesizer's phi by turns, for each map that vLLM multiplies
at once (q, k and v; gate and up); the mask m leaves to each token the columns of its own reader. vLLM's own LoRA does
the same for many adapters and halves the speed of decoding on a CPU.
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
MOST_MAPS = max(map(len, PARTS.values()))


class LowRank(nn.Module):
    """Mixed into the class of a linear map that adapters reach."""

    maps: tuple[str, ...]
    a: Tensor  # [maps x rank x 2, in]
    b: Tensor  # [out, maps x rank x 2]
    readers: Tensor  # m: [most tokens of a batch, at least maps x rank x 2]; one for all layers

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        out, bias = super().forward(x)
        by_reader = linear(x, self.a).mul_(self.readers[: x.shape[0], : self.a.shape[0]])
        if isinstance(self, RowParallelLinear) and self.tp_size > 1:
            return out + tensor_model_parallel_all_reduce(linear(by_reader, self.b)), bias
        return out.addmm_(by_reader, self.b.T), bias


def adapt(model: nn.Module, targets: Sequence[str], rank: int, readers: Tensor) -> None:
    """Give every linear map that holds a target the low-rank path; it adds nothing until `load_adapter`.

    Its class changes, not its place: weights load, and are quantised, as they always are.
    """
    for name, module in list(model.named_modules()):
        maps = tuple(one for one in parts_of(name) if one in targets)
        if maps and isinstance(module, LinearBase):
            module.__class__ = type(f"LowRank{type(module).__name__}", (LowRank, type(module)), {})
            module.maps, module.readers, columns = maps, readers, len(maps) * rank * 2
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
            a_of, b_of = (every[place * rank * 2 + reader :: 2][:rank] for every in (module.a, module.b.T))
            a_of.zero_()
            b_of.zero_()
            if (tensors := adapter.get(f"{name.rpartition('.')[0]}.{one}")) is None:
                continue
            a, b = tensors
            own_a, own_b = a_of[: len(a)], b_of[: len(a)].T
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
