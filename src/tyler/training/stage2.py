"""Stage 2: operator invocation optimization (Section 4.2). The policy {eta, psi} learns when to invoke which operator.

Each step: roll out groups on the engine, reward them by the verifier and the budget, replay them through the policy
with their stored latents, and descend on GRPO plus the operator-anchored loss. The loop is `grpo.GrpoTrainer`'s.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from tyler.config.schema import Config
from tyler.engine.base import longest_prompt
from tyler.engine.request import Request
from tyler.engine.routing import Learned
from tyler.engine.sampling import Sampling
from tyler.engine.trajectory import Trajectory
from tyler.model import Tyler
from tyler.modeling.architectures import shipped
from tyler.modeling.checkpoint import is_checkpoint
from tyler.modeling.lora import LoraSettings
from tyler.presentation import counted
from tyler.runs.checkpoints import latest_checkpoint
from tyler.runs.run import TrainedRun
from tyler.tasks.problem import Problem
from tyler.training import distributed
from tyler.training.calibration import calibrate
from tyler.training.command import (
    Prepared,
    check_inherited,
    load_askable,
    origin_of,
    prompt_settings,
    training_command,
)
from tyler.training.grpo import (
    Actions,
    GrpoTrainer,
    Parts,
    anchored_loss,
    trajectory_records,
)
from tyler.training.replay import pack_for, padded, replay_logprobs
from tyler.training.rewards import Rewards, origins, with_sources
from tyler.training.rollouts import NativeRollouts, Rollout

logger = logging.getLogger(__name__)


class Stage2Trainer(GrpoTrainer):
    """The policy {eta, psi} learns, after psi is calibrated on the first problems.

    A model without operators learns by GRPO alone: there is no psi to start, no penalty and nothing to anchor.
    """

    prefix = "stage2"
    terms: tuple[str, ...] = ("loss", "grpo", "anchor", "clip_share", "operator_clip_share", "cut_share", "entropy")

    def __init__(
        self,
        model: Tyler,
        problems: Sequence[Problem],
        development: Sequence[Problem],
        config: Config,
        parts: Parts | None = None,
        title: str = "Stage 2",
    ) -> None:
        parts = parts or parts_of(model, config)
        super().__init__(model, config.stage2, config.grpo, parts, problems, development)
        self.model, self.config, self.title = model, config, title
        self.reference_psi = torch.zeros_like(model.policy.psi)
        if config.grpo.kl_weight > 0:  # without a KL term nothing reads the reference
            self.terms = (*self.terms, "kl")
        model.policy.eval()  # no LoRA dropout: replay must be the rollout's distribution

    # ----------------------------------------------------------------------------------------------- what learns

    def parameter_groups(self) -> list[tuple[list[torch.nn.Parameter], float]]:
        """eta and psi with their learning rates."""
        assert self.model.policy.lora is not None
        eta = [parameter for parameter in self.model.policy.lora.parameters() if parameter.requires_grad]
        rate = self.config.stage2.learning_rate
        return [(eta, rate), ([self.model.policy.psi], self.config.stage2.psi_learning_rate or rate)]

    @property
    def state(self) -> Sequence[Tensor]:
        return [self.reference_psi]

    def start(self, run: TrainedRun) -> None:
        """Calibrate psi, in the first process for all, and log what it reached as step 0."""
        if not self.model.operators:
            return
        count = counted(self.config.stage2.calibration.num_problems, "problem")
        logger.info("%s: psi is calibrated on rollouts of %s", self.title, count)
        report = distributed.after_first(lambda: calibrate(self.model, self.problems, self.config))
        distributed.copy_from_first([self.model.policy.psi])
        self.reference_psi.copy_(self.model.policy.psi.detach())
        if report is not None:
            run.log(0, report)

    # ------------------------------------------------------------------------------------------- what is answered

    def request(self, problem: Problem, sampling: Sampling) -> Request:
        """The budget is soft here: a penalty, not a cap."""
        longest = self.config.stage2.max_new_tokens
        return self.model.request(problem, router=Learned(), sampling=sampling, max_new_tokens=longest)

    def greedy_answers(self, problems: Sequence[Problem]) -> list[Trajectory]:
        """Greedy routing may never invoke what sampling does."""
        return self.parts.rollouts.answer([self.request(problem, Sampling()) for problem in problems])

    # -------------------------------------------------------------------------------------------- what is learned

    def actions(self, rollout: Rollout) -> Actions:
        """Every drawn action, tokens and invocations."""
        device = self.backbone.device
        logprobs, _ = padded([one.logprobs for one in rollout.trajectories], device)
        drawn, _ = padded([one.drawn() for one in rollout.trajectories], device)
        operators, _ = padded([one.is_operator for one in rollout.trajectories], device)
        return Actions(logprobs, drawn.bool(), operators.bool() & drawn.bool())

    def replay(self, rollout: Rollout, places: list[int]) -> tuple[Tensor, Tensor]:
        policy, recompute = self.model.policy, self.loop.gradient_checkpointing
        packed = pack_for(self.backbone, [rollout.trajectories[place] for place in places])
        return replay_logprobs(policy.decoder, self.backbone.head, policy.psi, packed, recompute=recompute)

    @torch.no_grad()
    def reference(self, rollout: Rollout, places: list[int]) -> Float[Tensor, "rows actions"] | None:
        """Under the policy as Stage 2 began, psi included."""
        if self.config.grpo.kl_weight == 0:
            return None
        packed = pack_for(self.backbone, [rollout.trajectories[place] for place in places])
        decoder = self.model.policy.reference_decoder
        return replay_logprobs(decoder, self.backbone.head, self.reference_psi, packed)[0]

    # --------------------------------------------------------------------------------------------- what is reported

    def describe(self, rollout: Rollout) -> dict[str, float]:
        over = [one.num_invocations > self.config.grpo.budget for one in rollout.trajectories]
        return {"over_budget": sum(over) / len(over)}

    def describe_answers(self, answers: Sequence[Trajectory]) -> dict[str, float]:
        """Mean invocations per trajectory: in all, and by operator."""
        counts = {operator.name: 0 for operator in self.model.operators}
        for trajectory in answers:
            for invocation in trajectory.invocations:
                counts[invocation.operator] += 1
        means = {f"invocations_{name}": count / len(answers) for name, count in counts.items()}
        return {"invocations": sum(counts.values()) / len(answers), **means}

    def record(self, run: TrainedRun, step: int, rollout: Rollout) -> None:
        """The audit trail the paper's Limitations ask for: text, invocations, budget and verdict of every rollout."""
        records = [one for part in distributed.gather(trajectory_records(rollout)) for one in part]
        run.log_trajectories(step, spread(records, self.config.checkpoints.trajectories))


def spread(records: Sequence[Any], share: float) -> list[Any]:
    """A share of the records, evenly from all of them, rounded up."""
    count = math.ceil(share * len(records))
    return [records[place * len(records) // count] for place in range(count)]


def parts_of(model: Tyler, config: Config) -> Parts:
    """Who answers, for what reward, and the loss, as a config says. Raises RewardError for an unusable reward."""
    grpo, longest = config.grpo, config.stage2.max_new_tokens
    rewards = Rewards.of(grpo, config.rewards, grpo, longest, operators=bool(model.operators))
    loss = anchored_loss(grpo, longest, kl_weight=grpo.kl_weight, anchor_weight=grpo.anchor_weight)
    return Parts(NativeRollouts(model.shared_engine, config.decoding), rewards, loss)


@training_command
def run(config: Config, *, start: Path | str) -> Prepared[Tyler]:
    """`tyler train stage2`: the policy of a Stage 1 model learns.

    Raises ValueError where `start` is no Stage 1 model, one whose run is not finished, or one of other settings than
    the config's.
    """
    config = with_sources(config)
    if not is_checkpoint(shipped(str(start)) or latest_checkpoint(start) or Path(start)):
        raise ValueError(
            f"{start} holds no Stage 1 model (no finished checkpoint); run `tyler train stage1 CONFIG` first, or "
            "name its run with --start"
        )
    model = Tyler.from_pretrained(
        str(start), backbone=config.backbone.id, dtype=config.backbone.dtype, device=config.devices.device
    )
    if model.stage != "stage1":
        raise ValueError(
            f"{start} is a {model.stage} model; Stage 2 starts from a Stage 1 model (`tyler train stage1 CONFIG`)"
        )
    recorded = {"operators": model.operators, **prompt_settings(model.prompt)}
    check_inherited(config, start, model.backbone, recorded)
    room = longest_prompt(model.backbone, model.heads)
    problems, development = load_askable(config, config.stage2, model.request, room)
    content = map(Problem.content, problems)
    origin = origin_of(model.fingerprint(), content, model.backbone, config.operators) | origins(config.rewards)
    torch.manual_seed(config.stage2.seed)
    model = model.at_stage("stage2").with_engine(config.decoding.engine, **config.decoding.engine_args)
    model.policy.add_lora(LoraSettings(**config.lora.model_dump()))
    return Prepared(model, origin, lambda run: Stage2Trainer(model, problems, development, config).train(run), config)
