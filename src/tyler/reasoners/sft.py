"""SFT without operators: the policy's LoRA learns the traces of Stage 1, in the same order, from the text alone."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from tyler.config.loops import TracesConfig
from tyler.config.schema import Config
from tyler.model import Tyler
from tyler.modeling.backbone import Backbone
from tyler.runs.metrics import SPEED, Metrics, from_traces
from tyler.training.command import Prepared, load_backbone, lora_model, origin_of, training_command
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
def run(config: Config) -> Prepared[Tyler]:
    """`tyler train sft`: the policy's LoRA learns on the backbone of the config."""
    return prepared(config, config.sft, SftTrainer)


def prepared(config: Config, loop: TracesConfig, trainer: type[SftTrainer]) -> Prepared[Tyler]:
    """A new LoRA, and the traces that a loop of this config trains it on."""
    backbone = load_backbone(config)
    traces, development = load_traces(config, backbone), load_development(config, backbone, loop)
    torch.manual_seed(loop.seed)
    model = lora_model(config, backbone, "sft")
    origin = origin_of(backbone.fingerprint(), map(Trace.content, traces), backbone)
    return Prepared(model, origin, trainer(model, traces, loop, development).train)


def rehearsed(backbone: Backbone, config: Config, trace: Trace) -> tuple[SftTrainer, Trace]:
    """What a dry run takes a step with."""
    return SftTrainer(lora_model(config, backbone, "sft"), (), config.sft), trace
