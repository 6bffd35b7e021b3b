"""What both training loops share: the optimizer, its schedule, and what a killed run needs to resume bit by bit."""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from typing import Protocol, TypeVar

import torch
from torch import Tensor, nn

from tyler.config.files import dump
from tyler.config.loops import OptimizationConfig, TracesConfig
from tyler.config.schema import Config
from tyler.modeling.backbone import Backbone
from tyler.runs.checkpoints import RunError, checkpoint_step
from tyler.runs.progress import Bar, NoBar, bar
from tyler.runs.run import CONFIG, FollowedRun, Run, open_run, resume_hint
from tyler.runs.signals import interruptible
from tyler.runs.trackers import open_tracker
from tyler.tasks.decontamination import load_development, read_held_out
from tyler.tasks.problem import Problem
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
        """Let this step's checkpoint be the best one if it beats all before; see `Run.judge`."""
        self.run.record_best(self.number + 1, metric, metrics[metric], better)


def development_problems(config: Config, loop: OptimizationConfig) -> list[Problem]:
    """The problems that a loop watches; none where it watches none. Raises ValueError where they cannot be read."""
    watched = config.development_set if loop.eval_every else None
    if watched is None:
        return []
    try:
        return load_development(watched, config.held_out_sets)
    except ValueError as error:
        raise ValueError(
            f"the development problems cannot be read: {error}. Name their file with data.development.path, or set "
            "data.development=null to watch none"
        ) from error


def origin_of(model: str, examples: Iterable[tuple[object, ...]]) -> dict[str, str]:
    """Hashes of what a run learns from: the fingerprint of the model that it starts from, and its examples in order."""
    digest = hashlib.sha256()
    for example in examples:
        digest.update(repr(example).encode("utf-8", "backslashreplace"))
    return {"the weights it starts from": model, "the training examples": digest.hexdigest()}


@contextmanager
def opened_run(
    config: Config,
    output: Path,
    *,
    resume: bool = False,
    replace: bool = False,
    origin: Mapping[str, str] | None = None,
) -> Iterator[Run]:
    """The run directory of a training command, with the tracker that the config names, held to its `origin`.

    Of several processes the first writes it and the others follow. Raises RunError as `open_run` does, and where a
    process does not see what the first one wrote; TrackerError where the tracker cannot start.
    """
    with ExitStack() as stack:

        def open_both() -> Run:
            keep = config.checkpoints.keep
            run = stack.enter_context(
                open_run(
                    output,
                    dump(config),
                    keep_checkpoints=keep,
                    resume=resume,
                    replace=replace,
                    defaults_text=dump(Config()),
                )
            )
            run.check_provenance(origin or {})
            if origin is not None:
                run.note_at_start({"held_out": {one.name: one.note for one in read_held_out(config.held_out_sets)}})
            newest = run.latest_checkpoint()
            done = checkpoint_step(newest) if newest else 0
            tracker = open_tracker(config.tracking, run.path, config.model_dump(mode="json"), steps_done=done)
            run.also_log(tracker.log)
            stack.callback(tracker.finish)
            return run

        run = distributed.after_first(open_both) or FollowedRun(output)
        seen = distributed.gather((run.path / CONFIG).exists() and run.latest_checkpoint())
        if len(set(seen)) > 1:
            raise RunError(
                f"process {distributed.rank()} of {distributed.world()} sees "
                f"{seen[distributed.rank()] or 'no checkpoint'} in {output}, and the first "
                f"{seen[0] or 'no checkpoint'}; all machines need the same directory"
            )
        yield run


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
) -> Iterator[Step]:
    """The steps that a run has left, with checkpoints of the model and of all that the next step depends on.

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
) -> Iterator[Step]:
    """The steps from `done` to `total`, with a progress bar; checkpoints through `write(steps_done, folder)`.

    A step is saved when it is due, when it was judged the best so far, and at the end. After an interrupt the step at
    hand is finished and saved, and interruption.Interrupted says how to resume. One interrupted process stops them all.
    """
    seed = torch.initial_seed()
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
            if stop and finished < total:
                raise interruption.stop(
                    f"stopped after step {finished} of {total}; resume with {resume_hint(run.path)}"
                )


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
