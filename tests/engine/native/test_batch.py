"""Rows that start from one prompt read it once, in both streams."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests import reference, tiny
from tests.asking import ask, differences, distance, run, same
from torch import Tensor

from tyler.engine.native.engine import Engine
from tyler.engine.request import SoftPrompt
from tyler.engine.routing import Forced, Never
from tyler.engine.sampling import Sampling


def fed_positions(engine: Engine) -> dict[str, int]:
    """Counts the positions that go through each decoder from now on."""
    fed = {"policy": 0, "synthesizer": 0}
    for name, reader in (("policy", engine.batch.policy_reader), ("synthesizer", engine.batch.synthesis_reader)):

        def counted(rows: range, positions: Tensor, name: str = name, inputs: Any = reader.inputs) -> Tensor:
            fed[name] += positions.numel()
            return inputs(rows, positions)

        reader.inputs = counted  # type: ignore[method-assign]
    return fed


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_a_group_reads_its_prompt_once_in_both_streams(family: str) -> None:
    model = tiny.tyler(family)
    requests = [ask(tiny.LONG, router=Forced({0: ("global",), 3: ("state",)}), max_new_tokens=6)] * 4
    engine = model.engine(slots=4)
    fed = fed_positions(engine)
    answers = engine.run(requests)
    length = len(requests[0].prompt_ids)
    longest = max(len(one.actions) + one.num_latents for one in answers)
    assert fed["policy"] <= length + 4 * longest
    assert fed["synthesizer"] <= length + 4 * (longest + 8)
    assert not differences(answers[3], reference.decode(model, requests[0]))


@pytest.mark.parametrize("slots", [2, 5, 9])
def test_rollouts_of_a_group_are_what_each_would_be_alone(slots: int) -> None:
    model = tiny.tyler("qwen3")
    texts = [tiny.MEDIUM, tiny.LONG, tiny.MEDIUM, tiny.MEDIUM, tiny.LONG, tiny.ODD, tiny.MEDIUM, tiny.LONG, tiny.SHORT]
    requests = [ask(text, sampling=Sampling(1.0, seed=seed)) for seed, text in enumerate(texts)]
    alone = [run(model, [request], slots=1)[0] for request in requests]
    for one, other in zip(alone, run(model, requests, slots, coalesce=2), strict=True):
        assert same(one, other)


def test_prompts_with_different_soft_vectors_are_not_shared() -> None:
    model = tiny.tyler("qwen2")
    draw = torch.Generator().manual_seed(0)
    softs = [SoftPrompt((1, 2), torch.randn(2, 32, generator=draw)) for _ in range(2)]
    requests = [ask(tiny.MEDIUM, router=Never(), soft_prompt=soft) for soft in (softs[0], softs[1], softs[0], None)]
    together, alone = run(model, requests), [run(model, [request])[0] for request in requests]
    assert all(same(one, other) for one, other in zip(together, alone, strict=True))
    assert distance(together[0].logprobs[:1], together[1].logprobs[:1]) > 1e-3
