"""What a Tyler adds to its backbone, and how it reaches vLLM's workers: as tensors, without a file or a restart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

import torch
from peft import LoraConfig, PeftModel
from torch import Tensor, nn

from tyler.modeling.lora import ADAPTER, lora_layers
from tyler.modeling.operators import Operator
from tyler.modeling.policy import Policy
from tyler.modeling.synthesis import CentredHead, ConstantHead, Head, LatentHead, SynthesisModel

if TYPE_CHECKING:
    from tyler.engine.vllm.model import Latents

Adapter = Mapping[str, tuple[Tensor, Tensor]]
"""Of each adapted map of the backbone, by its name: A [rank, in] and scaled B [out, rank]."""


@dataclass(frozen=True)
class Weights:
    """Tensors to load, on the CPU: adapters by reader (0: policy, 1: synthesizer), and buffers of `Latents`."""

    adapters: Mapping[int, Adapter] = field(default_factory=dict)
    latents: Mapping[str, Tensor] = field(default_factory=dict)


@torch.no_grad()
def policy_weights(policy: Policy) -> Weights:
    """eta and psi: what Stage 2 moves."""
    return Weights({0: adapter_of(policy.lora)}, {"psi": on_cpu(policy.psi)})


@torch.no_grad()
def synthesizer_weights(synthesizer: SynthesisModel, operators: Sequence[Operator]) -> Weights:
    """phi, and Q_k and Proj_k of every operator: z = W h + b, with a b for each query."""
    heads = [synthesizer.mapping()[operator.name] for operator in operators]
    maps, biases = zip(*map(affine, heads), strict=True) if heads else ((), ())
    if not heads:
        return Weights({1: adapter_of(synthesizer.lora)})
    latents = {
        "queries": torch.cat([on_cpu(head.queries) for head in heads]),
        "weight": torch.stack(maps),
        "bias": torch.cat(biases),
    }
    return Weights({1: adapter_of(synthesizer.lora)}, latents)


def affine(head: LatentHead) -> tuple[Tensor, Tensor]:
    """A head as z = W h + b: W [dim, dim] and b [latents, dim]. Raises ValueError for one that is not affine."""
    if isinstance(head, Head):
        return on_cpu(head.proj.weight), on_cpu(head.proj.bias).expand(head.num_latents, -1)
    if isinstance(head, ConstantHead):
        latents = on_cpu(head.latents)
        return latents.new_zeros(latents.shape[1], latents.shape[1]), latents
    if isinstance(head, CentredHead):
        weight = on_cpu(head.proj.weight)
        return weight, on_cpu(head.latents) - on_cpu(head.centre) @ weight.T
    raise ValueError(f"a head of kind {type(head).__name__} runs on the native engine alone; use engine 'native'")


def adapter_of(lora: PeftModel | None) -> Adapter:
    """The low-rank maps of an adapter; none of what is not there yet."""
    if lora is None:
        return {}
    return {
        name: (
            on_cpu(cast(nn.Linear, layer.lora_A[ADAPTER]).weight),
            on_cpu(cast(nn.Linear, layer.lora_B[ADAPTER]).weight) * layer.scaling[ADAPTER],
        )
        for name, layer in lora_layers(lora).items()
    }


def on_cpu(tensor: Tensor) -> Tensor:
    """A copy in float32."""
    return tensor.detach().to("cpu", torch.float32)


def targets_of(*loras: PeftModel | None) -> tuple[list[str], int]:
    """The maps that any of the adapters reaches, and the largest rank."""
    configs = [cast(LoraConfig, lora.peft_config[ADAPTER]) for lora in loras if lora is not None]
    targets = {name for config in configs for name in cast(Sequence[str], config.target_modules)}
    return sorted(targets), max((config.r for config in configs), default=1)


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
