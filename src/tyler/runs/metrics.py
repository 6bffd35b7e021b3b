"""What is logged: every key of `metrics.jsonl`, and what it means. The site's page of metrics is written from it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Metrics:
    """The keys of one kind of training. `{operator}` in a key stands for each operator's name."""

    title: str
    about: str
    meanings: dict[str, str]
    trains: str
    """What a run with these keys trains, in a word."""
    loop: str | None
    """The section of the config with its steps; None where several trainings log these keys."""
    sections: tuple[str, ...]
    """The sections of the config that such a run alone reads."""

    @property
    def prefix(self) -> str:
        """What the keys of its own begin with, as in `stage1/loss`."""
        return next(iter(self.meanings)).partition("/")[0]


STAGE1 = Metrics(
    "Stage 1",
    "",
    {
        "stage1/loss": "cross-entropy per visible target token of the batch, in nats",
        "stage1/gradient_norm": "norm of the gradient of Phi before clipping",
        "stage1/learning_rate": "learning rate of the step",
        "stage1/insertions": "mean number of latent blocks per example",
        "stage1/tokens_per_second": "prompt and target tokens of the batch over its wall time",
        "stage1/seconds": "wall time of the step",
        "stage1/development_loss": (
            "the same loss on development problems, every `stage1.eval_every` steps: without dropout, latents at the "
            "same places every time; chooses `checkpoints/best`"
        ),
    },
    trains="Stage 1",
    loop="stage1",
    sections=("stage1",),
)
SFT = Metrics(
    "SFT",
    "",
    {
        "sft/loss": "cross-entropy per target token of the batch, in nats",
        "sft/gradient_norm": "norm of the gradient of eta before clipping",
        "sft/learning_rate": "learning rate of the step",
        "sft/tokens_per_second": "prompt and target tokens of the batch over its wall time",
        "sft/seconds": "wall time of the step",
        "sft/development_loss": (
            "the same loss on development problems, without dropout, every `sft.eval_every` steps; chooses "
            "`checkpoints/best`"
        ),
    },
    trains="SFT",
    loop="sft",
    sections=("sft",),
)
SOFTCOT = Metrics(
    "SoftCoT",
    "",
    {
        "softcot/loss": "cross-entropy per target token of the batch, in nats",
        "softcot/gradient_norm": "norm of the gradient of the Linear before clipping",
        "softcot/learning_rate": "learning rate of the step",
        "softcot/tokens_per_second": "prompt (thoughts included) and target tokens of the batch over its wall time",
        "softcot/seconds": "wall time of the step",
        "softcot/development_loss": (
            "the same loss on development problems, without dropout, every `softcot.eval_every` steps; chooses "
            "`checkpoints/best`"
        ),
    },
    trains="SoftCoT",
    loop="softcot",
    sections=("softcot",),
)
STAGE2 = Metrics(
    "Stage 2, and GRPO without operators",
    "Means are over the rollouts of the step unless said otherwise.",
    {
        "stage2/reward": "R(tau): task reward minus budget penalty",
        "stage2/success": "share of rollouts that the verifier accepts",
        "stage2/invocations": "operator invocations per rollout, sampled",
        "stage2/invocations_{operator}": "the same for one operator",
        "stage2/over_budget": "share of rollouts with more invocations than `grpo.budget`",
        "stage2/truncated": "share of rollouts cut off by `stage2.max_new_tokens` or the model's context",
        "stage2/gold_errors": "share of rollouts whose gold answer cannot be read: they teach nothing, mend the data",
        "stage2/visible_tokens": "visible actions per rollout",
        "stage2/latents": "latents per rollout",
        "stage2/degenerate_groups": "share of groups whose rewards are all equal: they teach nothing but the KL term",
        "stage2/loss": "L_stage2 of the step's last update",
        "stage2/grpo": "L_GRPO, with its KL term",
        "stage2/anchor": "L_anch, before its weight",
        "stage2/kl": (
            "k3 KL to the policy at the start of Stage 2, nats per action; absent where `grpo.kl_weight` is 0, for "
            "nothing reads the reference there"
        ),
        "stage2/entropy": "entropy of the policy over V', nats per action",
        "stage2/clip_share": "share of actions where the clip binds",
        "stage2/operator_clip_share": "the same among operator invocations",
        "stage2/replay_gap": (
            "largest difference between a replayed and a sampled log-probability; near 0 at a step's first update"
        ),
        "stage2/gradient_norm": "norm of the gradient of {eta, psi} before clipping",
        "stage2/learning_rate": "learning rate of eta",
        "stage2/rollout_seconds": "wall time of decoding the groups",
        "stage2/synthesis_seconds": (
            "of which passes of operator calls: the sum over rollouts of what fell to each, every pass split over the "
            "rows it served ([evaluation](../evaluation.md#how-to-read-the-tables))"
        ),
        "stage2/grading_seconds": "wall time of the verifier",
        "stage2/learning_seconds": "wall time of replay, gradient and update",
        "greedy/accuracy": (
            "greedy accuracy on development problems, every `stage2.eval_every` steps; chooses `checkpoints/best`"
        ),
        "greedy/invocations": "operator invocations per greedy answer",
        "greedy/invocations_{operator}": "the same for one operator",
        "calibration/{operator}_at_boundaries": (
            "step 0: mean probability of an operator where its rule proposes it, after the start of psi"
        ),
        "calibration/elsewhere": "step 0: mean probability of any operator where no rule proposes one",
    },
    trains="Stage 2",
    loop="stage2",
    sections=("stage2", "grpo"),
)
MEMGEN_WEAVER = Metrics(
    "MemGen: the weaver on traces",
    "",
    {
        "memgen_weaver/loss": "cross-entropy per target token of the batch, in nats",
        "memgen_weaver/gradient_norm": "norm of the gradient of the weaver before clipping",
        "memgen_weaver/learning_rate": "learning rate of the step",
        "memgen_weaver/blocks": "mean number of latent blocks per trace, the prompt's included",
        "memgen_weaver/seconds": "wall time of the step",
        "memgen_weaver/development_loss": (
            "the same loss on development problems, without dropout, every `memgen.weaver.eval_every` steps; chooses "
            "`checkpoints/best`"
        ),
    },
    trains="MemGen weaver",
    loop="memgen.weaver",
    sections=("memgen",),
)
MEMGEN_GRPO = Metrics(
    "MemGen: GRPO of the weaver or of the trigger",
    "Means are over the answers of the step. The loss and what follows it are missing where no trigger was asked.",
    {
        "memgen_grpo/reward": "share of answers that the verifier accepts",
        "memgen_grpo/gold_errors": "share of rollouts whose gold answer cannot be read: they teach nothing",
        "memgen_grpo/degenerate_groups": "share of groups whose rewards are all equal: they teach nothing",
        "memgen_grpo/visible_tokens": "visible tokens per answer",
        "memgen_grpo/latents": "latents per answer, the prompt's included",
        "memgen_grpo/insertions": "blocks after delimiters per answer",
        "memgen_grpo/consultations": "times that the trigger was asked per answer",
        "memgen_grpo/agreed": "share of its answers that were yes",
        "memgen_grpo/loss": "L_GRPO of the step's last update",
        "memgen_grpo/clip_share": "share of learned actions where the clip binds",
        "memgen_grpo/replay_gap": (
            "largest difference between a replayed and a sampled log-probability; near 0 at a step's first update"
        ),
        "memgen_grpo/gradient_norm": "norm of the gradient before clipping",
        "memgen_grpo/learning_rate": "learning rate of the update",
        "memgen_grpo/rollout_seconds": "wall time of decoding and grading the groups",
        "memgen_grpo/learning_seconds": "wall time of replay, gradients and updates",
        "memgen_grpo/greedy_accuracy": (
            "greedy accuracy on development problems, every `eval_every` steps; chooses `checkpoints/best`"
        ),
        "memgen_grpo/greedy_insertions": "blocks after delimiters per greedy answer",
    },
    trains="MemGen GRPO",
    loop=None,
    sections=("memgen",),
)

EVERY = (STAGE1, SFT, SOFTCOT, STAGE2, MEMGEN_WEAVER, MEMGEN_GRPO)

LOOPS = {metrics.prefix: metrics for metrics in EVERY}
"""The same, by the prefix of the keys."""
