"""The models of cells: trained once under the hash of their training, shared by all cells that decode them."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path

from tyler.config.schema import Config
from tyler.experiments.cells import ROLLED_OUT, UNTRAINED, Sources, Training, name_of
from tyler.model import Tyler
from tyler.modeling.manifest import forget_folders
from tyler.reasoners.registry import checkpoint_class
from tyler.reasoners.table import TRAININGS
from tyler.runs.atomic_files import atomic_write, sync_tree
from tyler.training import merging, stage1, stage2

MERGE = "merge"
"""What it makes is as large as the backbone, and is made again from what was merged in no time: it is not kept."""
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
    if kept is None or training.method == MERGE:
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
    """Put a finished model into `kept`, so that its cells are answered again without its training: in half precision
    one that is loaded as `Tyler`, another method's as it is.

    `location` names where it is published instead, as its `from_pretrained` takes it: then nothing but the note is
    written. `seconds` is what its training took, where that is known. Returns the note, which has the hash of the kept
    weights. What stands on a merged model is kept without it, and loads where that was made again: in `models`, seen
    from the same working directory. What is kept already stays as it is. Raises FileNotFoundError for a training that
    is not finished, ValueError for a merged model, which is not kept, or where the published one is another.
    """
    if training.method == MERGE:
        raise ValueError("a merged model is not kept: it is as large as the backbone; keep the model that is merged")
    name = name_of(training.identity(preset, seed, sources))
    folder, note = models / name, kept / f"{name}{DONE}"
    if note.exists():
        return note
    if not folder.with_name(f"{name}{DONE}").exists():
        raise FileNotFoundError(f"{folder} is not finished; only a finished model is kept: train it first")
    if seconds is None:
        seconds = trained(training, preset, seed, sources, models)[1]
    copied = kept / f".{name}.partial"
    weights = copy(folder, copied)
    more = {}
    if location:
        more["location"] = location
        shutil.rmtree(copied)
        check_published(location, weights, folder)
    else:
        (manifest,) = copied.glob("*.json")
        forget_folders(manifest)  # where a merged backbone was is this machine's; its id leads to it from any checkout
        shutil.rmtree(kept / name, ignore_errors=True)  # without its note it is of a keeping that was killed
        sync_tree(copied)
        os.replace(copied, kept / name)
    if (merged := merged_start(training.start)) is not None:
        more["merged"] = str(models / name_of(merged.identity(preset, seed, sources)))
    told = {**_told(training, preset, seed), **more, "weights": weights, "seconds": seconds}
    atomic_write(note, json.dumps(told, indent=2) + "\n")
    return note


def copy(model: Path, folder: Path) -> str:
    """Write a model without its run, one of `Tyler` in half precision; the hash of what is written."""
    shutil.rmtree(folder, ignore_errors=True)
    kind = checkpoint_class(str(model))
    more = {"half": True} if kind is Tyler else {}
    kind.from_pretrained(model, dtype="float32", device="cpu").save_pretrained(folder, **more)
    for form in folder.rglob("README.md"):
        form.unlink()  # peft's is a form to be filled in
    return str(kind.from_pretrained(str(folder)).fingerprint())


def check_published(location: str, weights: str, folder: Path) -> None:
    """Raise ValueError where a published model is another one than what would be kept of the finished one."""
    if (found := checkpoint_class(location).from_pretrained(location).fingerprint()) != weights:
        raise ValueError(
            f"the model at {location} has the weights {found}, and what would be kept of {folder} has {weights}; "
            "give the place of this one"
        )


def _told(training: Training, preset: str, seed: int) -> dict[str, object]:
    return {"method": training.method, "overrides": training.overrides, "preset": preset, "seed": seed}


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
        case _ if method in TRAININGS:
            more = {} if start is None else {"start": start}
            TRAININGS[method].load()(config, output=folder, resume=resume, **more)
        case _:
            raise ValueError(
                f"there is no training {method!r}; there are stage1, stage2, merge, {', '.join(TRAININGS)}"
            )
