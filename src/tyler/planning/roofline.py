"""What training and decoding compute and move, from the shapes alone, and the seconds that takes on a device.

Symbols as in `memory.py`. A pass over n positions multiplies with every weight of the layers: 2 P n operations, P their
number, and 4 L a n m in attention. The weights are frozen, so a backward pass costs what the forward pass does
(only inputs have gradients), and twice that in attention; gradient checkpointing adds a forward pass.

Time is a roofline with three terms. Products take the longer of their operations and of reading the weights; what lies
between them (norms, activations, masks, logits, caches) is read and written at the device's bandwidth; and every
layer must be started. A GPU starts work while it does other work, so there the longer of the two counts; the layers of
its decoding steps and of short passes are replayed from a graph, and only wait for
each other.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from tyler.config.loops import OptimizationConfig
from tyler.config.schema import Config
from tyler.config.sections import LoraConfig
from tyler.config.sizes import positions_at_once
from tyler.planning.hardware import REPLAY, Device
from tyler.planning.memory import CHOICE, FLOAT32, LOGIT_COPIES, Read, Shape, kept_by_layer
from tyler.training.micro_batches import MicroBatches

RECORDED = 512
"""Passes over more positions keep a device busy for longer than the host needs to launch them."""
CHOICE_LAYERS = 2
"""Choosing and bookkeeping of a decoding step, in layers' worth of starting work."""


@dataclass(frozen=True)
class Cost:
    """What some work amounts to, before any device is named."""

    operations: float = 0.0
    """Of matrix products."""
    weights: float = 0.0
    """Bytes of weights that these products read."""
    traffic: float = 0.0
    """Bytes that everything between the products reads and writes."""
    layers: float = 0.0
    """How often a decoder layer is started."""
    replayed: float = 0.0
    """How often a decoder layer is started that a GPU replays from a graph."""

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.operations + other.operations,
            self.weights + other.weights,
            self.traffic + other.traffic,
            self.layers + other.layers,
            self.replayed + other.replayed,
        )

    def __mul__(self, times: float) -> Cost:
        parts = (self.operations, self.weights, self.traffic, self.layers, self.replayed)
        return Cost(*(part * times for part in parts))

    def seconds(self, device: Device, dtype: str) -> float:
        """The roofline."""
        products = max(self.operations / device.rate(dtype), self.weights / device.bandwidth)
        working = products + self.traffic / device.bandwidth
        if device.queued:
            return max(working + self.replayed * REPLAY, self.layers * device.launch)
        return working + (self.layers + self.replayed) * device.launch


Costs = Mapping[str, Cost]
"""By part of a step; the parts follow each other, so their seconds add up."""


def total_seconds(costs: Costs, device: Device, dtype: str) -> float:
    """Of all parts, one after the other."""
    return sum(cost.seconds(device, dtype) for cost in costs.values())


@dataclass(frozen=True)
class Lengths:
    """Mean lengths of the data, in tokens; a config only bounds them."""

    prompt: int
    target: int
    """Of a Stage 1 trace, without its prompt."""
    answer: int
    """Actions of a rollout or an evaluated answer."""
    calls: float
    """Operator calls of an answer."""


# ----------------------------------------------------------------------------------------------------------- passes


def layer_weights(shape: Shape) -> int:
    """P: the weights of all layers' linear maps."""
    return shape.layers * sum(inputs * outputs for inputs, outputs in shape.projections.values())


def forward(shape: Shape, read: Read, element: int, lora: LoraConfig | None = None) -> Cost:
    """One pass without gradients, in `read.chunks` chunks; without a mask attention skips what it may not see."""
    weights = layer_weights(shape)
    seen = (read.chunks + 1) / (2 * read.chunks) if read.masked else 0.5
    attention = 4 * shape.layers * shape.attention * read.positions * read.keys * seen
    return Cost(
        operations=2 * weights * read.positions + attention,
        weights=weights * element * read.chunks,
        traffic=2 * shape.layers * kept_by_layer(shape, read, element, lora),
        layers=shape.layers * read.chunks,
    )


def training(shape: Shape, read: Read, element: int, lora: LoraConfig | None, recompute: bool) -> Cost:
    """A pass with gradients to its inputs and its LoRA: forward, backward, and forward again where asked for.

    A layer's last product is not computed again: nothing in the backward pass needs its result.
    """
    once = forward(shape, read, element, lora)
    products = 2 * layer_weights(shape) * read.positions
    spared = 2 * shape.layers * shape.intermediate * shape.dim * read.positions if recompute else 0
    passes = 3 if recompute else 2
    return Cost(
        operations=passes * once.operations + (once.operations - products) - spared,
        weights=passes * once.weights,
        traffic=(passes + 1) * once.traffic,
        layers=passes * once.layers,
    )


def log_probabilities(shape: Shape, positions: int, element: int, gradients: bool) -> Cost:
    """Logits and their log-softmax in chunks; with gradients all but the last are computed again, and carried back."""
    chunks = math.ceil(positions / positions_at_once(shape.vocab))
    passes = 3 - 1 / chunks if gradients else 1
    logits = positions * shape.vocab
    return Cost(
        operations=passes * 2 * logits * shape.dim,
        weights=passes * chunks * shape.vocab * shape.dim * element,
        traffic=passes * logits * (element + FLOAT32 * LOGIT_COPIES),
    )


# ----------------------------------------------------------------------------------------------------------- stages


def micro_batches(config: OptimizationConfig, count: int, length: int) -> tuple[int, int]:
    """How many there are in a step over `count` rows of a length, and the rows of each."""
    rows = MicroBatches.planned(config).rows_at_once(length, count)
    return math.ceil(count / rows), rows


def stage1_costs(shape: Shape, config: Config, lengths: Lengths, element: int) -> dict[str, Cost]:
    """One optimizer step of Stage 1, with m insertions spread evenly over each trace."""
    settings, on = config.stage1, config.stage1.gradient_checkpointing
    insertions = (settings.insertions.min + settings.insertions.max) / 2
    latents = insertions * mean_latents(config)
    gap = lengths.target / (insertions + 1)
    before = lengths.prompt + (0 if settings.insertions.first else gap)
    whole = round(lengths.prompt + lengths.target + latents)
    times, rows = micro_batches(settings, config.rows("stage1"), whole)
    read = round(whole - gap)
    synthesis = Read(rows, read, read, chunks=max(1, round(insertions)))
    prefix = Read(rows, round(before), round(before))
    suffix = Read(rows, round(whole - before), whole)
    return {
        "synthesizer": training(shape, synthesis, element, config.lora, on) * times,
        "frozen policy": (forward(shape, prefix, element) + training(shape, suffix, element, None, on)) * times,
        "log-probabilities": log_probabilities(shape, rows * lengths.target, element, gradients=True) * times,
    }


def rollout_costs(shape: Shape, config: Config, lengths: Lengths, answers: int, element: int) -> dict[str, Cost]:
    """Decoding `answers` answers over the config's slots, always full but at the end."""
    slots = min(config.decoding.slots, answers)
    rounds = answers / slots
    latents = lengths.calls * mean_latents(config)
    context = lengths.prompt + lengths.answer + latents
    decoded = max(1.0, lengths.answer - lengths.calls)
    position = 2 * shape.layers * shape.key_value * element
    weights = layer_weights(shape)
    step = Cost(
        operations=2 * (weights + shape.vocab * shape.dim) * slots,
        weights=(weights + shape.vocab * shape.dim) * element,
        traffic=slots * (position * (lengths.prompt + context) / 2 + shape.vocab * CHOICE),
        replayed=shape.layers + CHOICE_LAYERS,
    )
    prompts = forward(shape, Read(slots, lengths.prompt, lengths.prompt), element)
    costs = {"prompts": prompts * rounds, "decoding": step * (decoded * rounds)}
    if lengths.calls:
        calls, at_once = answers * lengths.calls, together(config, slots, lengths)
        passes, positions = calls / at_once, at_once * (context + latents) / lengths.calls
        started = shape.layers * passes
        costs["synthesis"] = Cost(
            operations=2 * weights * answers * (context + 2 * latents),
            weights=2 * passes * weights * element,
            traffic=calls * position * context,
            layers=0 if positions <= RECORDED else started,
            replayed=2 * started if positions <= RECORDED else started,
        )
    return costs


def together(config: Config, slots: int, lengths: Lengths) -> float:
    """How many operator calls share a pass: those of one step."""
    return min(slots, 1 + (slots - 1) * min(1.0, lengths.calls / lengths.answer))


def learning_costs(shape: Shape, config: Config, lengths: Lengths, element: int) -> dict[str, Cost]:
    """One optimizer step of Stage 2 on a finished rollout: policy with gradients, and without them the reference, which
    is read where there is a KL term."""
    settings = config.stage2
    context = round(lengths.prompt + lengths.answer + lengths.calls * mean_latents(config))
    times, rows = micro_batches(settings, config.rows("stage2"), context)
    read = Read(rows, context, context, masked=False)
    lora = config.lora.model_copy(update={"dropout": 0.0})
    actions = rows * lengths.answer
    policy = training(shape, read, element, lora, settings.gradient_checkpointing)
    heads = log_probabilities(shape, actions, element, True)
    if config.grpo.kl_weight == 0:
        return {"policy": policy * times, "log-probabilities": heads * times}
    return {
        "policy": policy * times,
        "reference": forward(shape, read, element) * times,
        "log-probabilities": (heads + log_probabilities(shape, actions, element, False)) * times,
    }


def mean_latents(config: Config) -> float:
    """Of one operator call, every operator as often as the others."""
    return sum(operator.num_latents for operator in config.operators) / len(config.operators)
