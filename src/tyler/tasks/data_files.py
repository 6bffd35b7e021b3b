"""Rows of a data file, with where each stands: JSON Lines (also gzipped), a JSON array, CSV, or Parquet.

A broken row is refused by file, line and field, never skipped. A message shows the field's content only where the task
may be shown (`private` rows are not).
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class Row:
    """One record. `number` counts from 1: the line of a line-based file, else the row."""

    fields: Mapping[str, Any]
    where: str
    """File and line (or row), for messages."""
    number: int
    private: bool = False
    """Contents must not be shown, in messages either."""

    def text(self, field: str) -> str:
        """The stripped text of a field. Raises ValueError where it is missing, not text, empty or not valid Unicode."""
        value = self.get(field, str, "a string")
        if not value.strip():
            raise self.error(field, "is empty")
        try:
            value.encode("utf-8")
        except UnicodeEncodeError as error:
            raise self.error(field, f"is not valid Unicode ({error.reason} at {error.start})") from error
        return value.strip()

    def get(self, field: str, kind: type[T] | tuple[type[T], ...], expected: str) -> T:
        """A field of the given type (`expected` names it). Raises ValueError where it is missing or of another type."""
        if field not in self.fields:
            raise self.error(field, f"is missing; there is {', '.join(map(str, self.fields)) or 'none'}")
        value = self.fields[field]
        if not isinstance(value, kind):
            raise self.error(field, f"must be {expected}, got {type(value).__name__}{self.shown(value)}")
        return value

    def error(self, field: str, message: str) -> ValueError:
        """What to raise about a field."""
        return ValueError(f"{self.where}: field {field!r} {message}")

    def shown(self, value: object) -> str:
        """A value as a message may show it: shortened, and not at all where rows are private."""
        return "" if self.private else f" {value!r:.80}"


def read_rows(path: str | Path, *, private: bool = False) -> Iterator[Row]:
    """The rows of a file, read by its name's ending.

    Raises ValueError, naming the file and the line, for a file that is empty, not UTF-8 or not in its format, and for
    an ending that is not known.
    """
    path = Path(path)
    for ending, reader in _READERS.items():
        if path.name.lower().endswith(ending):
            empty = True
            for number, where, fields in reader(path):
                empty = False
                yield Row(fields, where, number, private)
            if empty:
                raise ValueError(f"{path} is empty; expected rows ({ending})")
            return
    raise ValueError(f"{path}: cannot read this kind of file; allowed endings are {', '.join(_READERS)}")


_Numbered = Iterator[tuple[int, str, Mapping[str, Any]]]


def _json_lines(path: Path) -> _Numbered:
    """Line by line, because such files may be larger than memory. Blank lines may only end the file."""
    blank = 0
    with gzip.open(path) if path.name.lower().endswith(".gz") else path.open("rb") as lines:
        try:
            for number, line in enumerate(lines, start=1):
                line = line.removeprefix(_BOM) if number == 1 else line
                if not line.strip():
                    blank = blank or number
                    continue
                if blank:
                    raise ValueError(
                        f"{path}, line {blank}: not JSON (a blank line); only the end of a file may be blank"
                    )
                where = f"{path}, line {number}"
                yield number, where, _json_object(_decoded(line, where), where)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise ValueError(f"{path}: not a whole gzip file ({error}); download it again") from error


def _decoded(raw: bytes, where: str) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{where}: not UTF-8 ({error.reason} at byte {error.start})") from error


def _json_object(text: str, where: str) -> Mapping[str, Any]:
    try:
        row = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where}: not JSON ({error}); expected one object a line, in UTF-8") from error
    return _mapping(row, where)


def _mapping(row: object, where: str) -> Mapping[str, Any]:
    if not isinstance(row, dict):
        raise ValueError(f"{where}: expected a JSON object, got {type(row).__name__}")
    return row


def _json_array(path: Path) -> _Numbered:
    text = _decoded(path.read_bytes().removeprefix(_BOM), str(path)).strip()
    try:
        rows = json.loads(text or "[]")
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: not JSON ({error})") from error
    if not isinstance(rows, list):
        raise ValueError(f"{path}: expected a JSON array of objects, got {type(rows).__name__}")
    for number, row in enumerate(rows, start=1):
        where = f"{path}, row {number}"
        yield number, where, _mapping(row, where)


def _csv(path: Path) -> _Numbered:
    text = _decoded(path.read_bytes().removeprefix(_BOM), str(path))
    reader = csv.DictReader(io.StringIO(text, newline=""), strict=True)
    line = 2
    try:
        for row in reader:
            where = f"{path}, line {line}"
            if None in row or None in row.values():
                raise ValueError(f"{where}: expected {len(reader.fieldnames or ())} columns")
            yield line, where, row
            line = reader.line_num + 1
    except csv.Error as error:
        raise ValueError(f"{path}, line {line}: not CSV ({error})") from error


def _parquet(path: Path) -> _Numbered:
    import pyarrow.parquet

    try:
        file = pyarrow.parquet.ParquetFile(path)
        batches: Iterable[Any] = file.iter_batches(batch_size=1024)
        number = 0
        for batch in batches:
            for row in batch.to_pylist():
                number += 1
                yield number, f"{path}, row {number}", row
    except pyarrow.ArrowException as error:
        raise ValueError(f"{path}: not Parquet ({error})") from error


_READERS: Mapping[str, Callable[[Path], _Numbered]] = {
    ".jsonl": _json_lines,
    ".jsonl.gz": _json_lines,
    ".json": _json_array,
    ".csv": _csv,
    ".parquet": _parquet,
}

ENDINGS = tuple(_READERS)
"""How the names of readable files end."""
