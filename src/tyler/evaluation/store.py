"""The store: answers, and verdicts beside them that can be made again.

evaluation/
  settings.json                what decides the answers; an evaluation resumes only under the same
  answers.jsonl                while it runs: one line an answer, in the order of finishing
  answers-1.jsonl              those of process 1, while several processes share the work, and so on
  answers.parquet              once it is finished: all answers, in the order of the problems
  verdicts-MODE-HASH.parquet   the verdicts of one grader on all of them; HASH names its version
  report.html, report.json
"""

import hashlib
import json
import os
import threading
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import Any, Self

from tyler.config.files import flatten
from tyler.evaluation import parquet
from tyler.evaluation.answers import FAILED, VERDICT, Answer, Key, Record, digest
from tyler.evaluation.line_files import LineFile
from tyler.runs.atomic_files import atomic_write
from tyler.runs.checkpoints import RunError
from tyler.runs.json_lines import read_jsonl
from tyler.tasks import Outcome, Verdict, find_task, grade, grader_version
from tyler.tasks.problem import GradeOptions, Mode

SETTINGS, ANSWERS = "settings.json", "answers.parquet"
GRADERS = min(4, os.cpu_count() or 1)
"""Threads that grade, beside an engine that decodes."""


def name_of(settings: Mapping[str, Any]) -> str:
    """The hash that names an evaluation: of its model, method, decoding, prompt template, end tokens and problems."""
    return hashlib.sha256(json.dumps(settings, sort_keys=True, ensure_ascii=False).encode()).hexdigest()[:16]


def grader_of(options: GradeOptions, answers: Iterable[Answer]) -> dict[str, str]:
    """What decides today's verdicts on some answers."""
    return grader_version(options, {answer.task for answer in answers})


def verdicts_name(grader: Mapping[str, str]) -> str:
    """The name of a grader's file of verdicts."""
    return f"verdicts-{grader['mode']}-{name_of(grader)[:8]}.parquet"


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


def graded(answers: Sequence[Answer], options: GradeOptions) -> list[Record]:
    """Answers whose texts were kept, with verdicts, in their order."""
    with ThreadPoolExecutor(GRADERS) as graders:
        verdicts = graders.map(lambda answer: verdict_on(answer, options), answers)
        return [answer.graded(verdict) for answer, verdict in zip(answers, verdicts, strict=True)]


# --- reading ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Verdicts:
    """One file of verdicts: those of each evaluation by the names of its answers, and which grader made them when."""

    path: Path
    of: Mapping[str, Mapping[Key, Verdict]]
    about: Mapping[str, Any]

    @classmethod
    def read(cls, path: Path) -> Self:
        """Raises RunError for a damaged file or one of another format."""
        rows, about = parquet.read(path)
        verdicts: defaultdict[str, dict[Key, Verdict]] = defaultdict(dict)
        for row in rows:
            verdict = Verdict(**{name: row[name] for name in VERDICT} | {"outcome": Outcome(row["outcome"])})
            verdicts[row["evaluation"]][row["task"], row["id"], row["sample"]] = verdict
        return cls(path, verdicts, about)


def verdict_files(folder: Path, mode: Mode | None = None) -> list[Verdicts]:
    """The verdict files of a folder in a mode, or in any, from the oldest to the newest."""
    files = [Verdicts.read(path) for path in folder.glob(f"verdicts-{mode or '*'}-*.parquet")]
    return sorted(files, key=lambda file: str(file.about["made"]))


def line_files(folder: Path) -> list[Path]:
    """The answers of a running evaluation; those of process 0 first."""
    return [*folder.glob("answers.jsonl"), *sorted(folder.glob("answers-[0-9]*.jsonl"))]


def read_answers(folder: Path) -> dict[str, list[Answer]]:
    """The answers in a folder by their evaluations, as far as they are there."""
    evaluations: defaultdict[str, dict[Key, Answer]] = defaultdict(dict)
    if (path := folder / ANSWERS).exists():
        for number, row in enumerate(parquet.read(path)[0], start=1):
            name = row.pop("evaluation")
            answer = Answer.from_row(row, f"{path}, row {number}")
            evaluations[name][answer.key] = answer
    settings = folder / SETTINGS
    own = name_of(json.loads(settings.read_text(encoding="utf-8"))) if settings.exists() else ""
    for path in line_files(folder):
        for number, line in enumerate(read_jsonl(path), start=1):
            answer = Answer.from_row(line, f"{path}, line {number}")
            evaluations[own][answer.key] = answer  # a later one was asked again
    return {name: list(answers.values()) for name, answers in evaluations.items()}


def read_evaluations(folder: Path, mode: Mode | None = "official") -> dict[str, list[Record]]:
    """The answers in a folder with the newest verdict on each in a mode, or in any (None), by their evaluations.

    Answers that wait for their verdict are left out. Raises RunError for damaged files, and for verdicts on other
    answers.
    """
    answers, files, finished = read_answers(folder), verdict_files(folder, mode), not line_files(folder)
    return {name: judged(name, some, files, finished) for name, some in answers.items()}


def judged(name: str, answers: Sequence[Answer], files: Sequence[Verdicts], finished: bool) -> list[Record]:
    """The answers of an evaluation that have a verdict, with the last. While it is not finished, verdicts are on those
    answers that it had before. Raises RunError for verdicts on other answers."""
    verdicts: dict[Key, Verdict] = {}
    there = digest(answers) if finished else None
    for file in (file for file in files if name in file.of):
        if finished and file.about["answers"].get(name, there) != there:
            raise RunError(
                f"{file.path} holds verdicts on other answers than those beside it; remove it and run "
                f"`tyler grade {file.path.parent}`"
            )
        verdicts |= file.of[name]
    pairs = [(answer, verdicts[answer.key]) for answer in answers if answer.key in verdicts]
    return [
        answer.graded(verdict)
        for answer, verdict in pairs
        if not verdict.reason.startswith(FAILED) or verdict.reason == answer.finish_reason  # else on a refusal before
    ]


def read_records(path: str | Path, mode: Mode = "official") -> list[Record]:
    """The graded answers of one evaluation's folder.

    Raises FileNotFoundError without any, RunError for files that cannot be read, and ValueError for a folder
    of several evaluations.
    """
    folder = Path(path)
    evaluations = read_evaluations(folder, mode) if folder.is_dir() else {}
    if len(evaluations) > 1:
        raise ValueError(
            f"{folder} holds {len(evaluations)} evaluations; give the folder of one, as tyler eval writes it"
        )
    if not evaluations:
        raise FileNotFoundError(f"{path} holds no answers (no {ANSWERS}); give a directory that tyler eval wrote")
    (records,) = evaluations.values()
    if not records:
        raise ValueError(f"{folder} has no {mode} verdicts; make them with `tyler grade {folder} --mode {mode}`")
    return records


# --- writing ----------------------------------------------------------------------------------------------------------


class AnswerStore(AbstractContextManager["AnswerStore"]):
    """One evaluation's answers, open for adding, and the verdicts on them; one process writes one file.

    Threads may add at the same time.
    """

    def __init__(
        self, folder: Path, settings: Mapping[str, Any], *, options: GradeOptions | None = None, rank: int = 0
    ) -> None:
        """Open a directory, or make it. Raises RunError when it cannot be written, another process is writing it, or
        it holds an evaluation under other settings."""
        self.folder, self.rank, self.options = folder, rank, options or GradeOptions()
        self._adding = threading.Lock()
        self._lines = LineFile(folder / f"answers{f'-{rank}' if rank else ''}.jsonl", '{"task": ')
        try:
            check_settings(folder / SETTINGS, settings, write=rank == 0)
            self.name = name_of(settings)
            self.answers: dict[Key, Answer] = {}
            self.records: dict[Key, Record] = {}
            self._read()
        except BaseException:
            self.close()
            raise
        self.session = 1 + max((answer.session for answer in self.answers.values()), default=-1)

    def _read(self) -> None:
        """All answers of all processes, and the verdicts of today's grader on them; of those whose texts were not kept,
        the last verdict of any grader."""
        answers = read_answers(self.folder).get(self.name, [])
        files, finished = verdict_files(self.folder, self.options.mode), not self._has_lines()
        name = verdicts_name(grader_of(self.options, answers))
        todays = [file for file in files if file.path.name == name]
        textless = [answer for answer in judged(self.name, answers, files, False) if answer.text is None]
        known = [*textless, *judged(self.name, answers, todays, finished)]
        self.records = {answer.key: answer for answer in known} | self.records
        self.answers |= {
            answer.key: answer for answer in answers if answer.text is not None or answer.key in self.records
        }

    def _has_lines(self) -> bool:
        return any(path.stat().st_size for path in line_files(self.folder))

    def forget_failed(self) -> None:
        """Let go of answers that a server refused to give, so that they are asked again."""
        for key in [key for key, answer in self.answers.items() if answer.finish_reason.startswith(FAILED)]:
            del self.answers[key]
            self.records.pop(key, None)

    def add_answer(self, answer: Answer) -> None:
        """Keep an answer: it is on its way to the disk when this returns."""
        with self._adding:
            self._lines.add(json.dumps(answer.row(), ensure_ascii=False))
            self.answers[answer.key] = answer

    def finish(self, order: Sequence[Key]) -> list[Record]:
        """The records of all processes in this order; they become the two compressed files that remain.

        To be called by the process of rank 0 when all are done. What has no verdict yet is graded. Texts and prompts of
        tasks whose examples must not be shown are dropped. Raises RunError when an answer is missing.
        """
        self._read()
        if missing := [key for key in order if key not in self.answers]:
            raise RunError(
                f"{self.folder} lacks {len(missing)} answers, first {missing[0]}; run the same command again"
            )
        ungraded = [self.answers[key] for key in order if key not in self.records]
        self.records |= {record.key: record for record in graded(ungraded, self.options)}
        records = [shown(self.records[key]) for key in order]
        known = (self.folder / verdicts_name(grader_of(self.options, records))).exists()
        new = not known and any(record.text is not None for record in records)
        if new or self._has_lines() or not (self.folder / ANSWERS).exists():
            write_answers(self.folder / ANSWERS, {self.name: records})
            write_verdicts(self.folder, self.options, {self.name: records})
            for path in line_files(self.folder):
                path.unlink(missing_ok=True)
        return records

    def close(self) -> None:
        self._lines.close()
        if self._lines.path.exists() and self._lines.path.stat().st_size == 0:
            self._lines.path.unlink()

    def __exit__(self, *_: object) -> None:
        self.close()


def shown(record: Record) -> Record:
    """What may be kept of a record: of a task whose examples must not be shown, neither prompt nor text."""
    return replace(record, prompt="", text=None) if find_task(record.task).private else record


def write_answers(path: Path, evaluations: Mapping[str, Sequence[Answer]]) -> None:
    """Write the answers of some evaluations as one compressed file."""
    rows = [{"evaluation": name, **answer.row()} for name, answers in evaluations.items() for answer in answers]
    parquet.write(path, rows, parquet.ANSWERS, {})


def write_verdicts(
    folder: Path,
    options: GradeOptions,
    records: Mapping[str, Sequence[Record]],
    answers: Mapping[str, Sequence[Answer]] | None = None,
) -> None:
    """Write verdicts of today's grader as one compressed file that names it and the answers there are, by default those
    of the verdicts."""
    rows = [{"evaluation": name, **record.verdict_row()} for name, some in records.items() for record in some]
    there = answers or records
    grader = grader_of(options, chain.from_iterable(there.values()))
    about = {
        "grader": grader,
        "mode": options.mode,
        "made": datetime.now(UTC).isoformat(timespec="microseconds"),
        "answers": {name: digest(some) for name, some in there.items()},
    }
    parquet.write(folder / verdicts_name(grader), rows, parquet.VERDICTS, about)


def gather_verdicts(folder: Path, evaluations: Sequence[Path]) -> None:
    """Put the verdicts of finished evaluations into the files of a folder, beside those that it has."""
    paths = [path for source in (folder, *evaluations) for path in source.glob("verdicts-*.parquet")]
    for file in {path.name for path in paths}:
        parts = [parquet.read(path) for path in paths if path.name == file]
        rows = {(row["evaluation"], row["task"], row["id"], row["sample"]): row for part, _ in parts for row in part}
        digests = {name: value for _, about in parts for name, value in about["answers"].items()}
        parquet.write(folder / file, [*rows.values()], parquet.VERDICTS, {**parts[-1][1], "answers": digests})


def check_settings(path: Path, settings: Mapping[str, Any], *, write: bool) -> None:
    """Write the settings of an evaluation, or raise RunError where others are there."""
    wanted = json.loads(json.dumps(settings))
    if path.exists():
        there, given = flatten(json.loads(path.read_text(encoding="utf-8"))), flatten(wanted)
        if differing := sorted(key for key in {*there, *given} if there.get(key) != given.get(key)):
            changes = "; ".join(f"{key} was {there.get(key)!r}, is {given.get(key)!r}" for key in differing)
            raise RunError(
                f"{path.parent} holds an evaluation under other settings: {changes}; "
                "choose another directory (--output) or remove this one"
            )
    elif write:
        atomic_write(path, json.dumps(wanted, indent=2, ensure_ascii=False) + "\n")
