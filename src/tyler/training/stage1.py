"""Stage 1: latent synthesis optimization (Section 4.1). Phi learns from solution traces; the backbone is frozen.

For every trace, pairs (b, k) are drawn from its candidate boundaries, latents are inserted there, and the loss is the
cross-entropy of every visible target token. Read `train` from top to bottom.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from contextlib import closing
from functools import partial
from operator import lt
from pathlib import Path
from typing import cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from tyler.boundaries.placement import sample_candidates
from tyler.config.loops import InsertionsConfig, Stage1Config
from tyler.config.schema import Config
from tyler.model import Tyler
from tyler.modeling.backbone import Backbone, resolve_device, resolve_dtype
from tyler.modeling.loading import load_backbone
from tyler.modeling.lora import LoraSettings
from tyler.modeling.synthesis import CentredHead, Head, mean_square
from tyler.runs.run import Run
from tyler.training import distributed
from tyler.training.centring import centre
from tyler.training.command import (
    Prepared,
    check_inherited,
    lora_settings,
    origin_of,
    prompt_settings,
    training_command,
)
from tyler.training.gradient_checkpointing import recomputing
from tyler.training.loop import (
    Passes,
    accumulate,
    batch_at,
    check_finite,
    measure,
    remaining_steps,
)
from tyler.training.objectives import stage1_loss
from tyler.training.optimizer import Optimization
from tyler.training.teacher_forcing import Example, Insertion, num_positions, synthesize, target_logprobs
from tyler.training.traces import Trace, load_development, load_traces


def draw_insertions(trace: Trace, config: InsertionsConfig, draw: random.Random) -> tuple[Insertion, ...]:
    """(b, k) ~ B(q, y): first the operator among those present, then a position of it; distinct, sorted by position."""
    chosen = [pair for pair in trace.candidates if pair[1].name == config.first][:1]
    rest = [pair for pair in trace.candidates if pair not in chosen]
    chosen += sample_candidates(rest, draw.randint(config.min, config.max) - len(chosen), draw)
    return tuple(Insertion(b, operator.name) for b, operator in sorted(chosen, key=trace.candidates.index))


def batch_loss(
    model: Tyler, examples: Sequence[Example], num_targets: int, gradient_checkpointing: bool = False
) -> Float[Tensor, ""]:
    """L_stage1 of some examples of a batch that has `num_targets` visible targets in all."""
    synthesizer = recomputing(model.synthesizer.training_decoder, gradient_checkpointing)
    frozen = recomputing(model.backbone.decoder, gradient_checkpointing)
    latents = synthesize(model.backbone, synthesizer, model.heads, examples)
    logprobs, mask = target_logprobs(model.backbone, examples, latents, decoder=frozen)
    return stage1_loss(logprobs, mask, num_targets)


def train(
    model: Tyler, traces: Sequence[Trace], config: Stage1Config, run: Run, development: Sequence[Trace] = ()
) -> None:
    """Train the model's synthesizer in place, logging and checkpointing into `run`; resumes where `run` stands."""
    total = config.num_steps(len(traces))
    optimization = Optimization.of(config, parameter_groups(model, config), total)
    centres = [head.centre for head in centred_heads(model)]
    distributed.copy_from_first(centres)  # each process has measured them, and rounded in its own way
    steps = remaining_steps(
        "Stage 1", run, total, optimization, config.checkpoint_every, model.at_stage("stage1"), centres
    )
    passes = Passes.of(config, model.backbone, model.synthesizer)
    model.synthesizer.train()
    with closing(steps):
        for step in steps:
            started = time.perf_counter()
            batch = draw_batch(traces, config, step.number)
            loss = accumulate_gradients(model, [example for _, example in batch], passes, config.gradient_checkpointing)
            check_finite(loss, step.number, [id for id, _ in batch])
            norm, rate = optimization.step(step.number, [id for id, _ in batch])
            metrics = batch_metrics([example for _, example in batch], time.perf_counter() - started)
            metrics |= {"stage1/loss": loss, "stage1/gradient_norm": norm, "stage1/learning_rate": rate}
            if development and step.is_due(config.eval_every):
                metrics["stage1/development_loss"] = development_loss(model, development, config, passes)
                step.record_best(metrics, "stage1/development_loss", lt)
            step.log(metrics, f"loss {loss:.3f}")
    model.synthesizer.eval()


def parameter_groups(model: Tyler, config: Stage1Config) -> list[tuple[list[nn.Parameter], float]]:
    """What learns, with its learning rate: Phi, and apart from it the constants of centred heads."""
    constants = [head.latents for head in centred_heads(model)]
    apart = {id(constant) for constant in constants}
    rest = [parameter for parameter in model.synthesizer.trainable() if id(parameter) not in apart]
    return [(rest, config.learning_rate), *([(constants, config.centring.learning_rate)] if constants else [])]


def centred_heads(model: Tyler) -> list[CentredHead]:
    """The heads whose constants learn apart."""
    return [head for head in model.synthesizer.mapping().values() if isinstance(head, CentredHead)]


def batch_metrics(examples: Sequence[Example], seconds: float) -> dict[str, float]:
    """What a step worked on, and how fast."""
    tokens = sum(len(example.prompt_ids) + len(example.target_ids) for example in examples)
    return {
        "stage1/insertions": sum(len(example.insertions) for example in examples) / len(examples),
        "stage1/tokens_per_second": tokens / seconds,
        "stage1/seconds": seconds,
    }


def draw_batch(traces: Sequence[Trace], config: Stage1Config, step: int) -> list[tuple[str, Example]]:
    """The examples of one step with their ids. Which, and where latents go, follows from seed and step alone."""
    batch = []
    for epoch, index in batch_at(step, config.batch_size, len(traces), config.seed):
        trace = traces[index]
        insertions = draw_insertions(
            trace, config.insertions, random.Random(f"insertions {config.seed} {epoch} {index}")
        )
        batch.append((trace.id, Example(trace.prompt_ids, trace.target_ids, insertions)))
    return batch


def accumulate_gradients(
    model: Tyler,
    examples: Sequence[Example],
    passes: Passes,
    gradient_checkpointing: bool = False,
) -> float:
    """Accumulate the gradient of the batch's loss over micro-batches; returns the loss."""
    num_targets = sum(len(example.target_ids) for example in examples)

    def part_loss(part: Sequence[Example]) -> Tensor:
        return batch_loss(model, part, num_targets, gradient_checkpointing)

    return accumulate(part_loss, examples, passes, lambda example: num_positions(example, model.heads))


def development_loss(model: Tyler, traces: Sequence[Trace], config: Stage1Config, passes: Passes) -> float:
    """L_stage1 over development traces, without dropout; latents go to the same places every time."""
    examples = [
        Example(
            trace.prompt_ids,
            trace.target_ids,
            draw_insertions(trace, config.insertions, random.Random(f"development {config.seed} {trace.id}")),
        )
        for trace in traces
    ]
    num_targets = sum(len(example.target_ids) for example in examples)
    model.synthesizer.eval()
    loss = measure(
        lambda part: batch_loss(model, part, num_targets),
        examples,
        passes,
        lambda example: num_positions(example, model.heads),
    )
    model.synthesizer.train()
    return loss


def load_whole_backbone(config: Config) -> Backbone:
    """The backbone of a config; in the CPU's memory where it will be sharded, for it may not fit on a device."""
    theta, device = config.backbone, resolve_device(config.devices.device)
    dtype = resolve_dtype(theta.dtype, device)
    where = torch.device("cpu") if config.stage1.shard_layers else device
    return load_backbone(theta.id, theta.adapters, revision=theta.revision, dtype=dtype, device=where)


def shard(model: Tyler, config: Stage1Config, num_development: int, device: torch.device) -> None:
    """Shard both readers of a trace over the processes, and move what stays whole to `device`.

    Raises ValueError where processes would not call their layers equally often.
    """
    for what, count in (("batch_size", config.batch_size), ("the number of development traces", num_development)):
        if count % distributed.world():
            raise ValueError(
                f"shard_layers needs equal shares: {what} is {count}, which {distributed.world()} processes do "
                "not divide"
            )
    model.backbone.fingerprint()  # taken while the weights are whole; every checkpoint names it
    distributed.shard_layers([model.backbone.decoder, model.synthesizer.training_decoder])
    for part in (model.backbone.model, model.synthesizer, model.policy):
        cast(nn.Module, part).to(device)


@training_command
def run(config: Config, *, start: Path | str | None = None) -> Prepared[Tyler]:
    """`tyler stage1`: the operators learn on the backbone of the config; with `start`, those of another Stage 1 go on.

    Raises ValueError where `start` is no Stage 1 model, or one of other settings than the config's.
    """
    earlier = None if start is None else trained_operators(config, start)
    backbone = load_whole_backbone(config) if earlier is None else earlier.backbone
    traces, development = load_traces(config, backbone), load_development(config, backbone)
    origin = origin_of((earlier or backbone).fingerprint(), map(Trace.content, traces)) | backbone.text_origin()
    torch.manual_seed(config.stage1.seed)
    model = earlier or new_operators(config, backbone)
    if config.stage1.latents == "centred":
        model = centre(model, centring_examples(traces, config.stage1))
    if config.stage1.shard_layers:
        shard(model, config.stage1, len(development), resolve_device(config.devices.device))
    loop = partial(train, model, traces, config.stage1, development=development)
    return Prepared(model.at_stage("stage1"), origin, loop)


def new_operators(config: Config, backbone: Backbone) -> Tyler:
    """Operators as they start; drawn from torch's global generator."""
    model = Tyler.start(backbone, config.operators, LoraSettings(**config.lora.model_dump()), config.prompt)
    if config.stage1.latents == "constant":
        names = [operator.name for operator in config.operators]
        model.synthesizer.requires_grad_(False)  # nothing but the constants learns
        model.synthesizer.make_constant(names, float(mean_square(backbone.embedding).sqrt()))
        return model.with_heads(model.synthesizer.mapping())
    return model


def centring_examples(traces: Sequence[Trace], config: Stage1Config) -> list[Example]:
    """Traces with insertions, on which the latents of new operators are centred; the seed decides which."""
    draw = random.Random(f"centring {config.seed}")
    chosen = draw.sample(traces, min(config.centring.num_traces, len(traces)))
    return [
        Example(trace.prompt_ids, trace.target_ids, draw_insertions(trace, config.insertions, draw)) for trace in chosen
    ]


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
        raise ValueError(f"{start} has latents that are constant or centred; Stage 1 goes on from latents=computed")
    own = {"operators": model.operators, **lora_settings(config, "lora", model.synthesizer.lora)}
    check_inherited(config, start, model.backbone, own | prompt_settings(model.prompt))
    return model
