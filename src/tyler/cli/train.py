"""`tyler stage1`, `tyler stage2` and `tyler train`: from their arguments to the loop that trains."""

from __future__ import annotations

import logging
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from tyro.conf import Positional, arg

from tyler.cli.logs import is_first_process, quietly
from tyler.cli.options import ConfigName, Overrides, SomeFolder, SomeNumber, load_settings
from tyler.reasoners.trainers import TRAINERS

if TYPE_CHECKING:
    from tyler.config.schema import Config

    TrainerName = str
else:
    TrainerName = Literal[tuple(TRAINERS)]

logger = logging.getLogger(__name__)


CONTINUING = [name for name, trainer in TRAINERS.items() if trainer.needs_start]
"""Those that start from a trained weaver."""

METHOD = "One of " + ", ".join(f"{name} ({trainer.about})" for name, trainer in TRAINERS.items()) + "."


def stage1(
    config: ConfigName,
    output: SomeFolder = None,
    resume: bool = False,
    dry_run: bool = False,
    tokenizer: SomeFolder = None,
    length: SomeNumber = None,
    lock: bool = True,
    quiet: bool = False,
    overrides: Overrides = (),
) -> None:
    """Stage 1: train the operators; the backbone stays frozen.

    Args:
        config: A YAML file, or a preset: mini, smollm2-135m, paper, qwen2.5-1.5b, smollm3-3b, qwen3-4b.
        output: Run directory; by default runs/CONFIG-stage1.
        resume: Continue the run in the output directory from its newest checkpoint.
        dry_run: Train nothing: build the architecture with random weights, take one step of both stages, decode one
            answer, and print parameters, memory and seconds. Needs no weights and writes nothing.
        tokenizer: Of a dry run: the folder of the real tokenizer; by default the backbone's own folder.
        length: Of a dry run: tokens of a Stage 1 trace; by default 256.
        lock: With --no-lock, on a file system without locks: see to it that one process writes the directory.
        quiet: Say nothing but warnings: neither progress nor what came of it.
        overrides: Change one setting. `--stage1.learning_rate 1e-4` is short for `--set stage1.learning_rate=1e-4`.
    """
    settings = _settings(config, overrides, lock)
    if _rehearsed(settings, dry_run, tokenizer, length):
        return
    output = output or run_directory(config, "stage1")

    def train() -> None:
        from tyler.training import stage1

        stage1.run(settings, output=output, resume=resume)

    start = [] if output == run_directory(config, "stage1") else ["--start", str(output)]
    following = ["tyler stage2", config, *start, *_dotted(overrides, "stage1")]
    _carry_out(train, f"Stage 1 of {config}", output, [following, _asking(output)], quiet)


def stage2(
    config: ConfigName,
    start: SomeFolder = None,
    output: SomeFolder = None,
    resume: bool = False,
    dry_run: bool = False,
    tokenizer: SomeFolder = None,
    length: SomeNumber = None,
    lock: bool = True,
    quiet: bool = False,
    overrides: Overrides = (),
) -> None:
    """Stage 2: train when to invoke which operator; the operators stay frozen.

    Args:
        config: A YAML file, or a preset: mini, smollm2-135m, paper, qwen2.5-1.5b, smollm3-3b, qwen3-4b.
        start: The Stage 1 run, or a saved model, to start from; by default runs/CONFIG-stage1.
        output: Run directory; by default runs/CONFIG-stage2.
        resume: Continue the run in the output directory from its newest checkpoint.
        dry_run: Train nothing: the same dry run of both stages as `tyler stage1 CONFIG --dry-run`.
        tokenizer: Of a dry run: the folder of the real tokenizer; by default the backbone's own folder.
        length: Of a dry run: tokens of a Stage 1 trace; by default 256.
        lock: With --no-lock, on a file system without locks: see to it that one process writes the directory.
        quiet: Say nothing but warnings: neither progress nor what came of it.
        overrides: Change one setting. `--grpo.kl_weight 0.01` is short for `--set grpo.kl_weight=0.01`.
    """
    settings = _settings(config, overrides, lock)
    if _rehearsed(settings, dry_run, tokenizer, length):
        return
    output = output or run_directory(config, "stage2")

    def train() -> None:
        from tyler.training import stage2

        stage2.run(settings, start=start or run_directory(config, "stage1"), output=output, resume=resume)

    _carry_out(train, f"Stage 2 of {config}", output, [_evaluating(output, settings), _asking(output)], quiet)


def train(
    method: Annotated[Positional[TrainerName], arg(metavar="METHOD", help=METHOD)],
    config: ConfigName,
    start: SomeFolder = None,
    output: SomeFolder = None,
    resume: bool = False,
    lock: bool = True,
    quiet: bool = False,
    overrides: Overrides = (),
) -> None:
    """Train a baseline, on the same problems and by the same loops.

    Args:
        config: A YAML file, or a preset: mini, smollm2-135m, paper, qwen2.5-1.5b, smollm3-3b, qwen3-4b.
        start: The MemGen to start from, for the two methods that do; by default runs/CONFIG-memgen.
        output: Run directory; by default runs/CONFIG-METHOD.
        resume: Continue the run in the output directory from its newest checkpoint.
        lock: With --no-lock, on a file system without locks: see to it that one process writes the directory.
        quiet: Say nothing but warnings: neither progress nor what came of it.
        overrides: Change one setting. `--sft.learning_rate 1e-4` is short for `--set sft.learning_rate=1e-4`.
    """
    settings = _settings(config, overrides, lock)
    if method not in CONTINUING and start is not None:
        raise ValueError(f"tyler train {method} starts from the backbone; --start is for {' and '.join(CONTINUING)}")
    more = {"start": start or run_directory(config, "memgen")} if method in CONTINUING else {}
    output = output or run_directory(config, method)

    def train() -> None:
        TRAINERS[method].load()(settings, output=output, resume=resume, **more)

    next_methods = CONTINUING[CONTINUING.index(method) + 1 :] if method in CONTINUING else CONTINUING
    following = [
        ["tyler train", next_method, config, "--start", str(output), *_dotted(overrides)]
        for next_method in next_methods
        if method.startswith("memgen")
    ]
    _carry_out(train, f"{method} of {config}", output, [*following, _evaluating(output, settings)], quiet)


def _carry_out(
    train: Callable[[], None], title: str, output: Path, following: Sequence[Sequence[str]], quiet: bool
) -> None:
    """Train, and say before it what and where, and after it what was saved, the best step and the commands to run next.

    Each of `following` is a command and its arguments.
    """
    with quietly(quiet):
        logger.info("%s, in %s: loading ...", title, output)
        train()
        if is_first_process():  # which writes the run
            _draw(title, output)
        for line in _closing(title, output, following):
            logger.info("%s", line)


def _draw(title: str, output: Path) -> None:
    """The curves of the run, as a picture in its folder."""
    from tyler.runs.catalogue import TrainingRun
    from tyler.runs.curves import save_png
    from tyler.runs.run import CURVES

    run = TrainingRun(output)
    save_png(run.metrics, output / CURVES, f"{title}, {run.step} steps", run.budget)


def _closing(title: str, output: Path, following: Sequence[Sequence[str]]) -> list[str]:
    from tyler.runs.checkpoints import BEST, CHECKPOINTS, best_so_far, latest_checkpoint

    lines = [f"{title} is trained: {latest_checkpoint(output)}"]
    if (best := best_so_far(output)) is not None:
        found = f"step {best.step}, {best.metric} {best.value:.4g}"
        lines.append(f"best on the development problems: {found}: {output / CHECKPOINTS / BEST}")
    commands = [f"{command} {shlex.join(arguments)}" for command, *arguments in following]
    return [*lines, f"next: {commands[0]}", *(f"      {command}" for command in commands[1:])]


def _dotted(overrides: Sequence[str], left_out: str | None = None) -> list[str]:
    """The overrides as they are typed, without those of one section."""
    kept = [override.partition("=") for override in overrides if override.partition(".")[0] != left_out]
    return [part for key, _, value in kept for part in (f"--{key}", value)]


def _evaluating(output: Path, settings: Config) -> list[str]:
    asked = settings.evaluation
    data = [] if asked.path is None else ["--data-dir", asked.path]
    return ["tyler eval", str(output), "--task", asked.task, "--split", asked.split, *data]


def _asking(output: Path) -> list[str]:
    return ["tyler solve", str(output), "QUESTION"]


def _settings(config: str, overrides: Sequence[str], lock: bool) -> Config:
    """The config of a training; warns about settings that have no effect."""
    settings = load_settings(config, overrides if lock else [*overrides, "checkpoints.lock=false"])
    if settings.decoding.temperature > 0:
        logger.warning(
            "decoding.temperature = %g is not read in training: rollouts are sampled at grpo.temperature, and "
            "development problems are answered greedily",
            settings.decoding.temperature,
        )
    changed = {one.removeprefix("--").partition("=")[0] for one in overrides}
    for name, loop in settings.loops.items():
        if f"{name}.epochs" in changed and loop.steps is not None:
            logger.warning(
                "%s.epochs = %g has no effect: %s.steps = %d says how long to train; add --%s.steps null",
                *(name, loop.epochs, name, loop.steps, name),
            )
    return settings


def _rehearsed(settings: Config, dry_run: bool, tokenizer: Path | None, length: int | None) -> bool:
    """Whether a dry run was asked for; if so it has been made."""
    if not dry_run:
        if tokenizer is not None or length is not None:
            raise ValueError("--tokenizer and --length belong to --dry-run; the backbone brings its own tokenizer")
        return False
    from tyler.planning import dry_run as rehearsal

    rehearsal.run(settings, tokenizer=tokenizer, length=length)
    return True


def run_directory(config: str, stage: str) -> Path:
    """Where a training command writes unless told otherwise."""
    return Path("runs") / f"{Path(config).name.removesuffix('.yaml')}-{stage}"
