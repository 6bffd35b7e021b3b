"""What a Tyler adds to its backbone, and how it reaches vLLM's workers: as tensors, without a file or a restart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import torch
from peft import LoraConfig
from torch import Tensor, nn

from tyler.modeling.lora import ADAPTER, low_rank_maps
from tyler.modeling.operators import Operator
from tyler.modeling.policy import Policy
from tyler.modeling.synthesis import SynthesisModel

if TYPE_CHECKING:
    from tyler.engine.vllm.low_rank import Adapter
    from tyler.engine.vllm.model import Latents


@dataclass(frozen=True)
class Weights:
    """Tensors to load, on the CPU: adapters by reader (0: policy, 1: synthesizer), and buffers of `Latents`."""

    adapters: Mapping[int, Adapter] = field(default_factory=dict)
    latents: Mapping[str, Tensor] = field(default_factory=dict)


@torch.no_grad()
def of_policy(policy: Policy) -> Weights:
    """eta and psi: what Stage 2 moves."""
    return Weights({0: low_rank_maps(policy.lora)}, {"psi": on_cpu(policy.psi)})


@torch.no_grad()
def of_synthesizer(synthesizer: SynthesisModel, operators: Sequence[Operator]) -> Weights:
    """phi, Q_k and Proj_k of every operator as z = W h + b with a b for each query, and the map of what is read.

    Raises ValueError for a head that is not affine.
    """
    heads = [synthesizer.mapping()[operator.name] for operator in operators]
    if other := next((head for head in heads if not hasattr(head, "affine")), None):
        raise ValueError(f"a head of kind {type(other).__name__} runs on the native engine alone; use engine 'native'")
    latents: dict[str, Tensor] = {}
    if heads:
        weights, biases = zip(*(cast(Any, head).affine() for head in heads), strict=True)
        latents["queries"] = torch.cat([on_cpu(head.queries) for head in heads])
        latents["weight"] = torch.stack([on_cpu(weight) for weight in weights])
        latents["bias"] = torch.cat([on_cpu(bias) for bias in biases])
    if (mapped := input_map(synthesizer)) is not None:
        latents |= {"map_weight": on_cpu(mapped.weight), "map_bias": on_cpu(mapped.bias)}
    return Weights({1: low_rank_maps(synthesizer.lora)}, latents)


def input_map(synthesizer: SynthesisModel) -> nn.Linear | None:
    """What goes before a synthesizer whose input is mapped (MemGen's weaver)."""
    return getattr(synthesizer, "input_map", None)


def on_cpu(tensor: Tensor) -> Tensor:
    """A copy in float32."""
    return tensor.detach().to("cpu", torch.float32)


def added_by(policy: Policy, synthesizer: SynthesisModel) -> dict[str, Any]:
    """What workers make room for: the maps that adapters reach, the largest rank, and whether inputs are mapped."""
    loras = [lora for lora in (policy.lora, synthesizer.lora) if lora is not None]
    configs = [cast(LoraConfig, lora.peft_config[ADAPTER]) for lora in loras]
    targets = {name for config in configs for name in cast(Sequence[str], config.target_modules)}
    rank = max((config.r for config in configs), default=1)
    return {"targets": sorted(targets), "rank": rank, "maps_input": input_map(synthesizer) is not None}


def load(weights: Weights, model: nn.Module) -> None:
    """Copy weights into the model of a worker, in place: recorded graphs read the same memory."""
    from tyler.engine.vllm.low_rank import load_adapter

    for reader, adapter in weights.adapters.items():
        load_adapter(model, reader, adapter)
    for name, tensor in weights.latents.items():
        latents_of(model).get_buffer(name).copy_(tensor)


def read_rows(rows: Sequence[int], model: nn.Module) -> Tensor:
    """Latents [rows, dim], on the CPU."""
    return latents_of(model).table[list(rows)].cpu()


def write_rows(rows: Sequence[int], latents: Tensor, model: nn.Module) -> None:
    """Put latents that were read back into the table."""
    table = latents_of(model).table
    table[list(rows)] = latents.to(table)


def latents_of(model: nn.Module) -> Latents:
    """The operators of a worker's model."""
    return cast("Latents", model.get_submodule("latents"))
