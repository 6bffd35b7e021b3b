"""Stage 2: operator invocation optimization (Section 4.2). The policy {eta, psi} learns when to invoke which operator.

Each step: roll out groups on the engine, reward them by the verifier and the budget, replay them through the policy
with their stored latents, and descend on GRPO plus the operator-anchored loss. `spec` lists these parts; the loop is
`grpo.train`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from tyler.config.loops import GrpoConfig
from tyler.config.schema import Config
from tyler.engine.native.engine import longest_prompt
from tyler.engine.request import Request
from tyler.engine.routing import Learned
from tyler.engine.sampling import Sampling, seed_of
from tyler.engine.trajectory import Packed, Trajectory
from tyler.model import Tyler
from tyler.modeling.architectures import shipped
from tyler.modeling.checkpoint import is_checkpoint
from tyler.modeling.lora import LoraSettings
from tyler.runs.checkpoints import latest_checkpoint
from tyler.runs.run import Run
from tyler.tasks.problem import Problem
from tyler.training import distributed, grpo
from tyler.training.calibration import calibration_report, collect_decisions, fit_psi
from tyler.training.command import Prepared, check_inherited, origin_of, prompt_settings, training_command
from tyler.training.gradient_checkpointing import recomputing
from tyler.training.grpo import (
    REPLAY_GAP,
    GrpoSpec,
    Rollout,
    accumulate_gradients,
    graded,
    groups_of,
    load_askable,
)
from tyler.training.micro_batches import MicroBatches
from tyler.training.objectives import ActionWeights, Stage2Terms, action_weights, stage2_loss
from tyler.training.replay import pack_for, replay_logprobs
from tyler.training.rewards import degenerate_groups, group_advantages, trajectory_reward

logger = logging.getLogger(__name__)

GREEDY_ACCURACY = "greedy/accuracy"


def roll_out(
    model: Tyler, problems: Sequence[Problem], config: Config, step: int, repeats: Sequence[int] = ()
) -> Rollout:
    """Sample and reward a group of trajectories for each problem. The budget is soft here: a penalty, not a cap."""
    started = time.perf_counter()
    asked = groups_of(problems, config.grpo.group_size, repeats)
    requests = [
        model.request(
            problem,
            router=Learned(),
            sampling=Sampling(config.grpo.temperature, seed=seed_of(config.stage2.seed, step, problem.id, member)),
            max_new_tokens=config.stage2.max_new_tokens,
        )
        for problem, member in asked
    ]
    trajectories = decode(model, requests, config)
    rolled_out = time.perf_counter()
    verdicts = graded([problem for problem, _ in asked], trajectories)
    done = time.perf_counter()
    success = torch.tensor([verdict.correct for verdict in verdicts]).view(len(problems), -1)
    invocations = torch.tensor([trajectory.num_invocations for trajectory in trajectories]).view(len(problems), -1)
    rewards = trajectory_reward(
        success.float(), success, invocations, budget=config.grpo.budget, budget_weight=config.grpo.budget_weight
    )
    synthesis = sum(trajectory.synthesis_seconds for trajectory in trajectories)
    seconds = {"rollout": rolled_out - started, "synthesis": synthesis, "grading": done - rolled_out}
    return Rollout(list(problems), trajectories, verdicts, rewards, success, seconds)


def decode(model: Tyler, requests: Sequence[Request], config: Config) -> list[Trajectory]:
    """Answer on the model's engine, and give its memory back: the learner, whose turn is next, needs it."""
    decoding = config.decoding
    trajectories = model.shared_engine.run(
        requests, slots=decoding.slots, coalesce=decoding.coalesce, memory=decoding.memory
    )
    model.shared_engine.release()
    return trajectories


def learn(model: Tyler, rollout: Rollout, reference_psi: Tensor, config: Config) -> dict[str, float]:
    """Accumulate the gradient of L_stage2 over micro-batches of trajectories; returns its terms and the entropy.

    A rollout is this process's share of a batch; the terms are those of the whole batch, the gradient the share's part.
    """
    policy, backbone, objective = model.policy, model.backbone, config.grpo
    advantages = advantages_of(rollout, objective).flatten().to(backbone.device)
    weights = batch_weights(model, rollout)
    decoder = recomputing(policy.training_decoder, config.stage2.gradient_checkpointing)

    def part_terms(places: list[int]) -> dict[str, Tensor]:
        packed = pack_for(backbone, [rollout.trajectories[place] for place in places])
        rows = torch.tensor(places, device=backbone.device)
        shares = trim(weights.rows(rows), packed)
        logprobs, entropy = replay_logprobs(decoder, backbone.head, policy.psi, packed)
        reference = packed.logprobs  # what is in it does not matter without a KL term
        if objective.kl_weight > 0:
            with torch.no_grad():
                reference, _ = replay_logprobs(policy.reference_decoder, backbone.head, reference_psi, packed)
        terms = stage2_loss(
            logprobs,
            packed.logprobs,
            reference,
            advantages[rows],
            shares,
            clip_range=objective.clip_range,
            kl_weight=objective.kl_weight,
            anchor_weight=objective.anchor_weight,
        )
        return {field.name: getattr(terms, field.name) for field in fields(terms)} | {
            "entropy": (shares.grpo * entropy).sum(),
            REPLAY_GAP: (logprobs.detach() - packed.logprobs)[packed.mask].abs().max(),
        }

    names = [*(field.name for field in fields(Stage2Terms)), "entropy", REPLAY_GAP]
    totals = accumulate_gradients(rollout.trajectories, MicroBatches.of(config.stage2, backbone), names, part_terms)
    if objective.kl_weight == 0:
        del totals["kl"]
    return totals


def advantages_of(rollout: Rollout, grpo: GrpoConfig) -> Float[Tensor, "batch group"]:
    """The advantages of this process's rollouts, scaled by the rewards of the whole batch where that is asked."""
    everyone = distributed.gather(rollout.rewards) if grpo.scale_rewards == "batch" else [rollout.rewards]
    batch = torch.cat(everyone).flatten()
    return group_advantages(rollout.rewards, grpo.advantage_epsilon, scale=grpo.scale_rewards, batch=batch)


def batch_weights(model: Tyler, rollout: Rollout) -> ActionWeights:
    """Weights of every action over the whole batch, so that micro-batches and the shares of processes add up."""
    drawn = [torch.tensor(trajectory.drawn()) for trajectory in rollout.trajectories]
    operators = [torch.tensor(trajectory.is_operator) for trajectory in rollout.trajectories]
    mask = torch.nn.utils.rnn.pad_sequence(drawn, batch_first=True)
    is_operator = torch.nn.utils.rnn.pad_sequence(operators, batch_first=True)
    groups = torch.arange(len(rollout.problems)).repeat_interleave(rollout.rewards.shape[1])
    weights = action_weights(mask, is_operator & mask, groups)
    device = model.backbone.device
    part = distributed.part_of(len(rollout.problems))
    return ActionWeights(weights.mask.to(device), part * weights.grpo.to(device), part * weights.anchor.to(device))


def trim(weights: ActionWeights, packed: Packed) -> ActionWeights:
    """The weights of a micro-batch without the padding that only longer trajectories of the batch need."""
    length = packed.mask.shape[1]
    return ActionWeights(weights.mask[:, :length], weights.grpo[:, :length], weights.anchor[:, :length])


def spec(model: Tyler, problems: Sequence[Problem], config: Config, title: str = "Stage 2") -> GrpoSpec[Rollout]:
    """What Stage 2 brings to the loop of GRPO: the policy {eta, psi} learns, after psi is calibrated on `problems`.

    A model without operators learns by GRPO alone: there is no psi to start, no penalty and nothing to anchor.
    """
    reference_psi = torch.zeros_like(model.policy.psi)

    def start(run: Run) -> None:
        if model.operators:
            logger.info("%s: psi is calibrated on rollouts of %d problems", title, calibration.num_problems)
            reference_psi.copy_(start_psi(model, problems, config, run))

    calibration = config.stage2.calibration
    model.policy.eval()  # no LoRA dropout: replay must be the rollout's distribution
    return GrpoSpec(
        title=title,
        metrics="stage2",
        loop=config.stage2,
        updates_per_rollout=config.grpo.updates_per_rollout,
        parameters=parameter_groups(model, config),
        model=model,
        roll_out=lambda batch, repeats, step: roll_out(model, batch, config, step, repeats),
        describe=lambda rollout: distributed.average(rollout_metrics(model, rollout, config), len(rollout.problems)),
        learn=lambda rollout: learn(model, rollout, reference_psi, config),
        greedy=lambda development: greedy_metrics(model, development, config),
        best=GREEDY_ACCURACY,
        state=[reference_psi],
        start=start,
        record=log_trajectories,
    )


def train(
    model: Tyler,
    problems: Sequence[Problem],
    development: Sequence[Problem],
    config: Config,
    run: Run,
    title: str = "Stage 2",
) -> None:
    """Train the model's policy in place, logging and checkpointing into `run`; resumes where `run` stands."""
    grpo.train(spec(model, problems, config, title), problems, development, run)


def parameter_groups(model: Tyler, config: Config) -> list[tuple[list[torch.nn.Parameter], float]]:
    """eta and psi with their learning rates."""
    assert model.policy.lora is not None
    eta = [parameter for parameter in model.policy.lora.parameters() if parameter.requires_grad]
    rate = config.stage2.learning_rate
    return [(eta, rate), ([model.policy.psi], config.stage2.psi_learning_rate or rate)]


def start_psi(model: Tyler, problems: Sequence[Problem], config: Config, run: Run) -> Tensor:
    """Calibrate psi on the first training problems and log what it reached, as step 0; returns a copy."""
    calibration = config.stage2.calibration
    decisions = collect_decisions(
        model,
        problems[: calibration.num_problems],
        temperature=config.grpo.temperature,
        max_new_tokens=config.stage2.max_new_tokens,
        slots=config.decoding.slots,
        memory=config.decoding.memory,
        seed=seed_of(config.stage2.seed, "calibration"),
    )
    psi = fit_psi(decisions, len(model.operators), calibration)
    model.policy.psi.data.copy_(psi)
    distributed.copy_from_first([model.policy.psi])  # each process has calibrated, and rounded in its own way
    run.log(0, calibration_report(decisions, psi, [operator.name for operator in model.operators]))
    return model.policy.psi.detach().clone()


def rollout_metrics(model: Tyler, rollout: Rollout, config: Config) -> dict[str, float]:
    """What a practitioner watches: reward, success, invocations by operator, budget, lengths, degenerate groups."""
    trajectories = rollout.trajectories
    count = len(trajectories)
    metrics = {
        "stage2/reward": float(rollout.rewards.mean()),
        "stage2/success": float(rollout.success.float().mean()),
        "stage2/over_budget": sum(t.num_invocations > config.grpo.budget for t in trajectories) / count,
        "stage2/truncated": sum(t.truncated for t in trajectories) / count,
        "stage2/gold_errors": grpo.gold_errors(rollout.verdicts),
        "stage2/visible_tokens": sum(t.num_visible for t in trajectories) / count,
        "stage2/latents": sum(t.num_latents for t in trajectories) / count,
        "stage2/degenerate_groups": float(degenerate_groups(rollout.rewards).float().mean()),
        **{f"stage2/{part}_seconds": seconds for part, seconds in rollout.seconds.items()},
    }
    return metrics | invocation_metrics(model, trajectories, "stage2")


def invocation_metrics(model: Tyler, trajectories: Sequence[Trajectory], prefix: str) -> dict[str, float]:
    """Mean invocations per trajectory: in all, and by operator."""
    counts = {operator.name: 0 for operator in model.operators}
    for trajectory in trajectories:
        for invocation in trajectory.invocations:
            counts[invocation.operator] += 1
    means = {f"{prefix}/invocations_{name}": count / len(trajectories) for name, count in counts.items()}
    return {f"{prefix}/invocations": sum(counts.values()) / len(trajectories), **means}


def greedy_metrics(model: Tyler, development: Sequence[Problem], config: Config) -> dict[str, float]:
    """Greedy accuracy and invocations on development problems: greedy routing may never invoke what sampling does."""

    def answer(problems: Sequence[Problem]) -> list[Trajectory]:
        longest = config.stage2.max_new_tokens
        requests = [model.request(problem, router=Learned(), max_new_tokens=longest) for problem in problems]
        return decode(model, requests, config)

    return grpo.greedy_metrics(
        development, answer, GREEDY_ACCURACY, lambda answers: invocation_metrics(model, answers, "greedy")
    )


def log_trajectories(run: Run, step: int, rollout: Rollout) -> None:
    """The audit trail the paper's Limitations ask for: text, invocations, budget and verdict of every rollout."""
    for records in distributed.gather(trajectory_records(rollout)):
        for record in records:
            run.log_trajectory(step, record)


def trajectory_records(rollout: Rollout) -> list[dict[str, Any]]:
    """What trajectories.jsonl says of each trajectory."""
    group_size = rollout.rewards.shape[1]
    rewards = rollout.rewards.flatten().tolist()
    return [
        {
            "problem": rollout.problems[index // group_size].id,
            "member": index % group_size,
            "text": trajectory.text,
            "invocations": [
                [one.operator, one.position, one.num_latents, one.offset] for one in trajectory.invocations
            ],
            "budget": trajectory.budget,
            "outcome": verdict.outcome.value,
            "reward": rewards[index],
            "finish_reason": trajectory.finish_reason,
            "seed": trajectory.sampling.seed,
        }
        for index, (trajectory, verdict) in enumerate(zip(rollout.trajectories, rollout.verdicts, strict=True))
    ]


@training_command
def run(config: Config, *, start: Path | str) -> Prepared[Tyler]:
    """`tyler stage2`: the policy of a Stage 1 model learns.

    Raises ValueError where `start` is no Stage 1 model, one whose run is not finished, or one of other settings than
    the config's.
    """
    if not is_checkpoint(shipped(str(start)) or latest_checkpoint(start) or Path(start)):
        raise ValueError(
            f"{start} holds no Stage 1 model (no finished checkpoint); run `tyler stage1 CONFIG` first, or name its "
            "run with --start"
        )
    model = Tyler.from_pretrained(
        str(start), backbone=config.backbone.id, dtype=config.backbone.dtype, device=config.devices.device
    )
    if model.stage != "stage1":
        raise ValueError(
            f"{start} is a {model.stage} model; Stage 2 starts from a Stage 1 model (`tyler stage1 CONFIG`)"
        )
    recorded = {"operators": model.operators, **prompt_settings(model.prompt)}
    check_inherited(config, start, model.backbone, recorded)
    room = longest_prompt(model.backbone, model.heads)
    problems, development = load_askable(config, config.stage2, model.request, room)
    origin = origin_of(model.fingerprint(), map(Problem.content, problems)) | model.backbone.text_origin()
    torch.manual_seed(config.stage2.seed)
    model = model.at_stage("stage2").with_engine(config.decoding.engine, **config.decoding.engine_args)
    model.policy.add_lora(LoraSettings(**config.lora.model_dump()))
    return Prepared(model, origin, partial(train, model, problems, development, config))
