"""The sections of the training loops: both stages, rewards and GRPO, and what every loop shares.

A method that has more than these says so in its own package (`reasoners/memgen/settings.py`).
"""

import math
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from tyler.config.sections import MAX_BATCH, BatchSize, Count, NonNegative, Rate, Section, Seed, Share, Weight

RewardScale = Literal["group", "batch", "none"]
Correction = Literal["none", "token", "sequence"]
Fraction = Annotated[float, Field(gt=0, lt=1)]


class InsertionsConfig(Section):
    """How many latent blocks Stage 1 inserts in one example: uniform in `min`..`max`, at most one per candidate. The
    paper inserts exactly one."""

    min: Count = 1
    """The fewest blocks of an example."""
    max: Count = 1
    """The most blocks of an example."""
    first: str | None = None
    """An operator whose block is always inserted; null for none."""

    @model_validator(mode="after")
    def _min_is_at_most_max(self) -> Self:
        if self.min > self.max:
            raise ValueError(f"min={self.min} is above max={self.max}")
        return self


class OptimizationConfig(Section):
    """What all loops share: length, batch, AdamW and its schedule."""

    epochs: Rate | None = 1.0
    """Passes over the training problems; null where `steps` is given."""
    steps: Count | None = None
    """Optimizer steps; where given, it replaces `epochs`, which may then be null."""
    batch_size: BatchSize = 8
    """Examples or prompts per optimizer step, over all processes."""
    micro_batch_size: Count | None = None
    """Examples or answers held in memory at once, by each process; null for all."""
    micro_batch_tokens: Count | Literal["auto"] | None = None
    """Positions held at once, instead of `micro_batch_size`: rows are packed, so none is padding.

    auto is what a processor reads fastest, and on a GPU what its memory has room for; null cuts by rows.
    """
    gradient_checkpointing: bool = False
    """Compute activations again in the backward pass instead of keeping them: less memory, about a third more time."""
    optimizer: Literal["adamw"] = "adamw"
    """AdamW with betas 0.9 and 0.999."""
    learning_rate: Rate = 1e-5
    """The highest learning rate of the schedule."""
    scheduler: Literal["cosine", "constant"] = "cosine"
    """What follows the warmup: a cosine down to 0, or no change."""
    warmup_ratio: Share = 0.1
    """Share of the steps in which the learning rate rises from 0."""
    weight_decay: Weight = 0.0
    """AdamW's decoupled decay."""
    max_grad_norm: Rate = 1.0
    """Gradients of a larger norm are scaled down to it."""
    max_skipped: NonNegative = 10
    """Updates in a row that may be skipped because the loss or its gradient is not finite; one more ends the run."""
    eval_every: Count | None = None
    """Steps between evaluations on the development split, by which the best checkpoint is chosen; null for none."""
    checkpoint_every: Count | None = 100
    """Steps between checkpoints; null for the last one only. A killed run resumes from its newest checkpoint."""
    seed: Seed = 42
    """Of the order of examples and of every random draw of the run."""

    @model_validator(mode="after")
    def _its_length_is_given(self) -> Self:
        if self.epochs is None and self.steps is None:
            raise ValueError("epochs and steps are both null, and one of them says how long it takes; set one")
        return self

    @model_validator(mode="after")
    def _micro_batches_are_cut_in_one_way(self) -> Self:
        if self.micro_batch_size is not None and self.micro_batch_tokens is not None:
            raise ValueError(
                f"micro_batch_size={self.micro_batch_size} and micro_batch_tokens={self.micro_batch_tokens} both cut "
                "the batch; set one of them to null"
            )
        return self

    def num_steps(self, num_examples: int) -> int:
        """Optimizer steps over `num_examples` examples: as many batches as `epochs` passes over them fill, rounded up.

        Every batch is full (`training.loop.batch_at`): one that an epoch ends in continues into the next, so that a run
        reads every example `epochs` times and, to fill its last batch, the first few of the next epoch's order.
        """
        if self.steps is not None:
            return self.steps
        assert self.epochs is not None, "one of the two is given"
        return math.ceil(round(self.epochs * num_examples / self.batch_size, 6))  # 1.1 * 100 is above 110


class TracesConfig(OptimizationConfig):
    """What loops that learn from traces share besides."""

    epochs: Rate | None = 2.0
    autocast: bool = False
    """Products in bfloat16 where the backbone is in float32: faster where the device has instructions for it."""


class Stage1Config(TracesConfig):
    """Stage 1: the operators learn, the backbone is frozen (Section 4.1)."""

    latents: Literal["computed", "constant"] = "computed"
    """`constant` is a control, pause tokens: each operator inserts N_k learned vectors, the same in every context. They
    need a learning rate of their own, say 0.1, since nothing multiplies their steps."""
    insertions: InsertionsConfig = InsertionsConfig()
    max_length: Count = 4096
    """Tokens and latents per example; longer examples are left out and counted."""
    shard_layers: bool = False
    """Every process keeps a part of each layer (FSDP2), for a backbone that does not fit on one device."""

    @model_validator(mode="after")
    def _shards_are_read_in_step(self) -> Self:
        if self.shard_layers and self.insertions.max > 1:
            raise ValueError(
                f"shard_layers needs insertions.max=1, got {self.insertions.max}: processes read their layers in step, "
                "and each block is one more reading"
            )
        return self


class RewardConfig(Section):
    """One reward: a built-in one by its `name`, or a function of one's own by its `path`.

    Built in: `verifier` (1 for a right answer), `budget` (the paper's penalty on right answers with more invocations
    than `grpo.budget`, times `grpo.budget_weight`), `format` (1 for an answer in the form that the task reads),
    `length` (0 down to -1 at the longest answer), `code` (1 for a program that passes its tests in the sandbox).
    """

    name: Literal["verifier", "budget", "format", "length", "code"] | None = None
    """A built-in reward."""
    path: str | None = None
    """FILE.py:FUNCTION, or package.module:FUNCTION, with TRL's signature (docs/rewards.md)."""
    weight: float = 1.0
    """What it is multiplied by; 0 only reports it."""
    free: NonNegative = 0
    """Of `length`: visible tokens that cost nothing."""
    sha256: str | None = None
    """Of the source that `path` named when the run was started; filled in by the run."""

    @model_validator(mode="after")
    def _it_is_named_in_one_way(self) -> Self:
        if (self.name is None) == (self.path is None):
            raise ValueError(f"a reward has a name or a path, got name={self.name!r} and path={self.path!r}")
        if self.path is not None and not all(self.path.rpartition(":")[::2]):
            raise ValueError(f"path={self.path!r} names no function; write FILE.py:FUNCTION or package.module:FUNCTION")
        return self

    @property
    def title(self) -> str:
        """What its metrics are called: the built-in name, or that of the function."""
        return self.name or str(self.path).rpartition(":")[2]


class ObjectiveConfig(Section):
    """What all learning from groups of rewarded answers shares."""

    group_size: Annotated[int, Field(ge=2, le=MAX_BATCH)] = 8
    """G: answers sampled for each problem."""
    loss: Literal["grpo", "dapo", "dr_grpo", "bnpo"] = "grpo"
    """What an action counts: as in the paper (1 / (G |tau|)), the same in the whole batch (dapo) or in each process's
    part of it (bnpo), or 1 over the longest answer allowed (dr_grpo)."""
    clip_range: Fraction = 0.2
    """epsilon: how far an importance ratio may move before it is clipped."""
    clip_range_high: Annotated[float, Field(gt=0)] | None = None
    """epsilon of the upper bound, as in DAPO; null for the same."""
    importance: Literal["token", "sequence"] = "token"
    """Whether the ratio is that of each action, or the geometric mean of the answer's (sequence, as in GSPO)."""
    mask_truncated: bool = False
    """Whether answers that were cut off teach nothing; they stay in their group's mean."""
    redraws: NonNegative = 0
    """How often groups without spread are replaced by groups of other problems, as in DAPO's dynamic sampling."""
    correction: Correction = "token"
    """Importance weights of what the engine sampled against what the learner computes: by action or answer, or none.
    Measured on `mini` no choice is better (docs/results): the default guards where engine and learner differ more."""
    correction_cap: Annotated[float, Field(gt=1)] = 2.0
    """At which importance weights are cut off."""
    temperature: Rate = 1.0
    """Of the rollouts, and of the log-probabilities that replay them."""
    updates_per_rollout: Count = 1
    """Optimizer steps on the same rollouts."""
    advantage_epsilon: Rate = 1e-4
    """Added to the standard deviation of a group's rewards."""
    scale_rewards: RewardScale = "group"
    """By whose standard deviation advantages are divided: the group's, as in the paper, the batch's, or none."""
    packages: tuple[str, ...] = ("numpy",)
    """Packages of this environment that programs of the reward `code` may import, beside Python's own."""
    reward_seconds: Rate = 60.0
    """Seconds for a step's verdicts, and for each function: what is graded later has none, a slower function fails."""
    on_fault: Literal["leave_out", "resample"] = "leave_out"
    """What becomes of an answer that could not be judged (a time-out, no sandbox, an unreadable gold answer): it is
    left out of its group, or drawn again first."""


class CalibrationConfig(Section):
    """The start of psi: operators reach probability `rate` at candidate boundaries and next to none elsewhere.

    Deviation: the paper leaves psi's start open, and a random one never samples an operator.
    """

    num_problems: Count = 64
    """Problems whose states are fitted."""
    rate: Fraction = 0.3
    """The probability of an operator where its rule proposes it."""
    steps: Count = 200
    """At most this many of L-BFGS."""
    weight_decay: Weight = 1e-6
    """Of psi in the fit."""


class Stage2Config(OptimizationConfig):
    """Stage 2: the policy learns when to invoke what, the operators are frozen (Section 4.2)."""

    psi_learning_rate: Rate | None = None
    """The learning rate of psi; null for that of eta."""
    max_new_tokens: Count = 2048
    """Actions a rollout may have: visible tokens and invocations."""
    calibration: CalibrationConfig = CalibrationConfig()
    shard_layers: bool = False
    """Every process keeps a part of each layer (FSDP2) while it learns; rollouts come from vLLM (`decoding.engine`)."""


class GrpoConfig(ObjectiveConfig):
    """The group-relative objective, and beta, B_O, lambda and alpha of the paper."""

    kl_weight: Weight = 0.03
    """beta: the weight of the KL term."""
    budget: NonNegative = 5
    """B_O: invocations that cost nothing."""
    budget_weight: Weight = 0.1
    """lambda: what each further invocation of a success costs."""
    anchor_weight: Weight = 0.1
    """alpha: the weight of the anchored loss on invocations."""
