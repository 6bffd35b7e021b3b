"""x_t, the decoding context of every row: embeddings, lengths, and the caches that read them.

The embeddings are the truth; policy and synthesizer are two readers with a KV cache each. A reader feeds only what it
has not read yet, so a prompt, one decoded token, a block of latents and a synthesizer that lags a hundred tokens behind
are the same operation. Rows have their own lengths: nothing is padded in the caches. A pass runs over neighbouring
rows, so that it works on views; whoever needs other rows swaps them together first.

Rows lie one after another in one buffer (`ragged.py`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel

from tyler.engine.native.fused_decoder import FusedDecoder, head_dim

CHUNK = 2048
"""Positions, over all rows, that go through a decoder at once: what is longer is read in pieces, in bounded memory."""


class Context(ABC):
    """x_t of every row and its length T_t, and where the embeddings of all rows are held."""

    embeds: Tensor

    def __init__(self, rows: int) -> None:
        self.lengths = [0] * rows

    def append(self, row: int, embeds: Float[Tensor, "seq dim"]) -> None:
        """x_{t+1} = [x_t; embeds], Eq. lcf-transition: of tokens and of latents alike."""
        self.stage(row, embeds)
        self.lengths[row] += len(embeds)

    def of(self, row: int) -> Float[Tensor, "length dim"]:
        """A copy of x_t of one row."""
        device = self.embeds.device
        return self.at(torch.tensor(row, device=device), torch.arange(self.lengths[row], device=device))

    def truncate(self, row: int, length: int) -> None:
        """Forget what lies beyond `length`."""
        self.lengths[row] = min(self.lengths[row], length)

    @abstractmethod
    def append_each(self, rows: list[int], embeds: Float[Tensor, "rows dim"]) -> None:
        """Append one embedding to each of several rows."""

    @abstractmethod
    def stage(self, row: int, embeds: Float[Tensor, "seq dim"]) -> None:
        """Write [x_t; embeds] without making `embeds` part of the context: how queries Q_k are placed after x_t."""

    @abstractmethod
    def at(self, rows: Int[Tensor, "..."], positions: Int[Tensor, "..."]) -> Float[Tensor, "... dim"]:
        """The embeddings at some positions of some rows."""

    @abstractmethod
    def swap(self, first: int, second: int) -> None:
        """Exchange two rows."""

    @abstractmethod
    def positions_for(self, lengths: Sequence[int]) -> int:
        """Positions that must be held for rows of these lengths."""


Feed = Callable[[Int[Tensor, "..."], Int[Tensor, "rows seq"], Tensor], Tensor]


class Reader(ABC):
    """A decoder that reads the context with its own cache, and how far it has read each row.

    `feed` says what the decoder is given at (rows, positions) instead of their embeddings, where it is not these.
    """

    def __init__(self, decoder: PreTrainedModel, context: Context) -> None:
        self.decoder = decoder
        self.fused = FusedDecoder(decoder)
        self.context = context
        self.feed: Feed | None = None
        self.read_to = [0] * len(context.lengths)

    @torch.no_grad()
    def read(self, rows: range, ends: list[int]) -> tuple[Float[Tensor, "rows seq dim"], list[int]]:
        """Read each row up to its end; return the last hidden states of what was new, and how many are new per row.

        A row with fewer new positions than the longest repeats its last one. A row with nothing new re-reads its last
        position.
        """
        starts = [min(self.read_to[row], end - 1) for row, end in zip(rows, ends, strict=True)]
        counts = [end - start for start, end in zip(starts, ends, strict=True)]
        self.hold(rows, ends)
        size, pieces = max(1, CHUNK // len(rows)), []
        for first in range(0, max(counts), size):
            here = [min(start + first, end - 1) for start, end in zip(starts, ends, strict=True)]
            there = [min(start + first + size, end) for start, end in zip(starts, ends, strict=True)]
            pieces.append(self._read_piece(rows, here, there))
        self.read_to[rows.start : rows.stop] = ends
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces, dim=1), counts

    def refresh(self, decoder: PreTrainedModel) -> bool:
        """Take the present weights of the decoder's adapters; False for another decoder, which needs a new reader."""
        if decoder is not self.decoder:
            return False
        self.fused.refresh()
        return True

    def inputs(self, rows: Int[Tensor, "..."], positions: Int[Tensor, "rows seq"]) -> Float[Tensor, "rows seq dim"]:
        """What the decoder is fed at the given positions of some rows."""
        embeds = self.context.at(rows, positions)
        return embeds if self.feed is None else self.feed(rows, positions, embeds)

    def rewind(self, row: int, length: int) -> None:
        """Forget what lies beyond `length`; the entries are overwritten when the row is read again."""
        self.read_to[row] = min(self.read_to[row], length)

    @abstractmethod
    def hold(self, rows: range, ends: Sequence[int]) -> None:
        """Have memory for these rows up to their ends."""

    @abstractmethod
    def share(self, source: int, row: int, length: int) -> None:
        """Take over what `source` has read of the first `length` positions, which the two rows have in common."""

    @abstractmethod
    def swap(self, first: int, second: int) -> None:
        """Exchange two rows."""

    @abstractmethod
    def wipe(self, row: int) -> None:
        """Overwrite with zeros what has been read of a row."""

    @abstractmethod
    def _read_piece(self, rows: range, starts: list[int], ends: list[int]) -> Float[Tensor, "rows seq dim"]:
        """The last hidden states from each row's start to its end, the last one repeated in shorter rows."""


def position_bytes(config: PreTrainedConfig, dtype: torch.dtype) -> int:
    """Bytes that the keys and values of one position take."""
    return 2 * config.num_hidden_layers * config.num_key_value_heads * head_dim(config) * dtype.itemsize
