"""Records of finished cells from several folders: by their hash, or, of earlier studies, by an index of hashes.

The studies on `mini` were made before cells had hashes. The file `cells.json` beside their records says which cell each
record is: {"0123456789abcdef": ["stage-2-42.json", "eval"]}.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tyler.experiments import records
from tyler.tasks.mini import FAMILIES

INDEX, RECORDS = "cells.json", "records"


def folders_of_records(earlier: Path) -> tuple[Path, ...]:
    """Where records are below a folder: in each of its folders, or in one of that called "records"."""
    folders = (folder for folder in sorted(earlier.glob("*")) if folder.is_dir())
    return tuple(folder / RECORDS if (folder / RECORDS).is_dir() else folder for folder in folders)


def read(folders: Sequence[Path]) -> dict[str, dict[str, Any]]:
    """The records of all folders that are there, by the names of their cells; a later folder goes before an earlier."""
    found: dict[str, dict[str, Any]] = {}
    for folder in folders:
        if folder.is_dir():
            found |= indexed(folder) if (folder / INDEX).is_file() else named(folder)
    return found


def named(folder: Path) -> dict[str, dict[str, Any]]:
    """The records of a folder whose files have the names of their cells, each with its place."""
    found = records.read(folder).items()
    return {
        name: {**record, "source": str(folder / f"{name}.json")} for name, record in found if isinstance(record, dict)
    }


def indexed(folder: Path) -> dict[str, dict[str, Any]]:
    """The records that a folder's index names, in today's layout."""
    index = json.loads((folder / INDEX).read_text(encoding="utf-8"))
    files: dict[str, Any] = {}
    for file, _ in index.values():
        if file not in files:
            files[file] = json.loads((folder / file).read_text(encoding="utf-8"))
    return {name: adopted(files[file], str(folder / file), split) for name, (file, split) in index.items()}


def adopted(record: dict[str, Any], source: str, split: str) -> dict[str, Any]:
    """One split of a record of the studies on `mini`. It says how often each operator was called, not where."""
    told = record[split]
    return {
        "source": source,
        "row": record.get("cell") or record["row"],
        "seed": record["seed"],
        "task": "mini",
        "split": split,
        "weights": record["weights"],
        "training_seconds": record["training_seconds"],
        "families": [FAMILIES[int(digit)] for digit in told["families"]],
        "outcomes": told["outcomes"],
        "visible": told["visible"],
        "latents": told["latents"],
        "calls": None,
        "environment": record["environment"],
    }
