"""Attention of one packed pass: where it writes its keys and values, and what its queries see of the caches.

A pass reads spans, positions [start, end) of some slots, one after another without padding. Neighbouring slots with
equally few new positions, as in a step of decoding, are one product over a view of the cache; a prompt is one by
itself. On CUDA torch's attention for sequences of any lengths takes all at once, where it has that and the dtype.
"""

import inspect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.attention import varlen

from tyler.engine.native.cache import KeyValueCache
from tyler.modeling.attention import attend

DEEP, BLOCK, SCORES = 2048, 32, 2**24
"""After DEEP positions a CPU's two products and softmax are faster than torch's kernel, which takes BLOCK queries at a
time. They keep a slot's scores; these and a mask are SCORES at most, or heads are not read together."""
TAKES_LENGTHS = "seqused_k" in inspect.signature(varlen.varlen_attn).parameters
"""Whether this torch's attention for sequences of any lengths reads a part of each cached one: 2.13 does."""
TOGETHER = 64
"""Positions of a slot up to which neighbouring slots are one product, and on a CPU (CUDA: of any) all query heads of a
key-value head: what a synthesizer reads between two calls."""


@dataclass(slots=True)  # one for every row and pass: a frozen one takes twice as long to make
class Span:
    """Positions [start, end) of a slot."""

    slot: int
    start: int
    end: int

    def __len__(self) -> int:
        return self.end - self.start


class PackedAttention:
    """Attention of one pass over spans, in the order of their slots."""

    def __init__(self, cache: KeyValueCache, spans: Sequence[Span]) -> None:
        self._cache, device = cache, cache.keys.device
        self.end = max(span.end for span in spans)  # no position is this or more
        capacity, heads = cache.room.capacity, len(cache.head_starts)
        each = [(span.slot * capacity, position) for span in spans for position in range(span.start, span.end)]
        numbers = [(position, first + position, first * heads + position) for first, position in each]
        self.positions, self.places, rows = torch.tensor(numbers, device=device).unbind(1)
        """Of the slot, and among those of all slots."""
        self._rows = rows[:, None] + cache.head_starts
        whole = TAKES_LENGTHS and device.type == "cuda" and cache.keys.dtype in (torch.bfloat16, torch.float16)
        runs = [spans] if whole else list(runs_of(spans))
        self._runs = [OfAnyLength(cache, run) if whole else Run(cache, run) for run in runs]
        self._counts = [sum(map(len, run)) for run in runs]

    def attend(
        self,
        layer: int,
        queries: Float[Tensor, "positions heads head_dim"],
        keys: Float[Tensor, "positions kv_heads head_dim"],
        values: Float[Tensor, "positions kv_heads head_dim"],
    ) -> Float[Tensor, "positions attention"]:
        """Write keys and values of the new positions, then let the queries see their slots."""
        for states, new in ((self._cache.flat_keys[layer], keys), (self._cache.flat_values[layer], values)):
            states[self._rows] = new.to(states.dtype)
        if len(self._runs) == 1:
            return self._runs[0].attend(layer, queries)
        parts = zip(self._runs, queries.split(self._counts), strict=True)
        return torch.cat([run.attend(layer, part) for run, part in parts])


def runs_of(spans: Sequence[Span]) -> Iterator[list[Span]]:
    """Parts that are one product each: neighbouring slots with equally many new positions, up to TOGETHER, or one."""
    run: list[Span] = []
    for span in spans:
        if run and not (span.slot == run[-1].slot + 1 and len(span) == len(run[-1]) <= TOGETHER):
            yield run
            run = []
        run.append(span)
    yield run


class Run:
    """Neighbouring slots with equally many new positions. Where all stand alike, one position each needs no mask.

    Of few positions the query heads of a key-value head take the place of further ones: its keys are read once.
    """

    def __init__(self, cache: KeyValueCache, spans: Sequence[Span]) -> None:
        self._rows, self._seq = len(spans), len(spans[0])
        end, slots = max(span.end for span in spans), slice(spans[0].slot, spans[-1].slot + 1)
        self._keys, self._values = (states[:, slots, :, :end].unbind(0) for states in (cache.keys, cache.values))
        self._whole = self._seq > 1 and self._rows == 1 and spans[0].start == 0
        kept = max(self._rows, cache.keys.shape[2]) * cache.groups * self._seq * end
        folds = cache.keys.is_cuda or (self._seq <= TOGETHER and kept <= SCORES)
        self._groups = cache.groups if folds and not self._whole else 1
        self._mask: Tensor | None = None
        if not self._whole and (self._seq > 1 or any(span.end < end for span in spans)):
            own = torch.tensor([[span.start] for span in spans], device=cache.keys.device)
            if self._seq > 1:
                own = own + torch.arange(self._seq, device=own.device).repeat(self._groups)
            unseen = torch.arange(end, device=own.device) > own[:, None, :, None]
            self._mask = cache.keys.new_zeros(unseen.shape).masked_fill_(unseen, float("-inf"))
        shape = cache.keys.shape[2], self._groups * self._seq, end
        deep = cache.keys.is_cpu and folds and self._seq > 1 and end >= DEEP and shape[1] > BLOCK
        self._scores = cache.keys.new_empty(shape) if deep else None
        self._masked = slice(min(span.start for span in spans) + 1, end)

    def attend(self, layer: int, queries: Float[Tensor, "count heads head_dim"]) -> Float[Tensor, "count attention"]:
        keys, values, dim = self._keys[layer], self._values[layer], queries.shape[2]
        if self._seq == 1:  # folded as they are
            rows = queries.view(self._rows, -1, self._groups, dim)
            return attend(rows, keys, values, mask=self._mask, enable_gqa=self._groups == 1).reshape(len(queries), -1)
        grouped = queries.view(self._rows, self._seq, -1, self._groups, dim).permute(0, 2, 3, 1, 4)
        rows = grouped.reshape(self._rows, -1, self._groups * self._seq, dim)
        if self._scores is None or self._mask is None:
            attended = attend(rows, keys, values, mask=self._mask, is_causal=self._whole, enable_gqa=self._groups == 1)
        else:
            attended = torch.stack(list(map(self._by_products, rows, keys, values, self._mask)))
        apart = attended.view(self._rows, -1, self._groups, self._seq, dim).permute(0, 3, 1, 2, 4)
        return apart.reshape(len(queries), -1)

    def _by_products(self, queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
        """softmax(q k^T / sqrt(d)) v of one slot, its scores in the same place in every layer."""
        scores = torch.matmul(queries.to(keys.dtype) * queries.shape[2] ** -0.5, keys.mT, out=self._scores)
        scores[:, :, self._masked] += mask[:, :, self._masked]
        return torch.matmul(torch.softmax(scores, dim=-1, out=scores), values).to(queries.dtype)


class OfAnyLength:
    """All spans at once, by `torch.nn.attention.varlen`: a slot without new positions has no queries."""

    def __init__(self, cache: KeyValueCache, spans: Sequence[Span]) -> None:
        (layers, slots, heads, capacity, dim), device = cache.keys.shape, cache.keys.device
        # positions of a slot begin at those of its first head, and the heads of a position lie `capacity` apart
        shape, strides = (layers, (heads * (slots - 1) + 1) * capacity, heads, dim), (dim, capacity * dim, 1)
        whole = shape, (cache.keys.stride(0), *strides)
        self._keys, self._values = (states.as_strided(*whole).unbind(0) for states in (cache.keys, cache.values))
        new, used = [0] * slots, [0] * slots
        for span in spans:
            new[span.slot], used[span.slot] = len(span), span.end
        bounds = [0, *accumulate(new)], [slot * heads * capacity for slot in range(slots + 1)], used
        ends, starts, self._used = (torch.tensor(one, dtype=torch.int32, device=device) for one in bounds)
        self._lengths = ends, starts, max(new), max(used)

    def attend(self, layer: int, queries: Float[Tensor, "positions heads head_dim"]) -> Tensor:
        given = queries.contiguous(), self._keys[layer], self._values[layer], *self._lengths
        attended = varlen.varlen_attn(*given, window_size=(-1, 0), enable_gqa=True, seqused_k=self._used)
        assert isinstance(attended, Tensor), "nothing else was asked for"
        return attended.flatten(1)
