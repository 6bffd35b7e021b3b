"""Each objective against the paper's sums written as Python loops, in float64."""

import dataclasses
import math
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from allocations import Allocations
from tyler.config.loops import ObjectiveConfig
from tyler.config.sizes import positions_at_once
from tyler.training.objectives import chosen_logprobs, stage1_loss, stage1_sum, token_logprobs
from tyler.training.policy_losses import (
    ActionWeights,
    AnchoredLoss,
    anchor_loss,
    clipped_actions,
    clipped_surrogate,
    importance_ratio,
    kl_k3,
    trajectory_weights,
)

EPSILON, BETA, ALPHA = 0.2, 0.03, 0.1


def stage2_loss(logprobs, old, reference, advantages, weights, **settings) -> SimpleNamespace:
    """The terms of the paper's loss, answered by the learner itself."""
    objective = ObjectiveConfig(clip_range=settings.pop("clip_range", EPSILON), correction="none")
    loss = AnchoredLoss(objective, **settings)
    return SimpleNamespace(**loss(logprobs, old, old, reference, advantages, weights))


def action_weights(mask: Tensor, operator_mask: Tensor, groups: Tensor, dtype=torch.float32) -> ActionWeights:
    """The paper's weights, of answers that all have a reward."""
    return AnchoredLoss(ObjectiveConfig()).weights(
        mask, operator_mask, groups, torch.ones(len(mask), dtype=torch.bool), dtype=dtype
    )


@dataclass
class Case:
    """A random Stage 2 batch: ragged trajectories in groups, with some invocations."""

    logprobs: Tensor
    old: Tensor
    reference: Tensor
    advantages: Tensor
    mask: Tensor
    operator_mask: Tensor
    group_ids: Tensor

    def weights(self) -> ActionWeights:
        return action_weights(self.mask, self.operator_mask, self.group_ids, torch.float64)

    def terms(self) -> SimpleNamespace:
        return stage2_loss(
            self.logprobs,
            self.old,
            self.reference,
            self.advantages,
            self.weights(),
            clip_range=EPSILON,
            kl_weight=BETA,
            anchor_weight=ALPHA,
        )


def make_case(seed: int = 0, group_ids: tuple[int, ...] = (7, 7, 7, 3, 3, 3, 5, 5), num_actions: int = 9) -> Case:
    draw = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=draw)

    batch = len(group_ids)
    lengths = torch.randint(1, num_actions + 1, (batch,), generator=draw)
    mask = torch.arange(num_actions) < lengths[:, None]
    operator_mask = mask & (torch.rand(batch, num_actions, generator=draw) < 0.3)
    operator_mask[torch.tensor(group_ids) == 5] = False
    logprobs = -normal(batch, num_actions).abs()
    return Case(
        logprobs=logprobs.requires_grad_(),
        old=logprobs.detach() + 0.4 * normal(batch, num_actions),
        reference=logprobs.detach() + 0.4 * normal(batch, num_actions),
        advantages=normal(batch),
        mask=mask,
        operator_mask=operator_mask,
        group_ids=torch.tensor(group_ids),
    )


def paper_group(case: Case, rows: list[int]) -> tuple[float, float, float]:
    """L_GRPO, L_anch and the KL of one group, as the appendix writes them."""
    grpo = anchor = divergence = 0.0
    num_invocations = sum(int(case.operator_mask[i].sum()) for i in rows)
    for i in rows:
        actions = [j for j in range(case.mask.shape[1]) if case.mask[i, j]]
        for j in actions:
            p, advantage = case.logprobs[i, j].item(), case.advantages[i].item()
            ratio = math.exp(p - case.old[i, j].item())
            clipped = min(max(ratio, 1 - EPSILON), 1 + EPSILON)
            surrogate = min(ratio * advantage, clipped * advantage)
            log_ratio = case.reference[i, j].item() - p
            kl = math.exp(log_ratio) - log_ratio - 1
            grpo -= surrogate / len(actions) / len(rows)
            divergence += kl / len(actions) / len(rows)
            if case.operator_mask[i, j]:
                anchor -= surrogate / num_invocations
    return grpo + BETA * divergence, anchor, divergence


def paper_batch(case: Case) -> tuple[float, float, float]:
    groups = [
        [i for i, g in enumerate(case.group_ids.tolist()) if g == group] for group in set(case.group_ids.tolist())
    ]
    parts = [paper_group(case, rows) for rows in groups]
    grpo, anchor, divergence = (sum(part) / len(groups) for part in zip(*parts, strict=True))
    return grpo, anchor, divergence


# --------------------------------------------------------------------------------------------- Stage 1


def test_stage1_is_the_sum_over_visible_targets_as_in_the_paper():
    logprobs = torch.tensor([[-1.0, -2.0, -4.0], [-8.0, -16.0, -32.0]])
    mask = torch.tensor([[True, False, True], [False, True, False]])
    assert stage1_sum(logprobs, mask).item() == 21.0
    assert stage1_loss(logprobs, mask, num_targets=3).item() == 7.0


def test_stage1_ignores_whatever_lies_outside_the_mask():
    logprobs = torch.tensor([-1.0, math.nan, -math.inf], requires_grad=True)
    loss = stage1_sum(logprobs, torch.tensor([True, False, False]))
    loss.backward()
    assert loss.item() == 1.0
    assert logprobs.grad.tolist() == [-1.0, 0.0, 0.0]


# --------------------------------------------------------------------------------------------- Stage 2


def test_the_surrogate_clips_gains_on_both_signs_and_never_losses():
    ratio = torch.tensor([[0.5, 1.0, 2.0], [0.5, 1.0, 2.0]])
    advantages = torch.tensor([1.0, -1.0])
    surrogate = clipped_surrogate(ratio, advantages, EPSILON)
    torch.testing.assert_close(surrogate, torch.tensor([[0.5, 1.0, 1.2], [-0.8, -1.0, -2.0]]))
    assert clipped_actions(surrogate, ratio, advantages).tolist() == [[False, False, True], [True, False, False]]


def test_k3_over_samples_of_p_estimates_the_kl_from_p_to_the_reference():
    p, reference = torch.tensor([0.7, 0.2, 0.1]), torch.tensor([0.3, 0.3, 0.4])
    exact = (p * (p / reference).log()).sum()
    expectation = (p * kl_k3(p.log()[None], reference.log()[None])).sum()
    torch.testing.assert_close(expectation, exact)


def test_trajectory_weights_average_over_actions_then_group_then_groups():
    mask = torch.tensor([[True, True, False], [True, False, False], [True, True, True], [False, False, False]])
    weights = trajectory_weights(mask, torch.tensor([4, 4, 9, 9]), torch.float64)
    expected = [[1 / 8, 1 / 8, 0], [1 / 4, 0, 0], [1 / 12, 1 / 12, 1 / 12], [0, 0, 0]]
    torch.testing.assert_close(weights, torch.tensor(expected, dtype=torch.float64))


@pytest.mark.parametrize("seed", range(5))
def test_stage2_terms_match_the_sums_of_the_paper(seed):
    case = make_case(seed)
    grpo, anchor, divergence = paper_batch(case)
    terms = case.terms()
    assert terms.grpo.item() == pytest.approx(grpo, abs=1e-12)
    assert terms.anchor.item() == pytest.approx(anchor, abs=1e-12)
    assert terms.kl.item() == pytest.approx(divergence, abs=1e-12)
    assert terms.loss.item() == pytest.approx(grpo + ALPHA * anchor, abs=1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_stage2_gradient_matches_finite_differences_of_the_sums_of_the_paper(seed):
    case = make_case(seed, group_ids=(0, 0, 1, 1), num_actions=4)
    case.terms().loss.backward()
    step = 1e-6
    for i in range(4):
        for j in range(4):
            ends = []
            for sign in (1, -1):
                moved = case.logprobs.detach().clone()
                moved[i, j] += sign * step
                grpo, anchor, _ = paper_batch(dataclasses.replace(case, logprobs=moved))
                ends.append(grpo + ALPHA * anchor)
            assert case.logprobs.grad[i, j].item() == pytest.approx((ends[0] - ends[1]) / (2 * step), abs=1e-8)


def test_one_group_by_hand():
    # Two trajectories, ratios 1.5 (A = 1) and 0.5 (A = -1): surrogates 1.2 and -0.8 each, KL 0.
    old = torch.zeros(2, 2, dtype=torch.float64)
    logprobs = old + torch.tensor([[1.5], [0.5]], dtype=torch.float64).log()
    mask = torch.tensor([[True, True], [True, False]])
    operator_mask = torch.tensor([[True, False], [False, False]])
    weights = action_weights(mask, operator_mask, torch.zeros(2, dtype=torch.long), torch.float64)
    advantages = torch.tensor([1.0, -1.0], dtype=torch.float64)
    terms = stage2_loss(logprobs, old, logprobs, advantages, weights, clip_range=0.2, kl_weight=0.03, anchor_weight=0.1)
    assert terms.grpo.item() == pytest.approx(-(1.2 - 0.8) / 2, abs=1e-12)
    assert terms.anchor.item() == pytest.approx(-1.2, abs=1e-12)
    assert terms.loss.item() == pytest.approx(-0.2 - 0.12, abs=1e-12)
    assert terms.kl.item() == 0
    assert terms.clip_share.item() == pytest.approx(1.0, abs=1e-12)
    assert terms.operator_clip_share.item() == pytest.approx(1.0, abs=1e-12)


def test_without_invocations_the_anchor_is_zero_and_gives_no_gradient():
    case = make_case()
    case.operator_mask = torch.zeros_like(case.mask)
    weights = case.weights()
    ratio = importance_ratio(case.logprobs, case.old)
    anchor = anchor_loss(clipped_surrogate(ratio, case.advantages, EPSILON), weights.anchor)
    anchor.backward()
    assert anchor.item() == 0
    assert not case.logprobs.grad.any()
    assert case.terms().operator_clip_share.item() == 0


def test_padding_may_hold_anything():
    case = make_case()
    expected = case.terms()
    spoilt = [torch.where(case.mask, t, torch.nan) for t in (case.logprobs, case.old, case.reference)]
    case.logprobs, case.old, case.reference = spoilt[0].detach().requires_grad_(), spoilt[1], spoilt[2]
    terms = case.terms()
    terms.loss.backward()
    assert terms.loss.item() == expected.loss.item()
    assert case.logprobs.grad.isfinite().all()
    assert not case.logprobs.grad[~case.mask].any()


def test_only_the_loss_carries_a_gradient():
    terms = make_case().terms()
    attached = [name for name, term in vars(terms).items() if term.requires_grad]
    assert attached == ["loss"]


# ----------------------------------------------------------------------------------- log-probabilities

POSITIONS, DIM, VOCAB, OPERATORS = 11, 6, 17, 3


@dataclass
class Head:
    """Random states, head, psi and actions; the operators are chosen a few times and sometimes disallowed."""

    hidden: Tensor
    weight: Tensor
    psi: Tensor
    actions: Tensor
    allowed: Tensor

    def unchunked(self, temperature: float = 1.0) -> tuple[Tensor, Tensor]:
        """log p of the actions and the entropies, with all logits at once."""
        operators = torch.where(self.allowed, self.hidden.to(self.psi.dtype) @ self.psi.T, -torch.inf)
        tokens = self.hidden.to(self.psi.dtype) @ self.weight.to(self.psi.dtype).T
        logits = torch.cat([tokens, operators], dim=1) / temperature
        distribution = torch.distributions.Categorical(logits=logits)
        return distribution.log_prob(self.actions), distribution.entropy()


def make_head(dtype: torch.dtype = torch.float64) -> Head:
    draw = torch.Generator().manual_seed(0)
    allowed = torch.rand(POSITIONS, OPERATORS, generator=draw) < 0.6
    actions = torch.randint(0, VOCAB, (POSITIONS,), generator=draw)
    actions[2], actions[7] = VOCAB, VOCAB + OPERATORS - 1
    allowed[2, 0] = allowed[7, OPERATORS - 1] = True
    allowed[5] = False
    return Head(
        hidden=torch.randn(POSITIONS, DIM, dtype=dtype, generator=draw).requires_grad_(),
        weight=torch.randn(VOCAB, DIM, dtype=dtype, generator=draw),
        psi=torch.randn(OPERATORS, DIM, dtype=dtype, generator=draw).requires_grad_(),
        actions=actions,
        allowed=allowed,
    )


@pytest.mark.parametrize("chunk_size", [1, 3, 11, 100])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_chunked_logprobs_entropy_and_gradients_equal_the_unchunked_ones(chunk_size, temperature):
    head = make_head()
    weights = torch.linspace(-1, 1, POSITIONS, dtype=torch.float64)
    expected, expected_entropy = head.unchunked(temperature)
    expected_gradients = torch.autograd.grad((weights * expected).sum(), (head.hidden, head.psi))
    logprobs, entropy = chosen_logprobs(
        head.hidden, head.weight, head.psi, head.actions, head.allowed, temperature=temperature, chunk_size=chunk_size
    )
    gradients = torch.autograd.grad((weights * logprobs).sum(), (head.hidden, head.psi))
    torch.testing.assert_close(logprobs, expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(entropy, expected_entropy, rtol=0, atol=1e-12)
    for gradient, wanted in zip(gradients, expected_gradients, strict=True):
        torch.testing.assert_close(gradient, wanted, rtol=0, atol=1e-12)
    assert not entropy.requires_grad


def test_disallowed_operators_take_no_probability_and_get_no_gradient():
    head = make_head()
    head.allowed[:] = False
    head.actions.clamp_(max=VOCAB - 1)
    logprobs, entropy = chosen_logprobs(head.hidden, head.weight, head.psi, head.actions, head.allowed, chunk_size=4)
    plain, plain_entropy = chosen_logprobs(
        head.hidden, head.weight, head.psi[:0], head.actions, head.allowed[:, :0], chunk_size=4
    )
    torch.testing.assert_close(logprobs, plain, rtol=0, atol=1e-12)
    torch.testing.assert_close(entropy, plain_entropy, rtol=0, atol=1e-12)
    torch.testing.assert_close(plain, head.unchunked()[0], rtol=0, atol=1e-12)
    (gradient,) = torch.autograd.grad(logprobs.sum(), head.psi)
    assert gradient.isfinite().all() and not gradient.any()


def test_choosing_a_disallowed_operator_has_probability_zero():
    head = make_head()
    head.allowed[2, 0] = False
    logprobs, _ = chosen_logprobs(head.hidden, head.weight, head.psi, head.actions, head.allowed)
    assert logprobs.isneginf().nonzero().flatten().tolist() == [2]


def test_a_half_precision_head_still_gives_float32_logprobs_and_gradients_to_psi():
    head = make_head(torch.float32)
    head.hidden = head.hidden.detach().bfloat16().requires_grad_()
    head.weight = head.weight.bfloat16()
    expected, _ = head.unchunked()
    expected_gradients = torch.autograd.grad(expected.sum(), (head.hidden, head.psi))
    logprobs, _ = chosen_logprobs(head.hidden, head.weight, head.psi, head.actions, head.allowed, chunk_size=4)
    gradients = torch.autograd.grad(logprobs.sum(), (head.hidden, head.psi))
    assert logprobs.dtype is torch.float32
    torch.testing.assert_close(logprobs, expected, rtol=0, atol=1e-4)
    assert [gradient.dtype for gradient in gradients] == [torch.bfloat16, torch.float32]
    torch.testing.assert_close(gradients[1], expected_gradients[1], rtol=1e-5, atol=1e-5)


def test_no_positions_give_no_logprobs():
    assert token_logprobs(torch.zeros(0, 4), torch.randn(5, 4), torch.zeros(0, dtype=torch.long)).shape == (0,)


def test_few_logits_exist_at_once_whatever_the_vocabulary():
    assert positions_at_once(176) == 1024
    assert positions_at_once(151_936) == 220
    assert positions_at_once(2**26) == 1


@pytest.mark.parametrize("operators", [0, OPERATORS])
def test_two_float32_copies_of_a_chunk_exist_forward_and_none_backward(operators):
    """All logits together are eight chunks: they never exist, and none are kept for the backward pass."""
    positions, vocab = 256, 4000
    chunk = 32 * vocab * 4
    hidden = torch.randn(positions, 2, requires_grad=True)
    psi = torch.randn(operators, 2, requires_grad=True)
    allowed = torch.ones(positions, operators, dtype=torch.bool)
    weight, actions = torch.randn(vocab, 2), torch.arange(positions)
    with Allocations() as forward:
        loss = chosen_logprobs(hidden, weight, psi, actions, allowed, chunk_size=32)[0].sum()
    with Allocations() as backward:
        loss.backward()
    assert 2 <= forward.peak / chunk < 2.1
    assert backward.peak / chunk < 0.1
