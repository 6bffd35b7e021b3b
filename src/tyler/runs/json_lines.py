"""Logs of JSON lines: what a record may hold, and reading what a kill cut short."""

import json
import math
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tyler.runs.checkpoints import RunError


def read_jsonl(path: str | Path) -> list[dict[str, Any]]:
    """The records of a log, without a last line that a kill cut short. Raises ValueError for a line that is no JSON."""
    content = Path(path).read_bytes()
    members, content = (content, b"") if Path(path).suffix == ".gz" else (b"", content)
    while members:
        member = zlib.decompressobj(wbits=31)  # gzip's; the last one may be cut short
        content, members = content + member.decompress(members), member.unused_data
    *lines, _ = content.split(b"\n")  # str.splitlines would part a record at U+2028 in its text
    return [parsed(line, f"{path}, line {number}") for number, line in enumerate(lines, start=1)]


def json_line(record: Mapping[str, Any]) -> str:
    """A record as a line of a log. What is not finite becomes null: a loss gone bad must not stop the log."""
    return json.dumps(in_json(record), ensure_ascii=False, allow_nan=False) + "\n"


def parsed(content: bytes, where: str) -> Any:
    """The JSON of a file or line. Raises RunError, naming `where`, for anything else."""
    try:
        return json.loads(content)
    except ValueError as error:
        raise RunError(f"{where} is damaged ({error}); restore or mend it") from error


def in_json(value: Any) -> Any:
    """`value` in JSON's types; numbers of numpy and torch become floats, and what is not finite becomes None."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, Mapping):
        return {str(key): in_json(item) for key, item in value.items()}
    if isinstance(value, Sequence):
        return [in_json(item) for item in value]
    number = float(value)
    return number if math.isfinite(number) else None
