"""Stage 2: operator invocation optimization (Section 4.2). The policy {eta, psi} learns when to invoke which operator.

Each step: roll out groups on the engine, reward them by the verifier and the budget, replay them through the policy
with their stored latents, and descend on GRPO plus the operator-anchored loss. The loop is `grpo.GrpoTrainer`'s.
"""

import logging
import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from tyler.config.schema import Config
from tyler.engine.request import Request
from tyler.engine.routing import Learned
from tyler.engine.sampling import Sampling
from tyler.engine.trajectory import Trajectory
from tyler.model import Tyler
from tyler.modeling.architectures import shipped
from tyler.modeling.backbone import resolve_device
from tyler.modeling.checkpoint import is_checkpoint
from tyler.modeling.locations import inside
from tyler.presentation import counted
from tyler.runs.checkpoints import latest_checkpoint
from tyler.runs.metrics import GREEDY, Metrics, from_rewards
from tyler.runs.run import TrainedRun
from tyler.tasks.problem import Problem
from tyler.training import distributed
from tyler.training.calibration import boundary_requests, calibrate
from tyler.training.command import (
    Prepared,
    check_inherited,
    load_problems_that_fit,
    lora_of,
    origin_of,
    prompt_settings,
    training_command,
)
from tyler.training.grpo import Actions, GrpoTrainer, trajectory_records
from tyler.training.policy_losses import AnchoredLoss
from tyler.training.replay import padded, replay_logprobs
from tyler.training.rewards import Rewards, origins, with_sources
from tyler.training.rollouts import NativeRollouts, Rollout
from tyler.training.sharding import load_settings, shard

logger = logging.getLogger(__name__)


METRICS = Metrics(
    "Stage 2",
    from_rewards(
        "stage2",
        "L_stage2 of the step's last update",
        "{eta, psi}",
        {
            "invocations": "operator invocations per rollout, sampled",
            "invocations_{operator}": "the same for one operator",
            "over_budget": "share of rollouts with more invocations than `grpo.budget`",
            "grpo": "L_GRPO, with its KL term",
            "anchor": "L_anch, before its weight",
            "kl": (
                "k3 KL to the policy at the start of Stage 2, nats per action; absent where `grpo.kl_weight` is 0, for "
                "nothing reads the reference there"
            ),
            "entropy": "entropy of the policy over V', nats per action",
            "operator_clip_share": "share of operator invocations where the clip binds",
        },
    )
    | GREEDY
    | {
        "greedy/invocations": "operator invocations per greedy answer",
        "greedy/invocations_{operator}": "the same for one operator",
        "calibration/{operator}_at_boundaries": (
            "step 0: mean probability of an operator where its rule proposes it, after the start of psi"
        ),
        "calibration/elsewhere": "step 0: mean probability of any operator where no rule proposes one",
    },
    sections=("stage2", "grpo"),
    about="Means are over the rollouts of the step unless said otherwise.",
)


class Stage2Trainer(GrpoTrainer):
    """The policy {eta, psi} learns, after psi is calibrated on the first problems.

    A model without operators learns by GRPO alone: there is no psi to start, no penalty and nothing to anchor. Raises
    RewardError for a reward of the config that cannot be used.
    """

    metrics = METRICS
    terms: tuple[str, ...] = ("loss", "grpo", "anchor", "clip_share", "operator_clip_share", "cut_share", "entropy")

    def __init__(
        self,
        model: Tyler,
        problems: Sequence[Problem],
        development: Sequence[Problem],
        config: Config,
        title: str = "Stage 2",
    ) -> None:
        grpo, longest = config.grpo, config.stage2.max_new_tokens
        rollouts = NativeRollouts(model.shared_engine, config.decoding)
        rewards = Rewards.of(grpo, config.rewards, grpo, longest, operators=bool(model.operators))
        loss = AnchoredLoss(grpo, longest, grpo.kl_weight, grpo.anchor_weight)
        super().__init__(model, config.stage2, grpo, rollouts, rewards, loss, problems, development)
        self.model, self.config, self.title = model, config, title
        self.in_step = config.stage2.shard_layers
        self.reference_psi = torch.zeros_like(model.policy.psi)
        if config.grpo.kl_weight > 0:  # without a KL term nothing reads the reference
            self.terms = (*self.terms, "kl")
        model.policy.eval()  # no LoRA dropout: replay must be the rollout's distribution

    def parameter_groups(self) -> list[tuple[list[torch.nn.Parameter], float]]:
        assert self.model.policy.lora is not None
        eta = [parameter for parameter in self.model.policy.lora.parameters() if parameter.requires_grad]
        rate = self.config.stage2.learning_rate
        return [(eta, rate), ([self.model.policy.psi], self.config.stage2.psi_learning_rate or rate)]

    @property
    def state(self) -> Sequence[Tensor]:
        return [self.reference_psi]

    def start(self, run: TrainedRun) -> None:
        """Calibrate psi on answers of all processes, and log what it reached as step 0."""
        if not self.model.operators:
            return
        requests = boundary_requests(self.model, self.problems, self.config)
        logger.info("%s: psi is calibrated on rollouts of %s", self.title, counted(len(requests), "problem"))
        answers = distributed.gather(self.rollouts.answer(distributed.share(requests)))
        if self.in_step or distributed.rank() == 0:
            everyones = [answer for part in answers for answer in part]
            run.log(0, calibrate(self.model, everyones, self.config.stage2.calibration))
        distributed.broadcast_from_rank_zero([self.model.policy.psi])
        self.reference_psi.copy_(self.model.policy.psi.detach())

    def request(self, problem: Problem, sampling: Sampling) -> Request:
        """The budget is soft here: a penalty, not a cap."""
        longest = self.config.stage2.max_new_tokens
        return self.model.request(problem, router=Learned(), sampling=sampling, max_new_tokens=longest)

    def actions(self, rollout: Rollout) -> Actions:
        """Every drawn action, tokens and invocations."""
        device = self.backbone.device
        logprobs, _ = padded([one.logprobs for one in rollout.trajectories], device)
        drawn, _ = padded([one.drawn() for one in rollout.trajectories], device)
        operators, _ = padded([one.is_operator for one in rollout.trajectories], device)
        return Actions(logprobs, drawn.bool(), operators.bool() & drawn.bool())

    def replay(self, rollout: Rollout, places: list[int]) -> tuple[Tensor, Tensor]:
        policy, recompute = self.model.policy, self.loop.gradient_checkpointing
        of = self.backbone, policy.decoder, policy.psi, [rollout.trajectories[place] for place in places]
        return replay_logprobs(*of, recompute=recompute, share_prompts=not self.in_step)

    @torch.no_grad()
    def reference(self, rollout: Rollout, places: list[int]) -> Float[Tensor, "rows actions"] | None:
        """Under the policy as Stage 2 began, psi included."""
        if self.config.grpo.kl_weight == 0:
            return None
        answers = [rollout.trajectories[place] for place in places]
        of = self.backbone, self.model.policy.reference_decoder, self.reference_psi, answers
        return replay_logprobs(*of, share_prompts=not self.in_step)[0]

    def describe(self, rollout: Rollout) -> dict[str, float]:
        over = [one.num_invocations > self.config.grpo.budget for one in rollout.trajectories]
        return {"over_budget": sum(over) / len(over)}

    def describe_answers(self, answers: Sequence[Trajectory]) -> dict[str, float]:
        """Mean invocations per trajectory: in all, and by operator."""
        counts = Counter(invocation.operator for answer in answers for invocation in answer.invocations)
        means = {f"invocations_{one.name}": counts[one.name] / len(answers) for one in self.model.operators}
        return {"invocations": counts.total() / len(answers), **means}

    def record(self, run: TrainedRun, step: int, rollout: Rollout) -> None:
        """The audit trail the paper's Limitations ask for: text, invocations, budget and verdict of every rollout, or
        of a share that is evenly from all of them, rounded up."""
        records = [one for part in distributed.gather(trajectory_records(rollout)) for one in part]
        count = math.ceil(self.config.checkpoints.trajectories * len(records))
        run.log_trajectories(step, [records[place * len(records) // count] for place in range(count)])


@training_command
def run(config: Config, *, start: Path | str) -> Prepared[Tyler]:
    """`tyler train stage2`: the policy of a Stage 1 model learns.

    Raises ValueError where `start` is no Stage 1 model, one whose run is not finished, or one of other settings than
    the config's.
    """
    config = with_sources(config, operators=True)
    if not is_checkpoint(shipped(str(start)) or latest_checkpoint(start) or Path(start)):
        seen = inside(Path(start)) if Path(start).is_dir() else ""
        raise ValueError(
            f"{start} holds no Stage 1 model (no finished checkpoint){seen}; run `tyler train stage1 CONFIG` first, "
            "or name its run with --start"
        )
    placed = load_settings(config, sharded=config.stage2.shard_layers)
    model = Tyler.from_pretrained(str(start), backbone=config.backbone.id, **placed)
    if model.stage != "stage1":
        raise ValueError(
            f"{start} is a {model.stage} model; Stage 2 starts from a Stage 1 model (`tyler train stage1 CONFIG`)"
        )
    recorded = {"operators": model.operators, **prompt_settings(model.prompt)}
    check_inherited(config, start, model.backbone, recorded)
    torch.manual_seed(config.stage2.seed)
    return prepared(config, model.at_stage("stage2"), model.fingerprint(), "Stage 2")


def prepared(config: Config, model: Tyler, started: str, title: str) -> Prepared[Tyler]:
    """A model that is to learn from rewards, with its problems: it gets a new eta, drawn from torch's global generator,
    and the engine that answers, and is sharded where the config says so. `started` is the fingerprint before that."""
    problems, development = load_problems_that_fit(config, config.stage2, model.request, model.backbone)
    content = map(Problem.content, problems)
    origin = origin_of(started, content, model.backbone, model.operators) | origins(config.rewards)
    model = model.with_engine(config.decoding.engine, **config.decoding.engine_args)
    model.policy.add_lora(lora_of(config))
    if config.stage2.shard_layers:
        distributed.run_on_rank_zero(model.backbone.exported)  # while it is whole: the engine reads its folder
        shard(model, resolve_device(config.devices.device), {"stage2.batch_size": config.stage2.batch_size})
    parts = model, problems, development, config, title
    return Prepared(model, origin, lambda run: Stage2Trainer(*parts).train(run), config)
