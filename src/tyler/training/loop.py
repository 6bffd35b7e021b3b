"""What all trainings share: their loop, and what a killed run needs to resume bit by bit.

A kind of training is a `Trainer`: `grpo.GrpoTrainer` for what learns from rewards, `supervised.SupervisedTrainer` for
what learns from traces. Read `Trainer.train` from top to bottom.
"""

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from tyler.config.loops import OptimizationConfig
from tyler.modeling.backbone import Backbone
from tyler.runs.checkpoints import RunError
from tyler.runs.metrics import Metrics
from tyler.runs.progress import Bar, bar
from tyler.runs.run import TrainedRun, resume_hint
from tyler.runs.signals import interruptible
from tyler.training import distributed
from tyler.training.optimizer import Optimization, load_state, save_state, scaler_of, state_bytes


def batch_at(step: int, batch_size: int, num_examples: int, seed: int) -> list[tuple[int, int]]:
    """The (epoch, example index) pairs of one optimizer step: the data position is the step, and needs no saving."""
    pairs = []
    for place in range(step * batch_size, (step + 1) * batch_size):
        epoch, offset = divmod(place, num_examples)
        pairs.append((epoch, epoch_order(num_examples, seed, epoch)[offset]))
    return pairs


@lru_cache(maxsize=2)
def epoch_order(num_examples: int, seed: int, epoch: int) -> list[int]:
    """The permutation of one epoch, a function of (seed, epoch) alone."""
    order = list(range(num_examples))
    random.Random(f"order {seed} {epoch}").shuffle(order)
    return order


@dataclass(frozen=True)
class Step:
    """One optimizer step of a run: `number` counts the steps done before it."""

    number: int
    run: TrainedRun
    progress: Bar

    def log(self, metrics: Mapping[str, float], note: str) -> None:
        """Write the step's metrics, and show `note` at the end of the progress bar."""
        self.run.log(self.number + 1, metrics)
        self.progress.advance(note=note)

    def is_due(self, every: int | None) -> bool:
        """Whether something that happens every so many steps happens after this one; None is never."""
        return every is not None and (self.number + 1) % every == 0


class Trainable(Protocol):
    """A model that is trained on its backbone, and what a checkpoint holds of it besides the state of its training."""

    @property
    def backbone(self) -> Backbone: ...

    def save_pretrained(self, folder: Path) -> None: ...

    def saved_bytes(self) -> int:
        """The size of the tensors that `save_pretrained` writes."""


def training_steps(
    title: str, run: TrainedRun, total: int, done: int, checkpoint_every: int | None, write: Callable[[int, Path], None]
) -> Generator[Step]:
    """The steps from `done` to `total`, with a progress bar; checkpoints through `write(steps_done, folder)`.

    A step is saved when it is due, when it was judged the best so far, and at the end. After an interrupt the step at
    hand is finished and saved, and signals.Interrupted says how to resume. One interrupted process stops them all.
    """
    seed = torch.initial_seed()
    run.note_at_start({"training": title, "steps": total})
    shown = bar(title, total, done, where=run.path) if distributed.rank() == 0 else nullcontext(Bar())
    with shown as progress, interruptible() as interruption:
        for number in range(done, total):
            distributed.seed_rank_rng(seed, number)
            yield (step := Step(number, run, progress))
            stop = any(distributed.gather(interruption.requested))
            finished = number + 1
            is_best = run.best is not None and run.best.step == finished
            if step.is_due(checkpoint_every) or is_best or finished == total or stop:
                run.save_checkpoint(finished, partial(write, finished))
            if stop:
                left = f"resume with {resume_hint(run.path)}" if finished < total else f"{run.path} is complete"
                raise interruption.stop(f"stopped after step {finished} of {total}; {left}", finished < total)


class Trainer(ABC):
    """One training: what learns, what a step does, and what chooses the best checkpoint. Subclasses say it."""

    title: str
    metrics: Metrics
    best: str
    """The metric of `evaluate` that chooses the best checkpoint."""
    better: Callable[[float, float], bool]
    """Whether one value of it beats another."""

    def __init__(
        self, model: Trainable, loop: OptimizationConfig, num_examples: int, development: Sequence[Any]
    ) -> None:
        self.saved, self.loop, self.backbone = model, loop, model.backbone
        self.num_examples, self.development = num_examples, development

    @abstractmethod
    def parameter_groups(self) -> list[tuple[list[nn.Parameter], float]]:
        """What learns, with the peak of its learning rate."""

    @abstractmethod
    def step(self, step: Step, optimization: Optimization) -> tuple[dict[str, float], str]:
        """Learn from the batch of a step; its metrics, without the prefix, and a note for the progress bar."""

    @abstractmethod
    def evaluate(self) -> dict[str, float]:
        """Metrics on development examples under their full names, the same in every process."""

    @property
    def state(self) -> Sequence[Tensor]:
        """What a resumed run needs besides parameters and optimizer."""
        return ()

    @property
    def updates_per_step(self) -> int:
        return 1

    def start(self, run: TrainedRun) -> None:  # noqa: B027 - most do nothing
        """What a new run does before its first step."""

    def train(self, run: TrainedRun) -> None:
        """Train in place, logging and checkpointing into `run`; resumes where `run` stands.

        Every `eval_every` steps the model is evaluated, by which the best checkpoint is chosen. Raises RunError where
        the disk has no room for the checkpoints, ValueError for one that does not fit.
        """
        loop, total = self.loop, self.loop.num_steps(self.num_examples)
        updates = total * self.updates_per_step
        optimization = Optimization.of(loop, self.parameter_groups(), updates, scaler_of(self.backbone))
        state = [*optimization.parameters, *self.state]
        run.require_space(state_bytes(state) + self.saved.saved_bytes())
        newest = run.latest_checkpoint()
        done = load_state(newest, state, optimization) if newest else 0
        if done > total:
            raise RunError(f"{run.path} has made {done} steps, and {total} are asked for; ask for more, or start anew")
        if newest is None:
            self.start(run)

        def write(steps_done: int, folder: Path) -> None:
            self.saved.save_pretrained(folder)
            save_state(folder, state, optimization, steps_done=steps_done)

        steps = training_steps(self.title, run, total, done, loop.checkpoint_every, write)
        with closing(steps):  # an error's traceback would otherwise keep the signals that they handle
            for step in steps:
                metrics, note = self.step(step, optimization)
                named: dict[str, float] = {f"{self.metrics.prefix}/{name}": value for name, value in metrics.items()}
                if self.development and step.is_due(loop.eval_every):
                    named |= self.evaluate()
                    run.record_best(step.number + 1, self.best, named[self.best], self.better)
                step.log(named, note)
