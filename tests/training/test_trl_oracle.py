"""TRL as the oracle: its GRPO advantages of given rewards, and its loss on given log-probabilities, against ours."""

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


class GivenRewards(GRPOTrainer):
    """TRL's scoring without a trainer around it: completions of one token, and rewards that are given."""

    def __init__(self, rewards: Tensor, scale_rewards: str) -> None:
        self.given, self.scale_rewards, self.num_generations = rewards.flatten(), scale_rewards, GROUP_SIZE
        self.accelerator = SimpleNamespace(device="cpu", process_index=0, gather=lambda value: value)
        self.model = SimpleNamespace(training=True, is_gradient_checkpointing=False)
        self.args = SimpleNamespace(per_device_train_batch_size=BATCH, gradient_accumulation_steps=1)
        self.args.gradient_checkpointing_kwargs = None
        self.args.steps_per_generation = self.num_iterations = 1
        self._tokenizer = SimpleNamespace(pad_token_id=0)
        self.environment_factories = self.environments = self.tools = self.pad_to_multiple_of = None
        self.mask_truncated_completions = self.use_vllm = False
        self.beta, self.multi_objective_aggregation = 0.0, "sum_then_normalize"
        self.reward_funcs, self.reward_func_names = [None], ["given"]
        self.reward_weights = torch.ones(1, dtype=rewards.dtype)
        self._metrics = {"train": defaultdict(list)}
        self._logs = defaultdict(list, rewards=defaultdict(list), extra=defaultdict(list))
        self._pending_extra_logs, self._pending_metrics = {}, {}

    def _generate(self, prompts: list[str]) -> tuple[object, ...]:
        one_token = [[1]] * len(prompts)
        return one_token, one_token, None, ["x"] * len(prompts), None, {}, None, None

    def _calculate_rewards(self, *args: object) -> Tensor:
        return self.given[:, None]


@pytest.mark.parametrize("scale", ["group", "batch", "none"])
@pytest.mark.parametrize("seed", range(3))
def test_advantages_equal_those_of_trl_in_all_three_scales(seed: int, scale: str) -> None:
    rewards = make_batch(seed)["rewards"]
    rewards[0] = 0.5  # a group in which nothing differs
    scored = GivenRewards(rewards, scale)._generate_and_score_completions([{"prompt": "q"}] * BATCH)
    found = group_advantages(rewards, scale=scale)
    assert found.abs().max() > 0.1 and not found[0].any()
    torch.testing.assert_close(found.flatten(), scored["advantages"], rtol=0, atol=1e-7)  # its deviation is float32


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
