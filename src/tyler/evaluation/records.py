"""The answers of an evaluation, kept one by one as they come, so that a killed evaluation loses none.

evaluation/
  settings.json    what was asked for; an evaluation resumes only under the same settings
  records.jsonl    one line per answer; while it runs in the order of finishing, afterwards in that of the problems
  records-1.jsonl  while several processes share the work: the answers of process 1, and so on
  report.md, report.html
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from tyler.engine.trajectory import Invocation
from tyler.runs.atomic_files import atomic_write
from tyler.runs.checkpoints import RunError
from tyler.runs.json_lines import read_jsonl
from tyler.runs.line_files import LineFile
from tyler.tasks import Outcome

SETTINGS, RECORDS = "settings.json", "records.jsonl"

LATER = {"engine_seconds", "math_verify", "sample"}
"""Fields that earlier records lack."""

Key = tuple[str, str, int]
"""What names an answer within an evaluation: the task, the problem's id, and which sample of its answers it is."""


@dataclass(frozen=True)
class Record:
    """One answer to a problem: enough to recount every number of a report.

    Tokens are counts, times are seconds: `seconds` from the answer's start to its end; `engine_seconds` of the passes
    that served it, each split over the rows it served (None in records from before it was kept), `synthesis_seconds` of
    that in operators; `elapsed` since this evaluation began (or resumed, for the `session`-th time) until it was
    graded. `sample` counts the answers to one problem from 0. `math_verify` is what math-verify says of the completion
    (None where it was not asked, where answers are no mathematics, or where it took too long); it decides nothing. Of a
    task whose examples must not be shown, prompt and completion are empty.
    """

    task: str
    id: str
    family: str
    level: int
    prompt: str
    completion: str
    gold: str
    answer: str | None
    outcome: Outcome
    finish_reason: str
    invocations: tuple[Invocation, ...]
    visible_tokens: int
    latents: int
    seconds: float
    synthesis_seconds: float
    engine_seconds: float | None = None
    math_verify: bool | None = None
    elapsed: float = 0.0
    session: int = 0
    rank: int = 0
    sample: int = 0

    @property
    def key(self) -> Key:
        return self.task, self.id, self.sample

    @property
    def problem(self) -> tuple[str, str]:
        """What names the problem: several answers to it have this in common."""
        return self.task, self.id

    @property
    def correct(self) -> bool:
        return self.outcome is Outcome.CORRECT

    @classmethod
    def from_json(cls, line: Mapping[str, Any], where: str) -> Record:
        """One line of records.jsonl. Raises ValueError, naming `where`, for a line of another format."""
        if differing := sorted((set(line) ^ {field.name for field in fields(cls)}) - (LATER - set(line))):
            raise ValueError(f"{where} is not a record of this version of tyler; fields that differ: {differing}")
        calls = tuple(Invocation(**call) for call in line["invocations"])
        return cls(**{**line, "outcome": Outcome(line["outcome"]), "invocations": calls})

    def to_json(self) -> str:
        return json.dumps(asdict(self), ensure_ascii=False)


def read_records(path: str | Path) -> list[Record]:
    """The records of an evaluation: its directory, with those of all its processes, or one file.

    Raises FileNotFoundError where there is none, and ValueError for lines that are not records.
    """
    path = Path(path)
    files = [path] if path.is_file() else _files(path)
    if not files:
        raise FileNotFoundError(f"{path} holds no evaluation (no {RECORDS}); give a directory that tyler eval wrote")
    return list(_by_key(files).values())


def all_records(folder: Path) -> dict[Key, Record]:
    """The records of all processes of an evaluation, none where it has only begun."""
    return _by_key(_files(folder))


def _by_key(files: Sequence[Path]) -> dict[Key, Record]:
    """Each record once: a kill may have left some in two files."""
    lines = ((line, f"{file}, line {n}") for file in files for n, line in enumerate(read_jsonl(file), start=1))
    records = (Record.from_json(line, where) for line, where in lines)
    return {record.key: record for record in records}


class RecordStore:
    """The records of one evaluation directory, open for adding; one process writes one file of it.

    Threads may add at the same time.
    """

    def __init__(self, folder: Path, settings: Mapping[str, Any], *, rank: int = 0) -> None:
        """Open a directory, or make it. Raises RunError when it cannot be written, another process is writing it, or
        it holds an evaluation under other settings."""
        self.folder, self.rank = folder, rank
        self._adding = threading.Lock()
        self._file = LineFile(folder / (RECORDS if rank == 0 else f"records-{rank}.jsonl"), '{"task": ')
        try:
            _check_settings(folder / SETTINGS, settings, write=rank == 0)
            self.known = all_records(folder)
        except BaseException:
            self._file.close()
            raise
        self.session = 1 + max((record.session for record in self.known.values()), default=-1)

    def add(self, record: Record) -> None:
        """Keep a record: it is on its way to the disk when this returns."""
        with self._adding:
            self._file.add(record.to_json())
            self.known[record.key] = record

    def merge(self, order: Sequence[Key]) -> list[Record]:
        """The records of all processes in this order, also as the one file that remains.

        To be called by the process of rank 0 when all are done. Raises RunError when an answer is missing.
        """
        self.known |= all_records(self.folder)
        if missing := [key for key in order if key not in self.known]:
            raise RunError(
                f"{self.folder} lacks {len(missing)} answers, first {missing[0]}; run the same command again"
            )
        records = [self.known[key] for key in order]
        atomic_write(self.folder / RECORDS, "".join(record.to_json() + "\n" for record in records))
        for file in _files(self.folder)[1:]:
            file.unlink()
        return records

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> RecordStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _files(folder: Path) -> list[Path]:
    """records.jsonl first, once the process of rank 0 has made it."""
    return [*folder.glob(RECORDS), *sorted(folder.glob("records-*.jsonl"))]


def _check_settings(path: Path, settings: Mapping[str, Any], *, write: bool) -> None:
    asked = json.loads(json.dumps(settings))
    if path.exists():
        found = json.loads(path.read_text(encoding="utf-8"))
        if differing := sorted(key for key in {*found, *asked} if found.get(key) != asked.get(key)):
            told = "; ".join(f"{key} was {found.get(key)!r}, is {asked.get(key)!r}" for key in differing)
            raise RunError(
                f"{path.parent} holds an evaluation under other settings: {told}; "
                "choose another directory (--output) or remove this one"
            )
    elif write:
        atomic_write(path, json.dumps(asked, indent=2, ensure_ascii=False) + "\n")
