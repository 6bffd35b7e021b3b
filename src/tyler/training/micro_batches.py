"""Which rows of a batch are read at once: what that changes is memory and speed, and which numbers dropout draws.

Gradients of micro-batches add up to the batch's. Rows are packed, so what a micro-batch costs is the sum of their
lengths. Nothing here imports torch: `tyler plan` counts by the same rule.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tyler.config.loops import OptimizationConfig

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

    from tyler.modeling.backbone import Backbone

LEAST_POSITIONS = 512
"""Positions of the smallest micro-batch that `auto` makes anywhere."""
CPU_POSITIONS = 2048
"""Positions of a micro-batch that a processor reads fastest: larger products gain nothing more."""
CALIBRATION_ROWS = 16
"""Answers that calibration reads at once: without gradients, so more than a step learns from."""
GPU_SHARE = 0.5
"""How much of the memory that a GPU has beside the weights may go to activations."""


@dataclass(frozen=True)
class MicroBatches:
    """How a batch is split: at most `rows` rows at once, or at most `positions` positions; None means no limit."""

    rows: int | None = None
    positions: int | None = None

    @classmethod
    def of(cls, config: OptimizationConfig, backbone: Backbone) -> MicroBatches:
        """What a loop's config says, on the device that holds the backbone."""
        tokens = config.micro_batch_tokens
        if tokens == "auto":
            tokens = automatic(backbone, config.gradient_checkpointing)
        return cls(config.micro_batch_size, tokens)

    @classmethod
    def planned(cls, config: OptimizationConfig) -> MicroBatches:
        """The same before there is a device: `auto` counts as the smallest micro-batches that it chooses anywhere."""
        tokens = config.micro_batch_tokens
        return cls(config.micro_batch_size, LEAST_POSITIONS if tokens == "auto" else tokens)

    def or_rows(self, rows: int) -> MicroBatches:
        """This rule, and where it sets no limit at most `rows` rows at once."""
        return MicroBatches(rows) if self.rows is None and self.positions is None else self

    def split(self, lengths: Sequence[int], groups: Sequence[Hashable] | None = None) -> list[list[int]]:
        """The places of a batch's rows by micro-batch, each row once, from their lengths.

        The longest come first, so that what does not fit fails at once, and behind each the others of its group. A
        batch that fits at once keeps its order, and a row that is longer than `positions` is read alone.
        """
        places = list(range(len(lengths)))
        if places and self._fits(lengths):
            return [places]
        places.sort(key=lambda place: -lengths[place])
        if groups is not None:
            turns = {group: turn for turn, group in reversed(list(enumerate(groups[place] for place in places)))}
            places.sort(key=lambda place: turns[groups[place]])
        parts: list[list[int]] = []
        for place in places:
            if parts and self._fits([lengths[one] for one in (*parts[-1], place)]):
                parts[-1].append(place)
            else:
                parts.append([place])
        return parts

    def _fits(self, lengths: Sequence[int]) -> bool:
        if self.rows is not None and len(lengths) > self.rows:
            return False
        return self.positions is None or len(lengths) == 1 or sum(lengths) <= self.positions

    def rows_at_once(self, length: int, count: int) -> int:
        """How many of `count` rows of one length are read at once, at least one."""
        by_positions = count if self.positions is None else self.positions // max(1, length)
        return max(1, min(count, by_positions, self.rows or count))


def automatic(backbone: Backbone, gradient_checkpointing: bool) -> int:
    """Positions that are read at once: as many as a GPU has room for, or what a processor reads fastest.

    A power of two that depends on the device and the model alone: a run that resumes cuts its batches as before.
    """
    if backbone.device.type != "cuda":
        return CPU_POSITIONS
    import torch

    element = backbone.dtype.itemsize
    weights = sum(parameter.nbytes for parameter in backbone.model.parameters())
    room = GPU_SHARE * (torch.cuda.get_device_properties(backbone.device).total_memory - weights)
    position = bytes_per_position(backbone.model.config, element, gradient_checkpointing)
    return max(LEAST_POSITIONS, 1 << max(0, int(room / position)).bit_length() - 1)


def bytes_per_position(config: PreTrainedConfig, element: int, gradient_checkpointing: bool) -> int:
    """Bytes that a position's activations take, roughly, from the shape: of two graphs, as Stage 1 has them.

    `element` is the size of a weight. `tyler.planning.memory.kept_by_layer` has it tensor by tensor; here a layer keeps
    two norms and a LoRA's inputs in float32, seven products as wide as attention and three of the feed-forward part.
    """
    from tyler.modeling.architectures import head_dim

    attention = config.num_attention_heads * head_dim(config)
    layer = 4 * 6 * config.hidden_size + element * (7 * attention + 3 * config.intermediate_size)
    if gradient_checkpointing:
        return config.num_hidden_layers * element * (config.hidden_size + 2 * attention) + 2 * layer
    return 2 * config.num_hidden_layers * layer
