"""GRPO without operators: Stage 2's loop on the plain backbone, where only eta learns (Shao et al., 2024)."""

from collections.abc import Sequence

import torch

from tyler.config.schema import Config
from tyler.model import Tyler
from tyler.modeling.backbone import Backbone
from tyler.tasks.problem import Problem
from tyler.training.command import Prepared, load_backbone, lora_model, plain_model, training_command
from tyler.training.rewards import with_sources
from tyler.training.stage2 import Stage2Trainer, prepared

METRICS = Stage2Trainer.metrics


@training_command
def run(config: Config) -> Prepared[Tyler]:
    """`tyler train grpo`: the settings of `stage2` and `grpo`, without operators."""
    config = with_sources(config)
    backbone = load_backbone(config, sharded=config.stage2.shard_layers)
    torch.manual_seed(config.stage2.seed)
    return prepared(config, plain_model(config, backbone, "grpo"), backbone.fingerprint(), "GRPO")


def rehearsed(backbone: Backbone, config: Config, problems: Sequence[Problem]) -> Stage2Trainer:
    """What a dry run takes a step with."""
    return Stage2Trainer(lora_model(config, backbone, "grpo"), problems, (), config)
