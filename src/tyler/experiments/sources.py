"""What an experiment needs from outside: the tasks' files, and the weights of its backbones."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tyler.config.schema import Config
from tyler.experiments.cells import Cell, Sources
from tyler.experiments.scales import Scale
from tyler.modeling.architectures import FETCHABLE, MINI, fetched_folder
from tyler.tasks.grading import TASKS, find_task
from tyler.tasks.loading import has_files
from tyler.tasks.task import Generated

OWN = "jsonl"
"""The task of traces that no benchmark publishes; the folder of the data may hold some."""


def sources_in(folder: Path | None) -> Sources:
    """The tasks whose files are in a folder are read from it, all others from the Hub.

    Raises ValueError for a folder that is not there.
    """
    if folder is None:
        return Sources({})
    if not folder.is_dir():
        raise ValueError(f"--data {folder} is not a folder; give the folder with the tasks' official files")
    return Sources({name: str(folder) for name in TASKS if name == OWN or has_files(name, folder)})


def configs_of(cells: Sequence[Cell]) -> dict[str, Config]:
    """The config of each preset that some cells use."""
    presets = dict.fromkeys(cell.preset for cell in cells)
    first = {preset: next(cell for cell in cells if cell.preset == preset) for preset in presets}
    return {preset: cell.training.config(preset, cell.seed) for preset, cell in first.items()}


def check_weights(scale: Scale, cells: Sequence[Cell], sources: Sources) -> None:
    """Raise ValueError where a backbone of these cells cannot be had, before anything is run or written."""
    for config in configs_of(cells).values():
        try:
            sources.fingerprint(config)
        except (ValueError, OSError) as error:
            raise ValueError(f"scale {scale.name!r} needs the weights of {config.backbone.id}: {error}") from error


def is_at_hand(cell: Cell, sources: Sources) -> bool:
    """Whether a cell's name can be told without a network: its backbone and all its problems are on this machine."""
    config = cell.training.config(cell.preset, cell.seed)
    place = fetched_folder(config.backbone.id) if config.backbone.id in FETCHABLE else Path(config.backbone.id)
    asked = {(cell.questions.task, cell.questions.split)}
    asked |= {(one.task, one.split) for one in (stage.config(cell.preset, 0).data for stage in cell.training.stages)}
    return (config.backbone.id == MINI or place.exists()) and all(
        isinstance(find_task(task), Generated) or Path(sources.path(task, split) or "nowhere").exists()
        for task, split in asked
    )
