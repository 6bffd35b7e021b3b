"""Drawing an action: the right distribution, the right filters, one stream per request."""

from typing import Any

import numpy as np
import pytest
import torch

from tyler.engine.sampling import NEVER, Sampling, choose, filter_logits, invert, likeliest_of, masked_logits


def test_extreme_numbers_never_pick_an_impossible_action() -> None:
    logits = torch.tensor([[NEVER, NEVER, 0.3, NEVER, -2.0, NEVER, NEVER]]).expand(2, -1)
    numbers = torch.tensor([0.0, 1 - 2.0**-53], dtype=torch.float64)
    assert invert(logits.softmax(-1), numbers).tolist() == [2, 4]


def test_a_million_actions_cost_no_precision() -> None:
    """In float32 the cumulative sum of many small probabilities drifts by far more than one action."""
    size = 300_000
    numbers = torch.tensor([[0.25], [0.5], [0.999]], dtype=torch.float64)
    drawn = invert(torch.zeros(3, size).softmax(-1), numbers[:, 0])
    assert all(
        abs(index - number * size) <= 1 for index, number in zip(drawn.tolist(), (0.25, 0.5, 0.999), strict=True)
    )


def plain_draw(logits: torch.Tensor, sampling: Sampling, uniform: float) -> int:
    """Top-k, top-p, softmax and cumulative sum in float64, over the whole vocabulary."""
    ordered, order = logits.double().sort(descending=True, stable=True)
    ordered[sampling.top_k or len(logits) :] = NEVER
    before = ordered.softmax(-1).cumsum(-1) - ordered.softmax(-1)
    if sampling.top_p < 1:
        ordered[1:][before[1:] >= sampling.top_p] = NEVER
    cumulative = torch.full_like(ordered, NEVER).scatter(0, order, ordered).softmax(-1).cumsum(-1)
    return int(torch.searchsorted(cumulative, uniform * cumulative[-1], right=True))


@pytest.mark.parametrize("size", [40, 512, 1024, 5000])
@pytest.mark.parametrize("flat", [0.01, 3.0])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"top_k": 50},
        {"top_p": 0.9},
        {"top_k": 1500, "top_p": 0.99},
        {"top_p": 0.999},
        {"top_k": 1, "top_p": 1e-6},
        {"top_p": 1e-46},
    ],
    ids=str,
)
def test_a_search_in_two_levels_draws_what_the_plain_way_draws(
    size: int, flat: float, settings: dict[str, float]
) -> None:
    """The filters' edge is beyond the likeliest actions for `flat` logits, among them for others."""
    generator = torch.Generator().manual_seed(size)
    logits = torch.randn(30, size, generator=generator) * flat
    sampling = Sampling(1.0, **settings)  # type: ignore[arg-type]
    uniforms = torch.rand(30, generator=generator).tolist()
    actions, _ = choose(logits.clone(), [sampling] * 30, uniforms)
    expected = [plain_draw(row, sampling, uniform) for row, uniform in zip(logits, uniforms, strict=True)]
    assert actions.tolist() == expected


def test_actions_that_tie_at_the_filters_edge_are_kept_by_their_number() -> None:
    logits = torch.zeros(1, 3000)
    kept = filter_logits(logits, [Sampling(1.0, top_k=1200)])
    assert torch.nonzero(kept[0] > NEVER).flatten().tolist() == list(range(1200))
    assert torch.equal(filter_logits(logits[:, :2000], [Sampling(1.0, top_k=7)])[0, :8] > NEVER, torch.arange(8) < 7)


def test_rows_are_drawn_by_their_own_settings() -> None:
    logits = torch.tensor([0.0, 3.0, 1.0, 2.9]).expand(4, -1).clone()
    settings = [Sampling(), Sampling(1.0), Sampling(1.0, top_k=1), Sampling(1.0, top_p=0.5)]
    actions, _ = choose(logits, settings, [0.999, 0.999, 0.999, 0.999])
    assert actions.tolist() == [1, 3, 1, 3]
    for row, sampling in enumerate(settings):
        alone, _ = choose(logits[row : row + 1], [sampling], [0.999])
        assert alone.item() == actions[row].item()


@pytest.mark.parametrize("beside", [Sampling(1.0, top_k=2), Sampling(1.0, top_p=0.9)])
def test_the_unlikeliest_actions_stay_possible_beside_filtered_rows(beside: Sampling) -> None:
    logits = torch.cat([torch.zeros(1), torch.full((40,), -15.0)]).expand(2, -1)
    plain, _ = filter_logits(logits, [Sampling(1.0), beside])
    assert torch.equal(plain, logits[0])
    assert choose(logits.clone(), [Sampling(1.0), beside], [1 - 2.0**-18, 0.5])[0][0] > 0


def test_a_top_k_beyond_every_vocabulary_filters_nothing() -> None:
    logits = torch.randn(1, 12)
    assert torch.equal(filter_logits(logits, [Sampling(1.0, top_k=10**30)]), logits)


@pytest.mark.parametrize("scales", [(1.0, 1.0), (0.5, 1.0)])
@pytest.mark.parametrize("allowed", [((), ()), ((False,), (False,)), ((True,),) * 2, ((True, False), (False, True))])
def test_what_need_not_be_masked_is_what_masking_leaves(
    allowed: tuple[tuple[bool, ...], ...], scales: tuple[float, ...]
) -> None:
    count = len(allowed[0])
    logits = torch.randn(2, 5 + count)
    before = logits.clone()
    plain = logits / torch.tensor(scales)[:, None]
    for row, operators in enumerate(allowed):
        plain[row, 5:] = plain[row, 5:].masked_fill(~torch.tensor(operators, dtype=torch.bool), NEVER)
    masked = masked_logits(logits, 5, allowed, scales)
    assert torch.equal(masked, plain[:, : masked.shape[1]]) and (plain[:, masked.shape[1] :] == NEVER).all()
    assert torch.equal(logits, before)


def test_the_first_of_the_likeliest_is_taken_and_a_number_that_is_none_is_found() -> None:
    logits = torch.tensor([[0.0, 3.0, 3.0], [1.0, float("nan"), 5.0], [NEVER, NEVER, -1.0]])
    assert likeliest_of(logits).tolist() == [1, 1, 2] == logits.argmax(dim=-1).tolist()


def test_streams_depend_on_the_seed_and_the_purpose_alone() -> None:
    numbers = Sampling(0.3, top_k=4, seed=5).stream(0).random(4).tolist()
    assert numbers == Sampling(1.0, seed=5).stream(0).random(4).tolist()
    assert numbers != Sampling(1.0, seed=5).stream(1).random(4).tolist()
    assert numbers != Sampling(1.0, seed=6).stream(0).random(4).tolist()


@pytest.mark.parametrize(
    "settings",
    [
        *({"temperature": value} for value in (-0.1, float("nan"), float("inf"), 1e-40, 9e-7, True, "0.7", None)),
        *({"top_k": value} for value in (-1, 1.5, True, "3")),
        *({"top_p": value} for value in (0.0, 1.1, float("nan"), "1", True)),
        *({"seed": value} for value in (-3, 1.0, None)),
    ],
    ids=lambda settings: next(iter(settings)) + "=" + str(next(iter(settings.values()))),
)
def test_impossible_settings_are_refused_by_name_with_what_is_possible(settings: dict[str, Any]) -> None:
    (name, value) = next(iter(settings.items()))
    with pytest.raises(ValueError, match=rf"{name}={value!r}; it must be"):
        Sampling(**settings)


def test_the_extremes_that_are_possible_are_taken() -> None:
    assert Sampling(1e-6).temperature == 1e-6 and Sampling(1e300).scale == 1e300
    assert Sampling(np.float32(0.5), top_k=np.int64(3), seed=np.uint64(2**63)).top_k == 3
