"""The lens measures what replacing a block changes, and shows nothing where there is nothing."""

from __future__ import annotations

import json

import pytest
import torch

from tyler.analysis.lens import REPLACEMENTS, Forced, enough, interchange, read_blocks, with_block
from tyler.analysis.survey import bootstrap, others_of, survey
from tyler.engine.routing import AtBoundaries
from tyler.engine.trajectory import Trajectory
from tyler.model import Tyler
from tyler.tasks import load_problems

PROBLEMS = [problem.prompt for problem in load_problems("mini", "dev", count=6)]


@pytest.fixture(scope="module")
def model() -> Tyler:
    return Tyler.from_pretrained("mini-tyler")


@pytest.fixture(scope="module")
def answers(model: Tyler) -> list[Trajectory]:
    return model.solve(PROBLEMS, router=AtBoundaries(only=("global",)), max_new_tokens=160)


def test_teacher_forcing_gives_the_log_probabilities_of_decoding(model: Tyler, answers: list[Trajectory]) -> None:
    forced = Forced.of(model, answers[0], 0)
    found = forced.logprobs.gather(1, forced.tokens[:, None])[:, 0]
    decoded = [
        logprob
        for logprob, is_operator in zip(answers[0].logprobs, answers[0].is_operator, strict=True)
        if not is_operator
    ]
    assert found.tolist() == pytest.approx(decoded, abs=1e-3)


def test_a_block_in_its_own_place_changes_nothing(model: Tyler, answers: list[Trajectory]) -> None:
    truth = Forced.of(model, answers[0], 0)
    effect = truth.effect(Forced.of(model, with_block(answers[0], 0, answers[0].latents[0].clone()), 0))
    assert (effect.divergence, effect.loss, effect.flipped) == pytest.approx((0, 0, 0), abs=1e-6)


def test_the_divergence_is_the_sum_over_the_vocabulary(model: Tyler, answers: list[Trajectory]) -> None:
    truth = Forced.of(model, answers[0], 0)
    other = Forced.of(model, with_block(answers[0], 0, torch.zeros_like(answers[0].latents[0])), 0)
    slow = sum(
        float(p.exp() * (p - q))
        for row, changed in zip(truth.logprobs, other.logprobs, strict=True)
        for p, q in zip(row, changed, strict=True)
    )
    assert truth.effect(other).divergence == pytest.approx(slow / len(truth.tokens), rel=1e-3, abs=1e-6)


def test_every_block_is_read_with_every_control(model: Tyler, answers: list[Trajectory]) -> None:
    (reading,) = read_blocks(model, answers[0], others_of(answers, answers[0]))
    assert (reading.operator, reading.position, reading.num_latents) == ("global", 0, 8)
    assert tuple(reading.effects) == REPLACEMENTS
    assert len(reading.readouts) == 8 and 0 <= reading.enough <= 8
    for readout in reading.readouts:
        scores = [score for _, score in readout.likeliest]
        assert scores == sorted(scores, reverse=True) and 0 < scores[0] <= 1
    json.dumps(reading.to_dict())


def test_enough_latents_keep_every_token(model: Tyler, answers: list[Trajectory]) -> None:
    truth = Forced.of(model, answers[0], 0)
    fewest = enough(model, answers[0], 0, truth)
    kept = with_block(answers[0], 0, answers[0].latents[0][:fewest])
    assert truth.effect(Forced.of(model, kept, 0)).flipped == 0


def test_noise_follows_from_the_seed(model: Tyler, answers: list[Trajectory]) -> None:
    others = others_of(answers, answers[0])
    first, again = (read_blocks(model, answers[0], others, seed=3)[0].effects["noise"] for _ in range(2))
    assert first == again != read_blocks(model, answers[0], others, seed=4)[0].effects["noise"]


def test_means_hurt_less_than_zeros_on_mini(model: Tyler) -> None:
    """What the study on mini found by hand: most of what the global operator says, it always says."""
    found = survey(model, PROBLEMS, router=AtBoundaries(only=("global",)), max_new_tokens=160)
    effects = found.effects["global"]
    assert found.num_problems == len(PROBLEMS)
    assert effects["means"].mean < effects["zeros"].mean
    assert effects["zeros"].low <= effects["zeros"].mean <= effects["zeros"].high


def test_a_block_carries_over_nothing_when_it_is_the_receivers_own(model: Tyler, answers: list[Trajectory]) -> None:
    tokens = [one.actions[-4] for one in answers]  # the last of the number in the box
    second = next(place for place, token in enumerate(tokens) if token != tokens[0])
    asked = (tokens[0], tokens[second])
    lent = with_block(answers[second], 0, answers[0].latents[0])
    assert interchange(model, answers[0], lent, 0, asked) == pytest.approx(0, abs=1e-5)
    assert interchange(model, answers[0], answers[second], 0, asked) != 0


def test_an_answer_without_operators_is_refused(model: Tyler) -> None:
    plain = model.solve(PROBLEMS[0], budget=0, max_new_tokens=20)
    with pytest.raises(ValueError, match="invoked no operator; give a router that does"):
        read_blocks(model, plain, {})


def test_a_lens_without_other_problems_is_refused(model: Tyler, answers: list[Trajectory]) -> None:
    with pytest.raises(ValueError, match="no latents of other problems for global"):
        read_blocks(model, answers[0], {"global": []})


def test_the_bootstrap_brackets_the_mean() -> None:
    estimate = bootstrap([0.0, 1.0] * 50)
    assert estimate.mean == 0.5 and 0.38 < estimate.low < 0.45 and 0.55 < estimate.high < 0.62
    assert bootstrap([2.0, 2.0]) == bootstrap([2.0, 2.0])
    with pytest.raises(ValueError, match="nothing to average"):
        bootstrap([])
