"""Autocast: products in bfloat16 over float32 weights; sums, norms and softmax stay float32.

torch's autocast keeps the bfloat16 copies of trained weights alone, and only until it ends: frozen ones, which nearly
all are here, are converted again by every pass. `MixedPrecision` keeps theirs for the whole training. On a processor
attention stays float32 (`modeling/attention.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import cast

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from tyler.modeling.backbone import Backbone


@dataclass(frozen=True)
class MixedPrecision:
    """In which precision a training computes: as the weights are, or with products in bfloat16 (`of`)."""

    device: str = "cpu"
    autocast: bool = False
    maps: tuple[tuple[nn.Linear, nn.Parameter, nn.Parameter], ...] = ()
    """Every frozen linear map with its weight and that weight in bfloat16."""

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
        return cls(backbone.device.type, True, tuple(frozen_maps(modules)))

    @contextmanager
    def weights(self) -> Iterator[None]:
        """While inside, the copies stand in the maps: around all micro-batches of a step, backward passes included."""
        for linear, _, low in self.maps:
            linear.weight = low
        try:
            yield
        finally:
            for linear, full, _ in self.maps:
                linear.weight = full

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
