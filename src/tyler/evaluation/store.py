"""The store: answers, and verdicts beside them that can be made again.

evaluation/
  settings.json             what decides the answers; an evaluation resumes only under the same
  answers.jsonl             while it runs: one line an answer, in the order of finishing
  answers-1.jsonl           those of process 1, while several processes share the work, and so on
  answers.parquet           once it is finished: all answers, in the order of the problems
  verdicts-MODE-HASH.jsonl  while it runs; HASH names the grader's version
  verdicts-MODE-HASH.parquet
  report.md, report.html, report.json
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, get_args

from tyler.evaluation import parquet
from tyler.evaluation.answers import FAILED, VERDICT, Answer, Key, Record, digest
from tyler.evaluation.line_files import LineFile
from tyler.runs.atomic_files import atomic_write
from tyler.runs.checkpoints import RunError
from tyler.runs.json_lines import read_jsonl
from tyler.tasks import Outcome, Verdict, find_task, grade, grader_version
from tyler.tasks.task import GradeOptions, Mode

SETTINGS, ANSWERS = "settings.json", "answers.parquet"
LINES = re.compile(r"answers(-\d+)?\.jsonl")


def name_of(settings: Mapping[str, Any]) -> str:
    """The hash that names an evaluation: of its model, method, decoding, prompt template, end tokens and problems."""
    text = json.dumps(settings, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def verdicts_name(mode: Mode) -> str:
    """The name, without its ending, of the verdicts of today's grader."""
    return f"verdicts-{mode}-{name_of(grader_version(mode))[:8]}"


def verdict_on(answer: Answer, options: GradeOptions) -> Verdict:
    """Grade an answer whose text was kept."""
    assert answer.text is not None, "only texts can be graded"
    if answer.finish_reason == Outcome.TOO_LONG.value:
        return Verdict(Outcome.TOO_LONG)
    if answer.finish_reason.startswith(FAILED):
        return Verdict(Outcome.NO_BOX, reason=answer.finish_reason)
    return grade(
        answer.task,
        answer.text,
        answer.gold,
        truncated=answer.truncated,
        thought_open=answer.thought_open,
        **asdict(options),
    )


# --- reading ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Verdicts:
    """One file of verdicts: those of each evaluation by the names of its answers, and which grader made them."""

    path: Path
    of: Mapping[str, Mapping[Key, Mapping[str, Any]]]
    about: Mapping[str, Any]

    @property
    def grader(self) -> Mapping[str, str]:
        return dict(self.about["grader"])

    def made(self) -> str:
        """When, so that later ones sort behind earlier ones."""
        return str(self.about["made"])

    @classmethod
    def read(cls, path: Path) -> Verdicts:
        """Raises RunError for a damaged file or one of another format."""
        rows, about = parquet.read(path)
        found: defaultdict[str, dict[Key, dict[str, Any]]] = defaultdict(dict)
        for row in rows:
            found[row["evaluation"]][row["task"], row["id"], row["sample"]] = row
        return cls(path, found, about)

    def check(self, name: str, digest: str) -> None:
        """Raise RunError unless these verdicts are on the answers of a digest."""
        if self.about["answers"].get(name, digest) != digest:
            raise RunError(
                f"{self.path} holds verdicts on other answers than those beside it; remove it and run "
                f"`tyler grade {self.path.parent}`"
            )


def verdict_files(folder: Path, mode: Mode) -> list[Verdicts]:
    """The finished verdict files of a folder in a mode, from the oldest to the newest."""
    found = [Verdicts.read(path) for path in folder.glob(f"verdicts-{mode}-*.parquet")]
    return sorted(found, key=Verdicts.made)


def read_answers(folder: Path) -> dict[str, list[Answer]]:
    """The answers in a folder by their evaluations, as far as they are there."""
    found: defaultdict[str, dict[Key, Answer]] = defaultdict(dict)
    if (path := folder / ANSWERS).exists():
        for number, row in enumerate(parquet.read(path)[0], start=1):
            answer = Answer.from_row({k: v for k, v in row.items() if k != "evaluation"}, f"{path}, row {number}")
            found[row["evaluation"]][answer.key] = answer
    own = name_in(folder)
    for path in line_files(folder):
        for number, line in enumerate(read_jsonl(path), start=1):
            answer = Answer.from_row(line, f"{path}, line {number}")
            found[own][answer.key] = answer  # a later one was asked again
    return {name: list(answers.values()) for name, answers in found.items()}


def name_in(folder: Path) -> str:
    """The name of the evaluation of a folder, from its settings."""
    path = folder / SETTINGS
    return name_of(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else ""


def answered_in_lines(folder: Path) -> set[Key]:
    """The answers that are lines still: a finished verdict on one of them is on an earlier answer."""
    return {(line["task"], line["id"], line["sample"]) for path in line_files(folder) for line in read_jsonl(path)}


def line_files(folder: Path) -> list[Path]:
    """The answers of a running evaluation; those of process 0 first."""
    return sorted((path for path in folder.glob("answers*.jsonl") if LINES.fullmatch(path.name)), key=_rank)


def _rank(path: Path) -> int:
    return int((path.stem.partition("-")[2]) or 0)


def read_evaluations(folder: Path, mode: Mode = "official") -> dict[str, list[Record]]:
    """The graded answers in a folder by their evaluations; each with the newest verdict on it in this mode.

    Answers that wait for their verdict are left out. Raises RunError for damaged files, and for verdicts on other
    answers.
    """
    answers, verdicts = read_answers(folder), verdict_files(folder, mode)
    lines = {key: row for path in sorted(folder.glob(f"verdicts-{mode}-*.jsonl")) for key, row in _verdict_lines(path)}
    found: dict[str, list[Record]] = {}
    again = answered_in_lines(folder)
    for name, some in answers.items():
        rows: dict[Key, Mapping[str, Any]] = {}
        for one in verdicts:
            if name in one.of:
                if not again:
                    one.check(name, digest(some))
                rows |= {key: row for key, row in one.of[name].items() if key not in again}
        if name == name_in(folder):
            rows |= lines
        found[name] = [_joined(answer, rows[answer.key]) for answer in some if answer.key in rows]
    return found


def newest_verdicts(
    folder: Path, answers: Mapping[str, Sequence[Answer]]
) -> tuple[dict[str, dict[Key, Record]], list[Mapping[str, str]]]:
    """The newest verdict on each answer in whatever mode, and the graders of those, the newest last.

    Raises RunError for verdicts on other answers.
    """
    rows: dict[str, dict[Key, Mapping[str, Any]]] = {name: {} for name in answers}
    files = sorted((file for mode in get_args(Mode) for file in verdict_files(folder, mode)), key=Verdicts.made)
    for file in files:
        for name, some in answers.items():
            if name in file.of:
                file.check(name, digest(some))
                rows[name] |= file.of[name]
    found = {
        name: {one.key: _joined(one, rows[name][one.key]) for one in some if one.key in rows[name]}
        for name, some in answers.items()
    }
    return found, [file.grader for file in files[-1:]]


def _verdict_lines(path: Path) -> list[tuple[Key, dict[str, Any]]]:
    return [((line["task"], line["id"], line["sample"]), line) for line in read_jsonl(path)]


def _joined(answer: Answer, row: Mapping[str, Any]) -> Record:
    return answer.judged(*(row[name] for name in VERDICT))


def read_records(path: str | Path, mode: Mode = "official") -> list[Record]:
    """The graded answers of one evaluation's folder.

    Raises FileNotFoundError without any, RunError for files that cannot be read, and ValueError for a folder
    of several evaluations.
    """
    folder = Path(path)
    found = read_evaluations(folder, mode) if folder.is_dir() else {}
    if len(found) > 1:
        raise ValueError(f"{folder} holds {len(found)} evaluations; give the folder of one, as tyler eval writes it")
    if not found:
        raise FileNotFoundError(f"{path} holds no answers (no {ANSWERS}); give a directory that tyler eval wrote")
    (records,) = found.values()
    if not records:
        raise ValueError(f"{folder} has no {mode} verdicts; make them with `tyler grade {folder} --mode {mode}`")
    return records


# --- writing ----------------------------------------------------------------------------------------------------------


class AnswerStore:
    """One evaluation's answers and verdicts, open for adding; one process writes one file of each.

    Threads may add at the same time.
    """

    def __init__(self, folder: Path, settings: Mapping[str, Any], *, mode: Mode = "official", rank: int = 0) -> None:
        """Open a directory, or make it. Raises RunError when it cannot be written, another process is writing it, or
        it holds an evaluation under other settings."""
        self.folder, self.rank, self.mode = folder, rank, mode
        self._adding = threading.Lock()
        part = "" if rank == 0 else f"-{rank}"
        self._answers = LineFile(folder / f"answers{part}.jsonl", '{"task": ')
        try:
            check_settings(folder / SETTINGS, settings, write=rank == 0)
            self.name = name_in(folder)
            self._verdicts = LineFile(folder / f"{verdicts_name(mode)}{part}.jsonl", '{"task": ')
        except BaseException:
            self._answers.close()
            raise
        self.answers: dict[Key, Answer] = {}
        self.records: dict[Key, Record] = {}
        self._read()
        self.session = 1 + max((answer.session for answer in self.answers.values()), default=-1)

    def _read(self) -> None:
        """All answers of all processes, and this grader's verdicts on them."""
        self.answers |= {one.key: one for some in read_answers(self.folder).values() for one in some}
        name = verdicts_name(self.mode)
        rows: dict[Key, Mapping[str, Any]] = {}
        if (path := self.folder / f"{name}.parquet").exists():
            finished, again = Verdicts.read(path), answered_in_lines(self.folder)
            if not again:
                finished.check(self.name, digest(self.answers.values()))
            rows |= {key: row for key, row in finished.of.get(self.name, {}).items() if key not in again}
        for path in self.folder.glob(f"{name}*.jsonl"):
            rows |= dict(_verdict_lines(path))
        for one in verdict_files(self.folder, self.mode):  # what has no text keeps the last verdict on it
            older = one.of.get(self.name, {}).items()
            rows |= {key: row for key, row in older if key not in rows and self._is_final(key)}
        self.records |= {key: _joined(self.answers[key], row) for key, row in rows.items() if key in self.answers}

    def _is_final(self, key: Key) -> bool:
        return key in self.answers and self.answers[key].text is None

    def forget_failed(self) -> None:
        """Let go of answers that a server refused to give, so that they are asked again."""
        for key in [key for key, one in self.answers.items() if one.finish_reason.startswith(FAILED)]:
            del self.answers[key]
            self.records.pop(key, None)

    def add_answer(self, answer: Answer) -> None:
        """Keep an answer: it is on its way to the disk when this returns."""
        with self._adding:
            self._answers.add(json.dumps(answer.row(), ensure_ascii=False))
            self.answers[answer.key] = answer

    def add_verdict(self, record: Record) -> None:
        """Keep the verdict on an answer."""
        with self._adding:
            self._verdicts.add(json.dumps(record.verdict_row(), ensure_ascii=False))
            self.records[record.key] = record

    def finish(self, order: Sequence[Key]) -> list[Record]:
        """The records of all processes in this order; they become the two compressed files that remain.

        To be called by the process of rank 0 when all are done. Texts and prompts of tasks whose examples must not be
        shown are dropped. Raises RunError when an answer is missing.
        """
        self._read()
        if missing := [key for key in order if key not in self.records]:
            raise RunError(
                f"{self.folder} lacks {len(missing)} answers, first {missing[0]}; run the same command again"
            )
        records = [shown(self.records[key]) for key in order]
        if not self._has_lines() and (self.folder / ANSWERS).exists():
            return records
        write_answers(self.folder / ANSWERS, {self.name: records})
        write_verdicts(self.folder, self.mode, {self.name: records})
        for path in self._line_files():
            path.unlink()
        return records

    def _has_lines(self) -> bool:
        return any(path.stat().st_size for path in self._line_files())

    def _line_files(self) -> list[Path]:
        return [*line_files(self.folder), *self.folder.glob("verdicts-*.jsonl")]

    def close(self) -> None:
        self._answers.close()
        self._verdicts.close()
        for path in (self._answers.path, self._verdicts.path):
            if path.exists() and path.stat().st_size == 0:
                path.unlink()

    def __enter__(self) -> AnswerStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def shown(record: Record) -> Record:
    """What may be kept of a record: of a task whose examples must not be shown, neither prompt nor text."""
    return replace(record, prompt="", text=None) if find_task(record.task).private else record


def write_answers(path: Path, evaluations: Mapping[str, Sequence[Answer]]) -> None:
    """Write the answers of some evaluations as one compressed file."""
    rows = [{"evaluation": name, **one.row()} for name, answers in evaluations.items() for one in answers]
    parquet.write(path, rows, parquet.ANSWERS, {})


def write_verdicts(
    folder: Path,
    mode: Mode,
    evaluations: Mapping[str, Sequence[Record]],
    grader: Mapping[str, str] | None = None,
    name: str | None = None,
) -> Path:
    """Write verdicts as one compressed file that names the grader and the answers; by default they are today's."""
    path = folder / f"{name or verdicts_name(mode)}.parquet"
    rows = [{"evaluation": one, **record.verdict_row()} for one, some in evaluations.items() for record in some]
    about = {
        "grader": dict(grader or grader_version(mode)),
        "mode": mode,
        "made": datetime.now(UTC).isoformat(timespec="microseconds"),
        "answers": {one: digest(records) for one, records in evaluations.items()},
    }
    parquet.write(path, rows, parquet.VERDICTS, about)
    return path


def gather_verdicts(folder: Path, evaluations: Sequence[Path]) -> None:
    """Put the verdicts of finished evaluations into the files of a folder, beside those that it has."""
    files: defaultdict[str, list[Verdicts]] = defaultdict(list)
    for place in (folder, *evaluations):
        for path in place.glob("verdicts-*.parquet"):
            files[path.name].append(Verdicts.read(path))
    for file, parts in files.items():
        rows = [row for part in parts for some in part.of.values() for row in some.values()]
        digests = {name: value for part in parts for name, value in part.about["answers"].items()}
        parquet.write(folder / file, rows, parquet.VERDICTS, {**parts[-1].about, "answers": digests})


def check_settings(path: Path, settings: Mapping[str, Any], *, write: bool) -> None:
    """Write the settings of an evaluation, or raise RunError where others are there."""
    asked = json.loads(json.dumps(settings))
    if path.exists():
        there = json.loads(path.read_text(encoding="utf-8"))
        if differing := sorted(key for key in {*there, *asked} if there.get(key) != asked.get(key)):
            changes = "; ".join(f"{key} was {there.get(key)!r}, is {asked.get(key)!r}" for key in differing)
            raise RunError(
                f"{path.parent} holds an evaluation under other settings: {changes}; "
                "choose another directory (--output) or remove this one"
            )
    elif write:
        atomic_write(path, json.dumps(asked, indent=2, ensure_ascii=False) + "\n")
