"""What is logged: every key of `metrics.jsonl`, and what it means. Each method has its own beside its trainer
(METRICS); here is what they share. The site's page of metrics is written from them."""

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


def learning(prefix: str, loss: str, learner: str, more: dict[str, str]) -> dict[str, str]:
    """What every loop logs of a step's update."""
    return {
        f"{prefix}/loss": loss,
        f"{prefix}/gradient_norm": f"norm of the gradient of {learner} before clipping",
        f"{prefix}/learning_rate": f"learning rate of {learner}",
        f"{prefix}/skipped_updates": "updates skipped so far, because the loss or its gradient was not finite",
        **{f"{prefix}/{key}": meaning for key, meaning in more.items()},
    }


def from_traces(prefix: str, learner: str, more: dict[str, str]) -> dict[str, str]:
    """What every loop on traces logs."""
    development = "the same loss on development problems, without dropout, every `eval_every` steps; chooses "
    shared = {"seconds": "wall time of the step", "development_loss": f"{development}`checkpoints/best`"}
    loss = "cross-entropy per visible target token of the batch, in nats"
    return learning(prefix, loss, learner, more | shared)


def from_rewards(prefix: str, loss: str, learner: str, more: dict[str, str]) -> dict[str, str]:
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
    return learning(prefix, loss, learner, shared | more)


GREEDY = {
    "greedy/accuracy": "greedy accuracy on development problems, every `eval_every` steps; chooses `checkpoints/best`"
}
SPEED = {"tokens_per_second": "prompt and target tokens of the batch over its wall time"}
SHARED = ("greedy", "calibration")
"""What keys begin with that no trainer has for itself."""
