"""The models of cells: trained once under the hash of their training, shared by all cells that decode them."""

from __future__ import annotations

import json
import os
import shutil
import time
from dataclasses import replace
from pathlib import Path

from tyler.analysis.cells import UNTRAINED, Sources, Training, name_of
from tyler.config.schema import Config
from tyler.model import Tyler
from tyler.modeling.checkpoint import Manifest
from tyler.reasoners.trainers import TRAINERS
from tyler.runs.atomic_files import atomic_write, sync_tree
from tyler.training import merging, stage1, stage2

OWN = ("sft", "grpo", "stage1", "stage2")
"""Methods whose models are loaded as `Tyler`."""
DONE = ".done.json"
"""Beside a finished model, under its name: how it was made and the processor seconds that it took."""


def trained(
    training: Training,
    preset: str,
    seed: int,
    sources: Sources,
    models: Path,
    kept: Path | None = None,
    memory: int | None = None,
) -> tuple[str, float]:
    """Where the model of a training is, and the processor seconds of all its stages. It is made, or its run resumed,
    where it is not finished; of an untrained one the backbone's id.

    One that `kept` holds is taken from there, and nothing that it starts from is made but the merged model that is its
    backbone. What is made and can be kept is put there at once (`keep`): all cells are answered by the weights that
    stay. `memory` bounds what rollouts hold.
    """
    if training.method == UNTRAINED:
        return training.config(preset, seed).backbone.id, 0.0
    name = name_of(training.identity(preset, seed, sources))
    if kept is not None and (note := kept / f"{name}{DONE}").exists():
        told = json.loads(note.read_text())
        if (merged := merged_start(training.start)) is not None:
            trained(merged, preset, seed, sources, models, kept, memory)
        return told.get("location") or str(kept / name), told["seconds"]
    start, before = "", 0.0
    if training.start is not None:
        start, before = trained(training.start, preset, seed, sources, models, kept, memory)
    folder = models / name
    done = folder.with_name(f"{name}{DONE}")
    if not done.exists():
        config = _config(training, preset, seed, sources, start, models, memory)
        spent = _timed(training, config, start, folder)
        atomic_write(done, json.dumps({**_told(training, preset, seed), "seconds": spent}))
    seconds = before + json.loads(done.read_text())["seconds"]
    if kept is None or training.method not in OWN:
        return str(folder), seconds
    keep(training, preset, seed, sources, models, kept, seconds=seconds)
    return str(kept / name), seconds


def needed(training: Training, preset: str, seed: int, sources: Sources, kept: Path | None = None) -> list[Training]:
    """What `trained` makes, or looks whether it is finished, in that order."""
    if training.method == UNTRAINED:
        return []
    note = f"{name_of(training.identity(preset, seed, sources))}{DONE}"
    is_kept = kept is not None and (kept / note).exists()
    start = merged_start(training.start) if is_kept else training.start
    before = [] if start is None else needed(start, preset, seed, sources, kept)
    return before if is_kept else [*before, training]


def keep(
    training: Training,
    preset: str,
    seed: int,
    sources: Sources,
    models: Path,
    kept: Path,
    location: str = "",
    seconds: float | None = None,
) -> Path:
    """Put a finished model into `kept` in half precision, so that its cells are answered again without its training.

    `location` names where it is published instead, as `Tyler.from_pretrained` takes it: then nothing but the note is
    written. `seconds` is what its training took, where that is known. Returns the note, which has the hash of the kept
    weights. What stands on a merged model is kept without it, and loads where that was made again: in `models`, seen
    from the same working directory. What is kept already stays as it is. Raises FileNotFoundError for a training that
    is not finished, ValueError for a kind of model that is not kept, or where the published one is another.
    """
    if training.method not in OWN:
        raise ValueError(f"a model of {training.method!r} is not kept, only those of {', '.join(OWN)}")
    name = name_of(training.identity(preset, seed, sources))
    folder, note = models / name, kept / f"{name}{DONE}"
    if note.exists():
        return note
    if not folder.with_name(f"{name}{DONE}").exists():
        raise FileNotFoundError(f"{folder} is not finished; only a finished model is kept: train it first")
    if seconds is None:
        seconds = trained(training, preset, seed, sources, models)[1]
    halved = kept / f".{name}.partial"
    weights = halve(folder, halved)
    more = {}
    if location:
        more["location"] = location
        shutil.rmtree(halved)
        check_published(location, weights, folder)
    else:
        forget_folder(halved)
        shutil.rmtree(kept / name, ignore_errors=True)  # without its note it is of a keeping that was killed
        sync_tree(halved)
        os.replace(halved, kept / name)
    if (merged := merged_start(training.start)) is not None:
        more["merged"] = str(models / name_of(merged.identity(preset, seed, sources)))
    told = {**_told(training, preset, seed), **more, "weights": weights, "seconds": seconds}
    atomic_write(note, json.dumps(told, indent=2) + "\n")
    return note


def halve(model: Path, folder: Path) -> str:
    """Write a model in half precision; the hash of its weights."""
    shutil.rmtree(folder, ignore_errors=True)
    Tyler.from_pretrained(model, dtype="float32", device="cpu").save_pretrained(folder, half=True)
    for form in folder.rglob("README.md"):
        form.unlink()  # peft's is a form to be filled in
    return Tyler.from_pretrained(str(folder)).fingerprint()


def check_published(location: str, weights: str, folder: Path) -> None:
    """Raise ValueError where a published model is another one than the finished one in half precision."""
    if (found := Tyler.from_pretrained(location).fingerprint()) != weights:
        raise ValueError(
            f"the model at {location} has the weights {found}, and {folder} in half precision has {weights}; "
            "give the place of this one"
        )


def forget_folder(checkpoint: Path) -> None:
    """Where a merged backbone was is this machine's; its id leads to it from any checkout."""
    manifest = Manifest.read(checkpoint)
    replace(manifest, backbone=replace(manifest.backbone, folder=None)).write(checkpoint)


def _told(training: Training, preset: str, seed: int) -> dict[str, object]:
    return {"method": training.method, "overrides": training.overrides, "preset": preset, "seed": seed}


def _config(
    training: Training, preset: str, seed: int, sources: Sources, start: str, models: Path, memory: int | None
) -> Config:
    """The settings of a training: its problems where they are, and a merged model in the backbone's place."""
    more = sources.placed(training.config(preset, seed))
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
    resume = (folder / "config.yaml").exists()
    match method:
        case "stage1":
            stage1.run(config, start=start, output=folder, resume=resume)
        case "stage2":
            stage2.run(config, start=start, output=folder, resume=resume)
        case "merge":
            assert start is not None, "what is merged is a trained model"
            if not folder.exists():  # it appears complete or not at all
                merging.run(start, folder)
        case _ if method in TRAINERS:
            more = {} if start is None else {"start": start}
            TRAINERS[method].load()(config, output=folder, resume=resume, **more)
        case _:
            raise ValueError(f"there is no training {method!r}; there are stage1, stage2, merge, {', '.join(TRAINERS)}")
