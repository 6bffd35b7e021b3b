"""Context and caches whose rows lie one after another in one buffer, which is fastest on a CPU."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel

from tyler.engine.native.context import Context, Reader
from tyler.engine.native.fused_decoder import head_dim
from tyler.engine.sizes import grown, round_up
from tyler.modeling.attention import attend, cache_dtype


class RaggedContext(Context):
    """Embeddings [rows, capacity, dim]: all rows have the capacity of the longest."""

    def __init__(self, rows: int, dim: int, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__(rows)
        self.embeds: Float[Tensor, "rows capacity dim"] = torch.zeros(rows, 0, dim, dtype=dtype, device=device)

    @property
    def capacity(self) -> int:
        return self.embeds.shape[1]

    @property
    def rows(self) -> int:
        """Rows that have memory, from the first."""
        return self.embeds.shape[0]

    def reserve(self, length: int) -> None:
        """Make room for `length` positions a row, a quarter more than there was when it grows."""
        if length > self.capacity:
            self.resize(self.rows, grown(self.capacity, length))

    def fit(self, lengths: Sequence[int], exact: bool, shrinks: bool) -> None:
        """Hold memory for rows of these lengths: with room to grow unless `exact`, less than before where it `shrinks`
        and most rows have gone."""
        rows, needed = len(lengths), max(lengths, default=0)
        thinned = shrinks and 0 < 2 * rows <= self.rows
        if rows <= self.rows and needed <= self.capacity and not thinned:
            return
        if exact or thinned or self.capacity == 0:
            self.resize(rows, round_up(needed))
        else:
            capacity = self.capacity if needed <= self.capacity else grown(self.capacity, needed)
            self.resize(max(rows, self.rows), capacity)

    def resize(self, rows: int, capacity: int) -> None:
        """Hold memory for this many rows of this many positions; what lies beyond is lost."""
        self.embeds = resized(self.embeds, rows, capacity, dims=(0, 1))

    def append_each(self, rows: list[int], embeds: Float[Tensor, "rows dim"]) -> None:
        lengths = [self.lengths[row] for row in rows]
        self.reserve(max(lengths) + 1)
        if len(set(lengths)) == 1 and rows == list(range(rows[0], rows[0] + len(rows))):
            self.embeds[rows[0] : rows[0] + len(rows), lengths[0]] = embeds
        else:
            self.embeds[rows, lengths] = embeds
        for row in rows:
            self.lengths[row] += 1

    def stage(self, row: int, embeds: Float[Tensor, "seq dim"]) -> None:
        start = self.lengths[row]
        self.reserve(start + len(embeds))
        self.embeds[row, start : start + len(embeds)] = embeds.to(self.embeds.dtype)

    def at(self, rows: Int[Tensor, "..."], positions: Int[Tensor, "..."]) -> Float[Tensor, "... dim"]:
        return self.embeds[rows, positions]

    def swap(self, first: int, second: int) -> None:
        length = max(self.lengths[first], self.lengths[second])
        exchange(self.embeds[:, :length], first, second)
        self.lengths[first], self.lengths[second] = self.lengths[second], self.lengths[first]

    def positions_for(self, lengths: Sequence[int]) -> int:
        return len(lengths) * round_up(max(lengths, default=0))


class RaggedCache:
    """Keys and values of rows that have their own lengths."""

    def __init__(self, config: PreTrainedConfig, rows: int, dtype: torch.dtype, device: torch.device) -> None:
        shape = (config.num_hidden_layers, rows, config.num_key_value_heads, 0, head_dim(config))
        self.keys: Float[Tensor, "layers rows heads capacity head_dim"] = torch.zeros(shape, dtype=dtype, device=device)
        self.values: Float[Tensor, "layers rows heads capacity head_dim"] = torch.zeros(
            shape, dtype=dtype, device=device
        )

    def resize(self, rows: int, capacity: int) -> None:
        """Hold memory for this many rows of this many positions; what lies beyond is lost."""
        if (rows, capacity) != (self.keys.shape[1], self.keys.shape[3]):
            self.keys = resized(self.keys, rows, capacity, dims=(1, 3))
            self.values = resized(self.values, rows, capacity, dims=(1, 3))

    def swap(self, first: int, second: int, length: int) -> None:
        for states in (self.keys, self.values):
            exchange(states[:, :, :, :length].transpose(0, 1), first, second)


FEW = 16
"""Positions a row up to which all query heads of a key-value head are folded into one product."""


class AttentionMetadata:
    """One pass over neighbouring rows of a cache: where it writes (`fused_decoder.Attention`), and what it sees.

    Row i reads positions starts[i] to ends[i] - 1; one with fewer than the longest repeats its last position, which
    rewrites the same entry with the same values: raggedness needs no scratch space. Rows that stand alike are written
    by slices and need no mask, or a plain causal one.
    """

    def __init__(self, cache: RaggedCache, rows: range, starts: list[int], ends: list[int]) -> None:
        self.rows, self.end = rows, max(ends)
        self.seq = max(end - start for start, end in zip(starts, ends, strict=True))
        device = cache.keys.device
        alike = len(set(starts)) == len(set(ends)) == 1
        self.positions: Int[Tensor, "rows seq"] = torch.tensor(starts, device=device)[:, None]
        if self.seq > 1:
            self.positions = self.positions + torch.arange(self.seq, device=device)
        if not alike:
            self.positions = self.positions.minimum(torch.tensor(ends, device=device)[:, None] - 1)
        keys, values = (states[:, rows.start : rows.stop] for states in (cache.keys, cache.values))
        self._place: tuple[Tensor, slice, Tensor] | None = None
        if alike:
            into = (keys[:, :, :, starts[0] : self.end], values[:, :, :, starts[0] : self.end])
        else:
            into, self._place = (keys, values), (column(range(len(rows)), device), slice(None), self.positions)
        self._into = [states.transpose(2, 3).unbind(0) if alike else states.unbind(0) for states in into]
        self._seen = [states[:, :, :, : self.end].unbind(0) for states in (keys, values)]
        self._from_scratch = alike and starts[0] == 0 and self.seq > 1
        self._groups = 0
        self._mask = None if alike and (self.seq == 1 or starts[0] == 0) else self._causal_mask(keys.dtype)

    def _causal_mask(self, dtype: torch.dtype) -> Float[Tensor, "rows 1 seq end"]:
        """0 where a query may attend, everything up to and including itself, and -inf elsewhere."""
        hidden = torch.arange(self.end, device=self.positions.device) > self.positions[..., None]
        return torch.zeros(hidden.shape, dtype=dtype, device=hidden.device).masked_fill_(hidden, float("-inf"))[:, None]

    def attend(
        self,
        layer: int,
        queries: Float[Tensor, "rows seq heads head_dim"],
        keys: Float[Tensor, "rows seq kv_heads head_dim"],
        values: Float[Tensor, "rows seq kv_heads head_dim"],
    ) -> Float[Tensor, "positions attention"]:
        """Write keys and values of the new positions, then let the queries see their rows."""
        for into, states in zip(self._into, (keys, values), strict=True):
            if self._place is None:
                into[layer].copy_(states)
            else:
                into[layer][self._place] = states.to(into[layer].dtype)
        past_keys, past_values = (states[layer] for states in self._seen)
        if self.seq <= FEW and not self._from_scratch:
            return self._folded(queries, past_keys, past_values)
        attended = attend(
            queries.transpose(1, 2),
            past_keys,
            past_values,
            mask=self._mask,
            is_causal=self._from_scratch,
            enable_gqa=True,
        )
        return attended.transpose(1, 2).reshape(len(self.rows) * self.seq, -1)

    def _folded(
        self, queries: Tensor, keys: Float[Tensor, "rows kv_heads end head_dim"], values: Tensor
    ) -> Float[Tensor, "positions attention"]:
        """The query heads of a key-value head take the place of further positions: its keys are read once."""
        rows, seq, heads, dim = queries.shape
        kv_heads = keys.shape[1]
        groups = heads // kv_heads
        if seq == 1:
            folded = queries.reshape(rows, kv_heads, groups, dim)
            attended = attend(folded, keys, values, mask=self._mask)
            return attended.reshape(rows, heads * dim)
        folded = queries.reshape(rows, seq, kv_heads, groups, dim).permute(0, 2, 3, 1, 4)
        if self._mask is not None and self._groups != groups:
            self._mask, self._groups = self._mask.repeat(1, 1, groups, 1), groups
        attended = attend(folded.reshape(rows, kv_heads, groups * seq, dim), keys, values, mask=self._mask)
        unfolded = attended.view(rows, kv_heads, groups, seq, dim).permute(0, 3, 1, 2, 4)
        return unfolded.reshape(rows * seq, heads * dim)


class RaggedReader(Reader):
    """A reader whose rows lie one after another, all with the capacity of the context."""

    def __init__(self, decoder: PreTrainedModel, context: RaggedContext) -> None:
        super().__init__(decoder, context)
        self._ragged = context
        device = context.embeds.device
        dtype = cache_dtype(context.embeds.dtype, device)
        self.cache = RaggedCache(decoder.config, len(context.lengths), dtype, device)

    def hold(self, rows: range, ends: Sequence[int]) -> None:
        """Have memory for these rows up to their ends, and for all that the context holds."""
        self._hold(max(ends))

    def share(self, source: int, row: int, length: int) -> None:
        """Copy what `source` has read of the first `length` positions."""
        self._hold(length)
        for states in (self.cache.keys, self.cache.values):
            states[:, row, :, :length] = states[:, source, :, :length]
        self.read_to[row] = length

    def swap(self, first: int, second: int) -> None:
        """Exchange the entries of two rows."""
        if length := max(self.read_to[first], self.read_to[second]):
            self._hold(length)
            self.cache.swap(first, second, length)
        self.read_to[first], self.read_to[second] = self.read_to[second], self.read_to[first]

    def wipe(self, row: int) -> None:
        """Overwrite the entries of a row with zeros."""
        for states in (self.cache.keys, self.cache.values):
            states[:, row : row + 1] = 0

    def _read_piece(self, rows: range, starts: list[int], ends: list[int]) -> Float[Tensor, "rows seq dim"]:
        metadata = AttentionMetadata(self.cache, rows, starts, ends)
        return self.fused(self.inputs(column(rows, self.context.embeds.device), metadata.positions), metadata)

    def _hold(self, length: int) -> None:
        self.cache.resize(self._ragged.rows, max(round_up(length), self._ragged.capacity))


def resized(states: Tensor, rows: int, capacity: int, dims: tuple[int, int]) -> Tensor:
    """A tensor of zeros with this many rows and positions at `dims`, and what fits of the old one in its place."""
    shape = list(states.shape)
    shape[dims[0]], shape[dims[1]] = rows, capacity
    new = states.new_zeros(shape)
    kept = [slice(min(old, size)) for old, size in zip(states.shape, shape, strict=True)]
    new[tuple(kept)] = states[tuple(kept)]
    return new


@functools.lru_cache(maxsize=256)
def column(rows: range, device: torch.device) -> Int[Tensor, "rows 1"]:
    """The numbers of neighbouring rows as a column."""
    return torch.arange(rows.start, rows.stop, device=device)[:, None]


def exchange(rows: Tensor, first: int, second: int) -> None:
    """Swap two rows of a tensor in place."""
    kept = rows[first].clone()
    rows[first] = rows[second]
    rows[second] = kept
