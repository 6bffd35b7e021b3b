"""The readers of x_t: pieces, slots of any lengths, runs and rewinds give what one full pass gives."""

from dataclasses import replace
from random import Random
from typing import Any

import pytest
import torch
from tests import reference, tiny
from tests.asking import ask, differences, distance, run, same
from torch import Tensor, nn
from torch.nn.attention import varlen
from torch.nn.functional import scaled_dot_product_attention

from tyler.engine.native import attention, reader
from tyler.engine.native.attention import OfAnyLength, PackedAttention, Run, Span, runs_of
from tyler.engine.native.cache import Context, KeyValueCache, Room
from tyler.engine.native.engine import Engine
from tyler.engine.native.reader import Reader, pieces
from tyler.engine.request import FinishEvent, SoftPrompt
from tyler.engine.routing import Forced, Never
from tyler.modeling.attention import attend, of_heads

SLOTS = 4


@torch.no_grad()
def full_pass(decoder: nn.Module, embeds: Tensor) -> Tensor:
    return decoder(inputs_embeds=embeds[None], use_cache=False).last_hidden_state[0]


def started(decoder: nn.Module) -> Reader:
    room = Room(SLOTS, 200, 1)
    return Reader(decoder, Context(room, decoder.config.hidden_size, torch.float32, torch.device("cpu")))


def noise(length: int, seed: int) -> Tensor:
    return torch.randn(length, 32, generator=torch.Generator().manual_seed(seed)) * 0.4


def read(reader: Reader, wholes: dict[int, Tensor], ends: dict[int, int]) -> dict[int, Tensor]:
    """Read each slot up to its end; the new hidden states of each."""
    spans = [Span(slot, reader.read_to[slot], end) for slot, end in sorted(ends.items()) if end > reader.read_to[slot]]
    for span in spans:
        reader.context.write(span.slot, span.start, wholes[span.slot][span.start : span.end])
    hidden = reader.read(spans).split([len(span) for span in spans])
    return {span.slot: states for span, states in zip(spans, hidden, strict=True)}


def close(first: Tensor, second: Tensor) -> bool:
    return torch.allclose(first, second, atol=1e-5)


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_slots_are_read_in_pieces_as_if_each_were_alone(family: str) -> None:
    decoder = tiny.tyler(family).policy.decoder
    reading, random = started(decoder), Random(1)
    wholes = {slot: noise(length, seed=length) for slot, length in enumerate((7, 120, 61, 70))}
    seen: dict[int, list[Tensor]] = {slot: [] for slot in wholes}
    while any(reading.read_to[slot] < len(whole) for slot, whole in wholes.items()):
        count = random.choice([0, 0, 1, 3, 20])  # as many in every slot, or differing
        ends = {
            slot: min(len(whole), reading.read_to[slot] + (count or random.choice([0, 1, 5])))
            for slot, whole in wholes.items()
        }
        if any(end > reading.read_to[slot] for slot, end in ends.items()):
            for slot, states in read(reading, wholes, ends).items():
                seen[slot].append(states)
    for slot, whole in wholes.items():
        assert close(torch.cat(seen[slot]), full_pass(decoder, whole))


def test_slots_that_are_not_read_are_left_alone() -> None:
    reading = started(tiny.tyler("qwen3").policy.decoder)
    wholes = {slot: noise(30, seed=slot) for slot in range(SLOTS)}
    read(reading, wholes, {slot: 20 + slot for slot in wholes})
    before = reading.cache.keys.clone()
    read(reading, wholes, {1: 25, 2: 26})
    assert torch.equal(reading.cache.keys[:, [0, 3]], before[:, [0, 3]])
    assert torch.equal(reading.cache.keys[:, 1, :, :21], before[:, 1, :, :21]) and reading.read_to == [20, 25, 26, 23]


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_a_slot_that_forgets_is_read_again(family: str) -> None:
    decoder = tiny.tyler(family).policy.decoder
    reading, whole, other = started(decoder), noise(79, seed=1), noise(6, seed=3)
    read(reading, {0: whole}, {0: 79})
    reading.forget(0, 90)
    assert reading.read_to[0] == 79, "nothing is read by forgetting"
    reading.forget(0, 70)
    mixed = torch.cat([whole[:70], other])
    assert close(read(reading, {0: mixed}, {0: 76})[0], full_pass(decoder, mixed)[70:])


def test_what_was_read_of_a_prompt_is_copied_and_goes_two_ways() -> None:
    decoder = tiny.tyler("smollm3").policy.decoder
    reading, prompt, tails = started(decoder), noise(20, seed=1), [noise(4, seed=2), noise(4, seed=3)]
    wholes = {0: torch.cat([prompt, tails[0]]), 2: torch.cat([prompt, tails[1]])}
    read(reading, wholes, {0: 24})
    reading.copy(0, 2, 20)
    assert reading.read_to == [24, 0, 20, 0]
    assert close(read(reading, wholes, {2: 24})[2], full_pass(decoder, wholes[2])[20:])


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_a_long_read_goes_through_the_decoder_in_pieces(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = tiny.tyler(family).policy.decoder
    reading = started(decoder)
    wholes = {slot: noise(length, seed=length) for slot, length in enumerate((70, 9, 33))}
    widths, fused = [], reading.fused

    def counted(x: Tensor, packed: PackedAttention) -> Tensor:
        widths.append(len(x))
        return fused(x, packed)

    monkeypatch.setattr(reading, "fused", counted)
    monkeypatch.setattr(reader, "CHUNK", 60)
    for slot, states in read(reading, wholes, {slot: len(whole) for slot, whole in wholes.items()}).items():
        assert close(states, full_pass(decoder, wholes[slot]))
    assert widths == [60, 52]


def test_pieces_hold_every_position_once_and_no_more_than_a_pass_may() -> None:
    spans = [Span(0, 3, 10), Span(2, 0, 4), Span(3, 7, 8)]
    assert pieces(spans, 5) == [[Span(0, 3, 8)], [Span(0, 8, 10)], [Span(2, 0, 4), Span(3, 7, 8)]]


def test_neighbours_with_equally_many_positions_are_one_product() -> None:
    spans = [
        Span(0, 4, 5),
        Span(1, 9, 10),
        Span(3, 2, 3),
        Span(4, 0, 99),
        Span(5, 0, 99),
        Span(6, 2, 40),
        Span(7, 3, 41),
    ]
    assert [len(run) for run in runs_of(spans)] == [2, 1, 1, 1, 2], "a gap and long spans begin another one"


@pytest.mark.parametrize("family", tiny.FAMILIES)
@pytest.mark.parametrize(("scores", "passes"), [(2**24, 3), (0, 0)])
def test_products_after_a_long_context_are_the_kernels_attention(
    family: str, scores: int, passes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one slot and of two that stand at different positions; not where one position or too many scores are read."""
    decoder = tiny.tyler(family).policy.decoder
    wholes = {slot: noise(120, seed=slot) for slot in range(2)}
    steps = ({0: 80, 1: 70}, {0: 92, 1: 82}, {1: 100}, {0: 93})
    expected = [read(plain, wholes, ends) for plain in (started(decoder),) for ends in steps]
    by_products, given = attention.Run._by_products, list[torch.Size]()
    monkeypatch.setattr(
        attention.Run, "_by_products", lambda run, *row: given.append(row[0].shape) or by_products(run, *row)
    )
    for name, limit in {"DEEP": 81, "BLOCK": 2, "SCORES": scores}.items():
        monkeypatch.setattr(attention, name, limit)
    deep = started(decoder)
    for ends, states in zip(steps, expected, strict=True):
        outputs = read(deep, wholes, ends)
        assert outputs.keys() == states.keys() and all(close(outputs[slot], states[slot]) for slot in outputs)
    assert len(given) == passes * decoder.config.num_hidden_layers


def test_products_are_of_float32_in_half_precision() -> None:
    cache = KeyValueCache(
        Room(1, 2100, 1), tiny.tyler("qwen3").backbone.model.config, torch.float32, torch.device("cpu")
    )
    for states in (cache.keys, cache.values):
        states.normal_(generator=torch.Generator().manual_seed(1))
    heads, dim = cache.keys.shape[2] * cache.groups, cache.keys.shape[-1]
    run, kernel = (Run(cache, [Span(0, 2050, 2100)]) for _ in range(2))
    assert run._scores is not None
    kernel._scores = None
    queries = torch.randn(50, heads, dim, generator=torch.Generator().manual_seed(1)).bfloat16()
    products, expected = run.attend(0, queries), kernel.attend(0, queries)
    assert products.dtype == torch.bfloat16 and (products == expected).float().mean() > 0.98, "each rounded once"


# ------------------------------------------------------------------------------------- what CUDA's kernels take


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_heads_are_folded_over_a_span_of_any_length_as_on_cuda(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No kernel there takes groups of heads and a mask; only a prompt from its start has none."""
    decoder = tiny.tyler(family).policy.decoder
    wholes = {slot: noise(120, seed=slot) for slot in range(3)}
    steps = ({0: 30, 1: 33}, {0: 90, 1: 93}, {0: 91, 1: 120, 2: 120})
    expected = [read(plain, wholes, ends) for plain in (started(decoder),) for ends in steps]
    monkeypatch.setattr(attention, "TOGETHER", 1000)
    given = list[bool]()
    monkeypatch.setattr(
        attention, "attend", lambda *states, **more: given.append(more["enable_gqa"]) or attend(*states, **more)
    )
    folding = started(decoder)
    for ends, states in zip(steps, expected, strict=True):
        outputs = read(folding, wholes, ends)
        assert outputs.keys() == states.keys() and all(close(outputs[slot], states[slot]) for slot in outputs)
    assert sum(given) == 3 * decoder.config.num_hidden_layers < len(given), "three prompts"


class OnCuda(Tensor):
    """A tensor that says so."""

    is_cuda = True


@pytest.mark.parametrize(
    ("kind", "dtype", "masked", "heads"),
    [
        (Tensor, torch.float32, True, 2),
        (OnCuda, torch.bfloat16, False, 2),
        (OnCuda, torch.bfloat16, True, 8),
        (OnCuda, torch.float32, False, 8),
        (OnCuda, torch.float32, True, 8),
    ],
)
def test_keys_are_repeated_where_no_kernel_takes_groups_of_heads(
    kind: type[Tensor], dtype: torch.dtype, masked: bool, heads: int
) -> None:
    queries, keys = (torch.empty(1, count, 6, 4, dtype=dtype).as_subclass(kind) for count in (8, 2))
    mask = torch.ones(6, 6, dtype=torch.bool) if masked else None
    assert [states.shape[1] for states in of_heads(queries, keys, keys, mask)] == [heads, heads]


# ------------------------------------------------------------------------------- sequences of any lengths


def by_sequence(
    queries: Tensor, keys: Tensor, values: Tensor, cu_q: Tensor, cu_k: Tensor, max_q: int, max_k: int, **options: Any
) -> Tensor:
    """What `varlen_attn` is documented to do on CUDA, sequence by sequence: it does not run on a CPU."""
    assert options == {"window_size": (-1, 0), "enable_gqa": True, "seqused_k": options["seqused_k"]}
    outputs = []
    for row, used in enumerate(options["seqused_k"].tolist()):
        own = queries[cu_q[row] : cu_q[row + 1]].transpose(0, 1)[None]
        if not own.shape[2]:
            continue
        assert own.shape[2] <= max_q and used <= max_k
        seen = [states[cu_k[row] : cu_k[row] + used].transpose(0, 1)[None] for states in (keys, values)]
        causal = torch.ones(own.shape[2], used, dtype=torch.bool).tril(used - own.shape[2])
        outputs.append(scaled_dot_product_attention(own, *seen, attn_mask=causal, enable_gqa=True)[0].transpose(0, 1))
    return torch.cat(outputs)


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_attention_of_any_lengths_sees_what_runs_see(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for CUDA's kernel: lengths and places are handed over rightly; what CUDA computes is not shown."""
    decoder = tiny.tyler(family).policy.decoder
    wholes = {slot: noise(length, seed=length) for slot, length in ((0, 40), (1, 33), (3, 60))}
    steps = ({0: 30, 1: 33}, {0: 31, 3: 50}, {0: 40, 3: 51})
    runs, lengths = started(decoder), started(decoder)
    expected = [read(runs, wholes, ends) for ends in steps]
    monkeypatch.setattr(varlen, "varlen_attn", by_sequence)
    monkeypatch.setattr(attention, "runs_of", lambda spans: iter([spans]))
    monkeypatch.setattr(attention, "Run", OfAnyLength)
    for ends, states in zip(steps, expected, strict=True):
        outputs = read(lengths, wholes, ends)
        assert outputs.keys() == states.keys() and all(close(outputs[slot], states[slot]) for slot in outputs)


# ----------------------------------------------------------------------------------------------- one prompt


def fed_positions(engine: Engine) -> dict[str, int]:
    """Counts the positions that go through each decoder from now on."""
    fed = {"policy": 0, "synthesizer": 0}
    for name, reading in (("policy", engine.policy_reader), ("synthesizer", engine.synthesis_reader)):

        def counted(x: Tensor, packed: PackedAttention, name: str = name, fused: Any = reading.fused) -> Tensor:
            fed[name] += len(x)
            return fused(x, packed)

        reading.fused = counted  # type: ignore[assignment]
    return fed


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_a_group_reads_its_prompt_once_in_both_streams(family: str) -> None:
    model = tiny.tyler(family)
    requests = [ask(tiny.LONG, router=Forced({0: ("global",), 3: ("state",)}), max_new_tokens=6)] * 4
    engine = model.engine(slots=4)
    fed = fed_positions(engine)
    answers = engine.run(requests)
    length = len(requests[0].prompt_ids)
    longest = max(len(answer.actions) + answer.num_latents for answer in answers)
    assert fed["policy"] <= length + 4 * (longest + 1)
    assert fed["synthesizer"] <= length + 4 * (longest + 8)
    assert not differences(answers[3], reference.decode(model, requests[0]))


def test_a_long_prompt_is_read_over_several_steps_and_holds_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny.tyler("qwen3")
    requests = [ask(tiny.SHORT, router=Never(), max_new_tokens=12), ask(tiny.LONG, max_new_tokens=6)] * 2
    expected = run(model, requests)
    monkeypatch.setattr("tyler.engine.native.engine.CHUNK", 16)
    engine = model.engine(slots=4)
    for request in requests:
        engine.add_request(request)
    engine.step()
    assert [bool(row.choices) for row in engine.rows] == [True, False, False, False], "two wait for the others' prompts"
    finished = {event.index: event.trajectory for event in engine.stream([]) if isinstance(event, FinishEvent)}
    assert all(same(finished[index], answer) for index, answer in enumerate(expected))


def test_a_turn_that_goes_on_where_an_answer_ended_reads_only_what_is_new() -> None:
    model = tiny.tyler("qwen3")
    engine, other = model.engine(slots=2), ask(tiny.ODD, router=Never())
    engine.keeps_prefixes = True
    first = next(engine.stream([ask(tiny.LONG, router=Never())], streamed=False))
    turn = replace(other, prompt_ids=[*first.trajectory.prompt_ids, *first.trajectory.actions, *tiny.ids(tiny.SHORT)])
    engine.run([other])
    fed = fed_positions(engine)
    (second,) = engine.stream([turn], streamed=False)
    kept = len(first.trajectory.prompt_ids) + len(first.trajectory.actions) - 1
    assert first.cached_tokens == 0 and second.cached_tokens == kept, "the last token was never read"
    assert fed["policy"] <= len(turn.prompt_ids) - kept + len(second.trajectory.actions)
    assert same(second.trajectory, run(model, [turn])[0])


def test_what_was_read_with_older_weights_is_not_kept() -> None:
    model = tiny.build("qwen3", tiny.SEEDS["qwen3"])
    engine, request = model.engine(slots=1), ask(tiny.LONG, router=Never())
    engine.keeps_prefixes = True
    engine.run([request])
    tiny.randomize_lora(model.policy.lora, torch.Generator().manual_seed(3))
    engine.refresh()
    (event,) = engine.stream([request], streamed=False)
    assert event.cached_tokens == 0 and same(event.trajectory, run(model, [request])[0])


def test_prompts_with_different_soft_vectors_are_not_shared() -> None:
    model = tiny.tyler("qwen2")
    draw = torch.Generator().manual_seed(0)
    softs = [SoftPrompt((1, 2), torch.randn(2, 32, generator=draw)) for _ in range(2)]
    requests = [ask(tiny.MEDIUM, router=Never(), soft_prompt=soft) for soft in (softs[0], softs[1], softs[0], None)]
    together, alone = run(model, requests), [run(model, [request])[0] for request in requests]
    assert all(same(first, other) for first, other in zip(together, alone, strict=True))
    assert distance(together[0].logprobs[:1], together[1].logprobs[:1]) > 1e-3
    engine = model.engine(slots=1)
    engine.keeps_prefixes = True
    kept = [engine.run([request])[0] for request in requests]
    assert all(same(first, other) for first, other in zip(kept, alone, strict=True))
