"""Caches in pages: which pages rows have, what a metadata sees, and which attention a device gets.

`test_context.py` holds readers in pages to what one full pass gives, and `test_engine.py` the engine.
"""

from __future__ import annotations

import math
from random import Random

import pytest
import torch
from tests import tiny
from torch import Tensor

from tyler.engine.native import paged
from tyler.engine.native.paged import PAGE, PagedAttentionMetadata, PagedContext, attention_for, flash, gathered
from tyler.engine.sizes import doubled, grown_pages, pages_for

CPU = torch.device("cpu")


@pytest.fixture
def context(monkeypatch: pytest.MonkeyPatch) -> PagedContext:
    """Four rows of pages of 16 positions."""
    tiny.small_pages(monkeypatch)
    return PagedContext(4, 8, torch.float32, CPU, tiny.MAX_POSITIONS, most=None)


# ------------------------------------------------------------------------------------------------------------ pages


def test_rows_have_the_pages_that_their_positions_take_and_share_none(context: PagedContext) -> None:
    random, contents = Random(0), [torch.zeros(0, 8) for _ in range(4)]
    for _ in range(300):
        row, other = random.sample(range(4), 2)
        match random.choice(["append", "append", "stage", "truncate", "swap", "each"]):
            case "append":
                new = torch.randn(random.choice([1, 3, 40]), 8)
                if len(contents[row]) + len(new) <= tiny.MAX_POSITIONS:
                    context.append(row, new)
                    contents[row] = torch.cat([contents[row], new])
            case "stage":
                context.stage(row, torch.randn(5, 8))
            case "truncate":
                length = random.randrange(len(contents[row]) + 1)
                context.truncate(row, length)
                contents[row] = contents[row][:length]
            case "swap":
                context.swap(row, other)
                contents[row], contents[other] = contents[other], contents[row]
            case "each" if max(len(contents[row]), len(contents[other])) < tiny.MAX_POSITIONS:
                new = torch.randn(2, 8)
                context.append_each([row, other], new)
                contents[row], contents[other] = (
                    torch.cat([contents[at], one[None]]) for at, one in zip((row, other), new, strict=True)
                )
        owned = [page for pages in context._pages for page in pages]
        assert sorted([*owned, *context._free]) == list(range(1, context.pages)), "every page is somebody's or free"
        for row, whole in enumerate(contents):
            assert torch.equal(context.of(row), whole)
            held = context._pages[row]
            assert context.block_table[row].tolist() == held + [0] * (context.block_table.shape[1] - len(held))
    assert context.pages > 20


def test_a_row_without_positions_has_no_pages(context: PagedContext) -> None:
    context.append(1, torch.randn(40, 8))
    context.stage(1, torch.randn(20, 8))
    assert context.in_use == 4 == context.pages - 1
    context.truncate(1, 40)
    assert context.in_use == 3
    context.truncate(1, 0)
    assert context.in_use == 0 and context.pages == 5, "pages that were made stay, for whoever needs them"


def test_where_memory_is_bounded_all_pages_are_made_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    tiny.small_pages(monkeypatch)
    bounded = PagedContext(2, 8, torch.float32, CPU, 64, most=7)
    bounded.append(0, torch.randn(3, 8))
    assert bounded.pages == 1 + 7
    few = PagedContext(2, 8, torch.float32, CPU, 64, most=10**6)
    few.append(0, torch.randn(3, 8))
    assert few.pages == 1 + 2 * (64 // 16 + 1), "no more than all rows may ever have"


def test_pages_are_made_by_halves_or_all_at_once() -> None:
    assert [grown_pages(0, 3, None), grown_pages(8, 9, None), grown_pages(8, 30, None)] == [4, 12, 30]
    assert [grown_pages(0, 1, most=10), grown_pages(10, 11, most=10)] == [10, 11]
    assert [doubled(count) for count in (1, 2, 3, 4, 5, 9)] == [1, 2, 4, 4, 8, 16]
    assert [doubled(3, least=8), pages_for(0), pages_for(1), pages_for(PAGE), pages_for(PAGE + 1)] == [8, 0, 1, 1, 2]


def test_memory_is_counted_in_whole_pages(context: PagedContext) -> None:
    assert context.positions_for([1, 16, 17]) == 16 * (1 + 1 + 1 + 2)
    for row, length in enumerate((1, 16, 17)):
        context.append(row, torch.randn(length, 8))
    assert context.embeds.shape[:2].numel() == context.positions_for([1, 16, 17])


# -------------------------------------------------------------------------------------------------------- attention


def one_by_one(queries: Tensor, keys: Tensor, values: Tensor, metadata: PagedAttentionMetadata) -> Tensor:
    """Every query of every row alone, over the keys and values that its row's table leads to."""
    starts, found = metadata.cu_seqlens_q.tolist(), torch.zeros_like(queries)
    group = queries.shape[1] // keys.shape[2]
    for row, used in enumerate(metadata.seqused_k.tolist()):
        own_keys, own_values = (
            torch.cat([states[page] for page in metadata.block_table[row]]) for states in (keys, values)
        )
        for query in range(starts[row], starts[row + 1]):
            sees = used - (starts[row + 1] - 1 - query)
            for head in range(queries.shape[1]):
                scores = own_keys[:sees, head // group] @ queries[query, head] / math.sqrt(queries.shape[2])
                found[query, head] = scores.softmax(0) @ own_values[:sees, head // group]
    return found


def drawn(counts: list[int], used: list[int], heads: int = 4, kv_heads: int = 2) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(len(counts))
    pages = 1 + 2 * len(used)
    keys, values = (torch.randn(pages, PAGE, kv_heads, 8, generator=generator) for _ in range(2))
    return torch.randn(sum(counts), heads, 8, generator=generator), keys, values


def window_of(counts: list[int], used: list[int], keys: Tensor, values: Tensor, longest: int) -> PagedAttentionMetadata:
    starts = torch.tensor([0, *torch.tensor(counts).cumsum(0).tolist()], dtype=torch.int32)
    table = torch.randperm(2 * len(used), generator=torch.Generator().manual_seed(1)).view(-1, 2).int() + 1
    nothing = torch.empty(0)
    lengths = torch.tensor(used, dtype=torch.int32)
    return PagedAttentionMetadata(keys, values, nothing, nothing, starts, lengths, table, longest, 2 * PAGE, gathered)


@pytest.mark.parametrize(
    "counts, used, longest",
    [
        ([1, 1, 1], [5, 300, 256], 1),
        ([3, 40, 1], [3, 300, 257], 64),
        ([7], [512], 8),
        ([2, 0, 5], [20, 1, 260], 8),
    ],
)
def test_gathered_attention_is_attention_to_each_rows_own_pages(
    counts: list[int], used: list[int], longest: int
) -> None:
    queries, keys, values = drawn(counts, used)
    metadata = window_of(counts, used, keys, values, longest)
    assert torch.allclose(
        gathered(queries, keys, values, metadata), one_by_one(queries, keys, values, metadata), atol=1e-5
    )


def test_what_fills_a_pass_up_changes_nothing() -> None:
    queries, keys, values = drawn([3, 5], [30, 300])
    metadata = window_of([3, 5], [30, 300], keys, values, longest=16)
    filled = torch.cat([queries, torch.randn(8, 4, 8)])
    alone = gathered(queries, keys, values, metadata)
    assert torch.allclose(gathered(filled, keys, values, metadata)[:8], alone, atol=1e-6)


@pytest.mark.parametrize("counts, heads, splits", [([1, 1], 4, None), ([1, 1], 2, 1), ([3, 40], 4, 1)])
def test_flash_attention_is_asked_by_its_own_signature(
    counts: list[int], heads: int, splits: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several queries see what lies before each, one sees all; keys are split only where parts fit together again."""
    queries, keys, values = drawn(counts, [300, 301], heads)
    metadata = window_of(counts, [300, 301], keys, values, longest=max(counts))
    operation, asked = torch.ops.aten._flash_attention_forward.default, {}

    def ask(*given: object, **named: object) -> tuple[Tensor, ...]:
        names = [argument.name for argument in operation._schema.arguments]
        asked.update(zip(names, given, strict=False), **named)
        assert set(named) <= set(names)
        return (queries,)

    monkeypatch.setattr(torch.ops.aten, "_flash_attention_forward", ask)
    flash(queries, keys, values, metadata)
    one = max(counts) == 1
    assert asked["is_causal"] is not one and asked["window_size_right"] == (-1 if one else 0)
    assert (asked["max_q"], asked["max_k"], asked["num_splits"]) == (max(counts), 2 * PAGE, splits)
    assert asked["cum_seq_q"] is metadata.cu_seqlens_q and asked["seqused_k"] is metadata.seqused_k
    assert asked["block_table"] is metadata.block_table and asked["cum_seq_k"].shape == metadata.cu_seqlens_q.shape
    assert asked["dropout_p"] == 0 and asked["return_debug_mask"] is False


def test_flash_attention_is_taken_only_where_it_gives_what_it_should(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    probe = (4, 2, 8, torch.bfloat16, CPU)
    monkeypatch.setattr(paged, "flash", gathered)
    assert paged.difference(*probe, (3, 40, 1)) == 0
    monkeypatch.setattr(paged, "flash", lambda q, k, v, metadata: gathered(q, k, v.roll(1, 1), metadata))
    assert paged.difference(*probe, (3, 40, 1)) > paged.TOLERANCE
    for wrong in ("it differs by 0.5", "no kernel image"):

        def compare(*_: object, problem: str = wrong) -> float:
            if problem.startswith("no"):
                raise RuntimeError(problem)
            return 0.5

        monkeypatch.setattr(paged, "difference", compare)
        attention_for.cache_clear()
        assert attention_for(4, 2, 8, torch.bfloat16, torch.device("cuda")) is gathered
        assert wrong in caplog.text
    monkeypatch.setattr(paged, "difference", lambda *_: 1e-3)
    attention_for.cache_clear()
    assert attention_for(4, 2, 8, torch.bfloat16, torch.device("cuda")) is paged.flash
    assert attention_for(4, 2, 8, torch.float32, torch.device("cuda")) is gathered
    assert attention_for(4, 2, 8, torch.bfloat16, CPU) is gathered
    attention_for.cache_clear()


@pytest.mark.gpu
@pytest.mark.parametrize(
    "heads, kv_heads, head_dim", [(32, 8, 128), (12, 2, 128), (16, 4, 128), (14, 2, 64), (4, 4, 64)]
)
def test_flash_attention_reads_pages_on_a_gpu(heads: int, kv_heads: int, head_dim: int) -> None:
    for counts in ((1, 1, 1), (3, 40, 1)):
        shape = (heads, kv_heads, head_dim, torch.bfloat16, torch.device("cuda"))
        assert paged.difference(*shape, counts) < paged.TOLERANCE
    assert attention_for(*shape) is flash
