"""The loop of GRPO, for Stage 2, plain GRPO and MemGen: groups of answers are rolled out, rewarded and learned from.

What differs is who learns, from which actions, and by which reward: a `GrpoSpec` says it. Read `train` from top to
bottom.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from operator import gt
from typing import Generic, TypeVar

from jaxtyping import Bool, Float
from torch import Tensor, nn

from tyler.config.loops import OptimizationConfig
from tyler.config.schema import Config
from tyler.engine.request import Request
from tyler.engine.trajectory import Trajectory
from tyler.runs.run import Run
from tyler.tasks import grade
from tyler.tasks.problem import Outcome, Problem, Verdict
from tyler.training import distributed
from tyler.training.command import development_problems, load_problems
from tyler.training.loop import Saved, batch_at, check_finite, remaining_steps
from tyler.training.micro_batches import MicroBatches
from tyler.training.optimizer import Optimization

logger = logging.getLogger(__name__)

REPLAY_GAP = "replay_gap"
"""The term that is a largest difference, and not a sum over the batch."""
NAMED = 5
"""As many problems are named where some are left out."""


@dataclass(frozen=True)
class Rollout:
    """The groups of one step, flat: `group_size` trajectories per problem, with verdicts and rewards."""

    problems: list[Problem]
    trajectories: list[Trajectory]
    verdicts: list[Verdict]
    rewards: Float[Tensor, "batch group"]
    success: Bool[Tensor, "batch group"]
    seconds: dict[str, float]


Rolled = TypeVar("Rolled", bound=Rollout)


@dataclass(frozen=True)
class GrpoSpec(Generic[Rolled]):
    """What one kind of GRPO brings to the loop."""

    title: str
    """Of the progress bar."""
    metrics: str
    """What the names of its metrics begin with."""
    loop: OptimizationConfig
    updates_per_rollout: int
    parameters: list[tuple[list[nn.Parameter], float]]
    """Parameters with their peak learning rate."""
    model: Saved
    """What its checkpoints hold."""
    roll_out: Callable[[Sequence[Problem], Sequence[int], int], Rolled]
    """Answers problems, of which the batch had some before (`repeats_in`), at a step, counted from 0."""
    describe: Callable[[Rolled], Mapping[str, float]]
    """Metrics of a rollout, the same in every process."""
    learn: Callable[[Rolled], dict[str, float]]
    """Accumulates the gradient of the loss; returns the loss and its terms, without the prefix."""
    greedy: Callable[[Sequence[Problem]], Mapping[str, float]]
    """Metrics of greedy answers to development problems, the same in every process."""
    best: str
    """The metric of `greedy` whose highest value chooses the best checkpoint."""
    state: Sequence[Tensor] = ()
    """What a resumed run needs besides parameters and optimizer."""
    start: Callable[[Run], None] = lambda run: None
    """What a new run does before its first step."""
    record: Callable[[Run, int, Rolled], None] = lambda run, step, rollout: None
    """Keeps the answers of a step, counted from 1."""


def train(spec: GrpoSpec[Rolled], problems: Sequence[Problem], development: Sequence[Problem], run: Run) -> None:
    """Train what `spec` names in place, logging and checkpointing into `run`; resumes where `run` stands.

    Every `eval_every` steps `development` is answered greedily, by which the best checkpoint is chosen.
    """
    loop, updates = spec.loop, spec.updates_per_rollout
    total = loop.num_steps(len(problems))
    optimization = Optimization.of(loop, spec.parameters, total * updates)
    steps = remaining_steps(spec.title, run, total, optimization, loop.checkpoint_every, spec.model, spec.state)
    if run.latest_checkpoint() is None:
        spec.start(run)
    with closing(steps):
        for step in steps:
            batch = [problems[index] for _, index in batch_at(step.number, loop.batch_size, len(problems), loop.seed)]
            rollout = spec.roll_out(distributed.share(batch), distributed.share(repeats_in(batch)), step.number)
            metrics = dict(spec.describe(rollout))
            started = time.perf_counter()
            for update in range(step.number * updates, (step.number + 1) * updates):
                metrics |= improve(spec, rollout, optimization, update)
            metrics[f"{spec.metrics}/learning_seconds"] = time.perf_counter() - started
            if development and step.is_due(loop.eval_every):
                metrics |= spec.greedy(development)
                step.record_best(metrics, spec.best, gt)
            spec.record(run, step.number + 1, rollout)
            step.log(metrics, note(metrics, spec.metrics))


def load_askable(
    config: Config, loop: OptimizationConfig, request: Callable[[Problem], Request], longest_prompt: int
) -> tuple[list[Problem], list[Problem]]:
    """The training and the development problems of a config, without those whose prompts are too long to be answered.

    Raises ValueError where no training problem is left.
    """
    training, development = load_problems(config), development_problems(config, loop)
    kept = _askable(training, "training", request, longest_prompt)
    if not kept:
        raise ValueError(
            f"all {len(training)} training problems have prompts of more than {longest_prompt} tokens, which leave no "
            "room for an answer in the model's context; train on shorter ones"
        )
    return kept, _askable(development, "development", request, longest_prompt)


def _askable(
    problems: Sequence[Problem], what: str, request: Callable[[Problem], Request], longest_prompt: int
) -> list[Problem]:
    fits = [len(request(problem).prompt_ids) <= longest_prompt for problem in problems]
    if left_out := [problem.id for problem, fitting in zip(problems, fits, strict=True) if not fitting]:
        more = f" and {len(left_out) - NAMED} more" if len(left_out) > NAMED else ""
        logger.warning(
            "left out %d of %d %s problems, with prompts of over %d tokens: %s%s",
            *(len(left_out), len(problems), what, longest_prompt, ", ".join(left_out[:NAMED]), more),
        )
    return [problem for problem, fitting in zip(problems, fits, strict=True) if fitting]


def repeats_in(batch: Sequence[Problem]) -> list[int]:
    """How often the batch had each problem before: it may be the end of one epoch and the beginning of the next."""
    ids = [problem.id for problem in batch]
    return [ids[:place].count(id) for place, id in enumerate(ids)]


def groups_of(problems: Sequence[Problem], group_size: int, repeats: Sequence[int] = ()) -> list[tuple[Problem, int]]:
    """Every answer that is asked for: its problem, and its number, by which it is seeded.

    A problem that the batch had before (`repeats_in`) is answered by other numbers.
    """
    return [
        (problem, repeat * group_size + member)
        for problem, repeat in zip(problems, repeats or [0] * len(problems), strict=True)
        for member in range(group_size)
    ]


def improve(spec: GrpoSpec[Rolled], rollout: Rolled, optimization: Optimization, update: int) -> dict[str, float]:
    """One update on a rollout; `update` counts all updates of the run from 0. Nothing where nothing was decided."""
    terms = spec.learn(rollout)
    ids = [id for part in distributed.gather([problem.id for problem in rollout.problems]) for id in part]
    check_finite(terms["loss"], update // spec.updates_per_rollout, ids)
    if not any(distributed.gather(any(one.grad is not None for one in optimization.parameters))):
        return {}  # MemGen's trigger was never asked
    norm, rate = optimization.step(update, ids)
    found = {**terms, "gradient_norm": norm, "learning_rate": rate}
    return {f"{spec.metrics}/{name}": value for name, value in found.items()}


def note(metrics: Mapping[str, float], prefix: str) -> str:
    """What the progress bar says of a step."""
    calls = metrics.get(f"{prefix}/invocations")
    said = f"reward {metrics[f'{prefix}/reward']:.2f}"
    return said if calls is None else f"{said}, {calls:.1f} calls"


def accumulate_gradients(
    trajectories: Sequence[Trajectory],
    pieces: MicroBatches,
    names: Sequence[str],
    part_terms: Callable[[list[int]], Mapping[str, Tensor | float]],
) -> dict[str, float]:
    """Accumulate the gradient over micro-batches of trajectories; returns the terms of the whole batch by `names`.

    `part_terms` gives of some places the part of the loss with its gradient and of its other terms, or nothing where
    nothing was decided there. A rollout is this process's share of a batch; the gradient is the share's part.
    """
    totals = dict.fromkeys(names, 0.0)
    lengths = [len(one.prompt_ids) + one.num_visible + one.num_latents for one in trajectories]
    for places in pieces.cut(lengths):
        terms = part_terms(places)
        if isinstance(loss := terms.get("loss"), Tensor):
            loss.backward()
        for name, term in terms.items():
            value = float(term.detach() if isinstance(term, Tensor) else term)
            totals[name] = max(totals[name], value) if name == REPLAY_GAP else totals[name] + value
    return distributed.add_up(totals, largest=REPLAY_GAP)


def graded(problems: Sequence[Problem], answers: Sequence[Trajectory]) -> list[Verdict]:
    """What the verifier says of one answer to each problem."""
    return [
        grade(
            problem.task,
            answer.text,
            problem.answer,
            truncated=answer.truncated,
            thought_open=answer.thought_open,
        )
        for problem, answer in zip(problems, answers, strict=True)
    ]


def gold_errors(verdicts: Sequence[Verdict]) -> float:
    """The share of answers whose gold answer cannot be read: their groups get reward 0 and teach nothing."""
    return sum(verdict.outcome is Outcome.GOLD_ERROR for verdict in verdicts) / len(verdicts)


def greedy_metrics(
    development: Sequence[Problem],
    answer: Callable[[Sequence[Problem]], Sequence[Trajectory]],
    accuracy: str,
    describe: Callable[[Sequence[Trajectory]], Mapping[str, float]],
) -> dict[str, float]:
    """The share of development problems that are answered right, under the name `accuracy`, and more of the answers."""
    mine = distributed.share(development)
    if not mine:
        return distributed.average({}, 0)
    answers = answer(mine)
    correct = [verdict.correct for verdict in graded(mine, answers)]
    return distributed.average({accuracy: sum(correct) / len(correct), **describe(answers)}, len(mine))
