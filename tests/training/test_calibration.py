"""The start of psi: operators at `rate` where their rules propose them, and next to never elsewhere."""

import math

import pytest
import torch
from torch import Tensor

import tiny
from tyler.config import sizes
from tyler.config.loops import CalibrationConfig, GrpoConfig, Stage2Config
from tyler.config.schema import Config
from tyler.model import Tyler
from tyler.training import calibration
from tyler.training.calibration import (
    NO_OPERATOR,
    Decisions,
    boundary_requests,
    calibration_report,
    collect_decisions,
    fit_psi,
    operator_logprobs,
)

NAMES = [operator.name for operator in tiny.OPERATORS]


def collect(model: Tyler, seed: int = 0, temperature: float = 1.0) -> Decisions:
    settings = Stage2Config(max_new_tokens=40, seed=seed)
    config = Config(operators=tiny.OPERATORS, stage2=settings, grpo=GrpoConfig(temperature=temperature))
    return collect_decisions(model, model.shared_engine.run(boundary_requests(model, tiny.PROMPTS * 4, config)))


def separable(count: int = 600, dim: int = 16) -> Decisions:
    """States that show which operator is proposed, after a big model's fashion: noise plus a direction for each."""
    draw = torch.Generator().manual_seed(0)
    operator = torch.randint(-1, 3, (count,), generator=draw)
    operator[torch.rand(count, generator=draw) < 0.6] = NO_OPERATOR
    directions = 3 * torch.nn.functional.one_hot(operator + 1, dim).float()
    hidden = torch.randn(count, dim, generator=draw) * 0.1 + directions
    return Decisions(hidden, 10 + 0.1 * torch.randn(count, generator=draw), operator)


def probabilities(decisions: Decisions, psi: Tensor) -> Tensor:
    """p(O_k | x) over V' at temperature 1, from the definition."""
    rows = []
    for hidden, token_mass in zip(decisions.hidden, decisions.token_mass, strict=True):
        weights = [math.exp(float(hidden @ row)) for row in psi] + [math.exp(float(token_mass))]
        rows.append([weight / sum(weights) for weight in weights[:-1]])
    return torch.tensor(rows)


@pytest.mark.parametrize("rate", [0.1, 0.3])
def test_operators_reach_the_rate_where_proposed_and_next_to_none_elsewhere(rate: float) -> None:
    decisions = separable()
    psi = fit_psi(decisions, 3, CalibrationConfig(rate=rate))
    found = probabilities(decisions, psi)
    for k in range(3):
        at = decisions.operator == k
        assert found[at, k].mean() == pytest.approx(rate, abs=0.03)
        assert found[at].sum(dim=1).mean() == pytest.approx(rate, abs=0.04), "the others stay out"
        assert found[at, k].std() < 0.1, "each of them, not a few for all"
    assert found[decisions.operator == NO_OPERATOR].sum(dim=1).mean() < 0.02


def test_psi_minimises_the_cross_entropy() -> None:
    decisions = separable(200)
    config = CalibrationConfig(rate=0.3)
    psi = fit_psi(decisions, 3, config)

    def loss(psi: Tensor) -> float:
        total = 0.0
        for row, operator in zip(probabilities(decisions, psi).double(), decisions.operator.tolist(), strict=True):
            tokens = 1 - float(row.sum())
            total -= (1.0 if operator == NO_OPERATOR else 0.7) * math.log(tokens)
            total -= 0.0 if operator == NO_OPERATOR else 0.3 * math.log(float(row[operator]))
        return total / len(decisions.operator) + config.weight_decay * float(psi.pow(2).sum())

    best = loss(psi)
    draw = torch.Generator().manual_seed(1)
    for _ in range(5):
        step = torch.randn(psi.shape, generator=draw)
        assert loss(psi + 0.1 * step / step.norm() * psi.norm()) > best
    assert loss(0.95 * psi) > best and loss(1.05 * psi) > best


def test_on_a_tiny_model_the_calibrated_policy_fires_at_boundaries_and_rarely_elsewhere() -> None:
    model = tiny.build("qwen3", tiny.SEEDS["qwen3"]).at_stage("stage1")
    decisions = collect(model)
    psi = fit_psi(decisions, 3, CalibrationConfig(rate=0.3))
    report = calibration_report(decisions, psi, NAMES)
    found = probabilities(decisions, psi)
    for k, name in enumerate(NAMES):
        at = decisions.operator == k
        assert at.sum() >= 10, "the operator must be proposed often enough"
        assert report[f"calibration/{name}_at_boundaries"] == pytest.approx(float(found[at, k].mean()), abs=1e-4)
    assert 0.25 < report["calibration/global_at_boundaries"] < 0.35
    assert 0.08 < report["calibration/state_at_boundaries"] < 0.35
    assert 0.04 < report["calibration/procedure_at_boundaries"] < 0.35, "random models do not foresee their next token"
    elsewhere = float(found[decisions.operator == NO_OPERATOR].sum(dim=1).mean())
    assert report["calibration/elsewhere"] == pytest.approx(elsewhere, abs=1e-4)
    assert elsewhere < 0.03
    assert set(report) == {"calibration/elsewhere", *(f"calibration/{name}_at_boundaries" for name in NAMES)}


def test_decisions_are_the_states_of_the_frozen_policy_with_its_token_mass() -> None:
    model = tiny.build("qwen3", tiny.SEEDS["qwen3"]).at_stage("stage1")
    decisions = collect(model)
    assert len(decisions.hidden) == len(decisions.token_mass) == len(decisions.operator)
    expected = (decisions.hidden @ model.backbone.head.T).logsumexp(dim=-1)
    torch.testing.assert_close(decisions.token_mass, expected, atol=1e-4, rtol=0)
    prompt = model.request(tiny.SHORT).prompt_ids
    with torch.no_grad():
        ids = torch.tensor([list(prompt)])
        first = model.backbone.model(ids, output_hidden_states=True, use_cache=False).hidden_states[-1][0, -1]
    torch.testing.assert_close(decisions.hidden[0], first, atol=1e-5, rtol=0)
    assert decisions.operator[0] == NAMES.index("global"), "an answer starts with O_g"


def test_no_more_logits_exist_at_a_time_than_promised(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny.build("qwen3", tiny.SEEDS["qwen3"]).at_stage("stage1")
    whole, rows, head = collect(model), [], model.backbone.head
    linear = torch.nn.functional.linear

    def counted(states: Tensor, weight: Tensor, *bias: Tensor) -> Tensor:
        if weight is head:
            rows.append(states.numel() // states.shape[-1])
        return linear(states, weight, *bias)

    monkeypatch.setattr(sizes, "MAX_LOGITS", 4 * len(head))
    monkeypatch.setattr(calibration.nn.functional, "linear", counted)
    found = collect(model)
    monkeypatch.undo()
    assert len(found.token_mass) > 4 >= max(rows[-2:]) > 0
    torch.testing.assert_close(found.token_mass, whole.token_mass, atol=1e-5, rtol=0)
    assert torch.equal(found.operator, whole.operator)


def test_an_operator_that_is_never_proposed_is_reported_as_unknown_and_stays_rare() -> None:
    decisions = separable()
    decisions = Decisions(decisions.hidden, decisions.token_mass, decisions.operator.where(decisions.operator != 1, -1))
    psi = fit_psi(decisions, 3, CalibrationConfig())
    assert math.isnan(calibration_report(decisions, psi, NAMES)["calibration/state_at_boundaries"])
    assert operator_logprobs(decisions, psi)[0][:, 1].exp().mean() < 0.01
