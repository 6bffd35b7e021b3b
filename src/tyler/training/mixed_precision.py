"""Autocast: products in bfloat16 over float32 weights; sums, norms and softmax stay float32.

torch's autocast keeps the bfloat16 copies of trained weights alone, and only until it ends: frozen ones, which nearly
all are here, are converted again by every pass. `MixedPrecision` keeps theirs for the whole training. On a processor
attention stays float32: its backward pass in bfloat16 takes twice as long there.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedConfig, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from tyler.modeling.backbone import Backbone

FLOAT32_ATTENTION = "tyler_float32"
"""The name under which transformers finds `float32_attention`."""


@dataclass(frozen=True)
class MixedPrecision:
    """In which precision a training computes: as the weights are, or with products in bfloat16 (`of`)."""

    device: str = "cpu"
    autocast: bool = False
    maps: tuple[tuple[nn.Linear, nn.Parameter, nn.Parameter], ...] = ()
    """Every frozen linear map with its weight and that weight in bfloat16."""
    configs: tuple[PreTrainedConfig, ...] = ()
    """Of the models whose attention stays float32."""

    @classmethod
    def of(cls, backbone: Backbone, learner: nn.Module, autocast: bool) -> MixedPrecision:
        """How `learner` is trained on the backbone; with autocast it holds another half of the frozen weights.

        Raises ValueError for weights that are not float32: their products are in their own dtype, adapters in float32.
        Raises it on an Apple GPU too, on which no gradient of autocast has been compared.
        """
        if not autocast:
            return cls(backbone.device.type)
        if backbone.device.type == "mps":
            raise ValueError("autocast is for CPUs and CUDA devices; on an Apple GPU set autocast to false")
        if backbone.dtype != torch.float32:
            raise ValueError(f"autocast is for weights in float32, these are {backbone.dtype}; set autocast to false")
        modules = list(dict.fromkeys([*backbone.model.modules(), *learner.modules()]))
        models = [module for module in modules if isinstance(module, PreTrainedModel)]
        configs = {id(model.config): model.config for model in models if backbone.device.type == "cpu"}
        return cls(backbone.device.type, True, tuple(frozen_maps(modules)), tuple(configs.values()))

    @contextmanager
    def weights(self) -> Iterator[None]:
        """While inside, the copies stand in the maps: around all micro-batches of a step, backward passes included."""
        attention = [config._attn_implementation for config in self.configs]
        for linear, _, low in self.maps:
            linear.weight = low
        for config in self.configs:
            config._attn_implementation = FLOAT32_ATTENTION
        try:
            yield
        finally:
            for linear, full, _ in self.maps:
                linear.weight = full
            for config, name in zip(self.configs, attention, strict=True):
                config._attn_implementation = name

    def products(self) -> torch.autocast:
        """Autocast, or nothing: around a forward pass."""
        return torch.autocast(self.device, torch.bfloat16, enabled=self.autocast)


def frozen_maps(modules: list[nn.Module]) -> Iterator[tuple[nn.Linear, nn.Parameter, nn.Parameter]]:
    """Every frozen linear map with its weight and a bfloat16 copy, one for each weight; sharded ones are left alone."""
    copies: dict[int, nn.Parameter] = {}
    for module in modules:
        if isinstance(module, nn.Linear) and not module.weight.requires_grad and not isinstance(module.weight, DTensor):
            weight = cast(nn.Parameter, module.weight)
            if id(weight) not in copies:
                copies[id(weight)] = nn.Parameter(weight.to(torch.bfloat16), requires_grad=False)
            yield module, weight, copies[id(weight)]


def float32_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **_: object,
) -> tuple[Tensor, None]:
    """transformers' attention outside autocast: queries, keys and values [batch, heads, seq, head_dim] in float32."""
    with torch.autocast(query.device.type, enabled=False):
        states = (query.float(), key.float(), value.float())
        return sdpa_attention_forward(module, *states, attention_mask, dropout=dropout, scaling=scaling)


AttentionInterface.register(FLOAT32_ATTENTION, float32_attention)
AttentionMaskInterface.register(FLOAT32_ATTENTION, sdpa_mask)
