"""Finished cells in the store: each as a folder while a grid runs, all of them as three files once it is done.

records/
  evaluations.parquet     one row a cell: what it is of, and what was measured besides its answers
  answers.parquet         the answers of all cells, by the names of the cells
  verdicts-MODE-HASH.parquet
  CELL/                   a cell that runs, or was finished since: an evaluation, and cell.json once it is finished
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tyler.evaluation import parquet
from tyler.evaluation.answers import Record
from tyler.evaluation.store import (
    ANSWERS,
    gather_verdicts,
    read_answers,
    read_evaluations,
    read_records,
    write_answers,
)
from tyler.runs.atomic_files import atomic_write
from tyler.runs.environment import environment
from tyler.runs.json_lines import parsed

EVALUATIONS, CELL = "evaluations.parquet", "cell.json"


def columns(records: Sequence[Record]) -> dict[str, Any]:
    """The answers of a cell, column by column, in the order of the problems.

    `calls` has for each answer its operators with the visible position of each: [["global", 0]]; it is None where calls
    were not kept, `texts` where the texts were not.
    """
    return {
        "ids": [record.id for record in records],
        "families": [record.family for record in records],
        "outcomes": [str(record.outcome) for record in records],
        "visible": [record.visible_tokens for record in records],
        "latents": [record.latents for record in records],
        "calls": None
        if any(record.invocations is None for record in records)
        else [[[call.operator, call.position] for call in record.calls] for record in records],
        "seconds": [record.seconds for record in records],
        "synthesis_seconds": [record.synthesis_seconds for record in records],
        "texts": None if any(record.text is None for record in records) else [record.text for record in records],
    }


def surroundings() -> dict[str, Any]:
    """What a record says of where it was made; not its command, which names the folders of a machine."""
    return {key: value for key, value in environment().items() if key != "command"}


def finish(folder: Path, about: Mapping[str, Any]) -> None:
    """Say of a cell's folder what it is of: then it is finished."""
    folder.mkdir(parents=True, exist_ok=True)
    atomic_write(folder / CELL, json.dumps(about, ensure_ascii=False, separators=(",", ":")) + "\n")


def names(folder: Path) -> set[str]:
    """The finished cells in a folder."""
    packed = parquet.read(folder / EVALUATIONS)[0] if (folder / EVALUATIONS).is_file() else []
    return {row["evaluation"] for row in packed} | {path.parent.name for path in folder.glob(f"*/{CELL}")}


def read(folder: Path) -> dict[str, dict[str, Any]]:
    """All finished cells of a folder by their names: what they are of, and their columns.

    Raises RunError, naming the file, for what cannot be read.
    """
    found: dict[str, dict[str, Any]] = {}
    if (folder / EVALUATIONS).is_file():
        rows, _ = parquet.read(folder / EVALUATIONS)
        answered = read_evaluations(folder)
        for row in rows:
            name = row["evaluation"]
            own = columns(answered[name]) if name in answered else {}
            found[name] = {
                **json.loads(row["about"]),
                **own,
                "folder": str(folder),
                "source": f"{folder / ANSWERS}, {name}",
            }
    for path in sorted(folder.glob(f"*/{CELL}")):
        about = parsed(path.read_bytes(), str(path))
        own = columns(read_records(path.parent)) if (path.parent / ANSWERS).is_file() else {}
        found[path.parent.name] = {**about, **own, "folder": str(folder), "source": str(path.parent)}
    return found


def pack(folder: Path) -> None:
    """Put the finished cells of a folder into its files, and remove their folders."""
    cells = sorted(path.parent for path in folder.glob(f"*/{CELL}"))
    if not cells:
        return
    answers = read_answers(folder)
    rows = {row["evaluation"]: row for row in _evaluations(folder)}
    for cell in cells:
        about = parsed((cell / CELL).read_bytes(), str(cell / CELL))
        rows[cell.name] = row_of(cell.name, about)
        answers |= read_answers(cell)
    write_answers(folder / ANSWERS, answers)
    gather_verdicts(folder, cells)
    parquet.write(folder / EVALUATIONS, [rows[name] for name in sorted(rows)], parquet.EVALUATIONS, {})
    for cell in cells:
        shutil.rmtree(cell)


def _evaluations(folder: Path) -> list[dict[str, Any]]:
    return parquet.read(folder / EVALUATIONS)[0] if (folder / EVALUATIONS).is_file() else []


def row_of(name: str, about: Mapping[str, Any]) -> dict[str, Any]:
    """A cell's row in evaluations.parquet."""
    own = {key: about.get(key) for key in ("row", "task", "split", "seed")}
    return {"evaluation": name, **own, "about": json.dumps(about, ensure_ascii=False, sort_keys=True)}


RECORDS = "records"


def folders_of_records(earlier: Path) -> tuple[Path, ...]:
    """Where records are below a folder: in each of its folders, or in one of that called "records"."""
    folders = (folder for folder in sorted(earlier.glob("*")) if folder.is_dir())
    return tuple(folder / RECORDS if (folder / RECORDS).is_dir() else folder for folder in folders)


def read_all(folders: Sequence[Path]) -> dict[str, dict[str, Any]]:
    """The records of all folders that are there, by the names of their cells; a later folder goes before an earlier.

    Where two folders have a cell, the earlier record stays under NAME@FOLDER: a study shows its own.
    """
    found: dict[str, dict[str, Any]] = {}
    for folder in folders:
        for name, record in read(folder).items():
            if name in found:
                found[f"{name}@{Path(found[name]['folder']).name}"] = found[name]
            found[name] = record
    return found
