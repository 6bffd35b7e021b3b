"""TRL as the oracle: its GRPO advantages of given rewards, and its loss on given log-probabilities, against ours."""

from collections import defaultdict
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from tyler.config.loops import ObjectiveConfig
from tyler.training.policy_losses import AnchoredLoss, anchor_loss, group_advantages

pytest.importorskip("trl", reason="TRL is a development dependency and only the oracle of this test")
from trl import GRPOTrainer

GROUPS, GROUP_SIZE, ACTIONS = 3, 4, 7
BATCH = GROUPS * GROUP_SIZE
LONGEST = 9


class GivenLogprobs(GRPOTrainer):
    """TRL's loss without a trainer around it: the model's log-probabilities are given."""

    def __init__(self, logprobs: Tensor, loss: str = "grpo", importance: str = "token", high: float = 0.2) -> None:
        self.given = logprobs
        self.loss_type, self.importance_sampling_level = loss, importance
        self.beta, self.epsilon_low, self.epsilon_high = 0.03, 0.2, high
        self.max_completion_length = LONGEST
        self.args = SimpleNamespace(use_bias_correction_kl=False, delta=None, steps_per_generation=1)
        self.aux_loss_enabled = self.use_vllm = self._entropy_bonus_enabled = False
        self.top_entropy_quantile, self.off_policy_mask_threshold = 1.0, None
        self.model = SimpleNamespace(training=True)
        self.current_gradient_accumulation_steps = 1
        self.accelerator = SimpleNamespace(
            gather=lambda value: value, reduce=lambda value, reduction: value, num_processes=1
        )
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


def trl_loss(
    batch: dict[str, Tensor], weights: Tensor | None = None, **settings: object
) -> tuple[Tensor, Tensor, dict[str, list[float]]]:
    """TRL's loss, its gradient and its metrics; `weights` are importance weights of what the engine sampled."""
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
        "num_items_in_batch": batch["mask"].sum(),
    }
    trainer = GivenLogprobs(logprobs, **settings)
    if weights is not None:
        trainer.use_vllm = trainer.vllm_importance_sampling_correction = True
        inputs["importance_sampling_ratio"] = weights
    loss = trainer._compute_loss(trainer.model, inputs)
    loss.backward()
    return loss.detach(), logprobs.grad, trainer._metrics["train"]


def our_loss(batch: dict[str, Tensor], operators: Tensor | None = None, **settings: object) -> tuple[Tensor, Tensor]:
    """Our loss and its gradient on the same numbers."""
    anchor_weight = settings.pop("anchor_weight", 0.0)
    loss = AnchoredLoss(ObjectiveConfig(**{"correction": "none"} | settings), LONGEST, 0.03, anchor_weight)
    logprobs = batch["logprobs"].clone().requires_grad_()
    operators = torch.zeros_like(batch["mask"]) if operators is None else operators
    groups, counted = torch.arange(GROUPS).repeat_interleave(GROUP_SIZE), torch.ones(BATCH, dtype=torch.bool)
    weights = loss.weights(batch["mask"], operators, groups, counted, dtype=torch.float64)
    advantages = group_advantages(batch["rewards"]).flatten()
    behaviour = batch.get("behaviour", batch["old"])
    terms = loss(logprobs, batch["old"], behaviour, batch["reference"], advantages, weights)
    terms["loss"].backward()
    return terms["loss"].detach(), logprobs.grad


@pytest.mark.parametrize("importance", ["token", "sequence"])
@pytest.mark.parametrize("high", [0.2, 0.5])
@pytest.mark.parametrize("loss", ["grpo", "dapo", "dr_grpo", "bnpo"])
@pytest.mark.parametrize("seed", range(3))
def test_every_loss_and_its_gradient_equal_those_of_trl(seed: int, loss: str, high: float, importance: str) -> None:
    batch = make_batch(seed)
    expected, expected_gradient, metrics = trl_loss(batch, loss=loss, importance=importance, high=high)
    found, gradient = our_loss(batch, loss=loss, importance=importance, clip_range_high=high)
    assert metrics["clip_ratio/region_mean"][0] > 0, "the batch must exercise the clip"
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)
    torch.testing.assert_close(gradient, expected_gradient, rtol=0, atol=1e-10)


@pytest.mark.parametrize("correction", ["token", "sequence"])
def test_importance_weights_are_truncated_as_trl_truncates_them(correction: str) -> None:
    batch = make_batch(4)
    draw = torch.Generator().manual_seed(9)
    gap = 0.8 * torch.randn(BATCH, ACTIONS, dtype=torch.float64, generator=draw)
    batch["behaviour"] = batch["old"] - gap
    masked = gap * batch["mask"]
    ratio = masked.sum(dim=1, keepdim=True).exp() if correction == "sequence" else masked.exp()
    assert (ratio > 2).any() and (ratio < 1).any()
    expected, expected_gradient, _ = trl_loss(batch, weights=ratio.clamp(max=2.0))
    found, gradient = our_loss(batch, correction=correction, correction_cap=2.0)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)
    torch.testing.assert_close(gradient, expected_gradient, rtol=0, atol=1e-10)


@pytest.mark.parametrize("loss", ["grpo", "dapo", "dr_grpo", "bnpo"])
def test_the_anchored_loss_stands_beside_every_loss(loss: str) -> None:
    batch = make_batch(1)
    operators = batch["mask"] & (torch.arange(ACTIONS) % 3 == 0)
    alone, _ = our_loss(batch, loss=loss)
    anchored, _ = our_loss(batch, operators, loss=loss, anchor_weight=0.5)
    ratio = (batch["logprobs"] - batch["old"]).exp()
    advantages = group_advantages(batch["rewards"]).flatten()[:, None]
    surrogate = torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages)
    share = torch.zeros_like(ratio)
    for group in range(GROUPS):
        rows = slice(group * GROUP_SIZE, (group + 1) * GROUP_SIZE)
        share[rows] = operators[rows].double() / operators[rows].sum() / GROUPS
    torch.testing.assert_close(anchored - alone, 0.5 * anchor_loss(surrogate, share), rtol=0, atol=1e-10)
