"""SFT without operators: the policy's LoRA learns the traces of Stage 1, in the same order, from the text alone."""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from tyler.config.loops import TracesConfig
from tyler.config.schema import Config
from tyler.model import Tyler
from tyler.modeling.backbone import Backbone
from tyler.modeling.lora import load_lora
from tyler.runs.metrics import SPEED, Metrics, from_traces
from tyler.training.command import (
    Prepared,
    check_inherited,
    load_backbone,
    lora_model,
    lora_settings,
    origin_of,
    plain_model,
    training_command,
)
from tyler.training.supervised import SupervisedTrainer
from tyler.training.teacher_forcing import Trace, embed_ids
from tyler.training.traces import load_development, load_traces

METRICS = Metrics("SFT", from_traces("sft", "eta", SPEED), sections=("sft",))


class SftTrainer(SupervisedTrainer[Tyler, Trace]):
    """eta learns from the traces' target tokens."""

    title, metrics = "SFT", METRICS

    @property
    def module(self) -> nn.Module:
        assert self.model.policy.lora is not None
        return self.model.policy.lora

    def batch_loss(self, part: Sequence[Trace], num_targets: int) -> Tensor:
        rows = [embed_ids(self.backbone, [*trace.prompt_ids, *trace.target_ids[:-1]]) for trace in part]
        return -self.logprobs(self.model.policy.decoder, rows, part).sum() / num_targets


@training_command
def run(config: Config, *, start: Path | str | None = None) -> Prepared[Tyler]:
    """`tyler train sft`: the policy's LoRA learns on the backbone of the config; `start` is one that goes on learning.

    Raises ValueError where `start` is not a peft folder, or has other settings than the config.
    """
    return prepared(config, config.sft, SftTrainer, start)


def prepared(
    config: Config, loop: TracesConfig, trainer: type[SftTrainer], start: Path | str | None = None
) -> Prepared[Tyler]:
    """A new LoRA or the one in `start`, and the traces that a loop of this config trains it on."""
    backbone = load_backbone(config)
    traces, development = load_traces(config, backbone), load_development(config, backbone, loop)
    torch.manual_seed(loop.seed)
    model = lora_model(config, backbone, "sft") if start is None else going_on(config, backbone, Path(start))
    weights = backbone.fingerprint() if start is None else model.fingerprint()
    origin = origin_of(weights, map(Trace.content, traces), backbone)
    return Prepared(model, origin, trainer(model, traces, loop, development).train)


def going_on(config: Config, backbone: Backbone, start: Path) -> Tyler:
    """A model whose policy has the LoRA in the peft folder `start`. Raises ValueError where it has another shape."""
    model = plain_model(config, backbone, "sft")
    model.policy.lora = load_lora(backbone.model, start)
    check_inherited(config, start, backbone, lora_settings(config, "lora", model.policy.lora))
    return model


def rehearsed(backbone: Backbone, config: Config, trace: Trace) -> tuple[SftTrainer, Trace]:
    """What a dry run takes a step with."""
    return SftTrainer(lora_model(config, backbone, "sft"), (), config.sft), trace
