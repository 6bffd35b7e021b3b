"""The weaver learns from traces: cross-entropy of the target tokens around latents at fixed places."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from tyler import devices
from tyler.backbone import Backbone
from tyler.config import Config, MemGenConfig, MemGenWeaverConfig
from tyler.lora import LoraSettings
from tyler.objectives import stage1_loss
from tyler.reasoners import supervised
from tyler.reasoners.memgen.model import MemGen, Settings
from tyler.reasoners.memgen.routing import training_insertions
from tyler.reasoners.supervised import Lesson
from tyler.runs import Run
from tyler.stage1 import Trace, load_traces, prompt_of
from tyler.teacher_forcing import Example, synthesize, target_logprobs
from tyler.trackers import check_tracker
from tyler.training import accumulate, opened_run


def settings_of(config: MemGenConfig) -> Settings:
    """What a config says about the model itself."""
    return Settings(config.prompt_latents, config.inference_latents, config.max_insertions, config.trigger_at_prompt)


def example_of(model: MemGen, trace: Trace) -> Example:
    """A trace with blocks at the prompt's end and behind its first K delimiters."""
    insertions = training_insertions(
        model.backbone.tokenizer, trace.prompt_ids, trace.target_ids, model.settings.max_insertions
    )
    return Example(trace.prompt_ids, trace.target_ids, insertions)


def replayed_logprobs(
    model: MemGen, examples: Sequence[Example], temperature: float = 1.0
) -> tuple[Float[Tensor, "batch targets"], Tensor]:
    """log p of every target token around newly computed latents, with gradients to the weaver; and their mask."""
    weaver = model.weaver
    latents = synthesize(model.backbone, weaver.training_decoder, weaver.mapping(), examples, inputs=weaver.map_inputs)
    return target_logprobs(model.backbone, examples, latents, temperature=temperature)


def batch_loss(model: MemGen, examples: Sequence[Example], num_targets: int) -> Float[Tensor, ""]:
    """Cross-entropy of some examples of a batch that has `num_targets` target tokens in all, per target token."""
    logprobs, mask = replayed_logprobs(model, examples)
    return stage1_loss(logprobs, mask, num_targets)


def descend(model: MemGen, examples: Sequence[Example], micro_batch_size: int) -> float:
    """Accumulate the gradient of the batch's loss over micro-batches; returns the loss."""
    num_targets = sum(len(example.target_ids) for example in examples)
    return accumulate(lambda part: batch_loss(model, part, num_targets), examples, micro_batch_size, len)


def train(model: MemGen, traces: Sequence[Trace], config: MemGenWeaverConfig, run: Run) -> None:
    """Train the model's weaver in place, logging and checkpointing into `run`; goes on where `run` stands."""
    examples = [(trace.id, example_of(model, trace)) for trace in traces]
    lesson = Lesson[tuple[str, Example]](
        title="MemGen weaver",
        metrics="memgen_weaver",
        learner=model.weaver,
        save=model.save_pretrained,
        saved_bytes=sum(tensor.nbytes for tensor in model.weaver.trainable()),
        descend=lambda batch, size: descend(model, [example for _, example in batch], size),
        name=lambda named: named[0],
        describe=lambda batch, _: {"blocks": sum(len(example.insertions) for _, example in batch) / len(batch)},
    )
    supervised.train(lesson, examples, config, run)


def load_fitting(config: Config, backbone: Backbone) -> list[Trace]:
    """The traces of Stage 1 that leave room for MemGen's blocks. Raises ValueError when none does."""
    memgen = config.memgen
    latents = memgen.prompt_latents + memgen.max_insertions * memgen.inference_latents
    limit = min(config.stage1.max_length, backbone.max_positions) - latents
    traces = load_traces(config, backbone)
    kept = [trace for trace in traces if len(trace.prompt_ids) + len(trace.target_ids) <= limit]
    if len(kept) < len(traces):
        print(f"left out {len(traces) - len(kept)} more traces: over {limit} tokens", file=sys.stderr)
    if not kept:
        raise ValueError(f"no trace has at most {limit} tokens; raise stage1.max_length={config.stage1.max_length}")
    return kept


@devices.on_all_devices
def run(config: Config, *, output: Path, resume: bool = False, replace: bool = False) -> MemGen:
    """`tyler train memgen`: load, train the weaver, save. Returns the trained model.

    `resume` goes on from the newest checkpoint in `output`; `replace` drops an earlier run there.
    """
    check_tracker(config.tracking)
    backbone = Backbone.load(config.backbone.id, revision=config.backbone.revision, dtype=config.backbone.dtype)
    traces = load_fitting(config, backbone)
    torch.manual_seed(config.memgen.weaver.seed)
    lora = LoraSettings(**config.memgen.lora.model_dump())
    model = MemGen.start(backbone, settings_of(config.memgen), lora, prompt_of(config))
    with opened_run(config, output, resume=resume, replace=replace) as directory:
        train(model, traces, config.memgen.weaver, directory)
    return model
