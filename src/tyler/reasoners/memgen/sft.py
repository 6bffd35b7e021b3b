"""The weaver learns from traces: cross-entropy of the target tokens around latents at fixed places."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor, nn

from tyler.config.schema import Config
from tyler.modeling.backbone import Backbone
from tyler.modeling.lora import LoraSettings
from tyler.reasoners.memgen import weaver
from tyler.reasoners.memgen.model import MemGen, Settings
from tyler.reasoners.memgen.routing import training_insertions
from tyler.reasoners.memgen.settings import MemGenConfig
from tyler.runs.metrics import Metrics, from_traces
from tyler.training.command import (
    Prepared,
    check_inherited,
    load_backbone,
    lora_settings,
    origin_of,
    prompt_settings,
    training_command,
)
from tyler.training.objectives import stage1_loss
from tyler.training.supervised import SupervisedTrainer
from tyler.training.teacher_forcing import Insertion, Trace, at_the_end, num_positions, synthesize, target_logprobs
from tyler.training.traces import load_development, load_traces


def with_blocks(model: MemGen, trace: Trace) -> Trace:
    """A trace with blocks at the prompt's end and after its first K delimiters."""
    return trace.with_latents(training_insertions(model.backbone.tokenizer, trace, model.settings.max_insertions))


def replayed_logprobs(
    model: MemGen, examples: Sequence[Trace], temperature: float = 1.0, gradient_checkpointing: bool = False
) -> tuple[Float[Tensor, "batch targets"], Tensor]:
    """log p of every target token around newly computed latents, with gradients to the weaver; and their mask."""
    backbone, weaver = model.backbone, model.weaver
    decoder, recompute = weaver.decoder, gradient_checkpointing
    latents = synthesize(backbone, decoder, weaver.mapping(), examples, weaver.map_inputs, recompute=recompute)
    return target_logprobs(backbone, examples, latents, temperature=temperature, recompute=recompute)


METRICS = Metrics(
    "MemGen: the weaver on traces",
    from_traces(
        "memgen_weaver", "the weaver", {"blocks": "mean number of latent blocks per trace, the prompt's included"}
    ),
    sections=("memgen",),
)


class WeaverTrainer(SupervisedTrainer[MemGen, Trace]):
    """The weaver learns from the traces' target tokens."""

    title, metrics = "MemGen weaver", METRICS

    @property
    def module(self) -> nn.Module:
        return self.model.weaver

    def batch_loss(self, part: Sequence[Trace], num_targets: int) -> Tensor:
        logprobs, mask = replayed_logprobs(self.model, part, gradient_checkpointing=self.recomputed)
        return stage1_loss(logprobs, mask, num_targets)

    def num_positions(self, example: Trace) -> int:
        return num_positions(example, self.model.weaver.mapping())

    def describe(self, batch: Sequence[Trace], seconds: float) -> dict[str, float]:
        return {"blocks": sum(len(example.insertions) for example in batch) / len(batch)}


@training_command
def run(config: Config, *, start: Path | str | None = None) -> Prepared[MemGen]:
    """`tyler train memgen`: the weaver learns on the backbone of the config; with `start`, that of another goes on.

    Raises ValueError for a MemGen that has a trigger, and for one of other settings than the config's.
    """
    settings = config.of(MemGenConfig).weaver
    earlier = None if start is None else trained_weaver(config, start)
    backbone = load_backbone(config) if earlier is None else earlier.backbone
    traces, unseen = load_traces(config, backbone), load_development(config, backbone, settings)
    torch.manual_seed(settings.seed)
    model = earlier or new_weaver(config, backbone)
    examples, development = ([with_blocks(model, trace) for trace in part] for part in (traces, unseen))
    origin = origin_of((earlier or backbone).fingerprint(), map(Trace.content, traces), backbone)
    return Prepared(model, origin, WeaverTrainer(model, examples, settings, development).train)


def new_weaver(config: Config, backbone: Backbone) -> MemGen:
    """A weaver as it starts; drawn from torch's global generator."""
    memgen = config.of(MemGenConfig)
    own = memgen.prompt_latents, memgen.inference_latents, memgen.max_insertions, memgen.trigger_at_prompt
    return MemGen.start(backbone, Settings(*own), LoraSettings(**memgen.lora.model_dump()), config.prompt)


def load_start(config: Config, start: Path | str) -> MemGen:
    """The MemGen in `start`, on the config's backbone. Raises ValueError where the config conflicts with it."""
    model = MemGen.from_pretrained(
        str(start), backbone=config.backbone.id, dtype=config.backbone.dtype, device=config.devices.device
    )
    own = {f"memgen.{key}": value for key, value in asdict(model.settings).items()}
    own |= lora_settings(config, "memgen.lora", model.weaver.lora)
    check_inherited(config, start, model.backbone, own | prompt_settings(model.prompt))
    return model


def trained_weaver(config: Config, start: Path | str) -> MemGen:
    """A MemGen whose weaver goes on learning. Raises ValueError for one with a trigger, and for other settings."""
    model = load_start(config, start)
    if model.trigger is not None:
        raise ValueError(f"{start} has a trigger, which is trained last; go on from a weaver (`tyler train memgen`)")
    return model


def rehearsed(backbone: Backbone, config: Config, trace: Trace) -> tuple[WeaverTrainer, Trace]:
    """What a dry run takes a step with: a block after the prompt, and all others at the end."""
    memgen = config.of(MemGenConfig)
    blocks = at_the_end(trace.target_ids, [weaver.INFERENCE] * memgen.max_insertions)
    example = trace.with_latents((Insertion(0, weaver.PROMPT), *blocks))
    return WeaverTrainer(new_weaver(config, backbone), (), memgen.weaver), example
