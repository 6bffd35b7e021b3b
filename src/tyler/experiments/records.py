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
from itertools import accumulate, groupby, pairwise
from pathlib import Path
from typing import Any

import pyarrow.compute as pc

from tyler.evaluation import parquet
from tyler.evaluation.answers import GRADED, Key, digest_of
from tyler.evaluation.store import ANSWERS, gather_verdicts, read_answers, verdict_files, write_answers
from tyler.runs.atomic_files import atomic_write
from tyler.runs.environment import environment
from tyler.runs.json_lines import parsed

EVALUATIONS, CELL, RECORDS = "evaluations.parquet", "cell.json", "records"
COLUMNS = {"ids": "id", "families": "family", "visible": "visible_tokens", "latents": "latents"}
COLUMNS |= {name: name for name in ("seconds", "synthesis_seconds")}
"""Columns of the store by those of a record."""


def columns_in(folder: Path) -> dict[str, dict[str, Any]]:
    """The answers of the finished cells in a folder by their names, column by column, in the order of the problems.

    `calls` has for each answer its operators with the visible position of each: [["global", 0]]; it is None where calls
    were not kept, `texts` where the texts were not. Raises RunError for files that cannot be read.
    """
    if not (folder / ANSWERS).is_file():
        return {}
    table, verdicts = parquet.table(folder / ANSWERS), verdict_files(folder, "official")
    names, cells = table["evaluation"].to_pylist(), dict[str, dict[str, Any]]()
    columns = {name: table[name].to_pylist() for name in {*GRADED, *COLUMNS.values()}} | {"calls": _calls(table)}
    for name, members in groupby(range(len(names)), key=names.__getitem__):
        rows = list(members)
        own = {column: values[rows[0] : rows[-1] + 1] for column, values in columns.items()}
        digest = digest_of(zip(*(own[column] for column in GRADED), strict=True))
        outcomes: dict[Key, str] = {}
        for file in (file for file in verdicts if name in file.of):
            file.check(name, digest)
            outcomes |= {key: str(verdict.outcome) for key, verdict in file.of[name].items()}
        cells[name] = {short: own[column] for short, column in COLUMNS.items()} | {
            "outcomes": [outcomes[key] for key in zip(own["task"], own["id"], own["sample"], strict=True)],
            "calls": None if None in own["calls"] else own["calls"],
            "texts": None if None in own["text"] else own["text"],
        }
    return cells


def _calls(table: Any) -> list[list[list[Any]] | None]:
    """Operators and positions of each answer's calls; of all at once, because structs are slow one by one."""
    lists = table["invocations"].combine_chunks()
    calls = lists.flatten()
    pairs = [
        list(pair)
        for pair in zip(calls.field("operator").to_pylist(), calls.field("position").to_pylist(), strict=True)
    ]
    ends = accumulate(count or 0 for count in pc.list_value_length(lists).to_pylist())
    parts = [pairs[start:end] for start, end in pairwise([0, *ends])]
    return [part if known else None for part, known in zip(parts, lists.is_valid().to_pylist(), strict=True)]


def surroundings() -> dict[str, Any]:
    """What a record says of where it was made; not its command, which names the folders of a machine."""
    return {key: value for key, value in environment().items() if key != "command"}


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
    """All finished cells of a folder by their names: what they are of, and their columns.

    Raises RunError, naming the file, for what cannot be read.
    """
    packed, cells = columns_in(folder), dict[str, dict[str, Any]]()
    for row in _evaluations(folder):
        name = row["evaluation"]
        cells[name] = json.loads(row["about"]) | packed.get(name, {}) | {"source": f"{folder / ANSWERS}, {name}"}
    for path in sorted(folder.glob(f"*/{CELL}")):
        own = next(iter(columns_in(path.parent).values()), {})
        cells[path.parent.name] = parsed(path.read_bytes(), str(path)) | own | {"source": str(path.parent)}
    return {name: cell | {"folder": str(folder)} for name, cell in cells.items()}


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
