"""`tyler train`: from its arguments to the loop that trains."""

from __future__ import annotations

import logging
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tyro.conf import Positional, arg

from tyler.cli.logs import quietly
from tyler.cli.options import ConfigName, Overrides, load_settings
from tyler.evaluation.options import OptionalFolder, OptionalNumber
from tyler.reasoners.method import Training
from tyler.reasoners.table import TRAININGS, find_training

if TYPE_CHECKING:
    from tyler.config.schema import Config

logger = logging.getLogger(__name__)

STAGES = ("stage1", "stage2")
GOING_ON = ("stage1", "sft")
"""Which go on from a model of their own kind where `--start` names one."""
KNOWN = ", ".join(f"{name} ({training.about})" for name, training in TRAININGS.items())
METHOD = f"One of {KNOWN}; or a method of your own, FILE.py:NAME."


def train(
    method: Annotated[Positional[str], arg(metavar="METHOD", help=METHOD)],
    config: ConfigName,
    start: OptionalFolder = None,
    output: OptionalFolder = None,
    resume: bool = False,
    dry_run: bool = False,
    tokenizer: OptionalFolder = None,
    length: OptionalNumber = None,
    lock: bool = True,
    quiet: bool = False,
    overrides: Overrides = (),
) -> None:
    """Train a stage of Tyler, or a baseline on the same problems and by the same loops.

    Args:
        start: The run or saved model to start from: for stage2 by default runs/CONFIG-stage1, for the methods that
            continue a MemGen runs/CONFIG-memgen; for stage1 an earlier Stage 1 and for sft the peft folder of an
            adapter, by default none.
        output: Run directory; by default runs/CONFIG-METHOD.
        resume: Continue the run in the output directory from its newest checkpoint.
        dry_run: Train nothing: take one step with random weights (stage1 and stage2: one of each) and print parameters,
            memory and seconds. Needs no weights and writes nothing.
        tokenizer: For a dry run: the folder of the real tokenizer; by default the backbone's own folder.
        length: For a dry run: tokens per trace; by default 256.
        lock: Lock the directory. --no-lock is for file systems without locks: let only one process write there.
        quiet: Print warnings only, no progress and no summary.
    """
    training = find_training(method)
    if start is not None and not training.start and method not in GOING_ON:
        wanted = ", ".join((*GOING_ON, *(name for name, other in TRAININGS.items() if other.start)))
        raise ValueError(f"tyler train {method} starts from the backbone; --start is for {wanted}")
    if not dry_run and (tokenizer is not None or length is not None):
        raise ValueError("--tokenizer and --length belong to --dry-run; the backbone brings its own tokenizer")
    settings = _settings(config, overrides, lock, training)
    if dry_run:
        from tyler.planning import dry_run as rehearsal

        rehearsal.run(settings, tokenizer, length, "stage1" if method in STAGES else method)
        return
    output = output or run_directory(config, method)
    start = start or (run_directory(config, training.start[0]) if training.start else None)
    more = {} if start is None else {"start": start}
    title = f"Stage {method[-1]} of {config}" if method in STAGES else f"{method} of {config}"
    with quietly(quiet):
        logger.info("%s, in %s: loading ...", title, output)
        training.load()(settings, output=output, resume=resume, **more)
        for line in _closing(title, output, _following(method, config, output, settings, overrides)):
            logger.info("%s", line)


def _following(method: str, config: str, output: Path, settings: Config, overrides: Sequence[str]) -> list[str]:
    """The commands to run after a training: the methods that start from it, its evaluation, and a question to it."""
    kept = [text.partition("=") for text in overrides if method != "stage1" or not text.startswith("stage1.")]
    dotted = [part for key, _, value in kept for part in (f"--{key}", value)]  # as they are typed
    following = list[list[str]]()
    for name, training in TRAININGS.items():
        if method in training.start:
            start = [] if output == run_directory(config, training.start[0]) else ["--start", str(output)]
            following.append(["train", name, config, *start, *dotted])
    if method != "stage1":
        evaluation = settings.evaluation
        data = [] if evaluation.path is None else ["--data", evaluation.path]
        following.append(["eval", str(output), "--task", evaluation.task, "--split", evaluation.split, *data])
    return [shlex.join(["tyler", *words]) for words in [*following, ["solve", str(output), "QUESTION"]]]


def _closing(title: str, output: Path, following: Sequence[str]) -> list[str]:
    """What was saved, the best step, and the commands to run next."""
    from tyler.runs.checkpoints import BEST, CHECKPOINTS, best_so_far, latest_checkpoint

    lines = [f"{title} is trained: {latest_checkpoint(output)}"]
    if (best := best_so_far(output)) is not None:
        best_step = f"step {best.step}, {best.metric} {best.value:.4g}"
        lines.append(f"best on the development problems: {best_step}: {output / CHECKPOINTS / BEST}")
    return [*lines, f"next: {following[0]}", *(f"      {command}" for command in following[1:])]


def _settings(config: str, overrides: Sequence[str], lock: bool, training: Training) -> Config:
    """The config of a training; warns about settings that have no effect."""
    settings = load_settings(config, overrides if lock else [*overrides, "checkpoints.lock=false"], training)
    if settings.decoding.temperature > 0:
        logger.warning(
            "decoding.temperature = %g is not read in training: rollouts are sampled at grpo.temperature, and "
            "development problems are answered greedily",
            settings.decoding.temperature,
        )
    changed = {override.removeprefix("--").partition("=")[0] for override in overrides}
    for name, loop in settings.loops.items():
        if f"{name}.epochs" in changed and None not in (loop.epochs, loop.steps):
            logger.warning(
                "%s.epochs = %g has no effect: %s.steps = %d says how long to train; add --%s.steps null",
                *(name, loop.epochs, name, loop.steps, name),
            )
    return settings


def run_directory(config: str, method: str) -> Path:
    """Where a training command writes unless told otherwise."""
    return Path("runs") / f"{Path(config).name.removesuffix('.yaml')}-{method.rpartition(':')[2]}"
