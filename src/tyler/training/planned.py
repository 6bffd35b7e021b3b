"""The numbers of an architecture, and the largest micro-batch of a training on it: for plans. Without torch.

Traces and answers are as long as a config allows, and an insertion is at the end, where it costs most. A method with a
package of its own says this in its `planned.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING, Any

from tyler.config.loops import OptimizationConfig, TracesConfig
from tyler.config.schema import Config
from tyler.config.sections import LoraConfig
from tyler.modeling.architectures import DEFAULTS, FAMILIES, biased_maps, siblings
from tyler.modeling.operators import Operator
from tyler.training.micro_batches import MicroBatches

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

PROMPT = 256
"""Tokens of a prompt that answers follow, where nothing says how long it is."""


@dataclass(frozen=True)
class Shape:
    """The numbers of an architecture that memory depends on."""

    layers: int
    dim: int
    intermediate: int
    attention: int
    key_value: int
    head_dim: int
    vocab: int
    tied: bool
    biased: frozenset[str]
    """The linear maps that have a bias."""
    qk_norm: bool

    @classmethod
    def of(cls, config: PreTrainedConfig) -> Shape:
        return cls.read(config.to_dict())

    @classmethod
    def read(cls, settings: Mapping[str, Any]) -> Shape:
        """The shape that a `config.json` states, with the family's own defaults for what it leaves out.

        Raises ValueError for a setting that is missing and has no default.
        """
        family = FAMILIES[settings["model_type"]]
        settings = {**DEFAULTS, **family.defaults, **settings}
        try:
            heads, dim = settings["num_attention_heads"], settings["hidden_size"]
            head_dim = settings["head_dim"] or dim // heads
            return cls(
                layers=settings["num_hidden_layers"],
                dim=dim,
                intermediate=settings["intermediate_size"],
                attention=heads * head_dim,
                key_value=(settings["num_key_value_heads"] or heads) * head_dim,
                head_dim=head_dim,
                vocab=settings["vocab_size"],
                tied=settings["tie_word_embeddings"],
                biased=biased_maps(settings),
                qk_norm=family.qk_norm,
            )
        except KeyError as error:
            raise ValueError(
                f"the backbone's config.json has no {error.args[0]!r}, and memory depends on it"
            ) from error

    @property
    def projections(self) -> dict[str, tuple[int, int]]:
        """(inputs, outputs) of every linear map in a layer."""
        d, i, a, k = self.dim, self.intermediate, self.attention, self.key_value
        return {
            "q_proj": (d, a), "k_proj": (d, k), "v_proj": (d, k), "o_proj": (a, d),
            "gate_proj": (d, i), "up_proj": (d, i), "down_proj": (i, d),
        }  # fmt: skip


@dataclass(frozen=True)
class Parameters:
    """How many parameters there are, by part. Stage 1 trains phi, queries and projections; Stage 2 eta and psi."""

    backbone: int
    phi: int
    queries: int
    projections: int
    eta: int
    psi: int
    adapted: int
    """Weights of the backbone that a LoRA sits on, and those multiplied with them: a folded view has its own copy."""

    @property
    def stage1(self) -> int:
        return self.phi + self.queries + self.projections

    @property
    def stage2(self) -> int:
        return self.eta + self.psi


def count_parameters(shape: Shape, lora: LoraConfig, operators: Sequence[Operator]) -> Parameters:
    """Exact counts.

    Backbone: V d (twice where the head is not tied) + d + L (2 d + linear maps and their biases + 2 head_dim where
    queries and keys are normalized). LoRA: L r (inputs + outputs) over the adapted maps. An operator: N_k d queries,
    d^2 + d projection; psi: d for each.
    """
    linear = shape.projections
    layer = 2 * shape.dim + sum(inputs * outputs for inputs, outputs in linear.values())
    layer += sum(linear[name][1] for name in shape.biased) + 2 * shape.head_dim * shape.qk_norm
    own = {sibling for name in lora.target_modules for sibling in siblings(name)}
    adapter = adapter_size(shape, lora)
    return Parameters(
        backbone=shape.vocab * shape.dim * (1 if shape.tied else 2) + shape.dim + shape.layers * layer,
        phi=adapter,
        queries=sum(operator.num_latents for operator in operators) * shape.dim,
        projections=len(operators) * (shape.dim**2 + shape.dim),
        eta=adapter,
        psi=len(operators) * shape.dim,
        adapted=shape.layers * sum(inputs * outputs for inputs, outputs in (linear[name] for name in sorted(own))),
    )


def adapter_size(shape: Shape, lora: LoraConfig) -> int:
    """Parameters of one LoRA: L r (inputs + outputs) over its maps."""
    return shape.layers * lora.rank * sum(sum(shape.projections[name]) for name in lora.target_modules)


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
    rows, recompute = rows_of(config, section, length), loop.gradient_checkpointing
    read, suffix = Read(rows, length, length, chunks=loop.insertions.max), Read(rows, latents, length)
    reads, positions = ((read, config.lora), (suffix, None)), read.positions
    return Step(reads, positions, counts.stage1, recompute, prefix=positions, weight_copies=copies_of(loop))


def stage2(shape: Shape, config: Config, section: str) -> Step:
    """After its rollout: one read of finished answers behind the prompts of their groups, in which LoRA drops nothing.

    A prompt counts once for each group in a micro-batch, of which the first and the last may be there in part.
    """
    loop, counts = config.stage2, count_parameters(shape, config.lora, config.operators)
    context = answer_length(config)
    rows = rows_of(config, section, context)
    groups = min(loop.batch_size, 1 + ceil((rows - 1) / config.grpo.group_size))
    prompts = Read(groups, PROMPT, PROMPT, masked=False, chunks=2)
    answers = Read(rows, context - PROMPT, context, chunks=2)
    lora, recompute = undropped(config.lora), loop.gradient_checkpointing
    reads = (prompts, lora), (answers, lora)
    return Step(reads, rows * loop.max_new_tokens, counts.stage2, recompute, counts.stage1, folded=True)


def grpo(shape: Shape, config: Config, section: str) -> Step:
    """Stage 2's, without operators."""
    return stage2(shape, config.model_copy(update={"operators": ()}), section)


def on_traces(shape: Shape, config: Config, section: str, lora: LoraConfig | None, trained: int) -> Step:
    """One read of whole traces."""
    length, loop = config.stage1.max_length, config.loops[section]
    read = Read(rows_of(config, section, length), length, length, masked=False)
    return Step(((read, lora),), read.positions, trained, loop.gradient_checkpointing, weight_copies=copies_of(loop))


def sft(shape: Shape, config: Config, section: str) -> Step:
    """The policy's LoRA learns."""
    return on_traces(shape, config, section, config.lora, adapter_size(shape, config.lora))
