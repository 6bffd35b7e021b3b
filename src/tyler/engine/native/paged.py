"""Caches in pages, for a device that the host should neither wait for nor keep waiting.

A row holds as many pages as its positions take, wherever they lie: memory follows the lengths that rows really have,
and no row moves when another joins, grows or ends. The new positions of a pass lie packed one after another and are
filled up to one of few sizes, so that a pass of that size is recorded once and replayed.
"""

from __future__ import annotations

import functools
import itertools
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import PreTrainedModel

from tyler.engine.native.context import CHUNK, Context, Reader
from tyler.engine.native.cuda_graphs import CudaGraphDispatcher, Recorder
from tyler.engine.sizes import PAGE, RECORDED, bucket, doubled, grown_pages, pages_for

NULL_PAGE = 0
"""The page that belongs to no row: what fills a pass up is written there."""
FEWEST = 8
"""Packed positions of the smallest program."""
TOLERANCE = 0.02
"""How far two ways to attend to normally distributed values may lie apart, in 16 bits."""


class PagedContext(Context):
    """x_t of every row in pages, and the pages of every row in its order: on the host, and as a table on the device.

    Both readers keep what they have read of a position in the same page of their own caches. The table has one row
    more, which stays empty: positions of that row belong to no request.
    """

    def __init__(
        self, rows: int, dim: int, dtype: torch.dtype, device: torch.device, max_positions: int, most: int | None
    ) -> None:
        """`most` is how many pages there may be at a time, where a row alone does not need more."""
        super().__init__(rows)
        columns = pages_for(max_positions) + 1
        self.embeds: Float[Tensor, "pages page dim"] = torch.zeros(1, PAGE, dim, dtype=dtype, device=device)
        self.block_table: Int[Tensor, "rows columns"] = torch.zeros(rows + 1, columns, dtype=torch.int32, device=device)
        self._pages: list[list[int]] = [[] for _ in range(rows)]
        self._free: list[int] = []
        self._most = None if most is None else min(most, rows * columns)

    @property
    def pages(self) -> int:
        """How many there are, the null page included."""
        return self.embeds.shape[0]

    @property
    def in_use(self) -> int:
        """How many belong to rows."""
        return sum(map(len, self._pages))

    def positions_for(self, lengths: Sequence[int]) -> int:
        """Positions that rows of these lengths take: whole pages, and the null page."""
        return PAGE * (1 + sum(map(pages_for, lengths)))

    def lacks(self, rows: range, ends: Sequence[int]) -> int:
        """How many pages must be made before these rows have room up to their ends; making some moves all."""
        missing = sum(self._missing(row, end) for row, end in zip(rows, ends, strict=True))
        return max(0, missing - len(self._free))

    def hold(self, rows: range, ends: Sequence[int]) -> None:
        """Give these rows pages up to their ends."""
        if lacking := self.lacks(rows, ends):
            self._grow(grown_pages(self.pages - 1, self.pages - 1 + lacking, self._most))
        for row, end in zip(rows, ends, strict=True):
            if missing := self._missing(row, end):
                given, self._free[-missing:] = self._free[-missing:], []
                for place, page in enumerate(given, start=len(self._pages[row])):
                    # Unlike a copy, a fill waits for nothing that is in flight.
                    self.block_table[row, place].fill_(page)
                self._pages[row] += given

    def at(self, rows: Int[Tensor, "..."], positions: Int[Tensor, "..."]) -> Float[Tensor, "... dim"]:
        """The embeddings at some positions of some rows."""
        return self.embeds.flatten(0, 1)[self.slot_mapping(rows, positions)]

    def slot_mapping(self, rows: Int[Tensor, "..."], positions: Int[Tensor, "..."]) -> Int[Tensor, "..."]:
        """Where positions lie, counted over all pages."""
        return self.block_table[rows, positions // PAGE].long() * PAGE + positions % PAGE

    def stage(self, row: int, embeds: Float[Tensor, "seq dim"]) -> None:
        """Write [x_t; embeds] without making `embeds` part of the context."""
        start, given = self.lengths[row], embeds.to(self.embeds.dtype)
        self.hold(range(row, row + 1), [start + len(given)])
        while len(given):
            page, within = self._pages[row][start // PAGE], start % PAGE
            here, given = given[: PAGE - within], given[PAGE - within :]
            self.embeds[page, within : within + len(here)] = here
            start += len(here)

    def append_each(self, rows: list[int], embeds: Float[Tensor, "rows dim"]) -> None:
        """Append one embedding to each of several rows."""
        places = []
        for row in rows:
            length = self.lengths[row]
            self.hold(range(row, row + 1), [length + 1])
            places.append(self._pages[row][length // PAGE] * PAGE + length % PAGE)
            self.lengths[row] += 1
        self.embeds.flatten(0, 1)[places] = embeds.to(self.embeds.dtype)

    def copy(self, states: Tensor, source: int, row: int, length: int) -> None:
        """Fill a row's pages of a cache [layers, pages, ...], which it holds, with the first that `source` has."""
        count = pages_for(length)
        states[:, self._pages[row][:count]] = states[:, self._pages[source][:count]]

    def wipe(self, states: Tensor, row: int) -> None:
        """Overwrite a row's pages of a cache [layers, pages, ...], as far as the cache has them, with zeros."""
        states[:, [page for page in self._pages[row] if page < states.shape[1]]] = 0

    def truncate(self, row: int, length: int) -> None:
        """Forget what lies beyond `length`, and take its pages back."""
        super().truncate(row, length)
        kept = pages_for(self.lengths[row])
        if given_back := self._pages[row][kept:]:
            del self._pages[row][kept:]
            self._free += given_back
            self.block_table[row, kept : kept + len(given_back)] = NULL_PAGE

    def swap(self, first: int, second: int) -> None:
        """Exchange two rows: their pages stay where they are."""
        self._pages[first], self._pages[second] = self._pages[second], self._pages[first]
        self.lengths[first], self.lengths[second] = self.lengths[second], self.lengths[first]
        self.block_table[[first, second]] = self.block_table[[second, first]]

    def _missing(self, row: int, end: int) -> int:
        return max(0, pages_for(end) - len(self._pages[row]))

    def _grow(self, count: int) -> None:
        """Hold `count` pages and the null page; existing pages keep their numbers."""
        there = self.pages
        self.embeds = with_pages(self.embeds, count + 1, dim=0)
        self._free += range(count, there - 1, -1)


def with_pages(states: Tensor, count: int, dim: int) -> Tensor:
    """Pages, with as many of zeros after them as are missing."""
    shape, there = list(states.shape), states.shape[dim]
    if there == count:
        return states
    shape[dim] = count
    more = states.new_zeros(shape)
    more.narrow(dim, 0, there).copy_(states)
    return more


@dataclass(frozen=True)
class PagedAttentionMetadata:
    """One pass over packed positions: where it writes (`fused_decoder.Attention`), and what it sees.

    Row i has the queries cu_seqlens_q[i] to cu_seqlens_q[i + 1] - 1, of which the last stands at seqused_k[i] - 1, and
    sees what lies up to itself in the pages block_table[i]. `longest` bounds the queries of a row.
    """

    keys: Float[Tensor, "layers pages page kv_heads head_dim"]
    values: Float[Tensor, "layers pages page kv_heads head_dim"]
    positions: Int[Tensor, "1 packed"]
    slot_mapping: Int[Tensor, " packed"]
    cu_seqlens_q: Int[Tensor, " rows_and_one"]
    seqused_k: Int[Tensor, " rows"]
    block_table: Int[Tensor, "rows width"]
    longest: int
    end: int
    attention: Attend

    @classmethod
    def over(
        cls,
        reader: PagedReader,
        rows: Int[Tensor, " packed"],
        positions: Int[Tensor, " packed"],
        cu_seqlens_q: Int[Tensor, " rows_and_one"],
        seqused_k: Int[Tensor, " rows"],
        block_table: Int[Tensor, "rows width"],
        longest: int,
    ) -> PagedAttentionMetadata:
        """Of positions in some rows, with every row's place in memory looked up on the device."""
        return cls(
            reader.keys,
            reader.values,
            positions[None],
            reader.pages.slot_mapping(rows, positions),
            cu_seqlens_q,
            seqused_k,
            block_table,
            longest,
            reader.pages.block_table.shape[1] * PAGE,
            reader.attention,
        )

    def attend(
        self,
        layer: int,
        queries: Float[Tensor, "1 packed heads head_dim"],
        keys: Float[Tensor, "1 packed kv_heads head_dim"],
        values: Float[Tensor, "1 packed kv_heads head_dim"],
    ) -> Float[Tensor, "packed attention"]:
        """Write keys and values of the new positions, then let the queries see their rows."""
        held = (self.keys[layer], self.values[layer])
        for into, states in zip(held, (keys, values), strict=True):
            into.flatten(0, 1).index_copy_(0, self.slot_mapping, states[0])
        return self.attention(queries[0], *held, self).flatten(1)


Attend = Callable[[Tensor, Tensor, Tensor, PagedAttentionMetadata], Tensor]
"""Queries [packed, heads, head_dim] over keys and values [pages, page, kv_heads, head_dim]."""


@dataclass(frozen=True)
class PassDescriptor:
    """The sizes of a program: packed positions, rows, and pages a row."""

    positions: int
    rows: int
    width: int

    @property
    def parts(self) -> list[int]:
        """How its layout is cut: a row and a position for each packed position, starts and ends of the rows."""
        return [self.positions, self.positions, self.rows + 1, self.rows]


class PagedReader(Reader):
    """A reader whose cache is in pages, and whose short passes are recorded."""

    def __init__(self, decoder: PreTrainedModel, context: PagedContext, recorder: Recorder) -> None:
        super().__init__(decoder, context)
        self.pages, embeds, rows, lean = context, context.embeds, len(context.lengths), self.fused
        self.attention = attention_for(lean.heads, lean.kv_heads, lean.head_dim, embeds.dtype, embeds.device)
        shape = (len(lean.layers), 0, PAGE, lean.kv_heads, lean.head_dim)
        self.keys: Float[Tensor, "layers pages page kv_heads head_dim"] = embeds.new_zeros(shape)
        self.values: Float[Tensor, "layers pages page kv_heads head_dim"] = embeds.new_zeros(shape)
        self._programs = CudaGraphDispatcher(recorder)
        self._block_table = torch.zeros_like(context.block_table)
        self._fed = embeds.new_zeros(1, max(CHUNK, doubled(rows)), embeds.shape[-1])
        self._found = torch.zeros_like(self._fed)
        sizes = 2 * self._fed.shape[1] + 2 * rows + 1
        self._layout = torch.zeros(sizes, dtype=torch.int32, device=embeds.device)

    def hold(self, rows: range, ends: Sequence[int]) -> None:
        """Have pages for these rows up to their ends."""
        self.pages.hold(rows, ends)
        self.keys = with_pages(self.keys, self.pages.pages, dim=1)  # one after the other, so that one old is there
        self.values = with_pages(self.values, self.pages.pages, dim=1)

    def share(self, source: int, row: int, length: int) -> None:
        """Copy the pages that `source` has filled with the first `length` positions."""
        self.hold(range(row, row + 1), [length])
        for states in (self.keys, self.values):
            self.pages.copy(states, source, row, length)
        self.read_to[row] = length

    def swap(self, first: int, second: int) -> None:
        """Exchange what is known of two rows, whose pages the context exchanges."""
        self.read_to[first], self.read_to[second] = self.read_to[second], self.read_to[first]

    def wipe(self, row: int) -> None:
        """Overwrite the pages of a row with zeros, before they are another's."""
        for states in (self.keys, self.values):
            self.pages.wipe(states, row)

    @property
    def memory(self) -> tuple[Tensor, Tensor]:
        """What programs work on that moves when it grows."""
        return self.keys, self.context.embeds

    def _read_piece(self, rows: range, starts: list[int], ends: list[int]) -> Float[Tensor, "rows seq dim"]:
        counts = [end - start for start, end in zip(starts, ends, strict=True)]
        firsts = [0, *itertools.accumulate(counts)]
        size = doubled(firsts[-1], least=FEWEST) if firsts[-1] <= RECORDED else firsts[-1]
        places = bucket(len(rows), len(self.read_to))
        owners = [row for row, count in zip(rows, counts, strict=True) for _ in range(count)]
        positions = [one for start, end in zip(starts, ends, strict=True) for one in range(start, end)]
        fill, idle = [0] * (size - len(owners)), places - len(rows)
        padding = [len(self.read_to)] * len(fill)  # belongs to the last row, which holds no request
        layout = [*owners, *padding, *positions, *fill]
        layout += [*firsts, *([firsts[-1]] * idle), *ends, *([1] * idle)]
        device = self._layout.device
        self._layout[: len(layout)] = torch.tensor(layout, dtype=torch.int32, device=device)
        self._block_table[: len(rows)] = self.pages.block_table[rows.start : rows.stop]
        of, at = self._layout[: len(owners)], self._layout[size : size + len(owners)]
        self._fed[0, : len(owners)] = self.inputs(of, at)
        self._fed[0, len(owners) : size] = 0  # what an answer left there may not be finite
        # FlashAttention takes no longer for a wider table, and one width is one program.
        width = self._block_table.shape[1] if self.attention is flash else doubled(pages_for(max(ends)))
        spread = self._spread(firsts, counts)  # sent before the device works, which it would wait for
        descriptor = PassDescriptor(size, places, width)
        program = functools.partial(self._run, descriptor)
        if size > RECORDED:
            program()
        else:
            self._programs.run(descriptor, program, self.memory)
        return self._found[0, spread]

    def _spread(self, firsts: list[int], counts: list[int]) -> Int[Tensor, "rows seq"]:
        """Where in the pass each row's positions lie, the last repeated in shorter rows."""
        each = zip(firsts, counts, strict=False)
        spread = [[first + min(k, count - 1) for k in range(max(counts))] for first, count in each]
        return torch.tensor(spread, device=self._found.device)

    def _run(self, descriptor: PassDescriptor) -> None:
        """The decoder over the packed positions that `_fed` holds and `_layout` describes."""
        rows, positions, starts, used = self._layout[: sum(descriptor.parts)].split(descriptor.parts)
        table = self._block_table[: descriptor.rows, : descriptor.width]
        metadata = PagedAttentionMetadata.over(self, rows, positions, starts, used, table, descriptor.positions)
        self._found[:, : descriptor.positions] = self.fused(self._fed[:, : descriptor.positions], metadata)


# ------------------------------------------------------------------------------------------------------- attention


def gathered(queries: Tensor, keys: Tensor, values: Tensor, metadata: PagedAttentionMetadata) -> Tensor:
    """With the operations of every device: the pages of each row are copied next to each other."""
    starts, device = metadata.cu_seqlens_q, queries.device
    packed = torch.arange(len(queries), dtype=starts.dtype, device=device)
    owner = (torch.searchsorted(starts, packed, right=True) - 1).clamp_max(len(metadata.seqused_k) - 1)
    within = (packed - starts[owner]).clamp_max(metadata.longest - 1)
    nth = torch.arange(metadata.longest, device=device)
    stands = (metadata.seqused_k - starts.diff())[:, None] + nth
    past_keys, past_values = (states[metadata.block_table].flatten(1, 2).transpose(1, 2) for states in (keys, values))
    hidden = torch.arange(past_keys.shape[2], device=device) > stands[..., None]
    mask = torch.zeros(hidden.shape, dtype=queries.dtype, device=device).masked_fill_(hidden, float("-inf"))
    attended = nn.functional.scaled_dot_product_attention(
        queries[(starts[:-1, None] + nth).clamp_max(len(queries) - 1)].transpose(1, 2),
        past_keys,
        past_values,
        attn_mask=mask[:, None],
        enable_gqa=True,
    )
    found = attended[owner, :, within]
    # What only fills the pass up has the last row's attention, and its keys go where every row's empty columns point.
    return found.masked_fill((packed >= starts[-1])[:, None, None], 0)


def flash(queries: Tensor, keys: Tensor, values: Tensor, metadata: PagedAttentionMetadata) -> Tensor:
    """With FlashAttention, which reads the pages where they are, and of a row's last page what is filled.

    The keys of one query are split over the device. Those of several are not: their parts would be put together wrongly
    where rows have different numbers of queries.
    """
    one = metadata.longest == 1
    found: tuple[Tensor, ...] = torch.ops.aten._flash_attention_forward(
        *(queries, keys, values, metadata.cu_seqlens_q, metadata.cu_seqlens_q),  # where keys start says the table
        *(metadata.longest, metadata.block_table.shape[1] * PAGE),
        *(0.0, not one, False),
        window_size_left=-1,
        window_size_right=-1 if one else 0,
        seqused_k=metadata.seqused_k,
        block_table=metadata.block_table,
        num_splits=None if one and queries.shape[1] > keys.shape[2] else 1,
    )
    return found[0]


@functools.cache
def attention_for(heads: int, kv_heads: int, head_dim: int, dtype: torch.dtype, device: torch.device) -> Attend:
    """FlashAttention where this device, type and torch have it and it gives what `gathered` gives."""
    if device.type != "cuda" or dtype not in (torch.bfloat16, torch.float16):
        return gathered
    try:
        error = max(difference(heads, kv_heads, head_dim, dtype, device, counts) for counts in ((1, 1, 1), (3, 40, 1)))
    except (RuntimeError, TypeError, AttributeError) as missing:
        problem = str(missing)
    else:
        if error < TOLERANCE:
            return flash
        problem = f"it differs by {error:.3g}"
    logging.getLogger(__name__).warning("FlashAttention does not read pages here, decoding is slower: %s", problem)
    return gathered


def difference(
    heads: int, kv_heads: int, head_dim: int, dtype: torch.dtype, device: torch.device, counts: Sequence[int]
) -> float:
    """How far `flash` is from `gathered` for rows that have so many queries after contexts of several lengths."""
    source = torch.Generator(device).manual_seed(0)
    make = functools.partial(torch.randn, generator=source, dtype=dtype, device=device)
    keys, values = (make(2 * len(counts) + 1, PAGE, kv_heads, head_dim) for _ in range(2))
    numbers = functools.partial(torch.tensor, dtype=torch.int32, device=device)
    starts = numbers([0, *itertools.accumulate(counts)])
    used = numbers([PAGE * 2 * (row + 1) // len(counts) - row for row in range(len(counts))])
    table = torch.arange(2 * len(counts), 0, -1, dtype=torch.int32, device=device).view(len(counts), 2)
    nothing = torch.empty(0, device=device)
    metadata = PagedAttentionMetadata(
        keys, values, nothing, nothing, starts, used, table, max(counts), 2 * PAGE, gathered
    )
    queries = make(sum(counts), heads, head_dim)
    found, expected = (attend(queries, keys, values, metadata) for attend in (flash, gathered))
    return (found.float() - expected.float()).abs().max().item()
