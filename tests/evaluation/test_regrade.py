"""Verdicts are made again from kept answers; the store says what is wrong with a file."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from scripted import PROBLEMS, Scripted
from stored import interrupt, keep
from tyler.cli.main import main
from tyler.evaluation import parquet, store
from tyler.evaluation.answers import Record
from tyler.evaluation.pass_at_1 import evaluate
from tyler.evaluation.regrade import regrade
from tyler.evaluation.store import ANSWERS, AnswerStore, read_answers, read_records, verdict_files, verdicts_name
from tyler.runs.checkpoints import RunError
from tyler.tasks import Outcome
from tyler.tasks.task import GradeOptions


@pytest.fixture
def finished(tmp_path: Path) -> Path:
    """A finished evaluation of five problems."""
    with AnswerStore(tmp_path / "done", {"model": "scripted"}) as kept:
        report = evaluate(Scripted(), PROBLEMS, store=kept)
        kept.finish([one.key for one in report.records])
    return tmp_path / "done"


def test_what_pandas_reads_is_what_was_answered(finished: Path) -> None:
    rows = pq.read_table(finished / ANSWERS).to_pylist()
    assert [row["id"] for row in rows] == [problem.id for problem in PROBLEMS]
    assert rows[0]["text"] == read_records(finished)[0].text
    (verdicts,) = finished.glob("verdicts-official-*.parquet")
    assert [row["outcome"] for row in pq.read_table(verdicts).to_pylist()] == [
        str(one.outcome) for one in read_records(finished)
    ]


def test_a_changed_verdict_is_told_with_its_reason(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    right = read_records(finished)
    for path in finished.glob("verdicts-*"):
        path.unlink()
    (name,) = read_answers(finished)
    wrong = [replace(right[0], outcome=Outcome.WRONG, answer="7"), *right[1:]]
    store.write_verdicts(
        finished, "official", {name: wrong}, {"revision": "0", "mode": "official"}, "verdicts-official-0"
    )
    assert read_records(finished) == wrong
    assert main(["grade", str(finished)]) == 0
    said = capsys.readouterr().out
    assert "graded 5 answers" in said and "1 verdicts changed" in said and "revision was 0" in said
    assert "jsonl p0: wrong -> correct (read '7' before, read '5' now, gold '5')" in said
    assert [one.outcome for one in read_records(finished)] == [one.outcome for one in right]
    assert len(verdict_files(finished, "official")) == 2, "the earlier verdicts stay"


def test_verdicts_on_other_answers_are_refused_by_name(finished: Path) -> None:
    records = read_records(finished)
    (name,) = read_answers(finished)
    store.write_answers(finished / ANSWERS, {name: [replace(records[0], text="changed"), *records[1:]]})
    with pytest.raises(RunError, match=r"verdicts-official-.*holds verdicts on other answers .*tyler grade"):
        read_records(finished)


@pytest.mark.parametrize("file", [ANSWERS, "verdicts"])
def test_a_torn_file_is_refused_by_name(finished: Path, file: str) -> None:
    (path,) = finished.glob(f"{file}*")
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(RunError, match=rf"{path.name} is damaged .*restore it"):
        read_records(finished)


def test_a_store_of_another_format_is_refused(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "FORMAT", 2)
    with pytest.raises(RunError, match="is of format 1 of the store and this version of tyler reads format 2"):
        read_records(finished)


def test_what_is_not_finished_or_has_no_text_is_not_graded(finished: Path, tmp_path: Path) -> None:
    keep(tmp_path / "letters", [replace(one, text=None) for one in read_records(finished)])
    with pytest.raises(ValueError, match="holds verdicts without texts"):
        regrade(tmp_path / "letters", GradeOptions())
    interrupt(finished, 3)
    with pytest.raises(RunError, match="is not finished; the command that began it resumes it"):
        regrade(finished, GradeOptions())
    with pytest.raises(FileNotFoundError, match="holds no answers"):
        regrade(tmp_path, GradeOptions())


def test_answers_without_a_verdict_of_this_grader_are_graded_and_not_asked_again(finished: Path) -> None:
    records = read_records(finished)
    interrupt(finished)
    (finished / "settings.json").write_text(json.dumps({"model": "scripted"}))
    (finished / f"{verdicts_name('official')}.jsonl").rename(finished / "verdicts-official-00000000.jsonl")
    again = Scripted()
    with AnswerStore(finished, {"model": "scripted"}) as kept:
        report = evaluate(again, PROBLEMS, store=kept)
        kept.finish([one.key for one in report.records])
    assert again.answered == [] and list(report.records) == records == read_records(finished)
    assert not list(finished.glob("*.jsonl"))


def test_both_modes_stand_beside_each_other(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    official = regraded_theorem(tmp_path, "official")
    strict = regraded_theorem(tmp_path, "strict")
    assert (official.outcome, strict.outcome) == (Outcome.CORRECT, Outcome.WRONG)
    assert read_records(tmp_path)[0].correct and not read_records(tmp_path, "strict")[0].correct


def regraded_theorem(folder: Path, mode: str) -> Record:
    if not (folder / ANSWERS).exists():
        keep(folder, [Record(task="theoremqa", id="t", gold="3.14", text="\\boxed{3.2}", outcome=Outcome.WRONG)])
    (records,) = regrade(folder, GradeOptions(mode=mode)).records.values()  # type: ignore[arg-type]
    return records[0]
