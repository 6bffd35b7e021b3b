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

_WORD = pa.dictionary(pa.int32(), pa.string())
_NAMES = [("evaluation", _WORD), ("task", _WORD), ("id", pa.string()), ("sample", pa.int32())]
_CALL = pa.struct(
    [
        *(("operator", pa.string()), ("position", pa.int32()), ("num_latents", pa.int32())),
        *(("action", pa.int32()), ("offset", pa.int32())),
    ]
)
ANSWERS = pa.schema(
    [
        *_NAMES,
        *(("seed", pa.int64()), ("family", _WORD), ("level", pa.int32()), ("prompt", pa.string())),
        *(("gold", pa.string()), ("text", pa.string()), ("finish_reason", _WORD), ("thought_open", pa.bool_())),
        *(("visible_tokens", pa.int32()), ("latents", pa.int32()), ("invocations", pa.list_(_CALL))),
        *(("seconds", pa.float64()), ("synthesis_seconds", pa.float64()), ("engine_seconds", pa.float64())),
        *(("elapsed", pa.float64()), ("session", pa.int32()), ("rank", pa.int32())),
    ]
)
VERDICTS = pa.schema([*_NAMES, *(("outcome", _WORD), ("answer", pa.string()), ("reason", _WORD))])
EVALUATIONS = pa.schema(
    [
        *(("evaluation", pa.string()), ("row", pa.string()), ("task", _WORD), ("split", _WORD), ("seed", pa.int32())),
        ("about", pa.string()),
    ]
)


def write(path: Path, rows: Sequence[Mapping[str, Any]], schema: pa.Schema, about: Mapping[str, Any]) -> None:
    """Write rows as one compressed file, whole or not there; `about` goes into its metadata."""
    noted = {"tyler": json.dumps({"format": FORMAT, **about}, ensure_ascii=False)}
    table = pa.Table.from_pylist(list(rows), schema=schema.with_metadata(noted))
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="brotli", compression_level=11)
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
