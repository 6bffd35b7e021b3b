"""The largest micro-batch of a training, for plans: what it reads with gradients, and what learns. Without torch.

Traces and answers are as long as a config allows, and an insertion is at the end, where it costs most. A method with a
package of its own says this in its `planned.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

from tyler.config.loops import OptimizationConfig, TracesConfig
from tyler.config.schema import Config
from tyler.config.sections import LoraConfig
from tyler.training.micro_batches import MicroBatches
from tyler.training.shape import Shape, adapter_size, count_parameters

PROMPT = 256
"""Tokens of a prompt that answers follow, where nothing says how long it is."""


@dataclass(frozen=True)
class Read:
    """`rows` rows are read in `chunks` passes of `length` positions in all; the last pass sees `keys` keys."""

    rows: int
    length: int
    keys: int
    masked: bool = True
    """Behind a past, and in decoding, keys and values are repeated for every head; without, they are not."""
    chunks: int = 1

    @property
    def positions(self) -> int:
        return self.rows * self.length


@dataclass(frozen=True)
class Step:
    """A micro-batch of a training step: what it reads with gradients, each read with the LoRA that learns in it."""

    reads: tuple[tuple[Read, LoraConfig | None], ...]
    targets: int
    """Positions whose logits are computed."""
    trained: int
    """Parameters that learn, and that lie beside them at rest."""
    recompute: bool
    at_rest: int = 0
    prefix: int = 0
    """Positions that were read before, without gradient; their keys and values stay: 2 L k e each."""
    weight_copies: int = 0
    """Bytes of a weight's second copy: autocast's, or that of an engine that keeps folded maps."""
    folded: bool = False


def copies_of(loop: OptimizationConfig) -> int:
    """Bytes of a weight's second copy: in bfloat16, with autocast."""
    return 2 if isinstance(loop, TracesConfig) and loop.autocast else 0


def undropped(lora: LoraConfig) -> LoraConfig:
    """A LoRA as it learns from rewards."""
    return lora.model_copy(update={"dropout": 0.0})


def rows_of(config: Config, section: str, length: int) -> int:
    """Rows of one length in a micro-batch of a loop."""
    return MicroBatches.planned(config.loops[section]).rows_at_once(length, config.rows(section))


def answer_length(config: Config) -> int:
    """Positions of the longest answer that Stage 2 allows, with its prompt, and its whole budget spent on the longest
    operator."""
    latents = max((operator.num_latents for operator in config.operators), default=0)
    return PROMPT + config.stage2.max_new_tokens + config.grpo.budget * latents


def stage1(shape: Shape, config: Config, section: str) -> Step:
    """The synthesizer reads a trace up to its last insertion, and the queries; the frozen policy what follows the first
    latents, behind the rest."""
    loop, counts = config.stage1, count_parameters(shape, config.lora, config.operators)
    length, latents = loop.max_length, max(operator.num_latents for operator in config.operators)
    rows = rows_of(config, section, length)
    reads = (
        (Read(rows, length, length, chunks=loop.insertions.max), config.lora),
        (Read(rows, latents, length), None),
    )
    return Step(
        reads,
        rows * length,
        counts.stage1,
        loop.gradient_checkpointing,
        prefix=rows * length,
        weight_copies=copies_of(loop),
    )


def stage2(shape: Shape, config: Config, section: str) -> Step:
    """After its rollout: one read of finished answers, in which LoRA drops nothing."""
    loop, counts = config.stage2, count_parameters(shape, config.lora, config.operators)
    context = answer_length(config)
    read = Read(rows_of(config, section, context), context, context, masked=False)
    decisions = read.rows * loop.max_new_tokens
    lora, recompute = undropped(config.lora), loop.gradient_checkpointing
    return Step(((read, lora),), decisions, counts.stage2, recompute, counts.stage1, folded=True)


def grpo(shape: Shape, config: Config, section: str) -> Step:
    """Stage 2's, without operators."""
    return stage2(shape, config.model_copy(update={"operators": ()}), section)


def on_traces(shape: Shape, config: Config, section: str, lora: LoraConfig | None, trained: int) -> Step:
    """One read of whole traces."""
    length, loop = config.stage1.max_length, config.loops[section]
    read = Read(rows_of(config, section, length), length, length, masked=False)
    recompute = loop.gradient_checkpointing
    return Step(((read, lora),), read.positions, trained, recompute, weight_copies=copies_of(loop))


def sft(shape: Shape, config: Config, section: str) -> Step:
    """The policy's LoRA learns."""
    return on_traces(shape, config, section, config.lora, adapter_size(shape, config.lora))
