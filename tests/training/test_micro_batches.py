"""Which rows are read at once: every row once, and by a rule that depends on nothing that changes."""

import subprocess
import sys
from collections.abc import Sequence
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import tiny
from tyler.config.loops import OptimizationConfig
from tyler.modeling.architectures import PUBLISHED
from tyler.modeling.random_init import architecture
from tyler.planning.memory import kept_by_decoder
from tyler.training import micro_batches
from tyler.training.micro_batches import CPU_POSITIONS, LEAST_POSITIONS, MicroBatches, bytes_per_position
from tyler.training.planned import Read, Shape

CONFIG = OptimizationConfig(epochs=1.0)


def read(lengths: Sequence[int], part: Sequence[int]) -> int:
    return sum(lengths[place] for place in part)


def test_micro_batches_begin_with_the_longest_and_have_each_row_once() -> None:
    lengths = [5, 90, 7, 80, 6, 85, 100]
    parts = MicroBatches(3).split(lengths)
    assert parts == [[6, 1, 5], [3, 2, 4], [0]]


def test_behind_the_longest_come_the_others_of_its_group() -> None:
    lengths, groups = [5, 90, 7, 80, 6, 85, 100], ["a", "b", "a", "c", "c", "b", "a"]
    assert MicroBatches(2).split(lengths, groups) == [[6, 2], [0, 1], [5, 3], [4]]
    assert MicroBatches(7).split(lengths, groups) == [[0, 1, 2, 3, 4, 5, 6]]


def test_a_batch_that_fits_at_once_keeps_its_order() -> None:
    for rule in (MicroBatches(3), MicroBatches(), MicroBatches(positions=63)):
        assert rule.split([20, 21, 20]) == [[0, 1, 2]]
        assert rule.split([]) == []


def test_a_micro_batch_of_tokens_ends_before_it_is_too_large() -> None:
    assert MicroBatches(positions=40).split([20, 21, 20]) == [[1], [0, 2]]
    assert MicroBatches(positions=250).split([100, 91, 90, 50, 10]) == [[0, 1], [2, 3, 4]]
    assert MicroBatches(positions=40).split([1000, 20, 19]) == [[0], [1, 2]], "a row is never cut"


@given(st.lists(st.integers(1, 600), max_size=40), st.integers(1, 2000))
def test_micro_batches_of_tokens_stay_within_their_bounds_and_lose_no_row(lengths: list[int], positions: int) -> None:
    parts = MicroBatches(positions=positions).split(lengths)
    assert sorted(place for part in parts for place in part) == list(range(len(lengths)))
    for part in parts:
        if len(part) > 1:
            assert read(lengths, part) <= positions
    longest = [max(lengths[place] for place in part) for part in parts]
    assert longest == sorted(longest, reverse=True)


def test_rows_of_one_length_are_counted_as_they_are_cut() -> None:
    for rule in (MicroBatches(), MicroBatches(3), MicroBatches(positions=350), MicroBatches(positions=20)):
        assert rule.rows_at_once(100, 8) == len(rule.split([100] * 8)[0])


def test_a_rule_without_a_limit_takes_the_one_that_it_is_given() -> None:
    assert MicroBatches().or_rows(5) == MicroBatches(5)
    assert MicroBatches(2).or_rows(5) == MicroBatches(2)
    assert MicroBatches(positions=9).or_rows(5) == MicroBatches(positions=9)


def test_the_config_says_what_is_read_at_once() -> None:
    backbone = tiny.build_backbone("qwen2", 0)

    def rule(**settings: object) -> MicroBatches:
        return MicroBatches.of(CONFIG.model_copy(update=settings), backbone)

    assert rule() == MicroBatches()
    assert rule(micro_batch_size=3) == MicroBatches(3)
    assert rule(micro_batch_tokens=100) == MicroBatches(positions=100)
    assert rule(micro_batch_tokens="auto") == MicroBatches(positions=CPU_POSITIONS)


def test_on_a_gpu_auto_follows_its_memory_and_the_model_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    config = architecture("Qwen/Qwen3-4B")
    weights = [SimpleNamespace(nbytes=8 * 10**9)]
    model = SimpleNamespace(config=config, parameters=lambda: weights)
    backbone = SimpleNamespace(device=torch.device("cuda"), dtype=torch.bfloat16, model=model)

    def positions(gigabytes: int, checkpointing: bool) -> int:
        properties = SimpleNamespace(total_memory=gigabytes * 10**9)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
        return micro_batches.automatic(backbone, checkpointing)  # type: ignore[arg-type]

    found = positions(80, False)
    assert found & (found - 1) == 0, "a power of two"
    assert found * bytes_per_position(config, 2, False) <= 36 * 10**9 < 2 * found * bytes_per_position(config, 2, False)
    assert positions(24, False) < found < positions(80, True)
    assert positions(9, False) == LEAST_POSITIONS, "no less where hardly anything is free"


@pytest.mark.parametrize("id", PUBLISHED)
@pytest.mark.parametrize("checkpointing", [False, True])
def test_the_bytes_of_a_position_are_near_those_of_the_plan(id: str, checkpointing: bool) -> None:
    config = architecture(id)
    read = Read(rows=4, length=512, keys=512, masked=False)
    both = 2 * kept_by_decoder(Shape.of(config), read, 2, None, checkpointing)
    assert both / 2 < read.positions * bytes_per_position(config, 2, checkpointing) < 4 * both


def test_the_rule_needs_no_torch() -> None:
    code = "import sys, tyler.training.micro_batches; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
