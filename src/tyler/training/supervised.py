"""The supervised loop of SFT, SoftCoT and MemGen's weaver. What differs is who learns, and from which loss."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from operator import lt
from typing import Generic, TypeVar

from torch import Tensor, nn

from tyler.config.loops import OptimizationConfig
from tyler.runs.run import Run
from tyler.training.loop import Passes, Saved, accumulate, batch_at, check_finite, measure, remaining_steps
from tyler.training.optimizer import Optimization

Item = TypeVar("Item")
"""One training example of a method."""


@dataclass(frozen=True)
class SupervisedSpec(Generic[Item]):
    """What one method brings to the loop."""

    title: str
    """Of the progress bar."""
    metrics: str
    """What the names of its metrics begin with."""
    module: nn.Module
    """The module that learns: its parameters that want a gradient, in its training mode."""
    model: Saved
    """What its checkpoints hold."""
    passes: Passes
    """How its batches are read."""
    batch_loss: Callable[[Sequence[Item], int], Tensor]
    """The loss of some examples of a batch that has so many targets in all."""
    num_targets: Callable[[Item], int]
    num_tokens: Callable[[Item], int]
    """Positions of an example, by which it is padded."""
    name: Callable[[Item], str]
    """An example's id, for messages."""
    describe: Callable[[Sequence[Item], float], dict[str, float]]
    """Metrics of a batch and of the seconds it took, besides loss, gradient norm, learning rate and seconds."""


def accumulate_gradients(spec: SupervisedSpec[Item], batch: Sequence[Item]) -> float:
    """Accumulate the gradient of a batch's loss over micro-batches; returns the loss."""
    num_targets = sum(map(spec.num_targets, batch))
    return accumulate(lambda part: spec.batch_loss(part, num_targets), batch, spec.passes, spec.num_tokens)


def development_loss(spec: SupervisedSpec[Item], examples: Sequence[Item]) -> float:
    """The loss of development examples, without dropout."""
    num_targets = sum(map(spec.num_targets, examples))
    spec.module.eval()
    loss = measure(lambda part: spec.batch_loss(part, num_targets), examples, spec.passes, spec.num_tokens)
    spec.module.train()
    return loss


def train(
    spec: SupervisedSpec[Item],
    examples: Sequence[Item],
    config: OptimizationConfig,
    run: Run,
    development: Sequence[Item] = (),
) -> None:
    """Train the spec in place, logging and checkpointing into `run`; resumes where `run` stands.

    Every `eval_every` steps the loss of `development` is measured, by which the best checkpoint is chosen.
    """
    parameters = [parameter for parameter in spec.module.parameters() if parameter.requires_grad]
    total = config.num_steps(len(examples))
    optimization = Optimization.of(config, [(parameters, config.learning_rate)], total)
    steps = remaining_steps(spec.title, run, total, optimization, config.checkpoint_every, spec.model)
    spec.module.train()
    with closing(steps):
        for step in steps:
            started = time.perf_counter()
            batch = [
                examples[index] for _, index in batch_at(step.number, config.batch_size, len(examples), config.seed)
            ]
            ids = [spec.name(example) for example in batch]
            loss = accumulate_gradients(spec, batch)
            check_finite(loss, step.number, ids)
            norm, rate = optimization.step(step.number, ids)
            seconds = time.perf_counter() - started
            metrics = {"loss": loss, "gradient_norm": norm, "learning_rate": rate, "seconds": seconds}
            metrics |= spec.describe(batch, seconds)
            if development and step.is_due(config.eval_every):
                metrics["development_loss"] = development_loss(spec, development)
            named = {f"{spec.metrics}/{key}": value for key, value in metrics.items()}
            if "development_loss" in metrics:
                step.record_best(named, f"{spec.metrics}/development_loss", lt)
            step.log(named, f"loss {loss:.3f}")
    spec.module.eval()
