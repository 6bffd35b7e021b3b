"""Records of finished cells from several folders, by the hash of their cells."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tyler.experiments import records

RECORDS = "records"


def folders_of_records(earlier: Path) -> tuple[Path, ...]:
    """Where records are below a folder: in each of its folders, or in one of that called "records"."""
    folders = (folder for folder in sorted(earlier.glob("*")) if folder.is_dir())
    return tuple(folder / RECORDS if (folder / RECORDS).is_dir() else folder for folder in folders)


def read(folders: Sequence[Path]) -> dict[str, dict[str, Any]]:
    """The records of all folders that are there, by the names of their cells; a later folder goes before an earlier.

    Where two folders have a cell, the earlier record stays under NAME@FOLDER: a study shows its own.
    """
    found: dict[str, dict[str, Any]] = {}
    for folder in folders:
        for name, record in records.read(folder).items():
            if name in found:
                found[f"{name}@{Path(found[name]['folder']).name}"] = found[name]
            found[name] = record
    return found
