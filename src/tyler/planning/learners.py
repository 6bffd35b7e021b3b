"""What a dry run takes a step with: every method's trainer, and an example for those that learn from traces."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import cycle, islice
from typing import Any

import torch

from tyler.config.schema import Config
from tyler.modeling.backbone import Backbone
from tyler.modeling.lora import LoraSettings
from tyler.planning.memory import PROMPT
from tyler.reasoners.memgen import weaver
from tyler.reasoners.memgen.grpo import TriggerGrpo, WeaverGrpo, trainer_of
from tyler.reasoners.memgen.sft import WeaverTrainer, new_weaver
from tyler.reasoners.sft import SftTrainer
from tyler.reasoners.softcot import sft as softcot
from tyler.tasks.problem import Problem
from tyler.training.command import lora_of, plain_model
from tyler.training.grpo import GrpoTrainer
from tyler.training.stage1 import Stage1Trainer, new_operators
from tyler.training.stage2 import Stage2Trainer
from tyler.training.supervised import SupervisedTrainer
from tyler.training.teacher_forcing import Example, Insertion
from tyler.training.traces import Trace

QUESTION = Problem("dry", "mini", "What is 2 + 3?", "5")

# ------------------------------------------------------------------------------------------------------- from traces


def stage1(backbone: Backbone, config: Config, prompt: list[int], target: list[int]) -> tuple[Stage1Trainer, Example]:
    """Stage 1; latents are at the last places, where they cost most."""
    names = islice(cycle(operator.name for operator in config.operators), config.stage1.insertions.max)
    example = Example(prompt, target, at_the_end(target, list(names)))
    return Stage1Trainer(new_operators(config, backbone), (), config.stage1), example


def sft(backbone: Backbone, config: Config, prompt: list[int], target: list[int]) -> tuple[SftTrainer, Trace]:
    """SFT."""
    model = plain_model(config, backbone, "sft")
    model.policy.add_lora(lora_of(config))
    return SftTrainer(model, (), config.sft), Trace("dry", tuple(prompt), tuple(target), ())


def soft_thoughts(
    backbone: Backbone, config: Config, prompt: list[int], target: list[int]
) -> tuple[softcot.SoftCotTrainer, softcot.Example]:
    """SoftCoT, the backbone its own assistant."""
    model = softcot.new_projection(config, backbone, backbone)
    positions = tuple(range(min(config.softcot.num_thoughts, len(prompt))))
    return softcot.SoftCotTrainer(model, (), config.softcot), softcot.Example(QUESTION, prompt, positions, target)


def memgen(backbone: Backbone, config: Config, prompt: list[int], target: list[int]) -> tuple[WeaverTrainer, Example]:
    """MemGen's weaver: a block after the prompt, and all others at the end."""
    blocks = at_the_end(target, [weaver.INFERENCE] * config.memgen.max_insertions)
    example = Example(prompt, target, (Insertion(0, weaver.PROMPT), *blocks))
    return WeaverTrainer(new_weaver(config, backbone), (), config.memgen.weaver), example


FROM_TRACES: dict[str, Callable[..., tuple[SupervisedTrainer[Any, Any], Any]]] = {
    "stage1": stage1, "sft": sft, "softcot": soft_thoughts, "memgen": memgen,
}  # fmt: skip


def random_trace(backbone: Backbone, length: int) -> tuple[list[int], list[int]]:
    """The tokens of a prompt, and those that follow it. Raises ValueError for fewer than 4 in all."""
    if length < 4:
        raise ValueError(f"length={length} leaves a trace no room for a prompt and an answer; give at least 4")
    first, tokens = min(PROMPT, length // 2), torch.randint(len(backbone.tokenizer), (length,)).tolist()
    return tokens[:first], tokens[first:]


def at_the_end(target: Sequence[int], operators: Sequence[str]) -> tuple[Insertion, ...]:
    """An insertion of each operator before one of the last targets."""
    first = len(target) - len(operators)
    return tuple(Insertion(max(0, first + number), name) for number, name in enumerate(operators))


# ------------------------------------------------------------------------------------------------------ from rewards


def grpo(backbone: Backbone, config: Config, problems: Sequence[Problem]) -> GrpoTrainer:
    """GRPO without operators."""
    model = plain_model(config, backbone, "grpo")
    model.policy.add_lora(lora_of(config))
    return Stage2Trainer(model, problems, (), config)


def weaver_grpo(backbone: Backbone, config: Config, problems: Sequence[Problem]) -> GrpoTrainer:
    """GRPO of MemGen's weaver."""
    return trainer_of(WeaverGrpo, new_weaver(config, backbone), problems, config, config.memgen.weaver_grpo)


def trigger_grpo(backbone: Backbone, config: Config, problems: Sequence[Problem]) -> GrpoTrainer:
    """GRPO of MemGen's trigger."""
    model = new_weaver(config, backbone).with_new_trigger(LoraSettings(**config.memgen.lora.model_dump()))
    return trainer_of(TriggerGrpo, model, problems, config, config.memgen.trigger)


FROM_REWARDS = {"grpo": grpo, "memgen-weaver-grpo": weaver_grpo, "memgen-trigger": trigger_grpo}
