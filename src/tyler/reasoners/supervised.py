"""The supervised loop of SFT, SoftCoT and MemGen's weaver. What differs is who learns, and from which loss."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from torch import nn

from tyler.config import OptimizationConfig
from tyler.runs import Run
from tyler.training import (
    Optimization,
    batch_at,
    check_finite,
    load_state,
    save_state,
    state_bytes,
    training_steps,
)

Item = TypeVar("Item")
"""One training example of a method."""


@dataclass(frozen=True)
class Lesson(Generic[Item]):
    """What one method brings to the loop."""

    title: str
    """Of the progress bar."""
    metrics: str
    """What the names of its metrics begin with."""
    learner: nn.Module
    """The module that learns: its parameters that want a gradient, in its training mode."""
    save: Callable[[Path], None]
    saved_bytes: int
    descend: Callable[[Sequence[Item], int], float]
    """The loss of a batch, whose gradient it leaves in the learner; the number is the micro-batch's size."""
    name: Callable[[Item], str]
    """An example's id, for messages."""
    describe: Callable[[Sequence[Item], float], dict[str, float]]
    """Metrics of a batch and of the seconds it took, besides loss, gradient norm, learning rate and seconds."""


def train(lesson: Lesson[Item], examples: Sequence[Item], config: OptimizationConfig, run: Run) -> None:
    """Train the learner in place, logging and checkpointing into `run`; goes on where `run` stands."""
    parameters = [parameter for parameter in lesson.learner.parameters() if parameter.requires_grad]
    run.require_space(state_bytes(parameters) + lesson.saved_bytes)
    total = config.num_steps(len(examples))
    optimization = Optimization.of(config, [(parameters, config.learning_rate)], total)
    newest = run.latest_checkpoint()
    done = load_state(newest, parameters, optimization) if newest else 0

    def write(steps_done: int, folder: Path) -> None:
        lesson.save(folder)
        save_state(folder, parameters, optimization, steps_done=steps_done)

    lesson.learner.train()
    for step in training_steps(lesson.title, run, total, done, config.checkpoint_every, write):
        started = time.perf_counter()
        batch = [examples[index] for _, index in batch_at(step.number, config.batch_size, len(examples), config.seed)]
        ids = [lesson.name(example) for example in batch]
        loss = lesson.descend(batch, config.micro_batch_size or config.batch_size)
        check_finite(loss, step.number, ids)
        norm, rate = optimization.step(step.number, ids)
        seconds = time.perf_counter() - started
        metrics = {"loss": loss, "gradient_norm": norm, "learning_rate": rate, "seconds": seconds}
        metrics |= lesson.describe(batch, seconds)
        step.log({f"{lesson.metrics}/{key}": value for key, value in metrics.items()}, f"loss {loss:.3f}")
    lesson.learner.eval()
