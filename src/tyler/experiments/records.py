"""A finished cell on disk: as short as it can be, and still enough to recount every number of every table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tyler.evaluation.answers import Record
from tyler.runs.atomic_files import atomic_write
from tyler.runs.environment import environment
from tyler.tasks import Outcome

OUTCOMES = {outcome: letter for outcome, letter in zip(Outcome, "cwntuxgl", strict=True)}


def compact(records: tuple[Record, ...]) -> dict[str, Any]:
    """The answers of a cell, column by column, in the order of the problems.

    `calls` has for each answer its operators with the visible position and the length of the answer: [["global", 0]].
    """
    return {
        "ids": [record.id for record in records],
        "families": [record.family for record in records],
        "outcomes": "".join(OUTCOMES[record.outcome] for record in records),
        "visible": [record.visible_tokens for record in records],
        "latents": [record.latents for record in records],
        "calls": [[[call.operator, call.position] for call in record.calls] for record in records],
        "seconds": [round(record.seconds, 3) for record in records],
        "synthesis_seconds": [round(record.synthesis_seconds, 3) for record in records],
    }


def surroundings() -> dict[str, Any]:
    """What a record says of where it was made; not its command, which names the folders of a machine."""
    return {key: value for key, value in environment().items() if key != "command"}


def write(path: Path, record: dict[str, Any]) -> None:
    """One record, whole or not there."""
    atomic_write(path, json.dumps(record, ensure_ascii=False, separators=(",", ":")) + "\n")


def read(folder: Path) -> dict[str, dict[str, Any]]:
    """All records of a folder by the cells' names. Raises ValueError, naming the file, for one that is no JSON."""
    found = {}
    for path in sorted(folder.glob("*.json")):
        try:
            found[path.stem] = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise ValueError(
                f"{path} is not a record: {error}; restore it, or remove it to run its cell again"
            ) from error
    return found
