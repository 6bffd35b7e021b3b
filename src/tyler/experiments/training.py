"""The models of cells: trained once under the hash of their training, shared by all cells that decode them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tyler.config.schema import Config
from tyler.experiments.cells import ROLLED_OUT, UNTRAINED, Sources, Training, name_of
from tyler.reasoners.table import TRAININGS
from tyler.runs.atomic_files import atomic_write
from tyler.training import merging, stage1, stage2

DONE = ".done.json"
"""Beside a finished model, under its name: how it was made and the processor seconds that it took."""


def trained(
    training: Training, preset: str, seed: int, sources: Sources, models: Path, memory: int | None = None
) -> tuple[str, float]:
    """Where the model of a training is, and the processor seconds of all its stages. It is made, or its run resumed,
    where it is not finished; of an untrained one the backbone's id. `memory` bounds what rollouts hold.
    """
    if training.method == UNTRAINED:
        return training.config(preset, seed).backbone.id, 0.0
    start, before = "", 0.0
    if training.start is not None:
        start, before = trained(training.start, preset, seed, sources, models, memory)
    name = name_of(training.identity(preset, seed, sources))
    folder, done = models / name, models / f"{name}{DONE}"
    if not is_trained(models, name):
        config = _config(training, preset, seed, sources, start, models, memory)
        spent = _timed(training, config, start, folder)
        told = {"method": training.method, "overrides": training.overrides, "preset": preset, "seed": seed}
        atomic_write(done, json.dumps({**told, "seconds": spent}))
    return str(folder), before + json.loads(done.read_text())["seconds"]


def is_trained(models: Path, name: str) -> bool:
    """Whether the model of a training is finished."""
    return (models / f"{name}{DONE}").exists()


def _config(
    training: Training, preset: str, seed: int, sources: Sources, start: str, models: Path, memory: int | None
) -> Config:
    """The settings of a training: its problems where they are, and a merged model in the backbone's place."""
    more = sources.placed(training.config(preset, seed))
    if training.method in ROLLED_OUT:
        more += sources.engine.overrides()
    if memory is not None:
        more.append(f"decoding.memory={memory}")
    if training.start is not None and training.start.method == "merge":
        more.append(f"backbone.id={start}")
    elif (merged := merged_start(training.start)) is not None:
        more.append(f"backbone.id={models / name_of(merged.identity(preset, seed, sources))}")
    return training.config(preset, seed, more)


def merged_start(start: Training | None) -> Training | None:
    """The merged model on which something stands that starts from `start`, if it stands on one: the last of several."""
    stages = [] if start is None else start.stages
    return next((one for one in reversed(stages) if one.method == "merge"), None)


def _timed(training: Training, config: Config, start: str, folder: Path) -> float:
    """Make a model or resume its run; the processor seconds of all attempts together, but for those killed outright."""
    spent = folder.with_suffix(".spent.json")
    earlier, began = json.loads(spent.read_text()) if spent.exists() else 0.0, time.process_time()
    folder.parent.mkdir(parents=True, exist_ok=True)
    try:
        _make(training.method, config, start if goes_on(training) else None, folder)
    finally:
        total = earlier + time.process_time() - began
        atomic_write(spent, json.dumps(total))
    return total


def goes_on(training: Training) -> bool:
    """Whether a training starts from a trained model, and not from a backbone."""
    return training.method == "merge" or (training.start is not None and training.start.method != "merge")


def _make(method: str, config: Config, start: str | None, folder: Path) -> None:
    if method == "merge":
        assert start is not None, "what is merged is a trained model"
        if not folder.exists():  # it appears complete or not at all
            merging.run(start, folder)
        return
    stages: dict[str, Callable[..., Any]] = {"stage1": stage1.run, "stage2": stage2.run}
    run = stages[method] if method in stages else TRAININGS[method].load()
    run(config, output=folder, resume=(folder / "config.yaml").exists(), **({} if start is None else {"start": start}))
