"""What training and decoding hold in memory, from the shapes alone: parameters exactly, bytes by formula.

Symbols of the formulas: L layers, d hidden size, i width of the feed-forward part, a = heads x head_dim, k = key-value
heads x head_dim, V vocabulary, e bytes of a weight, n positions of a batch, m the
keys a row sees, r LoRA rank, N_k latents of an operator. Adapters, heads and psi are float32 whatever e is.
"""

from dataclasses import replace

from tyler.config.schema import Config
from tyler.config.sections import LoraConfig
from tyler.config.sizes import positions_at_once
from tyler.modeling.architectures import siblings
from tyler.training.micro_batches import CALIBRATION_ROWS
from tyler.training.planned import PROMPT, Parameters, Read, Shape, Step, answer_length, count_parameters

FLOAT32 = 4
"""Bytes of a trained parameter, and of its gradient; AdamW keeps two moments of the same size."""
LOGIT_COPIES = 2
"""float32 tensors of a chunk's logits alive at once: the log-softmax and its exponential."""


def folded_weights(counts: Parameters, element: int) -> dict[str, int]:
    """Bytes of the folded copies of both views; in half precision adapters are not folded."""
    return {"folded weights": 2 * counts.adapted * element} if element >= FLOAT32 else {}


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


def kept_by_decoder(shape: Shape, read: Read, element: int, lora: LoraConfig | None, recompute: bool) -> int:
    """Bytes that all layers keep: L times `kept_by_layer`.

    With gradient checkpointing: their inputs, L e d n, and the keys and values of earlier chunks, L e 2 k n.
    """
    if recompute:
        states = 2 * shape.key_value if read.chunks > 1 else 0
        return shape.layers * element * (shape.dim + states) * read.positions
    return shape.layers * kept_by_layer(shape, read, element, lora)


def active_layer_bytes(shape: Shape, read: Read, element: int, lora: LoraConfig | None, recompute: bool) -> int:
    """Bytes of the one layer that is differentiated: the gradients of its feed-forward part, e (3 i + d) n, when all
    that the layer keeps is there; with gradient checkpointing that is computed again. Where it is read in chunks nearly
    all positions may be in one of them."""
    gradients = element * (3 * shape.intermediate + shape.dim) * read.positions
    return gradients + (kept_by_layer(shape, replace(read, chunks=1), element, lora) if recompute else 0)


def logits(shape: Shape, positions: int, element: int) -> int:
    """Bytes of one chunk of logits: (e + 4 LOGIT_COPIES) V, for at most `sizes.positions_at_once` positions."""
    return min(positions, positions_at_once(shape.vocab)) * shape.vocab * (element + FLOAT32 * LOGIT_COPIES)


Parts = dict[str, int]
"""Bytes by part."""


def step_memory(shape: Shape, config: Config, step: Step, element: int) -> Parts:
    """A training step: weights, what learns with gradients and Adam, what its reads keep, and the larger of one layer
    at work and one chunk of logits."""
    counts = count_parameters(shape, config.lora, config.operators)
    kept = sum(kept_by_decoder(shape, read, element, lora, step.recompute) for read, lora in step.reads)
    layer = max(active_layer_bytes(shape, read, element, lora, step.recompute) for read, lora in step.reads)
    return {
        "weights": counts.backbone * (element + step.weight_copies),
        **(folded_weights(counts, element) if step.folded else {}),
        "adapters and heads": (step.trained + step.at_rest) * FLOAT32,
        "gradients": step.trained * FLOAT32,
        "optimizer": 2 * step.trained * FLOAT32,
        "activations": kept + 2 * shape.layers * shape.key_value * element * step.prefix,
        **larger_peak(layer, logits(shape, step.targets, element)),
    }


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


def larger_peak(layer: int, chunk: int) -> Parts:
    """The larger of two peaks that are never there together, under its own name."""
    return {"layer at work": layer} if layer > chunk else {"logits at work": chunk}


CHOICE = 40
"""Bytes of a logit while a sampled action is chosen: float32 logits and masks, and a cumulative sum in float64."""
