"""The trainer of everything that learns from groups of rewarded answers: Stage 2, plain GRPO and MemGen.

A method says in a subclass which actions are learned and how they are replayed; rollouts, rewards and the loss are
parts that can be replaced (`rollouts.py`, `rewards.py`, `policy_losses.py`). Read `GrpoTrainer.step` from top to
bottom.
"""

import random
import time
from abc import abstractmethod
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from operator import gt
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from tyler.config.loops import ObjectiveConfig, OptimizationConfig
from tyler.engine.request import Request
from tyler.engine.sampling import Sampling, seed_of
from tyler.engine.trajectory import Trajectory
from tyler.runs.run import TrainedRun
from tyler.tasks.problem import Problem
from tyler.training import distributed
from tyler.training.loop import Step, Trainable, Trainer, batch_at
from tyler.training.micro_batches import MicroBatches
from tyler.training.optimizer import Optimization
from tyler.training.policy_losses import ActionWeights, PolicyLoss, degenerate_groups, group_advantages
from tyler.training.rewards import Rewards
from tyler.training.rollouts import Rollout, Rollouts


class Actions(NamedTuple):
    """The learned actions of a rollout's answers, right-padded: what they were sampled at, which are real, which call
    an operator."""

    logprobs: Float[Tensor, "answers actions"]
    mask: Bool[Tensor, "answers actions"]
    is_operator: Bool[Tensor, "answers actions"]


class GrpoTrainer(Trainer):
    """Rolls out groups, rewards them, and descends on a policy loss. A method overrides what is abstract here.

    Who answers, what for and what is descended on are attributes: others may take their places before `train`.
    """

    best, better = "greedy/accuracy", staticmethod(gt)
    terms: tuple[str, ...] = ("loss", "clip_share", "cut_share")
    """The terms of the loss that are logged, the same in every process."""
    in_step = False
    """Whether processes share layers, so that each must read them as often as the others."""

    def __init__(
        self,
        model: Trainable,
        loop: OptimizationConfig,
        objective: ObjectiveConfig,
        rollouts: Rollouts,
        rewards: Rewards,
        loss: PolicyLoss,
        problems: Sequence[Problem],
        development: Sequence[Problem] = (),
    ) -> None:
        super().__init__(model, loop, len(problems), development)
        self.rollouts, self.rewards, self.loss = rollouts, rewards, loss
        self.objective, self.problems = objective, problems

    def train(self, run: TrainedRun) -> None:
        with closing(self.rewards), closing(self.rollouts):
            self.rewards.verifier.check([*self.problems, *self.development])
            super().train(run)

    @abstractmethod
    def request(self, problem: Problem, sampling: Sampling) -> Request:
        """What is asked for one answer of a group."""

    def greedy_answers(self, problems: Sequence[Problem]) -> list[Trajectory]:
        """Greedy answers to development problems."""
        return self.rollouts.answer([self.request(problem, Sampling()) for problem in problems])

    @abstractmethod
    def actions(self, rollout: Rollout) -> Actions:
        """The learned actions of a rollout."""

    @abstractmethod
    def replay(self, rollout: Rollout, places: list[int]) -> tuple[Float[Tensor, "rows actions"], Tensor | None]:
        """log p of the learned actions of some answers, with gradients, and the entropy where it is known."""

    def reference(self, rollout: Rollout, places: list[int]) -> Float[Tensor, "rows actions"] | None:
        """The same under the reference; None where nothing is compared with one."""
        return None

    def describe_answers(self, answers: Sequence[Trajectory]) -> dict[str, float]:
        """Means over answers, sampled or greedy, without a prefix."""
        return {}

    def describe(self, rollout: Rollout) -> dict[str, float]:
        """Means over a rollout of this process, without a prefix."""
        return {}

    @property
    def temperature(self) -> float:
        """Of the tokens of a rollout."""
        return self.objective.temperature

    @property
    def updates_per_step(self) -> int:
        return self.objective.updates_per_rollout

    def step(self, step: Step, optimization: Optimization) -> tuple[dict[str, float], str]:
        """Roll out, learn as often as `updates_per_rollout` says, and tell how it went."""
        rollout = self.roll_out_step(step.number)
        metrics = self.rollout_metrics(rollout)
        started = time.perf_counter()
        for update in range(self.updates_per_step):
            metrics |= self.improve(rollout, optimization, step.number * self.updates_per_step + update)
        metrics["learning_seconds"] = time.perf_counter() - started
        self.record(step.run, step.number + 1, rollout)
        calls = f", {metrics['invocations']:.1f} calls" if "invocations" in metrics else ""
        return metrics, f"reward {metrics['reward']:.2f}{calls}"

    def record(self, run: TrainedRun, step: int, rollout: Rollout) -> None:
        """Keep the answers of a step, counted from 1."""

    def roll_out_step(self, step: int) -> Rollout:
        """The rollout of a step, counted from 0: its problems are a function of the seed and the step."""
        loop = self.loop
        batch = [self.problems[index] for _, index in batch_at(step, loop.batch_size, len(self.problems), loop.seed)]
        self.rollouts.update(step * self.updates_per_step)
        rollout = self.roll_out(distributed.share(batch), step, distributed.share(repeats_in(batch)))
        for draw in range(1, self.objective.redraws + 1):
            rollout = self.redraw(rollout, step, draw)
        return rollout

    def roll_out(self, problems: Sequence[Problem], step: int, repeats: Sequence[int] = (), draw: int = 0) -> Rollout:
        """Sample and reward a group of answers for each problem; `draw` counts those of a step that were replaced.

        An answer is seeded by its number: a problem that the batch had before (`repeats_in`) is answered by others.
        """
        size = self.objective.group_size
        starts = zip(problems, repeats or [0] * len(problems), strict=True)
        members = [(problem, repeat * size + member) for problem, repeat in starts for member in range(size)]
        requests = [self.request(problem, self.sampling(problem, step, member, draw)) for problem, member in members]
        rollout = self.answered(problems, requests)
        if self.objective.on_fault == "resample" and (places := rollout.faults):
            again = [reseeded(requests[place]) for place in places]
            return replaced(rollout, self.answered([members[place][0] for place in places], again), places)
        return rollout

    def answered(self, problems: Sequence[Problem], requests: Sequence[Request]) -> Rollout:
        """The answers to requests, equally many for each problem, and their rewards."""
        started, size = time.perf_counter(), len(requests) // len(problems)
        trajectories = self.rollouts.answer(requests)
        decoded = time.perf_counter()
        rewards, parts, verdicts = self.rewards([one for one in problems for _ in range(size)], trajectories)
        seconds = {
            "rollout": decoded - started,
            "synthesis": sum(trajectory.synthesis_seconds for trajectory in trajectories),
            "grading": time.perf_counter() - decoded,
        }
        parts, version = {name: part.view(-1, size) for name, part in parts.items()}, self.rollouts.version
        return Rollout(list(problems), trajectories, verdicts, rewards.view(-1, size), parts, seconds, version)

    def sampling(self, problem: Problem, step: int, member: int, draw: int) -> Sampling:
        """Of one answer: its random stream follows from the run's seed, the step, the problem and its number."""
        again = (f"draw {draw}",) if draw else ()
        return Sampling(self.temperature, seed=seed_of(self.loop.seed, step, problem.id, member, *again))

    def redraw(self, rollout: Rollout, step: int, draw: int) -> Rollout:
        """The rollout with groups of other problems in the place of those without spread (DAPO, arXiv 2503.14476)."""
        flat = degenerate_groups(rollout.rewards).nonzero().flatten().tolist()
        if not flat:
            return rollout
        size = self.objective.group_size
        chosen = random.Random(f"redraw {self.loop.seed} {step} {draw} {distributed.rank()}")
        problems = chosen.choices(self.problems, k=len(flat))
        other = self.roll_out(problems, step, repeats_in(problems), draw)
        found = replaced(rollout, other, [group * size + member for group in flat for member in range(size)])
        found.problems = [dict(zip(flat, problems, strict=True)).get(n, one) for n, one in enumerate(rollout.problems)]
        found.redrawn += len(flat)
        return found

    def rollout_metrics(self, rollout: Rollout) -> dict[str, float]:
        """What every training from rewards is watched by, the same in every process."""
        count = len(rollout.trajectories)
        mine = {
            "faults": len(rollout.faults) / count,
            "gold_errors": rollout.gold_errors / count,
            "left_out": float(rollout.rewards.isnan().float().mean()),
            "truncated": sum(one.truncated for one in rollout.trajectories) / count,
            "visible_tokens": sum(one.num_visible for one in rollout.trajectories) / count,
            "latents": sum(one.num_latents for one in rollout.trajectories) / count,
            "success": float(rollout.success.float().mean()),
            "degenerate_groups": float(degenerate_groups(rollout.rewards).float().mean()),
            "redrawn_groups": rollout.redrawn / len(rollout.problems),
            **{f"{part}_seconds": seconds for part, seconds in rollout.seconds.items()},
            **self.describe(rollout),
            **self.describe_answers(rollout.trajectories),
        }
        return distributed.average(mine, len(rollout.problems)) | self.reward_metrics(rollout)

    def reward_metrics(self, rollout: Rollout) -> dict[str, float]:
        """The mean reward, and the mean and the spread of each of its parts, over the batch of all processes."""
        names = {"reward": rollout.rewards} | {f"reward_{name}": part for name, part in rollout.parts.items()}
        everywhere = distributed.gather({name: value.flatten() for name, value in names.items()})
        metrics = {}
        for name in names:
            values = torch.cat([part[name] for part in everywhere])
            values = values[~values.isnan()]
            metrics[name] = float(values.mean()) if len(values) else 0.0
            if name != "reward":
                metrics[f"{name}_std"] = float(values.std()) if len(values) > 1 else 0.0
        return metrics

    def improve(self, rollout: Rollout, optimization: Optimization, update: int) -> dict[str, float]:
        """One update on a rollout; `update` counts all of the run from 0. Nothing where nothing was decided."""
        terms = self.learn(rollout, optimization.backward)
        if not any(distributed.gather(any(one.grad is not None for one in optimization.parameters))):
            return {}  # MemGen's trigger was never asked
        ids = [id for part in distributed.gather([problem.id for problem in rollout.problems]) for id in part]
        norm, rate = optimization.step(update, ids, loss=terms["loss"])
        skipped = {"skipped_updates": float(optimization.skipped)}
        return {**terms, "gradient_norm": norm, "learning_rate": rate, **skipped}

    def advantages(self, rollout: Rollout) -> Float[Tensor, " answers"]:
        """Of this process's answers, scaled by the rewards of the whole batch where the config says so."""
        epsilon, scale = self.objective.advantage_epsilon, self.objective.scale_rewards
        everyone = distributed.gather(rollout.rewards) if scale == "batch" else [rollout.rewards]
        batch = torch.cat(everyone).flatten()
        return group_advantages(rollout.rewards, epsilon, scale=scale, batch=batch).flatten().to(self.backbone.device)

    def weights(self, rollout: Rollout, actions: Actions) -> ActionWeights:
        """Weights of every action over the whole batch, so that micro-batches and the shares of processes add up."""
        device, mask = actions.mask.device, actions.mask
        groups = torch.arange(len(rollout.problems), device=device).repeat_interleave(rollout.rewards.shape[1])
        if self.objective.mask_truncated:
            whole = torch.tensor([not one.truncated for one in rollout.trajectories], device=device)
            mask = mask & whole[:, None]
        counted = ~rollout.rewards.flatten().isnan().to(device)
        return self.loss.weights(mask, actions.is_operator & mask, groups, counted, distributed.local_fraction)

    def learn(self, rollout: Rollout, backward: Callable[[Tensor], None] = Tensor.backward) -> dict[str, float]:
        """Accumulate the gradient of the loss over micro-batches of answers; returns its terms over the whole batch.

        The first update on a rollout computes what the learner and the reference give its actions; later ones compare
        with that. A rollout is this process's share of a batch; the gradient is the share's part.
        """
        actions = self.actions(rollout)
        weights, advantages = self.weights(rollout, actions), self.advantages(rollout)
        first = rollout.start is None
        if first:
            rollout.start, rollout.reference = actions.logprobs.clone(), actions.logprobs.clone()
        totals: dict[str, float] = {}
        prompts = [tuple(one.prompt_ids) for one in rollout.trajectories]  # what answers share is read once
        for places in MicroBatches.of(self.loop, self.backbone).split(rollout.lengths, prompts):
            counts = bool(weights.mask[places].any())
            if any(distributed.gather(counts)) if self.in_step else counts:
                terms = self.part_terms(rollout, places, actions, weights, advantages, first)
                backward(terms["loss"])
                totals = {name: totals.get(name, 0.0) + float(term.detach()) for name, term in terms.items()}
        return distributed.add_up(totals, self.terms) | self.mismatch(rollout, actions, weights.mask)

    def part_terms(
        self,
        rollout: Rollout,
        places: list[int],
        actions: Actions,
        weights: ActionWeights,
        advantages: Tensor,
        first: bool,
    ) -> dict[str, Tensor]:
        assert rollout.start is not None and rollout.reference is not None, "made before the first micro-batch"
        rows = torch.tensor(places, device=self.backbone.device)
        length = int(actions.mask[rows].any(dim=0).nonzero().max()) + 1
        logprobs, entropy = self.replay(rollout, places)
        logprobs = logprobs[:, :length]
        if first:
            rollout.start[rows, :length] = logprobs.detach()
            reference = self.reference(rollout, places)
            if reference is not None:
                rollout.reference[rows, :length] = reference[:, :length]
        mine = weights.rows(rows, length)
        behaviour = actions.logprobs[rows, :length]
        start, reference = rollout.start[rows, :length], rollout.reference[rows, :length]
        terms = self.loss(logprobs, start, behaviour, reference, advantages[rows], mine)
        if entropy is not None:
            terms["entropy"] = (mine.grpo * entropy[:, :length]).sum()
        return {name: term for name, term in terms.items() if name in self.terms}

    def mismatch(self, rollout: Rollout, actions: Actions, mask: Tensor) -> dict[str, float]:
        """How far the engine's log-probabilities are from the learner's, over all actions of the batch."""
        assert rollout.start is not None
        everywhere = torch.cat(distributed.gather((rollout.start - actions.logprobs)[mask].abs().cpu()))
        if not len(everywhere):
            return {}
        p99 = everywhere.kthvalue(max(1, round(0.99 * len(everywhere)))).values
        return {
            "replay_gap": float(everywhere.max()),
            "replay_gap_mean": float(everywhere.mean()),
            "replay_gap_p99": float(p99),
        }

    def evaluate(self) -> dict[str, float]:
        """Greedy answers to development problems: the share that is right, and more of them."""
        mine = distributed.share(self.development)
        if not mine:
            return distributed.average({}, 0)
        answers = self.greedy_answers(mine)
        verdicts = self.rewards.verifier(mine, answers)
        right = sum(verdict is not None and verdict.correct for verdict in verdicts)
        more = {f"greedy/{name}": value for name, value in self.describe_answers(answers).items()}
        return distributed.average({self.best: right / len(mine), **more}, len(mine))


def reseeded(request: Request) -> Request:
    """The same request on another random stream."""
    return replace(request, sampling=replace(request.sampling, seed=seed_of(request.sampling.seed, "again")))


def replaced(rollout: Rollout, other: Rollout, places: Sequence[int]) -> Rollout:
    """A rollout with the answers of another one in some places."""
    index = torch.tensor(list(places))

    def put(mine: Tensor, theirs: Tensor) -> Tensor:
        return mine.flatten().index_copy(0, index, theirs.flatten()).view_as(mine)

    trajectories, verdicts = list(rollout.trajectories), list(rollout.verdicts)
    for place, trajectory, verdict in zip(places, other.trajectories, other.verdicts, strict=True):
        trajectories[place], verdicts[place] = trajectory, verdict
    return replace(
        rollout,
        trajectories=trajectories,
        verdicts=verdicts,
        rewards=put(rollout.rewards, other.rewards),
        parts={name: put(part, other.parts[name]) for name, part in rollout.parts.items()},
        seconds={name: spent + other.seconds[name] for name, spent in rollout.seconds.items()},
    )


def repeats_in(batch: Sequence[Problem]) -> list[int]:
    """How often the batch had each problem before: it may be the end of one epoch and the beginning of the next."""
    ids = [problem.id for problem in batch]
    return [ids[:place].count(id) for place, id in enumerate(ids)]


def trajectory_records(rollout: Rollout) -> list[dict[str, Any]]:
    """What the audit trail says of each answer: its text, invocations, verdict and rewards."""
    group_size = rollout.rewards.shape[1]
    flat = {name: part.flatten().tolist() for name, part in rollout.parts.items()}
    return [
        {
            "problem": rollout.problems[index // group_size].id,
            "member": index % group_size,
            "text": trajectory.text,
            "invocations": [
                [one.operator, one.position, one.num_latents, one.offset] for one in trajectory.invocations
            ],
            "budget": trajectory.budget,
            "outcome": None if verdict is None else verdict.outcome.value,
            "reward": reward,
            "rewards": {name: values[index] for name, values in flat.items()},
            "finish_reason": trajectory.finish_reason,
            "seed": trajectory.sampling.seed,
        }
        for index, (trajectory, verdict, reward) in enumerate(
            zip(rollout.trajectories, rollout.verdicts, rollout.rewards.flatten().tolist(), strict=True)
        )
    ]
