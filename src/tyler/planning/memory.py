"""What training and decoding hold in memory, from the shapes alone: parameters exactly, bytes by formula.

Symbols of the formulas: L layers, d hidden size, i width of the feed-forward part, a = heads x head_dim, k = key-value
heads x head_dim, V vocabulary, e bytes of a weight, n positions of a batch, m the
keys a row sees, r LoRA rank, N_k latents of an operator. Adapters, heads and psi are float32 whatever e is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tyler.config.schema import Config
from tyler.config.sections import LoraConfig
from tyler.config.sizes import positions_at_once
from tyler.modeling.architectures import DEFAULTS, FAMILIES, biased_maps, siblings
from tyler.modeling.operators import Operator
from tyler.training.micro_batches import CALIBRATION_ROWS

if TYPE_CHECKING:  # a plan is made without torch, which takes seconds to import
    from transformers import PreTrainedConfig

FLOAT32 = 4
"""Bytes of a trained parameter, and of its gradient; AdamW keeps two moments of the same size."""
LOGIT_COPIES = 2
"""float32 tensors of a chunk's logits alive at once: the log-softmax and its exponential."""


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


# ------------------------------------------------------------------------------------------------------- parameters


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


def folded_weights(counts: Parameters, element: int) -> dict[str, int]:
    """Bytes of the folded copies of both views; in half precision adapters are not folded."""
    return {"folded weights": 2 * counts.adapted * element} if element >= FLOAT32 else {}


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


# ------------------------------------------------------------------------------------------------------ activations


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


def kept_by_layer(shape: Shape, read: Read, element: int, lora: LoraConfig | None) -> int:
    """Bytes that one layer keeps for its backward pass without gradient checkpointing.

    Norms keep their input in float32: 2 * 4 d n, and 4 (a + k) n where queries and keys have norms of their own.
    Attention keeps queries and output, and the keys and values of every pass:
    e (2 a n + (a or k) rows m (chunks + 1)). The feed-forward part keeps gate, its activation and up: 3 e i n.
    LoRA keeps its dropped input and, where it drops, the noise: 4 (1 or 2) inputs + 4 r for each adapted map.
    """
    n = read.positions
    norms = 2 * shape.dim + (shape.attention + shape.key_value) * shape.qk_norm
    width = shape.attention if read.masked else shape.key_value
    states = 2 * shape.attention * n + width * read.rows * read.keys * (read.chunks + 1)
    total = FLOAT32 * norms * n + element * (states + 3 * shape.intermediate * n)
    if lora is not None:
        inputs = sum(shape.projections[name][0] for name in lora.target_modules)
        total += FLOAT32 * n * (inputs * (2 if lora.dropout else 1) + lora.rank * len(lora.target_modules))
    return total


def kept_by_decoder(
    shape: Shape, read: Read, element: int, lora: LoraConfig | None, gradient_checkpointing: bool
) -> int:
    """Bytes that all layers keep: L times `kept_by_layer`.

    With gradient checkpointing: their inputs, L e d n, and the keys and values of earlier chunks, L e 2 k n.
    """
    if gradient_checkpointing:
        states = 2 * shape.key_value if read.chunks > 1 else 0
        return shape.layers * element * (shape.dim + states) * read.positions
    return shape.layers * kept_by_layer(shape, read, element, lora)


def active_layer_bytes(
    shape: Shape, read: Read, element: int, lora: LoraConfig | None, gradient_checkpointing: bool
) -> int:
    """Bytes of the one layer that is differentiated: the gradients of its feed-forward part, e (3 i + d) n, when all
    that the layer keeps is there; with gradient checkpointing that is computed again. Where it is read in chunks nearly
    all positions may be in one of them."""
    gradients = element * (3 * shape.intermediate + shape.dim) * read.positions
    if not gradient_checkpointing:
        return gradients
    return gradients + kept_by_layer(shape, replace(read, chunks=1), element, lora)


def logits(shape: Shape, positions: int, element: int) -> int:
    """Bytes of one chunk of logits: (e + 4 LOGIT_COPIES) V, for at most `sizes.positions_at_once` positions."""
    return min(positions, positions_at_once(shape.vocab)) * shape.vocab * (element + FLOAT32 * LOGIT_COPIES)


# ----------------------------------------------------------------------------------------------------------- phases


PROMPT = 256
"""Tokens of a prompt that answers follow, where nothing says how long it is."""
Parts = dict[str, int]
"""Bytes by part."""


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


def step_memory(shape: Shape, config: Config, step: Step, element: int) -> Parts:
    """A training step: weights, what learns with gradients and Adam, what its reads keep, and the larger of one layer
    at work and one chunk of logits."""
    counts = count_parameters(shape, config.lora, config.operators)
    kept = sum(kept_by_decoder(shape, read, element, lora, step.recompute) for read, lora in step.reads)
    layer = max(active_layer_bytes(shape, read, element, lora, step.recompute) for read, lora in step.reads)
    return {
        "weights": counts.backbone * (element + step.weight_copies),
        **(folded_weights(counts, element) if step.folded else {}),
        **trained(step.trained, step.at_rest),
        "activations": kept + 2 * shape.layers * shape.key_value * element * step.prefix,
        **larger_peak(layer, logits(shape, step.targets, element)),
    }


def answer_length(config: Config) -> int:
    """Positions of the longest answer that Stage 2 allows, with its prompt, and its whole budget spent on the longest
    operator."""
    latents = max((operator.num_latents for operator in config.operators), default=0)
    return PROMPT + config.stage2.max_new_tokens + config.grpo.budget * latents


def rollout_memory(shape: Shape, config: Config, element: int) -> Parts:
    """Decoding the longest answers in all slots: weights, the folded maps of both views, adapters and heads at rest,
    two caches of 2 L k e bytes a position, and the larger of reading the prompts and choosing actions.
    `decoding.memory` bounds the caches and the context: what does not fit waits.
    """
    counts = count_parameters(shape, config.lora, config.operators)
    per_position = 2 * shape.layers * shape.key_value * element
    slots = min(config.decoding.slots, config.rows("stage2"))
    positions = slots * answer_length(config)
    if config.decoding.memory is not None:
        positions = min(positions, config.decoding.memory // (2 * per_position + shape.dim * element))
    prompts = Read(slots, PROMPT, PROMPT)
    return {
        "weights": counts.backbone * element,
        **folded_weights(counts, element),
        "adapters and heads": (counts.stage1 + counts.stage2) * FLOAT32,
        "policy's KV": per_position * positions,
        "synthesizer's KV": per_position * positions,
        "context": positions * shape.dim * element,
        **larger_peak(kept_by_layer(shape, prompts, element, None), slots * shape.vocab * CHOICE),
    }


def packed_weights(shape: Shape, config: Config, element: int) -> Parts:
    """What a CPU keeps beside the weights once it has decoded (`engine.native.packing`): the head and the maps of a
    stack, each up to LARGEST bytes. Of a map with a LoRA both views have a copy in float32, and none in half precision.
    """
    from tyler.engine.native.packing import LARGEST, SMALLEST

    counts, head = count_parameters(shape, config.lora, config.operators), shape.vocab * shape.dim
    adapted, total = {sibling for name in config.lora.target_modules for sibling in siblings(name)}, 0
    if (counts.backbone - (0 if shape.tied else head)) * element <= LARGEST:
        for names in (("q_proj", "k_proj", "v_proj"), ("o_proj",), ("gate_proj", "up_proj"), ("down_proj",)):
            size = sum(inputs * outputs for inputs, outputs in map(shape.projections.__getitem__, names))
            copies = 1 if adapted.isdisjoint(names) else 2 * (element >= FLOAT32)
            total += shape.layers * copies * size * (size >= SMALLEST)
    if SMALLEST <= head <= LARGEST // element:
        total += head
    return {"packed weights": total * element} if total else {}


def calibration_memory(shape: Shape, config: Config, element: int) -> Parts:
    """Psi's start, after a rollout that takes what every rollout takes: its folded maps stay, its caches are gone. The
    state of every decision is kept in float32, and the policy reads answers without gradient: embeddings, residual
    stream, its norm and a layer's output, 4 e d n, and the larger of gate, its activation and up, 3 e i n, and the
    logits of one chunk.
    """
    counts, answers = count_parameters(shape, config.lora, config.operators), config.stage2.calibration.num_problems
    length = answer_length(config)
    read = min(CALIBRATION_ROWS, answers) * length * element
    return {
        "weights": counts.backbone * element,
        **folded_weights(counts, element),
        "adapters and heads": (counts.stage1 + counts.stage2) * FLOAT32,
        "decisions": answers * config.stage2.max_new_tokens * (shape.dim + 1) * FLOAT32,
        "hidden states": 4 * read * shape.dim,
        **larger_peak(3 * read * shape.intermediate, logits(shape, length, element)),
    }


def trained(parameters: int, at_rest: int = 0) -> Parts:
    """Adapters and heads in float32, some of them at rest; gradients and AdamW's two moments of the others."""
    return {
        "adapters and heads": (parameters + at_rest) * FLOAT32,
        "gradients": parameters * FLOAT32,
        "optimizer": 2 * parameters * FLOAT32,
    }


def larger_peak(layer: int, chunk: int) -> Parts:
    """The larger of two peaks that are never there together, under its own name."""
    return {"layer at work": layer} if layer > chunk else {"logits at work": chunk}


CHOICE = 40
"""Bytes of a logit while a sampled action is chosen: float32 logits and masks, and a cumulative sum in float64."""
