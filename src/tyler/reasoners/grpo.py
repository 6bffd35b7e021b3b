"""GRPO without operators: Stage 2's loop on the plain backbone, where only eta learns (Shao et al., 2024)."""

from __future__ import annotations

from pathlib import Path

import torch

from tyler.config.schema import Config
from tyler.model import Tyler
from tyler.modeling.backbone import Backbone
from tyler.modeling.lora import LoraSettings
from tyler.runs.trackers import check_tracker
from tyler.tasks.decontamination import load_training
from tyler.tasks.problem import Problem
from tyler.training import distributed, stage2
from tyler.training.loop import development_problems, opened_run, origin_of


@distributed.on_all_devices
def run(config: Config, *, output: Path, resume: bool = False, replace: bool = False) -> Tyler:
    """`tyler train grpo`: the settings of `stage2` and `grpo`, without operators. Returns the trained model.

    `resume` continues from the newest checkpoint in `output`; `replace` drops an earlier run there.
    """
    check_tracker(config.tracking)
    backbone = Backbone.load(config.backbone.id, revision=config.backbone.revision, dtype=config.backbone.dtype)
    problems = load_training(config.training_set, config.held_out_sets, config.data.on_overlap)
    development = development_problems(config, config.stage2)
    torch.manual_seed(config.stage2.seed)
    lora = LoraSettings(**config.lora.model_dump())
    model = Tyler.start(backbone, (), lora, config.prompt).at_stage("grpo")
    model.policy.add_lora(lora)
    origin = origin_of(backbone.fingerprint(), map(Problem.content, problems))
    with opened_run(config, output, resume=resume, replace=replace, origin=origin) as directory:
        stage2.train(model, problems, development, config, directory, title="GRPO")
    return model
