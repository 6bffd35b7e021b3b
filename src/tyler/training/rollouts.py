"""Who answers while a policy learns, and what comes of it: groups of answers with their rewards.

An engine of another kind is one more class with the four members of `Rollouts`, set as `GrpoTrainer.rollouts`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from tyler.config.sections import DecodingConfig
from tyler.engine.request import Request
from tyler.engine.shared_engine import SharedEngine
from tyler.engine.trajectory import Trajectory
from tyler.tasks.problem import Outcome, Problem, Verdict
from tyler.training.verdicts import is_fault


class Rollouts(Protocol):
    """An engine that answers under the policy's newest weights, and knows which they were."""

    @property
    def version(self) -> int:
        """How many updates the policy had had that gave the last answers."""

    def update(self, version: int) -> None:
        """From now on answer under the policy as it stands after `version` updates; of an equal version nothing is
        copied."""

    def answer(self, requests: Sequence[Request]) -> list[Trajectory]:
        """The answers, in order, with log-probabilities as this engine computes them."""

    def close(self) -> None:
        """End what answered: the training is over."""


@dataclass
class NativeRollouts:
    """The model's own engine: it shares the policy's weights, so that an update has nothing to copy."""

    engine: SharedEngine
    decoding: DecodingConfig
    version: int = 0

    def update(self, version: int) -> None:
        self.version = version

    def answer(self, requests: Sequence[Request]) -> list[Trajectory]:
        """Answer, and give the engine's memory back: the learner, whose turn is next, needs it."""
        trajectories = self.engine.run(requests, slots=self.decoding.slots, memory=self.decoding.memory)
        self.engine.release()
        return trajectories

    def close(self) -> None:
        self.engine.close()


@dataclass
class Rollout:
    """The groups of one step, flat: `group_size` trajectories per problem, with verdicts and rewards.

    A reward of NaN does not count: the answer is left out of its group. `version` is that of the policy that answered.
    """

    problems: list[Problem]
    trajectories: list[Trajectory]
    verdicts: list[Verdict | None]
    rewards: Float[Tensor, "batch group"]
    parts: dict[str, Float[Tensor, "batch group"]] = field(default_factory=dict)
    """The value of each reward, before its weight."""
    seconds: dict[str, float] = field(default_factory=dict)
    version: int = 0
    redrawn: int = 0
    """Groups that were replaced for want of spread."""
    start: Float[Tensor, "answers actions"] | None = None
    """log p of every action under the learner before its first update on this rollout."""
    reference: Float[Tensor, "answers actions"] | None = None
    """The same under the reference, where there is a KL term."""

    @property
    def success(self) -> Bool[Tensor, "batch group"]:
        """Which answers are right; one without a verdict is not."""
        right = [verdict is not None and verdict.correct for verdict in self.verdicts]
        return torch.tensor(right, dtype=torch.bool).view(len(self.problems), -1)

    @property
    def lengths(self) -> list[int]:
        """Positions of each answer, with its prompt and latents."""
        return [len(one.prompt_ids) + one.num_visible + one.num_latents for one in self.trajectories]

    @property
    def faults(self) -> list[int]:
        """The places of answers that the infrastructure could not judge."""
        size = self.rewards.shape[1]
        return [n for n, one in enumerate(self.verdicts) if is_fault(self.problems[n // size], one)]

    @property
    def gold_errors(self) -> int:
        """How many answers have a gold answer that cannot be read: they are left out of their groups."""
        return sum(one is not None and one.outcome is Outcome.GOLD_ERROR for one in self.verdicts)
