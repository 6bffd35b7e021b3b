"""Replayed log-probabilities are the sampled ones, through the view that is trained."""

import functools
from collections.abc import Sequence
from typing import Any

import pytest
import torch

import tiny
from tyler.engine.request import Request
from tyler.engine.routing import AtBoundaries, Forced, Learned, Never, Router
from tyler.engine.sampling import Sampling
from tyler.engine.trajectory import Trajectory
from tyler.model import Tyler
from tyler.modeling.lora import LoraSettings
from tyler.training.packing import PackedReader
from tyler.training.replay import padded, replay_logprobs

TOLERANCE = 5e-5  # float32 over 0.6: 3e-6 with AVX-512, 1.1e-5 with AVX2 alone


@functools.cache
def eager(family: str) -> Tyler:
    """A model that invokes operators often."""
    return tiny.build(family, tiny.SEEDS[family], psi_scale=0.8)


def sample(
    model: Tyler, temperature: float, *, budget: int | None = None, router: Router | None = None
) -> list[Trajectory]:
    requests = [
        Request(
            prompt_ids=tiny.ids(text),
            router=router or Learned(),
            sampling=Sampling(temperature, seed=seed),
            budget=budget,
            max_new_tokens=28 - 5 * seed,
        )
        for text in tiny.PROMPTS
        for seed in range(2)
    ]
    return model.engine(slots=4).run(requests)


def replay(model: Tyler, trajectories: list[Trajectory]) -> tuple[torch.Tensor, torch.Tensor]:
    return replay_logprobs(model.backbone, model.policy.decoder, model.policy.psi, trajectories)


def largest_gap(model: Tyler, trajectories: list[Trajectory]) -> float:
    logprobs = replay(model, trajectories)[0].detach()
    gaps = [
        abs(float(logprobs[row, place]) - trajectory.logprobs[place])
        for row, trajectory in enumerate(trajectories)
        for place, drawn in enumerate(trajectory.drawn())
        if drawn
    ]
    assert gaps
    return max(gaps)


@pytest.mark.parametrize("temperature, budget", [(1.0, None), (0.6, None), (1.4, 2), (0.0, 1), (1.0, 0)])
@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_replayed_log_probabilities_equal_the_sampled_ones(family: str, temperature: float, budget: int | None) -> None:
    model = eager(family)
    trajectories = sample(model, temperature, budget=budget)
    counts = [trajectory.num_invocations for trajectory in trajectories]
    if budget is None:
        assert sum(counts) >= 4, "operators must occur, or their replay is not tested"
    else:
        assert max(counts) == budget, "the cap must bind, or its mask is not tested"
    assert largest_gap(model, trajectories) < TOLERANCE


@pytest.mark.parametrize("router", [AtBoundaries(), Never(), Forced({0: ("global",), 3: ("state", "procedure")})])
def test_under_a_fixed_router_the_drawn_tokens_replay_and_the_placed_operators_are_left_out(router: Router) -> None:
    model = tiny.tyler("qwen3")
    trajectories = sample(model, 1.0, router=router)
    assert largest_gap(model, trajectories) < TOLERANCE
    for trajectory, logprobs in zip(trajectories, replay(model, trajectories)[0], strict=True):
        placed = torch.tensor(trajectory.is_operator)
        assert not (placed & torch.tensor(trajectory.drawn())).any()
        assert not logprobs[: len(placed)][placed].any()
        assert placed.sum() == trajectory.num_invocations


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_a_prompt_that_answers_share_is_read_once_and_changes_nothing(
    family: str, recompute: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny.build(family, tiny.SEEDS[family], psi_scale=0.8)
    model.policy.add_lora(LoraSettings(rank=4, alpha=8))
    eta = [one for name, one in model.policy.named_parameters() if "lora_" in name]
    for parameter in eta:
        torch.nn.init.normal_(parameter, std=0.05)
    answers = sample(model, 1.0)
    prompt = tiny.ids(max(tiny.PROMPTS, key=len))
    (undrawn,) = model.engine(slots=1).run([Request(prompt, Forced({0: ("state",)}), max_new_tokens=1)])
    assert not any(undrawn.drawn()), "it is read up to its first position alone, and is the last to have its prompt"
    answers = [*answers[::2], *answers[1::2], undrawn]
    read, positions = PackedReader.read, []

    def counting(reader: PackedReader, chunks: Sequence[torch.Tensor], **settings: Any) -> list[torch.Tensor]:
        positions.append(sum(map(len, chunks)))
        return read(reader, chunks, **settings)

    def replayed(parts: Sequence[list[Trajectory]]) -> tuple[torch.Tensor, list[torch.Tensor], int]:
        positions.clear()
        of = model.backbone, model.policy.decoder, model.policy.psi
        found = [replay_logprobs(*of, part, recompute=recompute)[0] for part in parts]
        pairs = [
            (row, one.drawn())
            for rows, part in zip(found, parts, strict=True)
            for row, one in zip(rows, part, strict=True)
        ]
        flat = torch.cat([row[: len(drawn)][torch.tensor(drawn)] for row, drawn in pairs])
        return flat.detach(), list(torch.autograd.grad(flat.square().sum(), eta)), sum(positions)

    monkeypatch.setattr(PackedReader, "read", counting)
    replay_logprobs(model.backbone, model.policy.decoder, model.policy.psi, answers, share_prompts=False)
    assert len(positions) == 1, "processes that share layers read them equally often"
    together, slopes, fewer = replayed([answers])
    alone, expected, more = replayed([[one] for one in answers])
    assert more - fewer == 1 + sum(len(tiny.ids(text)) - 1 for text in tiny.PROMPTS)
    assert (together - alone).abs().max() < 1e-5
    for slope, other in zip(slopes, expected, strict=True):
        assert (slope - other).abs().max() < 1e-4 * max(1.0, float(other.abs().max()))


def test_the_stored_latents_are_what_is_replayed() -> None:
    model = tiny.tyler("qwen3")
    trajectories = sample(model, 1.0)
    assert largest_gap(model, trajectories) < TOLERANCE
    for trajectory in trajectories:
        trajectory.latents = [latents + 0.5 for latents in trajectory.latents]
    assert largest_gap(model, trajectories) > 100 * TOLERANCE


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_in_half_precision_too_the_replay_is_what_was_sampled(dtype: str) -> None:
    """Only what products of other shapes round apart may differ: no adapter is lost, and no logit is rounded."""
    model = Tyler.from_pretrained("mini-tyler", dtype=dtype, device="cpu")
    problems = ["What is 12 + 30?", "Tom has 5 apples and buys 7 more. How many apples does Tom have?"]
    samplings = [Sampling(1.0, seed=seed) for seed in range(8)]
    trajectories = model.solve(problems * 4, sampling=samplings, max_new_tokens=80)
    assert sum(trajectory.num_invocations for trajectory in trajectories) > 8
    sampled, _ = padded([trajectory.logprobs for trajectory in trajectories], model.backbone.device)
    drawn, _ = padded([trajectory.drawn() for trajectory in trajectories], model.backbone.device)
    with torch.no_grad():
        gaps = (replay(model, trajectories)[0] - sampled)[drawn.bool()].abs()
    assert len(gaps) > 200 and float(gaps.mean()) < 0.005


def test_in_bfloat16_on_a_cpu_few_answers_depend_on_those_beside_them() -> None:
    """None did with AMX; other processors may sum products of more rows in another order."""
    model = Tyler.from_pretrained("mini-tyler", dtype="bfloat16", device="cpu")
    problems = [f"What is {first} + {first + 7}?" for first in range(3, 15)]
    together = model.solve(problems, max_new_tokens=40)
    alone = [model.solve(problem, max_new_tokens=40) for problem in problems]
    assert sum(one.actions != other.actions for one, other in zip(together, alone, strict=True)) <= 3
