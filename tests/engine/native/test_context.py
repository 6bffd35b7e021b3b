"""The readers of x_t, in rows and in pages: pieces, ragged rows, swaps and rewinds give what one full pass gives."""

from __future__ import annotations

from random import Random

import pytest
import torch
from tests import tiny
from torch import Tensor, nn

from tyler.engine.native.context import Context, Reader
from tyler.engine.native.ragged import RaggedContext, RaggedReader
from tyler.engine.sizes import BLOCK, round_up

ROWS = 4


def decoder_of(family: str) -> nn.Module:
    return tiny.tyler(family).policy.decoder()


@torch.no_grad()
def full_pass(decoder: nn.Module, embeds: Tensor) -> Tensor:
    return decoder(inputs_embeds=embeds[None], use_cache=False).last_hidden_state[0]


def started(decoder: nn.Module, rows: int = ROWS) -> tuple[Context, Reader]:
    shape = (rows, decoder.config.hidden_size, torch.float32, torch.device("cpu"))
    context = RaggedContext(*shape)
    return context, reader_of(decoder, context)


def reader_of(decoder: nn.Module, context: Context) -> Reader:
    return RaggedReader(decoder, context)


def truncate(context: Context, reader: Reader, row: int, length: int) -> None:
    context.truncate(row, length)
    reader.rewind(row, length)


def noise(length: int, seed: int) -> Tensor:
    return torch.randn(length, 32, generator=torch.Generator().manual_seed(seed)) * 0.4


def read(reader: Reader, rows: range) -> list[Tensor]:
    """The new hidden states of each row, without the repeated ones."""
    hidden, counts = reader.read(rows, [reader.context.lengths[row] for row in rows])
    return [states[:count] for states, count in zip(hidden, counts, strict=True)]


def close(first: Tensor, second: Tensor) -> bool:
    return torch.allclose(first, second, atol=1e-5)


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_reading_in_pieces_is_one_full_pass(family: str) -> None:
    decoder = decoder_of(family)
    context, reader = started(decoder, rows=1)
    whole, found, random = noise(150, seed=0), [], Random(0)
    while context.lengths[0] < len(whole):
        start = context.lengths[0]
        context.append(0, whole[start : start + random.choice([1, 1, 2, 5, 40])])
        found += read(reader, range(1))
    assert context.capacity > 2 * BLOCK, "the buffers grew while they were in use"
    assert close(torch.cat(found), full_pass(decoder, whole))


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_ragged_rows_are_read_as_if_each_were_alone(family: str) -> None:
    decoder = decoder_of(family)
    context, reader = started(decoder)
    wholes = [noise(length, seed=length) for length in (7, 120, 61, 70)]
    random, seen = Random(1), [torch.zeros_like(whole) for whole in wholes]
    for row, whole in enumerate(wholes):
        context.append(row, whole[:1])
    for _ in range(60):
        for row, whole in enumerate(wholes):
            start = context.lengths[row]
            context.append(row, whole[start : start + random.choice([0, 0, 1, 3, 20])])
        rows = range(random.randrange(ROWS), ROWS)
        for row, states in zip(rows, read(reader, rows), strict=True):
            seen[row][context.lengths[row] - len(states) : context.lengths[row]] = states
    read(reader, range(ROWS))
    assert reader.read_to == [len(whole) for whole in wholes]
    for row, whole in enumerate(wholes):
        assert close(seen[row], full_pass(decoder, whole))


def test_a_row_with_nothing_new_reads_its_last_position_again() -> None:
    decoder = decoder_of("smollm3")
    context, reader = started(decoder, rows=2)
    for row in range(2):
        context.append(row, noise(9 + row, seed=row))
    read(reader, range(2))
    context.append(1, noise(3, seed=5))
    first, second = read(reader, range(2))
    assert close(first, full_pass(decoder, noise(9, seed=0))[-1:])
    assert len(second) == 3


def entries(context: Context, reader: Reader) -> list[Tensor]:
    """Keys and values [2, layers, length, kv_heads, head_dim] of every row."""
    found = []
    for row, length in enumerate(context.lengths):
        pair = (reader.cache.keys, reader.cache.values)
        found.append(torch.stack([states[:, row, :, :length].transpose(1, 2) for states in pair]).clone())
    return found


def test_rows_outside_the_range_are_left_alone() -> None:
    decoder = decoder_of("qwen3")
    context, reader = started(decoder)
    for row in range(ROWS):
        context.append(row, noise(20 + row, seed=row))
    read(reader, range(ROWS))
    before = entries(context, reader)
    for row in (1, 2):
        context.append(row, noise(4, seed=9))
    read(reader, range(1, 3))
    after = entries(context, reader)
    for row in range(ROWS):
        stays = torch.equal(after[row][:, :, : before[row].shape[2]], before[row])
        assert stays and (after[row].shape == before[row].shape) == (row in (0, 3))
    assert reader.read_to == [20, 25, 26, 23]


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_swapped_rows_go_on_where_they_were(family: str) -> None:
    decoder = decoder_of(family)
    context, reader = started(decoder, rows=3)
    wholes = [noise(length, seed=length) for length in (12, 80, 33)]
    for row, whole in enumerate(wholes):
        context.append(row, whole[:-5])
    read(reader, range(3))
    for part in (context, reader):
        part.swap(0, 1)
        part.swap(1, 2)
    moved = [wholes[1], wholes[2], wholes[0]]
    for row, whole in enumerate(moved):
        assert context.lengths[row] == reader.read_to[row] == len(whole) - 5
        context.append(row, whole[-5:])
    for row, (states, whole) in enumerate(zip(read(reader, range(3)), moved, strict=True)):
        assert close(states, full_pass(decoder, whole)[-5:])
        assert torch.equal(context.of(row), whole)


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_a_rewound_row_forgets(family: str) -> None:
    decoder = decoder_of(family)
    context, reader = started(decoder, rows=2)
    kept, other = noise(70, seed=1), noise(6, seed=3)
    for row in range(2):
        context.append(row, torch.cat([kept, noise(9, seed=2)]))
    read(reader, range(2))
    context.truncate(0, 70)
    reader.rewind(0, 70)
    context.append(0, other)
    states, untouched = read(reader, range(2))
    assert close(states, full_pass(decoder, torch.cat([kept, other]))[70:])
    assert len(untouched) == 1


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_staged_queries_are_read_but_leave_no_trace(family: str) -> None:
    decoder = decoder_of(family)
    context, reader = started(decoder, rows=1)
    prefix, queries, rest = noise(62, seed=1), noise(4, seed=2), noise(3, seed=3)
    context.append(0, prefix)
    context.stage(0, queries)
    assert context.lengths == [62]
    hidden, counts = reader.read(range(1), [66])
    assert counts == [66]
    assert close(hidden[0, -4:], full_pass(decoder, torch.cat([prefix, queries]))[-4:])
    reader.rewind(0, 62)
    context.append(0, rest)
    assert close(read(reader, range(1))[0], full_pass(decoder, torch.cat([prefix, rest]))[-3:])


def test_rewinding_never_goes_forward() -> None:
    context, reader = started(decoder_of("qwen2"), rows=1)
    context.append(0, noise(10, seed=0))
    read(reader, range(1))
    context.truncate(0, 50)
    reader.rewind(0, 50)
    assert context.lengths == reader.read_to == [10]


def test_two_readers_of_one_context_do_not_meet() -> None:
    model = tiny.tyler("qwen2")
    context, reader = started(model.policy.decoder(), rows=1)
    lagging = reader_of(model.synthesizer.decoder(), context)
    whole = noise(100, seed=4)
    context.append(0, whole[:30])
    read(reader, range(1))
    context.append(0, whole[30:])
    assert close(read(reader, range(1))[0], full_pass(reader.decoder, whole)[30:])
    assert close(read(lagging, range(1))[0], full_pass(lagging.decoder, whole))


def test_appending_to_each_row_is_appending_to_one_after_the_other() -> None:
    context, _ = started(decoder_of("qwen2"), rows=3)
    for row, length in enumerate((3, BLOCK, 10)):
        context.append(row, noise(length, seed=row))
    context.append_each([2, 1], noise(2, seed=7))
    assert context.lengths == [3, BLOCK + 1, 11]
    assert torch.equal(context.of(2)[10], noise(2, seed=7)[0])
    assert torch.equal(context.of(1)[BLOCK], noise(2, seed=7)[1])
    assert torch.equal(context.of(1)[:BLOCK], noise(BLOCK, seed=1)), "growing keeps what is there"


def test_capacities_are_multiples_of_a_block_and_grow_by_a_quarter() -> None:
    assert [round_up(length) for length in (0, 1, BLOCK, BLOCK + 1)] == [0, BLOCK, BLOCK, 2 * BLOCK]
    context = RaggedContext(1, 32, torch.float32, torch.device("cpu"))
    context.append(0, noise(8 * BLOCK, seed=0))
    context.append(0, noise(1, seed=1))
    assert context.capacity == 10 * BLOCK
    context.append(0, noise(9 * BLOCK, seed=2))
    assert context.capacity == 18 * BLOCK, "and by more where more is needed"


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_a_long_read_goes_through_the_decoder_in_pieces(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = decoder_of(family)
    context, reader = started(decoder, rows=3)
    wholes = [noise(length, seed=length) for length in (70, 9, 33)]
    for row, whole in enumerate(wholes):
        context.append(row, whole)
    widths, inputs = [], reader.inputs

    def counted(rows: range, positions: Tensor) -> Tensor:
        widths.append(positions.numel())
        return inputs(rows, positions)

    monkeypatch.setattr(reader, "inputs", counted)
    monkeypatch.setattr("tyler.engine.native.context.CHUNK", 60)
    for states, whole in zip(read(reader, range(3)), wholes, strict=True):
        assert close(states, full_pass(decoder, whole))
    assert widths == [60, 60, 60, 30]


def test_a_shared_prompt_is_read_once_and_goes_two_ways() -> None:
    decoder = decoder_of("smollm3")
    context, reader = started(decoder, rows=3)
    prompt, tails = noise(20, seed=1), [noise(4, seed=2), noise(4, seed=3)]
    context.append(0, prompt)
    read(reader, range(1))
    context.append(0, tails[0])
    read(reader, range(1))
    context.append(2, torch.cat([prompt, tails[1]]))
    reader.share(0, 2, 20)
    assert reader.read_to == [24, 0, 20]
    (states,) = read(reader, range(2, 3))
    assert len(states) == 4
    assert close(states, full_pass(decoder, torch.cat([prompt, tails[1]]))[20:])


def test_memory_can_be_given_back_without_losing_what_is_read() -> None:
    decoder = decoder_of("qwen2")
    context = RaggedContext(4, 32, torch.float32, torch.device("cpu"))
    reader = RaggedReader(decoder, context)
    whole = noise(30, seed=1)
    for row in range(4):
        context.append(row, whole[:25])
    context.reserve(300)
    read(reader, range(4))
    context.resize(2, BLOCK)
    context.append(1, whole[25:])
    (states,) = read(reader, range(1, 2))
    assert reader.cache.keys.shape[1] == 2 and reader.cache.keys.shape[3] == BLOCK
    assert close(states, full_pass(decoder, whole)[25:])
