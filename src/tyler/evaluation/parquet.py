"""The Parquet files of the store: answers, verdicts, and the evaluations of a collection.

import duckdb
duckdb.sql("select task, outcome, count(*) from 'DIR/answers.parquet' join 'DIR/verdicts-*.parquet' "
           "using (evaluation, task, id, sample) group by all")
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tyler.runs.atomic_files import atomic_write
from tyler.runs.checkpoints import RunError

FORMAT = 1
"""Of the store."""

_TEXT, _INT, _TIME = pa.string(), pa.int32(), pa.float64()
_WORD = pa.dictionary(pa.int32(), pa.string())
_NAMES = [("evaluation", _WORD), ("task", _WORD), ("id", _TEXT), ("sample", _INT)]
_CALL = pa.struct([("operator", _TEXT), ("position", _INT), ("num_latents", _INT), ("action", _INT), ("offset", _INT)])
ANSWERS = pa.schema(
    [
        *_NAMES,
        *(("seed", pa.int64()), ("family", _WORD), ("level", _INT), ("prompt", _TEXT), ("gold", _TEXT)),
        *(("text", _TEXT), ("finish_reason", _WORD), ("thought_open", pa.bool_()), ("visible_tokens", _INT)),
        *(("latents", _INT), ("invocations", pa.list_(_CALL)), ("seconds", _TIME), ("synthesis_seconds", _TIME)),
        *(("engine_seconds", _TIME), ("elapsed", _TIME), ("session", _INT), ("rank", _INT)),
    ]
)
VERDICTS = pa.schema([*_NAMES, ("outcome", _WORD), ("answer", _TEXT), ("reason", _WORD)])
EVALUATIONS = pa.schema(
    [("evaluation", _TEXT), ("row", _TEXT), ("task", _WORD), ("split", _WORD), ("seed", _INT), ("about", _TEXT)]
)
_VARIED = ("visible_tokens", "latents", "elapsed", "answer", "position", "action")  # a dictionary makes these larger


def write(path: Path, rows: Sequence[Mapping[str, Any]], schema: pa.Schema, about: Mapping[str, Any]) -> None:
    """Write rows as one compressed file, whole or not there; `about` goes into its metadata."""
    noted = {"tyler": json.dumps({"format": FORMAT, **about}, ensure_ascii=False)}
    table = pa.Table.from_pylist(list(rows), schema=schema.with_metadata(noted))
    columns = [*schema.names, *(f"invocations.list.element.{field.name}" for field in _CALL)]
    repeated = [column for column in columns if column.rpartition(".")[2] not in _VARIED]
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="brotli", compression_level=11, use_dictionary=repeated)
    atomic_write(path, sink.getvalue().to_pybytes())


def read(path: Path) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The rows of a file and what its metadata says. Raises RunError for a damaged file or one of another format."""
    try:
        columns = pq.read_table(path, memory_map=False)
    except (pa.ArrowException, OSError) as error:
        raise RunError(f"{path} is damaged ({error}); restore it, or remove it and run the command again") from error
    about = json.loads((columns.schema.metadata or {}).get(b"tyler", b"{}"))
    if (written := about.get("format")) != FORMAT:
        raise RunError(
            f"{path} is of format {written} of the store and this version of tyler reads format {FORMAT}; read it with "
            "the version that wrote it, or choose another directory (--output)"
        )
    return columns.to_pylist(), about
