"""Stage 1: latent synthesis optimization (Section 4.1). Phi learns from solution traces; the backbone is frozen.

For every trace, pairs (b, k) are drawn from its candidate boundaries, latents are inserted there, and the loss is the
cross-entropy of every visible target token. The loop is `supervised.SupervisedTrainer`'s.
"""

import random
from collections.abc import Sequence
from itertools import cycle, islice
from pathlib import Path

import torch
from torch import Tensor, nn

from tyler.boundaries.placement import sample_candidates
from tyler.config.loops import InsertionsConfig, Stage1Config
from tyler.config.schema import Config
from tyler.model import Tyler
from tyler.modeling.backbone import Backbone, resolve_device
from tyler.modeling.synthesis import Head, mean_square
from tyler.runs.metrics import SPEED, Metrics, from_traces
from tyler.training.command import (
    Prepared,
    check_inherited,
    load_backbone,
    lora_of,
    lora_settings,
    origin_of,
    prompt_settings,
    training_command,
)
from tyler.training.loop import batch_at
from tyler.training.objectives import stage1_loss
from tyler.training.sharding import shard
from tyler.training.supervised import SupervisedTrainer
from tyler.training.teacher_forcing import Insertion, Trace, at_the_end, num_positions, synthesize, target_logprobs
from tyler.training.traces import load_development, load_traces, warn_of_idle


def draw_insertions(trace: Trace, config: InsertionsConfig, draw: random.Random) -> tuple[Insertion, ...]:
    """(b, k) ~ B(q, y): first the operator among those present, then a position of it; distinct, sorted by position."""
    chosen = [pair for pair in trace.candidates if pair[1].name == config.first][:1]
    rest = [pair for pair in trace.candidates if pair not in chosen]
    chosen += sample_candidates(rest, draw.randint(config.min, config.max) - len(chosen), draw)
    return tuple(Insertion(b, operator.name) for b, operator in sorted(chosen, key=trace.candidates.index))


METRICS = Metrics(
    "Stage 1",
    from_traces("stage1", "Phi", {"insertions": "mean number of latent blocks per example"} | SPEED),
    sections=("stage1",),
)


class Stage1Trainer(SupervisedTrainer[Tyler, Trace]):
    """Phi learns."""

    title, metrics = "Stage 1", METRICS

    def __init__(
        self, model: Tyler, traces: Sequence[Trace], config: Stage1Config, development: Sequence[Trace] = ()
    ) -> None:
        examples = [with_drawn(trace, config, f"development {config.seed} {trace.id}") for trace in development]
        super().__init__(model.at_stage("stage1"), traces, config, examples)
        self.config = config

    @property
    def module(self) -> nn.Module:
        return self.model.synthesizer

    def batch(self, step: int) -> list[Trace]:
        return draw_batch(self.examples, self.config, step)

    def batch_loss(self, part: Sequence[Trace], num_targets: int) -> Tensor:
        model, recompute = self.model, self.recomputed
        latents = synthesize(model.backbone, model.synthesizer.decoder, model.heads, part, recompute=recompute)
        return stage1_loss(*target_logprobs(model.backbone, part, latents, recompute=recompute), num_targets)

    def num_positions(self, example: Trace) -> int:
        return num_positions(example, self.model.heads)

    def describe(self, batch: Sequence[Trace], seconds: float) -> dict[str, float]:
        insertions = sum(len(example.insertions) for example in batch) / len(batch)
        return {"insertions": insertions, "tokens_per_second": sum(map(len, batch)) / seconds}


def draw_batch(traces: Sequence[Trace], config: Stage1Config, step: int) -> list[Trace]:
    """The examples of one step. Which, and where latents go, follows from seed and step alone."""
    return [
        with_drawn(traces[index], config, f"insertions {config.seed} {epoch} {index}")
        for epoch, index in batch_at(step, config.batch_size, len(traces), config.seed)
    ]


def with_drawn(trace: Trace, config: Stage1Config, seed: str) -> Trace:
    """A trace with latents at places that follow from `seed`."""
    return trace.with_latents(draw_insertions(trace, config.insertions, random.Random(seed)))


@training_command
def run(config: Config, *, start: Path | str | None = None) -> Prepared[Tyler]:
    """`tyler train stage1`: train operators on the backbone of the config; `start` continues those of another Stage 1.

    Raises ValueError where `start` is no Stage 1 model, or one of other settings than the config's.
    """
    earlier = None if start is None else trained_operators(config, start)
    backbone = load_backbone(config, sharded=config.stage1.shard_layers) if earlier is None else earlier.backbone
    traces, development = load_traces(config, backbone), load_development(config, backbone, config.stage1)
    started = (earlier or backbone).fingerprint()
    origin = origin_of(started, map(Trace.content, traces), backbone, config.operators)
    warn_of_idle(traces, config.operators)
    torch.manual_seed(config.stage1.seed)
    model = earlier or new_operators(config, backbone)
    if config.stage1.shard_layers:
        counts = {"batch_size": config.stage1.batch_size, "the number of development traces": len(development)}
        shard(model, resolve_device(config.devices.device), counts)
    trainer = Stage1Trainer(model, traces, config.stage1, development)
    return Prepared(trainer.model, origin, trainer.train)


def new_operators(config: Config, backbone: Backbone) -> Tyler:
    """Operators as they start; drawn from torch's global generator."""
    model = Tyler.start(backbone, config.operators, lora_of(config), config.prompt)
    if config.stage1.latents == "constant":
        names = [operator.name for operator in config.operators]
        model.synthesizer.requires_grad_(False)  # nothing but the constants learns
        model.synthesizer.make_constant(names, float(mean_square(backbone.embedding).sqrt()))
        return model.with_heads(model.synthesizer.mapping())
    return model


def rehearsed(backbone: Backbone, config: Config, trace: Trace) -> tuple[Stage1Trainer, Trace]:
    """What a dry run takes a step with; latents are at the last places, where they cost most."""
    names = islice(cycle(operator.name for operator in config.operators), config.stage1.insertions.max)
    example = trace.with_latents(at_the_end(trace.target_ids, list(names)))
    return Stage1Trainer(new_operators(config, backbone), (), config.stage1), example


def trained_operators(config: Config, start: Path | str) -> Tyler:
    """The model of another Stage 1, whose operators go on learning. Raises ValueError for any other."""
    if config.stage1.shard_layers or config.stage1.latents != "computed":
        raise ValueError(
            "stage1.shard_layers and stage1.latents other than computed start from new operators; leave start out"
        )
    model = Tyler.from_pretrained(
        str(start), backbone=config.backbone.id, dtype=config.backbone.dtype, device=config.devices.device
    )
    if model.stage != "stage1":
        raise ValueError(f"{start} is a {model.stage} model; Stage 1 goes on from a Stage 1 model")
    if not all(isinstance(head, Head) for head in model.synthesizer.mapping().values()):
        raise ValueError(f"{start} has latents that are constant; Stage 1 goes on from latents=computed")
    own = {"operators": model.operators, **lora_settings(config, "lora", model.synthesizer.lora)}
    check_inherited(config, start, model.backbone, own | prompt_settings(model.prompt))
    return model
