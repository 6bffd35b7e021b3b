"""Gradient checkpointing: layers that keep only what they were given, and compute the rest again in the backward pass.

transformers has a switch for this, and with it on, its layers drop `past_key_values` without a word: their cache would
be written twice. Here the states of earlier chunks go into a layer as arguments and those of the new chunk come out as
results, so that computing a layer again changes nothing. Random states are put back, so LoRA dropout drops the same.
"""

from __future__ import annotations

from typing import cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import Cache, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPast


class ChunkCache(Cache):
    """Keys and values [batch, heads, seq, head_dim] of every chunk read so far, by layer; a layer sees them joined.

    Chunks are kept as they came: joined copies live in the layer that asks for them, and only as long as it needs them.
    """

    def __init__(self, num_layers: int) -> None:
        super().__init__(layers=[])
        self.chunks: list[list[Tensor]] = [[] for _ in range(num_layers)]
        """keys, values, keys, values, ... of each layer."""

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        self.chunks[layer_idx] += [key_states, value_states]
        return join(self.chunks[layer_idx])


class LayerCache(Cache):
    """What one layer sees: the states of earlier chunks, which stay as they are, and its own new ones."""

    def __init__(self, past: tuple[Tensor, ...]) -> None:
        super().__init__(layers=[])
        self.past = past
        self.new: tuple[Tensor, ...] = ()

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        self.new = (key_states, value_states)
        return join([*self.past, *self.new])


class Recomputed(nn.Module):
    """A decoder stack with gradient checkpointing: called as the stack is, with the same values and gradients."""

    def __init__(self, decoder: PreTrainedModel) -> None:
        super().__init__()
        self.decoder = decoder
        self.config = decoder.config

    def forward(
        self,
        inputs_embeds: Float[Tensor, "batch seq dim"],
        position_ids: Int[Tensor, "batch seq"] | None = None,
        attention_mask: Bool[Tensor, "batch 1 seq keys"] | None = None,
        past_key_values: ChunkCache | None = None,
        use_cache: bool = False,
    ) -> BaseModelOutputWithPast:
        """Without a mask attention is causal. A cache is read and written where one is given."""
        if position_ids is None:
            position_ids = torch.arange(inputs_embeds.shape[1], device=inputs_embeds.device)[None]
        rotary = cast(nn.Module, self.decoder.rotary_emb)(inputs_embeds, position_ids)
        hidden = inputs_embeds
        for index, layer in enumerate(cast(nn.ModuleList, self.decoder.layers)):
            past = [] if past_key_values is None else past_key_values.chunks[index]
            hidden, *new = checkpoint(
                read_layer,
                layer,
                attention_mask,
                position_ids,
                rotary,
                hidden,
                *past,
                use_reentrant=False,
                preserve_rng_state=True,
            )
            past += new
        hidden = cast(nn.Module, self.decoder.norm)(hidden)
        return BaseModelOutputWithPast(last_hidden_state=hidden, past_key_values=past_key_values)


def read_layer(
    layer: nn.Module,
    mask: Tensor | None,
    position_ids: Tensor,
    rotary: tuple[Tensor, Tensor],
    hidden: Float[Tensor, "batch seq dim"],
    *past: Tensor,
) -> tuple[Tensor, ...]:
    """One layer as a function without side effects: hidden states, and the keys and values of what it read."""
    states = LayerCache(past)
    out = layer(
        hidden,
        attention_mask=mask,
        position_ids=position_ids,
        position_embeddings=rotary,
        past_key_values=states,
        use_cache=True,
    )
    return out, *states.new


def join(states: list[Tensor]) -> tuple[Tensor, Tensor]:
    """The keys and the values of all chunks, each in one tensor."""
    if len(states) == 2:
        return states[0], states[1]
    return torch.cat(states[0::2], dim=-2), torch.cat(states[1::2], dim=-2)


def recomputing(decoder: PreTrainedModel, gradient_checkpointing: bool) -> nn.Module:
    """The decoder as training should call it: itself, or with gradient checkpointing."""
    return Recomputed(decoder) if gradient_checkpointing else decoder
