"""SFT without operators: the policy's LoRA learns the traces of Stage 1, in the same order, from the text alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor, nn

from tyler.config.schema import Config
from tyler.model import Tyler
from tyler.modeling.lora import LoraSettings, load_lora
from tyler.training.command import (
    Prepared,
    check_inherited,
    development_problems,
    load_backbone,
    lora_settings,
    origin_of,
    training_command,
)
from tyler.training.objectives import token_logprobs
from tyler.training.packing import read_packed
from tyler.training.supervised import SupervisedTrainer
from tyler.training.teacher_forcing import embed_ids
from tyler.training.traces import Trace, load_traces, traces_of


def batch_loss(
    model: Tyler, traces: Sequence[Trace], num_targets: int, gradient_checkpointing: bool = False
) -> Float[Tensor, ""]:
    """Cross-entropy of some traces' target tokens, over the batch's `num_targets`: what `transformers` computes."""
    device = model.backbone.device
    rows = [embed_ids(model.backbone, [*trace.prompt_ids, *trace.target_ids[:-1]]) for trace in traces]
    hidden = read_packed(model.policy.decoder, rows, recompute=gradient_checkpointing)
    states = [row[len(trace.prompt_ids) - 1 :] for row, trace in zip(hidden, traces, strict=True)]
    targets = torch.tensor([token for trace in traces for token in trace.target_ids], device=device)
    return -token_logprobs(torch.cat(states), model.backbone.head, targets).sum() / num_targets


class SftTrainer(SupervisedTrainer[Tyler, Trace]):
    """eta learns from the traces' target tokens."""

    title, prefix = "SFT", "sft"

    @property
    def module(self) -> nn.Module:
        assert self.model.policy.lora is not None
        return self.model.policy.lora

    def batch_loss(self, part: Sequence[Trace], num_targets: int) -> Tensor:
        return batch_loss(self.model, part, num_targets, self.recomputed)


@training_command
def run(config: Config, *, start: Path | str | None = None) -> Prepared[Tyler]:
    """`tyler train sft`: the policy's LoRA learns on the backbone of the config; `start`, a peft folder, is continued.

    Raises CheckpointError where `start` holds no adapter of this backbone, ValueError for one of other settings.
    """
    backbone = load_backbone(config)
    traces, problems = load_traces(config, backbone), development_problems(config, config.sft)
    development = traces_of(problems, config, backbone) if problems else []
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
