"""Slots are made once, as large as the memory allows, and no answer changes for it."""

from dataclasses import replace

import psutil
import pytest
import torch
from tests import tiny
from tests.asking import ACTIONS, CASES, ask, run, same

from tyler.engine.native import cache
from tyler.engine.native.cache import Room, bytes_of_position
from tyler.engine.routing import Never
from tyler.engine.sampling import Sampling

LONGEST = 5
"""Latents of the tiny models' longest operator."""


def size_of_position() -> int:
    return bytes_of_position(tiny.tyler("qwen3").backbone)


@pytest.mark.parametrize("rows", [1, 2, 3])
def test_requests_wait_for_slots_and_answers_do_not_change(rows: int) -> None:
    model = tiny.tyler("qwen3")
    requests = [replace(request, max_new_tokens=min(request.max_new_tokens, ACTIONS)) for request in CASES.values()]
    memory = rows * 256 * size_of_position()
    engine = model.engine(slots=8, memory=memory, positions=230)
    assert engine.room.slots == rows and engine.room.capacity == 230 + LONGEST
    held = sum(reader.cache.keys.nbytes + reader.cache.values.nbytes for reader in (engine.policy_reader,) * 2)
    assert held + engine.context.embeds.nbytes <= memory
    answers = engine.run(requests)
    assert all(same(expected, other) for expected, other in zip(run(model, requests), answers, strict=True))


def test_memory_is_divided_among_the_slots_that_are_asked_for() -> None:
    backbone, size = tiny.tyler("qwen3").backbone, size_of_position()
    assert Room.of(backbone, 4, 400 * size, None) == Room(4, 100, size)
    assert Room.of(backbone, 4, 400 * size, 150) == Room(2, 150, size), "fewer where each needs more"
    assert Room.of(backbone, 2, 10**12, 9) == Room(2, tiny.MAX_POSITIONS, size), "no slot is longer than the context"


def test_what_never_fits_the_memory_is_refused() -> None:
    model, size = tiny.tyler("qwen3"), size_of_position()
    with pytest.raises(ValueError, match=r"up to 105 positions needs [\d,]+ bytes.*memory=[\d,]+; lower"):
        model.engine(slots=2, memory=64 * size, positions=100)
    engine = model.engine(slots=2, memory=128 * size)
    with pytest.raises(ValueError, match=r"max_new_tokens=100 may reach .* and each of 2 slots has 64; lower"):
        engine.add_request(ask(tiny.SHORT, max_new_tokens=100))
    assert len(engine.run([ask(tiny.SHORT, max_new_tokens=20, router=Never())])[0].actions) <= 20
    with pytest.raises(ValueError, match="memory=0"):
        model.engine(memory=0)


def test_an_answer_whose_latents_outgrow_its_slot_says_so() -> None:
    model = tiny.build("smollm3", tiny.SEEDS["smollm3"], psi_scale=5.0)
    request = ask(tiny.SHORT, max_new_tokens=16)
    whole = run(model, [request])[0]
    assert whole.num_latents > 2 * 16, "or the test shows nothing"
    engine = model.engine(slots=1, memory=(request.reach + LONGEST) * size_of_position(), positions=request.reach)
    (cut,) = engine.run([request])
    assert (cut.finish_reason, cut.limited_by) == ("length", "memory")
    assert cut.actions == whole.actions[: len(cut.actions)] and len(cut.actions) < len(whole.actions)


def test_slots_that_nobody_reaches_take_no_memory() -> None:
    """256 MiB of zeros that are never written."""
    process = psutil.Process()
    before = process.memory_info().rss
    zeros = Room(64, 1024, 1).zeros(4, (1024, 256), torch.float32, torch.device("cpu"))
    assert zeros.shape == (4, 64, 1024, 256) and bool((zeros[0, 3, 5] == 0).all())
    assert process.memory_info().rss - before < 2**25


def test_two_thousand_requests_leave_nothing_behind() -> None:
    engine = tiny.tyler("qwen3").engine(slots=32)
    engine.keeps_prefixes = True
    many = [ask(tiny.SHORT, budget=1, sampling=Sampling(1.0, seed=seed), max_new_tokens=3) for seed in range(2000)]
    process, held = psutil.Process(), []
    for first in range(0, len(many), 500):
        assert len(engine.run(many[first : first + 500])) == 500
        held.append(process.memory_info().rss)
    assert held[-1] - held[0] < 2**23
    assert not engine.rows and len(engine._kept) == 32 and sorted(engine._free) == list(range(32))


def test_memory_that_is_not_there_is_named_with_what_changes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(*arguments: int, **flags: int) -> None:
        raise OSError("Cannot allocate memory")

    monkeypatch.setattr(cache.mmap, "mmap", none_left)
    with pytest.raises(MemoryError, match=r"[\d,]+ bytes for 3 slots of 256 positions.*lower memory or slots"):
        tiny.tyler("qwen3").engine(slots=3)
