"""Advantages within groups: the equation, its exact zeros, and answers without a reward."""

import math

import pytest
import torch

from tyler.training.policy_losses import degenerate_groups, group_advantages


def test_advantages_match_the_equation_written_as_loops():
    rewards = torch.rand(5, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    advantages = group_advantages(rewards)
    for row, advantage_row in zip(rewards.tolist(), advantages.tolist(), strict=True):
        mean = sum(row) / len(row)
        deviation = math.sqrt(sum((reward - mean) ** 2 for reward in row) / (len(row) - 1))
        for reward, advantage in zip(row, advantage_row, strict=True):
            assert advantage == pytest.approx((reward - mean) / (deviation + 1e-4), abs=1e-12)


@pytest.mark.parametrize("reward", [0.0, 1.0, 0.9, 0.1, 1 / 3])
def test_a_degenerate_group_has_advantages_of_exactly_zero(reward):
    assert group_advantages(torch.full((1, 7), reward)).tolist() == [[0.0] * 7]


def test_degenerate_groups_are_those_with_equal_rewards():
    rewards = torch.tensor([[1.0, 1.0, 1.0], [0.0, 0.0, 0.0], [1.0, 0.0, 1.0], [1.0, 1.0, 1.0001]])
    assert degenerate_groups(rewards).tolist() == [True, True, False, False]


def test_rewards_may_be_scaled_by_the_spread_of_the_whole_batch_or_not_at_all():
    rewards = torch.tensor([[1.0, 0.0], [1.0, 1.0], [0.0, 0.5]])
    spread = torch.tensor([1.0, 0.0, 1.0, 1.0, 0.0, 0.5]).std()
    centred = torch.tensor([[0.5, -0.5], [0.0, 0.0], [-0.25, 0.25]])
    torch.testing.assert_close(group_advantages(rewards, scale="none"), centred)
    torch.testing.assert_close(group_advantages(rewards, scale="batch"), centred / (spread + 1e-4))
    share = group_advantages(rewards[:1], scale="batch", batch=rewards.flatten())
    torch.testing.assert_close(share, group_advantages(rewards, scale="batch")[:1])


def test_an_answer_without_a_reward_is_left_out_of_its_group():
    nan = math.nan
    rewards = torch.tensor([[1.0, nan, 0.0, 1.0], [nan, nan, 2.0, nan], [nan, 1.0, 1.0, nan]], dtype=torch.float64)
    found = group_advantages(rewards)
    torch.testing.assert_close(found[:1, [0, 2, 3]], group_advantages(torch.tensor([[1.0, 0.0, 1.0]]).double()))
    assert found[0, 1] == 0 and found[1:].abs().max() == 0, "one that is left alone has nothing to be compared with"
    assert degenerate_groups(rewards).tolist() == [False, True, True]
