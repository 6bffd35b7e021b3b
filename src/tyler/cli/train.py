"""`tyler stage1`, `tyler stage2` and `tyler train`: from their arguments to the loop that trains."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from tyro.conf import Positional, arg

from tyler.cli.options import ConfigName, Overrides, SomeFolder, SomeNumber, load_settings

if TYPE_CHECKING:
    from tyler.config.schema import Config

TRAINERS = {
    "sft": ("sft", "run"),
    "grpo": ("grpo", "run"),
    "softcot": ("softcot", "run"),
    "memgen": ("memgen.sft", "run"),
    "memgen-weaver-grpo": ("memgen.grpo", "run_weaver"),
    "memgen-trigger": ("memgen.grpo", "run_trigger"),
}
"""The module and the function behind each METHOD of `tyler train`."""

CONTINUING = ("memgen-weaver-grpo", "memgen-trigger")
"""Those that start from a trained weaver."""


def stage1(
    config: ConfigName,
    output: SomeFolder = None,
    resume: bool = False,
    dry_run: bool = False,
    tokenizer: SomeFolder = None,
    length: SomeNumber = None,
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
        overrides: Change one setting. `--stage1.learning_rate 1e-4` is short for `--set stage1.learning_rate=1e-4`.
    """
    settings = load_settings(config, overrides)
    if _rehearsed(settings, dry_run, tokenizer, length):
        return
    from tyler.training import stage1

    stage1.run(settings, output=output or run_directory(config, "stage1"), resume=resume)


def stage2(
    config: ConfigName,
    start: SomeFolder = None,
    output: SomeFolder = None,
    resume: bool = False,
    dry_run: bool = False,
    tokenizer: SomeFolder = None,
    length: SomeNumber = None,
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
        overrides: Change one setting. `--grpo.kl_weight 0.01` is short for `--set grpo.kl_weight=0.01`.
    """
    settings = load_settings(config, overrides)
    if _rehearsed(settings, dry_run, tokenizer, length):
        return
    from tyler.training import stage2

    stage2.run(
        settings,
        start=start or run_directory(config, "stage1"),
        output=output or run_directory(config, "stage2"),
        resume=resume,
    )


def train(
    method: Annotated[
        Positional[Literal["sft", "grpo", "softcot", "memgen", "memgen-weaver-grpo", "memgen-trigger"]],
        arg(metavar="METHOD"),
    ],
    config: ConfigName,
    start: SomeFolder = None,
    output: SomeFolder = None,
    resume: bool = False,
    overrides: Overrides = (),
) -> None:
    """Train a baseline, on the same problems and by the same loops.

    Args:
        method: sft (fine-tuning on the traces of Stage 1), grpo (Stage 2 on the plain backbone), softcot (soft thoughts
            of an assistant in the prompt), or MemGen: memgen (its weaver on the traces of Stage 1), memgen-weaver-grpo
            and memgen-trigger (which start from a trained weaver).
        config: A YAML file, or a preset: mini, smollm2-135m, paper, qwen2.5-1.5b, smollm3-3b, qwen3-4b.
        start: The MemGen to start from, for the two methods that do; by default runs/CONFIG-memgen.
        output: Run directory; by default runs/CONFIG-METHOD.
        resume: Continue the run in the output directory from its newest checkpoint.
        overrides: Change one setting. `--sft.learning_rate 1e-4` is short for `--set sft.learning_rate=1e-4`.
    """
    settings = load_settings(config, overrides)
    from importlib import import_module

    module, function = TRAINERS[method]
    if method not in CONTINUING and start is not None:
        raise ValueError(f"tyler train {method} starts from the backbone; --start is for {' and '.join(CONTINUING)}")
    more = {"start": start or run_directory(config, "memgen")} if method in CONTINUING else {}
    trainer = getattr(import_module(f"tyler.reasoners.{module}"), function)
    trainer(settings, output=output or run_directory(config, method), resume=resume, **more)


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
