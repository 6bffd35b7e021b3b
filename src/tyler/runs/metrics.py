"""What is logged: every key of `metrics.jsonl`, and what it means. The site's page of metrics is written from it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Metrics:
    """The keys of one kind of training. `{operator}` in a key stands for each operator's name,
    `{reward}` for each reward's."""

    title: str
    meanings: dict[str, str]
    sections: tuple[str, ...]
    """The sections of the config that such a run alone reads."""
    about: str = ""

    @property
    def prefix(self) -> str:
        """What the keys of its own begin with, as in `stage1/loss`."""
        return next(iter(self.meanings)).partition("/")[0]


def _learning(prefix: str, loss: str, learner: str, more: dict[str, str]) -> dict[str, str]:
    """What every loop logs of a step's update."""
    return {
        f"{prefix}/loss": loss,
        f"{prefix}/gradient_norm": f"norm of the gradient of {learner} before clipping",
        f"{prefix}/learning_rate": f"learning rate of {learner}",
        f"{prefix}/skipped_updates": "updates skipped so far, because the loss or its gradient was not finite",
        **{f"{prefix}/{key}": meaning for key, meaning in more.items()},
    }


def _from_traces(prefix: str, learner: str, more: dict[str, str]) -> dict[str, str]:
    """What every loop on traces logs."""
    development = "the same loss on development problems, without dropout, every `eval_every` steps; chooses "
    shared = {"seconds": "wall time of the step", "development_loss": f"{development}`checkpoints/best`"}
    loss = "cross-entropy per visible target token of the batch, in nats"
    return _learning(prefix, loss, learner, more | shared)


def _from_rewards(prefix: str, loss: str, learner: str, more: dict[str, str]) -> dict[str, str]:
    """What every loop on rewards logs; means are over the answers of the step."""
    shared = {
        "reward": "R(tau): the sum of all rewards, each times its weight",
        "reward_{reward}": "mean of one reward, before its weight",
        "reward_{reward}_std": "its standard deviation over the answers of the step",
        "success": "share of answers that the verifier accepts",
        "faults": "share of answers without a verdict: a time-out, no sandbox, a gold answer that cannot be read",
        "gold_errors": "share of answers whose gold answer cannot be read: they teach nothing, mend the data",
        "left_out": "share of answers that have no reward and are left out of their groups",
        "truncated": "share of answers cut off by `max_new_tokens` or the model's context",
        "visible_tokens": "visible tokens per answer",
        "latents": "latents per answer",
        "degenerate_groups": "share of groups whose rewards are all equal: they teach nothing but a KL term",
        "redrawn_groups": "share of groups that were replaced for want of spread (`redraws`)",
        "clip_share": "share of actions where the clip binds",
        "cut_share": "share of actions whose importance weight, learner against engine, reaches `correction_cap`",
        "replay_gap": "largest difference between the engine's log-probability of an action and the learner's",
        "replay_gap_mean": "mean of these differences",
        "replay_gap_p99": "their 99th percentile",
        "rollout_seconds": "wall time of decoding the groups",
        "synthesis_seconds": (
            "of which passes of operator calls: the sum over rollouts of what fell to each, every pass split over the "
            "rows it served ([evaluation](../evaluation.md#how-to-read-the-tables))"
        ),
        "grading_seconds": "wall time of the rewards",
        "learning_seconds": "wall time of replay, gradients and updates",
    }
    return _learning(prefix, loss, learner, shared | more)


GREEDY = {
    "greedy/accuracy": "greedy accuracy on development problems, every `eval_every` steps; chooses `checkpoints/best`"
}
SPEED = {"tokens_per_second": "prompt and target tokens of the batch over its wall time"}

STAGE1 = Metrics(
    "Stage 1",
    _from_traces("stage1", "Phi", {"insertions": "mean number of latent blocks per example"} | SPEED),
    sections=("stage1",),
)
SFT = Metrics("SFT", _from_traces("sft", "eta", SPEED), sections=("sft",))
SOFTCOT = Metrics("SoftCoT", _from_traces("softcot", "the Linear", SPEED), sections=("softcot",))
STAGE2 = Metrics(
    "Stage 2",
    _from_rewards(
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
MEMGEN_WEAVER = Metrics(
    "MemGen: the weaver on traces",
    _from_traces(
        "memgen_weaver", "the weaver", {"blocks": "mean number of latent blocks per trace, the prompt's included"}
    ),
    sections=("memgen",),
)
MEMGEN_GRPO = Metrics(
    "MemGen: GRPO of the weaver or of the trigger",
    _from_rewards(
        "memgen_grpo",
        "L_GRPO of the step's last update",
        "the weaver or the trigger",
        {
            "insertions": "blocks after delimiters per answer",
            "consultations": "times that the trigger was asked per answer",
            "agreed": "share of its answers that were yes",
        },
    )
    | GREEDY
    | {"greedy/insertions": "blocks after delimiters per greedy answer"},
    sections=("memgen",),
    about="Means are over the answers of the step. Where no trigger was asked, there is no loss nor what follows it.",
)

EVERY = (STAGE1, SFT, SOFTCOT, STAGE2, MEMGEN_WEAVER, MEMGEN_GRPO)

LOOPS = {metrics.prefix: metrics for metrics in EVERY}
"""The same, by the prefix of the keys."""
