"""What both training loops share: the optimizer, its schedule, and what a killed run needs to resume bit by bit."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from typing import Protocol, TypeVar

import torch
from torch import Tensor, nn

from tyler.config.loops import TracesConfig
from tyler.modeling.backbone import Backbone
from tyler.runs.progress import Bar, NoBar, bar
from tyler.runs.run import Run, resume_hint
from tyler.runs.signals import interruptible
from tyler.training import distributed
from tyler.training.micro_batches import MicroBatches
from tyler.training.mixed_precision import MixedPrecision
from tyler.training.optimizer import REMEDY, Optimization
from tyler.training.state import load_state, save_state, state_bytes

Item = TypeVar("Item")
"""One example of a batch, of whatever kind."""


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
    run: Run
    progress: Bar

    def log(self, metrics: Mapping[str, float], note: str) -> None:
        """Write the step's metrics, and show `note` at the end of the progress bar."""
        self.run.log(self.number + 1, metrics)
        self.progress.advance(note=note)

    def is_due(self, every: int | None) -> bool:
        """Whether something that happens every so many steps happens after this one; None is never."""
        return every is not None and (self.number + 1) % every == 0

    def record_best(self, metrics: Mapping[str, float], metric: str, better: Callable[[float, float], bool]) -> None:
        """Let this step's checkpoint be the best one if it beats all before; see `Run.record_best`."""
        self.run.record_best(self.number + 1, metric, metrics[metric], better)


class Saved(Protocol):
    """What a checkpoint holds besides the state of its training."""

    def save_pretrained(self, folder: Path) -> None: ...

    def saved_bytes(self) -> int:
        """The size of the tensors that `save_pretrained` writes."""
        ...


def remaining_steps(
    title: str,
    run: Run,
    total: int,
    optimization: Optimization,
    checkpoint_every: int | None,
    model: Saved,
    more: Sequence[Tensor] = (),
) -> Generator[Step]:
    """The steps that a run has left, with checkpoints of the model and of all that the next step depends on.

    Loop over them inside `contextlib.closing`: an error's traceback would otherwise keep the signals that they handle.
    What the newest checkpoint holds is back in the optimization's parameters, and in `more`, when this returns. Raises
    RunError where the disk has no room for the checkpoints, ValueError for one that does not fit.
    """
    state = [*optimization.parameters, *more]
    run.require_space(state_bytes(state) + model.saved_bytes())
    newest = run.latest_checkpoint()
    done = load_state(newest, state, optimization) if newest else 0

    def write(steps_done: int, folder: Path) -> None:
        model.save_pretrained(folder)
        save_state(folder, state, optimization, steps_done=steps_done)

    return training_steps(title, run, total, done, checkpoint_every, write)


def training_steps(
    title: str, run: Run, total: int, done: int, checkpoint_every: int | None, write: Callable[[int, Path], None]
) -> Generator[Step]:
    """The steps from `done` to `total`, with a progress bar; checkpoints through `write(steps_done, folder)`.

    A step is saved when it is due, when it was judged the best so far, and at the end. After an interrupt the step at
    hand is finished and saved, and signals.Interrupted says how to resume. One interrupted process stops them all.
    """
    seed = torch.initial_seed()
    if distributed.rank() == 0:
        run.note_at_start({"training": title, "steps": total})
    shown = bar(title, total, done, where=run.path) if distributed.rank() == 0 else nullcontext(NoBar())
    with shown as progress, interruptible() as interruption:
        for number in range(done, total):
            distributed.draw_apart(seed, number)
            yield (step := Step(number, run, progress))
            stop = any(distributed.gather(interruption.requested))
            finished = number + 1
            is_best = run.best is not None and run.best.step == finished
            if step.is_due(checkpoint_every) or is_best or finished == total or stop:
                run.save_checkpoint(finished, partial(write, finished))
            if stop:
                left = f"resume with {resume_hint(run.path)}" if finished < total else f"{run.path} is complete"
                raise interruption.stop(f"stopped after step {finished} of {total}; {left}", finished < total)


@dataclass(frozen=True)
class Passes:
    """How a batch of traces is read: which rows at once, and in which precision."""

    pieces: MicroBatches = field(default_factory=MicroBatches)
    precision: MixedPrecision = field(default_factory=MixedPrecision)

    @classmethod
    def of(cls, config: TracesConfig, backbone: Backbone, learner: nn.Module) -> Passes:
        """What a loop's config says of training `learner` on the backbone. Raises ValueError as `MixedPrecision.of`."""
        pieces = MicroBatches.of(config, backbone).or_rows(config.batch_size)
        return cls(pieces, MixedPrecision.of(backbone, learner, config.autocast))


def accumulate(
    batch_loss: Callable[[Sequence[Item]], Tensor],
    examples: Sequence[Item],
    passes: Passes,
    length: Callable[[Item], int],
) -> float:
    """Add up the gradient of a batch's loss over the micro-batches of this process's share; returns the batch's loss.

    `batch_loss` is of some examples and a part of the whole batch's, so the parts of all processes add up to it;
    `length` is what an example is padded by.
    """
    mine, total = distributed.share(examples), 0.0
    with passes.precision.weights():
        for places in passes.pieces.cut([length(one) for one in mine]):
            with passes.precision.products():
                loss = batch_loss([mine[place] for place in places])
            loss.backward()
            total += float(loss.detach())
    return sum(distributed.gather(total))


@torch.no_grad()
def measure(
    batch_loss: Callable[[Sequence[Item]], Tensor],
    examples: Sequence[Item],
    passes: Passes,
    length: Callable[[Item], int],
) -> float:
    """The loss alone, of development examples: as `accumulate`, without gradients."""
    mine = distributed.share(examples)
    with passes.precision.weights(), passes.precision.products():
        parts = passes.pieces.cut([length(one) for one in mine])
        total = sum(float(batch_loss([mine[place] for place in places])) for places in parts)
    return sum(distributed.gather(total))


def check_finite(loss: float, step: int, ids: Sequence[str]) -> None:
    """Raise FloatingPointError at a loss that is not a number, before it reaches the weights; names the batch."""
    if not math.isfinite(loss):
        raise FloatingPointError(f"the loss is {loss} at step {step + 1}; the batch was {', '.join(ids)}. {REMEDY}")
