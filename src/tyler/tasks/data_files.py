"""Rows of a data file, with where each stands: JSON Lines (also gzipped), a JSON array, CSV, or Parquet.

A broken row is refused by file, line and field, never skipped. A message shows the field's content only where the task
may be shown (`private` rows are not).
"""

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
    ending = next((known for known in ENDINGS if path.name.lower().endswith(known)), None)
    if ending is None:
        raise ValueError(f"{path}: cannot read this kind of file; allowed endings are {', '.join(ENDINGS)}")
    unit, reader = _READERS[ending]
    number = 0
    for number, fields in reader(path):
        where = f"{path}, {unit} {number}"
        if not isinstance(fields, dict):
            raise ValueError(f"{where}: expected a JSON object, got {type(fields).__name__}")
        yield Row(fields, where, number, private)
    if not number:
        raise ValueError(f"{path} is empty; expected rows ({ending})")


_Numbered = Iterator[tuple[int, object]]


def _json_lines(path: Path) -> _Numbered:
    """Line by line, because such files may be larger than memory. Blank lines may only end the file."""
    blank = 0
    with gzip.open(path) if path.name.lower().endswith(".gz") else path.open("rb") as lines:
        try:
            for number, line in enumerate(lines, start=1):
                if not line.strip():
                    blank = blank or number
                    continue
                if blank:
                    raise ValueError(
                        f"{path}, line {blank}: not JSON (a blank line); only the end of a file may be blank"
                    )
                yield number, _json(line, f"{path}, line {number}")
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise ValueError(f"{path}: not a whole gzip file ({error}); download it again") from error


def _decoded(raw: bytes, where: str) -> str:
    try:
        return raw.removeprefix(_BOM).decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{where}: not UTF-8 ({error.reason} at byte {error.start})") from error


def _json(raw: bytes, where: str) -> object:
    text = _decoded(raw, where)
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:  # also of a number with more digits than Python reads
        raise ValueError(f"{where}: not JSON ({error}); a .jsonl file has one object a line") from error


def _json_array(path: Path) -> _Numbered:
    rows = _json(path.read_bytes().strip() or b"[]", str(path))
    if not isinstance(rows, list):
        raise ValueError(f"{path}: expected a JSON array of objects, got {type(rows).__name__}")
    yield from enumerate(rows, start=1)


def _csv(path: Path) -> _Numbered:
    csv.field_size_limit(2**31 - 1)
    reader = csv.reader(io.StringIO(_decoded(path.read_bytes(), str(path)), newline=""), strict=True)
    line, names = 1, list[str]()
    try:
        for row in reader:
            if not names:
                names = row
            elif row:  # not a blank line
                if len(row) != len(names):
                    raise ValueError(f"{path}, line {line}: expected {len(names)} columns")
                yield line, dict(zip(names, row, strict=True))
            line = reader.line_num + 1
    except csv.Error as error:
        raise ValueError(f"{path}, line {line}: not CSV ({error})") from error


def _parquet(path: Path) -> _Numbered:
    import pyarrow.parquet

    try:
        batches: Iterable[Any] = pyarrow.parquet.ParquetFile(path).iter_batches(batch_size=1024)
        yield from enumerate((row for batch in batches for row in batch.to_pylist()), start=1)
    except (pyarrow.ArrowException, OSError) as error:
        raise ValueError(f"{path}: not Parquet ({error})") from error


_READERS: Mapping[str, tuple[str, Callable[[Path], _Numbered]]] = {
    ".jsonl": ("line", _json_lines),
    ".jsonl.gz": ("line", _json_lines),
    ".json": ("row", _json_array),
    ".csv": ("line", _csv),
    ".parquet": ("row", _parquet),
}

ENDINGS = tuple(_READERS)
"""How the names of readable files end."""
