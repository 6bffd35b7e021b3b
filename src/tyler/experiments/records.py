"""Finished cells in the store: each as a folder while a grid runs, all of them as three files once it is done.

records/
  evaluations.parquet     one row a cell: what it is of, and what was measured besides its answers
  answers.parquet         the answers of all cells, by the names of the cells
  verdicts-MODE-HASH.parquet
  CELL/                   a cell that runs, or was finished since: an evaluation, and cell.json once it is finished
"""

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tyler.evaluation import parquet
from tyler.evaluation.store import ANSWERS, gather_verdicts, read_answers, read_evaluations, write_answers
from tyler.runs.atomic_files import atomic_write
from tyler.runs.json_lines import parsed

EVALUATIONS, CELL, RECORDS = "evaluations.parquet", "cell.json", "records"


def finish(folder: Path, about: Mapping[str, Any]) -> None:
    """Say of a cell's folder what it is of: then it is finished."""
    folder.mkdir(parents=True, exist_ok=True)
    atomic_write(folder / CELL, json.dumps(about, ensure_ascii=False, separators=(",", ":")) + "\n")


def is_finished(cell: Path) -> bool:
    """Whether a cell's folder says what it is of."""
    return (cell / CELL).is_file()


def names(folder: Path) -> set[str]:
    """The finished cells in a folder."""
    return {row["evaluation"] for row in _evaluations(folder)} | {path.parent.name for path in folder.glob(f"*/{CELL}")}


def read(folder: Path) -> dict[str, dict[str, Any]]:
    """All finished cells of a folder by their names: what they are of, and their graded answers in the problems' order.

    Raises RunError, naming the file, for what cannot be read.
    """
    answers, cells = read_evaluations(folder), dict[str, dict[str, Any]]()
    for row in _evaluations(folder):
        name = row["evaluation"]
        own = {"answers": answers.get(name, []), "source": f"{folder / ANSWERS}, {name}"}
        cells[name] = json.loads(row["about"]) | own
    for path in sorted(folder.glob(f"*/{CELL}")):
        own = {"answers": next(iter(read_evaluations(path.parent).values()), []), "source": str(path.parent)}
        cells[path.parent.name] = parsed(path.read_bytes(), str(path)) | own
    return {name: cell | {"name": name, "folder": str(folder)} for name, cell in cells.items()}


def pack(folder: Path) -> None:
    """Put the finished cells of a folder into its files, and remove their folders."""
    cells = sorted(path.parent for path in folder.glob(f"*/{CELL}"))
    if not cells:
        return
    answers = read_answers(folder)
    rows = {row["evaluation"]: row for row in _evaluations(folder)}
    for cell in cells:
        about = parsed((cell / CELL).read_bytes(), str(cell / CELL))
        own = {key: about.get(key) for key in ("row", "task", "split", "seed")}
        content = json.dumps(about, ensure_ascii=False, sort_keys=True)
        rows[cell.name] = {"evaluation": cell.name, **own, "about": content}
        answers |= read_answers(cell)
    write_answers(folder / ANSWERS, answers)
    gather_verdicts(folder, cells)
    parquet.write(folder / EVALUATIONS, [rows[name] for name in sorted(rows)], parquet.EVALUATIONS, {})
    for cell in cells:
        shutil.rmtree(cell)


def _evaluations(folder: Path) -> list[dict[str, Any]]:
    return parquet.read(folder / EVALUATIONS)[0] if (folder / EVALUATIONS).is_file() else []


def folders_of_records(earlier: Path) -> tuple[Path, ...]:
    """Where records are below a folder: in each of its folders, or in one of that called "records"."""
    folders = (folder for folder in sorted(earlier.glob("*")) if folder.is_dir())
    return tuple(folder / RECORDS if (folder / RECORDS).is_dir() else folder for folder in folders)


def read_all(folders: Sequence[Path]) -> dict[str, dict[str, Any]]:
    """The records of all folders that are there, by the names of their cells; a later folder goes before an earlier.

    Where two folders have a cell, the earlier record stays under NAME@FOLDER: a study shows its own.
    """
    records: dict[str, dict[str, Any]] = {}
    for folder in folders:
        for name, record in read(folder).items():
            if name in records:
                records[f"{name}@{Path(records[name]['folder']).name}"] = records[name]
            records[name] = record
    return records
