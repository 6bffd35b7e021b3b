"""A decoder that reads x_t with its own cache, and how far it has read every slot.

The policy and the synthesizer are two readers of one context. A reader feeds only what it has not read yet, so a
prompt, one decoded token, a block of latents and a synthesizer that lags a hundred tokens behind are one operation.
"""

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import PreTrainedModel

from tyler.engine.native.attention import PackedAttention, Span
from tyler.engine.native.cache import Context, KeyValueCache
from tyler.engine.native.fused_decoder import FusedDecoder
from tyler.modeling.attention import cache_dtype

CHUNK = 2048
"""Positions that go through a decoder at once: what is longer is read in pieces, in bounded memory."""

Feed = Callable[[Sequence[Span], Float[Tensor, "positions dim"]], Float[Tensor, "positions dim"]]


class Reader:
    """`feed` says what the decoder is given at some spans instead of their embeddings, where it is not these."""

    def __init__(self, decoder: PreTrainedModel, context: Context, feed: Feed | None = None) -> None:
        self.fused, self.context, self.feed = FusedDecoder(decoder), context, feed
        device = context.embeds.device
        self.cache = KeyValueCache(context.room, decoder.config, cache_dtype(context.embeds.dtype, device), device)
        self.read_to = [0] * context.room.slots

    @torch.no_grad()
    def read(self, spans: Sequence[Span]) -> Float[Tensor, "positions dim"]:
        """Read spans, each of another slot; the last hidden states of all their positions, in the order of slots."""
        spans = sorted(spans, key=lambda span: span.slot)
        found = [self._read_piece(piece) for piece in pieces(spans, CHUNK)]
        for span in spans:
            self.read_to[span.slot] = span.end
        return found[0] if len(found) == 1 else torch.cat(found)

    def _read_piece(self, spans: Sequence[Span]) -> Float[Tensor, "positions dim"]:
        attention = PackedAttention(self.cache, spans)
        embeds = self.context.flat.index_select(0, attention.places)
        return self.fused(embeds if self.feed is None else self.feed(spans, embeds), attention)

    def forget(self, slot: int, length: int) -> None:
        """Forget what lies beyond `length`; the entries are overwritten when the slot is read again."""
        self.read_to[slot] = min(self.read_to[slot], length)

    def copy(self, source: int, slot: int, length: int) -> None:
        """Take over what was read of the first `length` positions of another slot, which both have in common."""
        for states in (self.cache.keys, self.cache.values):
            states[:, slot, :, :length] = states[:, source, :, :length]
        self.read_to[slot] = length

    def wipe(self, slot: int, length: int) -> None:
        """Leave zeros of what was read of a slot up to `length`: a masked NaN is still a NaN."""
        for states in (self.cache.keys, self.cache.values):
            states[:, slot, :, :length] = 0
        self.read_to[slot] = 0

    def refresh(self, decoder: PreTrainedModel) -> None:
        """Read with the present weights of a decoder from now on; forget what older ones have read."""
        del self.fused  # its copies go before the new ones come
        self.fused, self.read_to = FusedDecoder(decoder), [0] * len(self.read_to)


def pieces(spans: Sequence[Span], size: int) -> Sequence[Sequence[Span]]:
    """The spans, cut so that a pass has at most `size` positions."""
    if sum(map(len, spans)) <= size:
        return [spans]
    cuts, left = list[list[Span]](), 0
    for span in spans:
        for start in range(span.start, span.end, size):
            cut = Span(span.slot, start, min(start + size, span.end))
            if len(cut) > left:
                cuts, left = [*cuts, []], size
            cuts[-1].append(cut)
            left -= len(cut)
    return list(cuts)
