"""TRL as the oracle: its GRPO loss on given log-probabilities against ours without an anchor."""

from __future__ import annotations

from collections import defaultdict
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from tyler.training.objectives import action_weights, stage2_loss
from tyler.training.rewards import group_advantages

pytest.importorskip("trl", reason="TRL is a development dependency and only the oracle of this test")
from trl import GRPOTrainer

GROUPS, GROUP_SIZE, ACTIONS = 3, 4, 7
BATCH = GROUPS * GROUP_SIZE


class GivenLogprobs(GRPOTrainer):
    """TRL's loss without a trainer around it: the model's log-probabilities are given."""

    def __init__(self, logprobs: Tensor) -> None:
        self.given = logprobs
        self.loss_type, self.importance_sampling_level = "grpo", "token"
        self.beta, self.epsilon_low, self.epsilon_high = 0.03, 0.2, 0.2
        self.args = SimpleNamespace(use_bias_correction_kl=False, delta=None)
        self.aux_loss_enabled = self.use_vllm = self._entropy_bonus_enabled = False
        self.top_entropy_quantile, self.off_policy_mask_threshold = 1.0, None
        self.model = SimpleNamespace(training=True)
        self.current_gradient_accumulation_steps = 1
        self.accelerator = SimpleNamespace(gather=lambda value: value, reduce=lambda value, reduction: value)
        self._metrics = {"train": defaultdict(list)}

    def _get_per_token_logps_and_entropies(self, *args: object, **kwargs: object) -> tuple[Tensor, Tensor, None]:
        return self.given, torch.zeros_like(self.given), None


def make_batch(seed: int) -> dict[str, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    logprobs = -torch.rand(BATCH, ACTIONS, dtype=torch.float64, generator=draw) * 3
    noise = 0.4 * torch.randn(2, BATCH, ACTIONS, dtype=torch.float64, generator=draw)
    lengths = torch.randint(1, ACTIONS + 1, (BATCH, 1), generator=draw)
    return {
        "logprobs": logprobs,
        "old": logprobs + noise[0],
        "reference": logprobs + noise[1],
        "rewards": torch.rand(GROUPS, GROUP_SIZE, dtype=torch.float64, generator=draw).round(decimals=1),
        "mask": torch.arange(ACTIONS) < lengths,
    }


def trl_loss(batch: dict[str, Tensor]) -> tuple[Tensor, Tensor, dict[str, list[float]]]:
    logprobs = batch["logprobs"].clone().requires_grad_()
    rewards = batch["rewards"]
    spread = rewards.std(dim=1, keepdim=True)
    inputs = {
        "prompt_ids": torch.zeros(BATCH, 1, dtype=torch.long),
        "prompt_mask": torch.ones(BATCH, 1, dtype=torch.long),
        "completion_ids": torch.zeros(BATCH, ACTIONS, dtype=torch.long),
        "completion_mask": batch["mask"].long(),
        "advantages": ((rewards - rewards.mean(dim=1, keepdim=True)) / (spread + 1e-4)).flatten(),
        "old_per_token_logps": batch["old"],
        "ref_per_token_logps": batch["reference"],
    }
    trainer = GivenLogprobs(logprobs)
    loss = trainer._compute_loss(trainer.model, inputs)
    loss.backward()
    return loss.detach(), logprobs.grad, trainer._metrics["train"]


@pytest.mark.parametrize("seed", range(5))
def test_grpo_loss_and_gradient_equal_those_of_trl(seed):
    batch = make_batch(seed)
    expected, expected_gradient, metrics = trl_loss(batch)
    logprobs = batch["logprobs"].clone().requires_grad_()
    group_ids = torch.arange(GROUPS).repeat_interleave(GROUP_SIZE)
    terms = stage2_loss(
        logprobs,
        batch["old"],
        batch["reference"],
        group_advantages(batch["rewards"]).flatten(),
        action_weights(batch["mask"], torch.zeros_like(batch["mask"]), group_ids, torch.float64),
        clip_range=0.2,
        kl_weight=0.03,
        anchor_weight=0.1,
    )
    terms.loss.backward()
    assert metrics["clip_ratio/region_mean"][0] > 0, "the batch must exercise the clip"
    torch.testing.assert_close(terms.loss.detach(), expected, rtol=0, atol=1e-10)
    torch.testing.assert_close(logprobs.grad, expected_gradient, rtol=0, atol=1e-10)
