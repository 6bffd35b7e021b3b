"""SFT without operators: the policy's LoRA learns the traces of Stage 1, in the same order, from the text alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from tyler.config.schema import Config
from tyler.model import Tyler
from tyler.modeling.lora import LoraSettings, load_lora
from tyler.training.command import (
    Prepared,
    check_inherited,
    load_backbone,
    lora_settings,
    origin_of,
    training_command,
)
from tyler.training.supervised import SupervisedTrainer
from tyler.training.teacher_forcing import embed_ids
from tyler.training.traces import Trace, load_development, load_traces


class SftTrainer(SupervisedTrainer[Tyler, Trace]):
    """eta learns from the traces' target tokens."""

    title, prefix = "SFT", "sft"

    @property
    def module(self) -> nn.Module:
        assert self.model.policy.lora is not None
        return self.model.policy.lora

    def batch_loss(self, part: Sequence[Trace], num_targets: int) -> Tensor:
        rows = [embed_ids(self.backbone, [*trace.prompt_ids, *trace.target_ids[:-1]]) for trace in part]
        return self.cross_entropy(self.model.policy.decoder, rows, part, num_targets)


@training_command
def run(config: Config, *, start: Path | str | None = None) -> Prepared[Tyler]:
    """`tyler train sft`: the policy's LoRA learns on the backbone of the config; `start`, a peft folder, is continued.

    Raises CheckpointError where `start` holds no adapter of this backbone, ValueError for one of other settings.
    """
    backbone = load_backbone(config)
    traces, development = load_traces(config, backbone), load_development(config, backbone, config.sft)
    torch.manual_seed(config.sft.seed)
    lora = LoraSettings(**config.lora.model_dump())
    model = Tyler.start(backbone, (), lora, config.prompt).at_stage("sft")
    if start is None:
        model.policy.add_lora(lora)
    else:
        model.policy.lora = load_lora(backbone.model, Path(start))
        check_inherited(config, start, backbone, lora_settings(config, "lora", model.policy.lora))
    started = backbone if start is None else model
    origin = origin_of(started.fingerprint(), map(Trace.content, traces), backbone)
    return Prepared(model, origin, SftTrainer(model, traces, config.sft, development).train)
