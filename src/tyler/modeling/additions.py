"""What a Tyler adds to its backbone, as plain float32 tensors on the CPU: for engines that hold the backbone apart."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from peft import PeftModel
from torch import Tensor

from tyler.modeling.lora import lora_layers, low_rank, settings_of
from tyler.modeling.operators import Operator
from tyler.modeling.policy import Policy
from tyler.modeling.synthesis import SynthesisModel

Adapter = Mapping[str, tuple[Tensor, Tensor]]
"""Of each adapted map of the backbone, by its name: A [rank, in] and scaled B [out, rank]."""


@dataclass(frozen=True)
class Additions:
    """The adapter of one reader of the context (0: policy, 1: synthesizer), and what else comes with it, by name."""

    reader: int
    adapter: Adapter
    tensors: Mapping[str, Tensor]


@torch.no_grad()
def of_policy(policy: Policy) -> Additions:
    """eta and psi: what Stage 2 moves."""
    return Additions(0, adapter_of(policy.lora), {"psi": on_cpu(policy.psi)})


@torch.no_grad()
def of_synthesizer(synthesizer: SynthesisModel, operators: Sequence[Operator]) -> Additions:
    """phi, Q_k and Proj_k of every operator as z = W h + b with a b for each query, and the map of what is read."""
    heads = [synthesizer.mapping()[operator.name] for operator in operators]
    tensors: dict[str, Tensor] = {}
    if heads:
        weights, biases = zip(*(cast(Any, head).affine() for head in heads), strict=True)
        queries = torch.cat([head.queries for head in heads])
        tensors |= {"queries": queries, "weight": torch.stack(weights), "bias": torch.cat(biases)}
    if (mapped := synthesizer.input_map) is not None:
        tensors |= {"map_weight": mapped.weight, "map_bias": mapped.bias}
    return Additions(1, adapter_of(synthesizer.lora), {name: on_cpu(tensor) for name, tensor in tensors.items()})


def adapter_of(lora: PeftModel | None) -> Adapter:
    """Of a LoRA; without one, of no map."""
    maps = {} if lora is None else {name: low_rank(layer) for name, layer in lora_layers(lora).items()}
    return {name: (on_cpu(a), on_cpu(b)) for name, (a, b) in maps.items()}


def on_cpu(tensor: Tensor) -> Tensor:
    """A copy in float32."""
    return tensor.detach().to("cpu", torch.float32)


def added_by(policy: Policy, synthesizer: SynthesisModel) -> dict[str, Any]:
    """What needs room: the maps that adapters reach, the largest rank, and whether inputs are mapped."""
    loras = [settings_of(lora) for lora in (policy.lora, synthesizer.lora) if lora is not None]
    targets = {name for lora in loras for name in lora.target_modules}
    rank = max((lora.rank for lora in loras), default=1)
    return {"targets": sorted(targets), "rank": rank, "maps_input": synthesizer.input_map is not None}
