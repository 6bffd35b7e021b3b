"""Rows of different lengths read as one: every map sees all positions at once, attention keeps each row to itself.

No position is padding, so none costs time or memory. With `recompute` a layer keeps only what it was given and computes
the rest again in the backward pass (gradient checkpointing). transformers' own switch for that drops the cache without
a word; here the states of earlier chunks go into a layer as arguments and those of the new chunk come out as results,
so that computing it again changes nothing. Random states are put back, so LoRA dropout drops the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import Cache, PreTrainedModel

from tyler.modeling.attention import PackedRows


class PackedReader:
    """A decoder stack that reads a chunk of every row, then the next chunk, with gradients."""

    def __init__(self, decoder: PreTrainedModel, rows: int, *, recompute: bool = False) -> None:
        self.decoder, self.recompute = decoder, recompute
        self.kept = [0] * rows
        """Positions of each row that later chunks see."""
        self.past: list[list[list[Tensor]]] = [[[] for _ in range(rows)] for _ in layers_of(decoder)]
        """keys, values, keys, values, ... of every chunk of each row, by layer: [1, heads, seq, head_dim]."""

    def branched(self, origins: Sequence[int]) -> PackedReader:
        """A reader of rows that go on from rows of this one, `origins`, of which several may be the same."""
        reader = PackedReader(self.decoder, len(origins), recompute=self.recompute)
        reader.kept = [self.kept[origin] for origin in origins]
        reader.past = [[list(rows[origin]) for origin in origins] for rows in self.past]
        return reader

    def read(
        self, chunks: Sequence[Float[Tensor, "seq dim"]], forget: Sequence[int] | None = None
    ) -> list[Float[Tensor, "seq dim"]]:
        """Last hidden states of one chunk per row, which may be empty; it continues where the row's last one ended.

        The last `forget[i]` positions of a chunk, by default none, are seen by that chunk alone.
        """
        lengths = [len(chunk) for chunk in chunks]
        kept = lengths if forget is None else [one - less for one, less in zip(lengths, forget, strict=True)]
        rows = PackedRows.of(lengths, self.kept, chunks[0].device)
        hidden = torch.cat(list(chunks))[None]
        spans = (range(before, before + length) for before, length in zip(self.kept, lengths, strict=True))
        positions = torch.tensor([[*chain(*spans)]], device=hidden.device)
        rotary = cast(nn.Module, self.decoder.rotary_emb)(hidden, positions)
        for layer, past in zip(layers_of(self.decoder), self.past, strict=True):
            arguments = (layer, rows, [len(row) for row in past], positions, rotary, hidden, *chain(*past))
            if self.recompute and torch.is_grad_enabled():
                hidden, *new = checkpoint(read_layer, *arguments, use_reentrant=False, preserve_rng_state=True)
            else:
                hidden, *new = read_layer(*arguments)
            for row, pieces in enumerate(kept_pieces(new, lengths, kept)):
                past[row] += pieces
        self.kept = [before + more for before, more in zip(self.kept, kept, strict=True)]
        return list(cast(nn.Module, self.decoder.norm)(hidden)[0].split(lengths))


def read_packed(
    decoder: PreTrainedModel, rows: Sequence[Float[Tensor, "seq dim"]], *, recompute: bool = False
) -> list[Float[Tensor, "seq dim"]]:
    """Last hidden states of whole rows, each causal."""
    return PackedReader(decoder, len(rows), recompute=recompute).read(rows)


class NewStates(Cache):
    """Keys and values of what one layer reads; `PackedRows` joins them to those before."""

    def __init__(self) -> None:
        super().__init__(layers=[])
        self.new: tuple[Tensor, ...] = ()

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        self.new = (key_states, value_states)
        return key_states, value_states


def read_layer(
    layer: nn.Module,
    rows: PackedRows,
    counts: Sequence[int],
    positions: Int[Tensor, "1 seq"],
    rotary: tuple[Tensor, Tensor],
    hidden: Float[Tensor, "1 seq dim"],
    *past: Tensor,
) -> tuple[Tensor, ...]:
    """One layer as a function without side effects: hidden states, and the keys and values of what it read.

    `past` holds `counts[i]` tensors of each row.
    """
    states, given = NewStates(), iter(past)
    out = layer(
        hidden,
        attention_mask=None,
        position_ids=positions,
        position_embeddings=rotary,
        past_key_values=states,
        use_cache=True,
        packed_rows=rows.after([[next(given) for _ in range(count)] for count in counts]),
    )
    return out, *states.new


def kept_pieces(new: Sequence[Tensor], lengths: Sequence[int], kept: Sequence[int]) -> Iterator[list[Tensor]]:
    """The keys and the values of each row's kept positions; nothing of a row that keeps none."""
    sizes = [size for one, stays in zip(lengths, kept, strict=True) for size in (stays, one - stays)]
    keys, values = (states.split(sizes, dim=2)[::2] for states in new)
    for key, value in zip(keys, values, strict=True):
        yield [key, value] if key.shape[2] else []


def interleaved(
    tokens: Float[Tensor, "seq dim"], blocks: Iterable[tuple[int, Float[Tensor, "latents dim"]]]
) -> Float[Tensor, "longer dim"]:
    """Embedded tokens with blocks of latents, each before the token at its place, in their order."""
    pieces, start = [], 0
    for place, block in blocks:
        pieces += [tokens[start:place], block]
        start = place
    return torch.cat([*pieces, tokens[start:]])


def layers_of(decoder: PreTrainedModel) -> nn.ModuleList:
    """The layers of a decoder stack."""
    return cast(nn.ModuleList, decoder.layers)
