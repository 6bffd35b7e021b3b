"""Layers of a backbone that does not fit on one device, shared out over the processes of a training (FSDP2).

A process keeps a part of every layer's frozen matrices; a layer is whole only while it computes. Adapters, norms and
biases stay whole: they are small, and gradients and checkpoints are as without shards.
"""

from collections.abc import Mapping
from itertools import chain
from typing import Any, cast

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from tyler.config.schema import Config
from tyler.model import Tyler
from tyler.modeling.backbone import resolve_device, resolve_dtype
from tyler.training import distributed
from tyler.training.packing import layers_of


def load_settings(config: Config, *, sharded: bool) -> dict[str, Any]:
    """The dtype and the device that a backbone is loaded with: the CPU where it will be sharded, for it may not fit."""
    device = resolve_device(config.devices.device)
    dtype = resolve_dtype(config.backbone.dtype, device)
    return {"dtype": dtype, "device": torch.device("cpu") if sharded else device}


def shard(model: Tyler, device: torch.device, divided: Mapping[str, int]) -> None:
    """Shard every view of the model's backbone over the processes, and move what stays whole to `device`.

    All processes must read layers equally often, in the same order. Raises ValueError for a process that is alone, and
    where one of the `divided` numbers leaves them unequal shares.
    """
    if distributed.world() == 1:
        raise ValueError("layers are sharded over several processes, and this one is alone; start it with torchrun")
    for what, count in divided.items():
        if count % distributed.world():
            raise ValueError(
                f"shard_layers needs equal shares: {what} is {count}, which {distributed.world()} processes do "
                "not divide"
            )
    model.backbone.fingerprint()  # taken while the weights are whole; every checkpoint names it
    views = [model.backbone.decoder, model.synthesizer.decoder, model.policy.decoder]
    mesh = init_device_mesh("cuda" if torch.cuda.is_available() else "cpu", (distributed.world(),))
    for layer in chain(*map(layers_of, dict.fromkeys(views))):
        whole = {one for name, one in layer.named_parameters() if "lora_" in name or one.dim() == 1}
        fully_shard(layer, mesh=mesh, ignored_params=whole, reshard_after_forward=True)
    for part in (model.backbone.model, model.synthesizer, model.policy):
        cast(nn.Module, part).to(device)
