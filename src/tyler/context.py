"""x_t, the decoding context of every row: embeddings, lengths, and the caches that read them.

One buffer of embeddings is the truth; policy and synthesizer are two readers with a KV cache each. A reader feeds
only what it has not read yet, so a prompt, one decoded token, a block of latents and a synthesizer that lags a hundred
tokens behind are the same operation. Rows have their own lengths: nothing is padded in the caches. A pass runs over
neighbouring rows, so that it works on views; whoever needs other rows swaps them together first.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from transformers import Cache, PreTrainedConfig, PreTrainedModel

from tyler.sizes import round_up


class Context:
    """The embeddings x_t [rows, capacity, dim] and the length T_t of every row."""

    def __init__(self, rows: int, dim: int, dtype: torch.dtype, device: torch.device) -> None:
        self.embeds: Float[Tensor, "rows capacity dim"] = torch.zeros(rows, 0, dim, dtype=dtype, device=device)
        self.lengths = [0] * rows

    @property
    def capacity(self) -> int:
        return self.embeds.shape[1]

    def reserve(self, length: int) -> None:
        """Make room for `length` positions a row, at least doubling when it grows."""
        if length > self.capacity:
            capacity = round_up(max(length, 2 * self.capacity))
            self.embeds = nn.functional.pad(self.embeds, (0, 0, 0, capacity - self.capacity))

    def append(self, row: int, embeds: Float[Tensor, "seq dim"]) -> None:
        """x_{t+1} = [x_t; embeds], Eq. lcf-transition: of tokens and of latents alike."""
        self.stage(row, embeds)
        self.lengths[row] += len(embeds)

    def append_each(self, rows: list[int], embeds: Float[Tensor, "rows dim"]) -> None:
        """Append one embedding to each of several rows."""
        lengths = [self.lengths[row] for row in rows]
        self.reserve(max(lengths) + 1)
        self.embeds[rows, lengths] = embeds
        for row in rows:
            self.lengths[row] += 1

    def stage(self, row: int, embeds: Float[Tensor, "seq dim"]) -> None:
        """Write [x_t; embeds] without making `embeds` part of the context: how queries Q_k are placed after x_t."""
        start = self.lengths[row]
        self.reserve(start + len(embeds))
        self.embeds[row, start : start + len(embeds)] = embeds.to(self.embeds.dtype)

    def truncate(self, row: int, length: int) -> None:
        self.lengths[row] = min(self.lengths[row], length)

    def swap(self, first: int, second: int) -> None:
        length = max(self.lengths[first], self.lengths[second])
        exchange(self.embeds[:, :length], first, second)
        self.lengths[first], self.lengths[second] = self.lengths[second], self.lengths[first]


class RaggedCache(Cache):
    """KV cache whose rows have their own lengths: `update` writes at each row's positions and returns a bounded view.

    transformers' own caches keep one length for the whole batch. `aim` says, before a forward pass, which rows and
    positions it writes and how much it may see.
    """

    def __init__(self, config: PreTrainedConfig, rows: int, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__(layers=[])
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        shape = (config.num_hidden_layers, rows, config.num_key_value_heads, 0, head_dim)
        self.keys: Float[Tensor, "layers rows heads capacity head_dim"] = torch.zeros(shape, dtype=dtype, device=device)
        self.values: Float[Tensor, "layers rows heads capacity head_dim"] = torch.zeros(
            shape, dtype=dtype, device=device
        )

    def reserve(self, capacity: int) -> None:
        if capacity > self.keys.shape[3]:
            grow = (0, 0, 0, capacity - self.keys.shape[3])
            self.keys, self.values = nn.functional.pad(self.keys, grow), nn.functional.pad(self.values, grow)

    def aim(self, rows: range, positions: Int[Tensor, "rows seq"], bound: int) -> None:
        self._rows, self._bound = slice(rows.start, rows.stop), bound
        self._where = (torch.arange(len(rows), device=positions.device)[:, None], slice(None), positions)

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        """Write [rows, heads, seq, head_dim] at the aimed positions; return views [rows, heads, bound, head_dim]."""
        keys, values = self.keys[layer_idx, self._rows], self.values[layer_idx, self._rows]
        keys[self._where] = key_states.transpose(1, 2)
        values[self._where] = value_states.transpose(1, 2)
        return keys[:, :, : self._bound], values[:, :, : self._bound]

    def swap(self, first: int, second: int, length: int) -> None:
        for states in (self.keys, self.values):
            exchange(states[:, :, :, :length].transpose(0, 1), first, second)


class Reader:
    """A decoder that reads the context with its own cache, and how far it has read each row."""

    def __init__(self, decoder: PreTrainedModel, context: Context) -> None:
        self.decoder = decoder
        self.context = context
        self.cache = RaggedCache(decoder.config, len(context.lengths), context.embeds.dtype, context.embeds.device)
        self.read_to = [0] * len(context.lengths)

    @torch.no_grad()
    def read(self, rows: range, ends: list[int]) -> tuple[Float[Tensor, "rows seq dim"], list[int]]:
        """Read each row up to its end; return the last hidden states of what was new, and how many are new per row.

        A row with fewer new positions than the longest repeats its last one, which rewrites the same cache entry with
        the same values: raggedness needs no scratch space. A row with nothing new re-reads its last position.
        """
        device = self.context.embeds.device
        starts = [min(self.read_to[row], end - 1) for row, end in zip(rows, ends, strict=True)]
        counts = [end - start for start, end in zip(starts, ends, strict=True)]
        last = torch.tensor(ends, device=device)[:, None] - 1
        positions = torch.tensor(starts, device=device)[:, None] + torch.arange(max(counts), device=device)
        positions = positions.minimum(last)
        bound = round_up(max(ends))
        self.cache.reserve(max(bound, self.context.capacity))
        self.cache.aim(rows, positions, bound)
        hidden = self.decoder(
            inputs_embeds=self.inputs(rows, positions),
            position_ids=positions,
            attention_mask={"full_attention": causal_mask(positions, bound)},
            past_key_values=self.cache,
            use_cache=True,
        ).last_hidden_state
        self.read_to[rows.start : rows.stop] = ends
        return hidden, counts

    def inputs(self, rows: range, positions: Int[Tensor, "rows seq"]) -> Float[Tensor, "rows seq dim"]:
        """What the decoder is fed at the given positions of neighbouring rows."""
        embeds = self.context.embeds[rows.start : rows.stop]
        return embeds[torch.arange(len(rows), device=embeds.device)[:, None], positions]

    def rewind(self, row: int, length: int) -> None:
        """Forget what lies beyond `length`; the entries are overwritten when the row is read again."""
        self.read_to[row] = min(self.read_to[row], length)

    def swap(self, first: int, second: int) -> None:
        self.cache.swap(first, second, max(self.read_to[first], self.read_to[second]))
        self.read_to[first], self.read_to[second] = self.read_to[second], self.read_to[first]


def exchange(rows: Tensor, first: int, second: int) -> None:
    """Swap two rows of a tensor in place."""
    kept = rows[first].clone()
    rows[first] = rows[second]
    rows[second] = kept


def causal_mask(positions: Int[Tensor, "rows seq"], bound: int) -> Bool[Tensor, "rows 1 seq bound"]:
    """True where a query at `positions` may attend: everything up to and including itself."""
    return (torch.arange(bound, device=positions.device) <= positions[..., None])[:, None]
