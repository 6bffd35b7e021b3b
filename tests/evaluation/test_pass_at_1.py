"""Evaluation: every problem is answered once, graded, kept, and counted."""

import json
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch

import tiny
from scripted import FAMILIES, OUTCOMES, PROBLEMS, TEXTS, Scripted, trajectory
from stored import interrupt, keep
from tyler.cli.main import main
from tyler.engine.routing import AtBoundaries, Never
from tyler.engine.sampling import Sampling, seed_of
from tyler.engine.trajectory import Trajectory
from tyler.evaluation import parquet
from tyler.evaluation import store as stored
from tyler.evaluation.answers import Answer, Record
from tyler.evaluation.pass_at_1 import answer_of, evaluate
from tyler.evaluation.regrade import regrade
from tyler.evaluation.store import (
    ANSWERS,
    AnswerStore,
    read_answers,
    read_evaluations,
    read_records,
    shown,
    verdict_files,
    verdict_on,
)
from tyler.model import Tyler
from tyler.reasoners.reasoner import Finished, ignore
from tyler.reasoners.tyler import TylerReasoner
from tyler.runs.checkpoints import RunError
from tyler.runs.signals import Interrupted
from tyler.tasks import Outcome, Problem, Verdict
from tyler.tasks.problem import GradeOptions

OPTIONS = GradeOptions()
SETTINGS = {"model": "scripted", "budget": 3}


class Dying(Scripted):
    """A reasoner whose machine dies after some answers."""

    def __init__(self, answers: int, error: type[BaseException] = KeyboardInterrupt) -> None:
        super().__init__()
        self.left, self.error = answers, error

    def solve(self, problems: Sequence[Problem], finished: Finished = ignore) -> list[Trajectory]:
        def counted(index: int, answer: Trajectory) -> None:
            if self.left == 0:
                raise self.error
            self.left -= 1
            finished(index, answer)

        return super().solve(problems, counted)


def kept(folder: Path) -> list[Answer]:
    """The answers of an evaluation, as far as they are there."""
    return [answer for answers in read_answers(folder).values() for answer in answers]


def without_times(records: Sequence[object]) -> list[object]:
    return [replace(one, elapsed=0.0, session=0, rank=0) for one in records]  # type: ignore[type-var]


def test_latents_are_let_go_as_answers_finish() -> None:
    """They would stay on the device until the last answer, and no record holds them."""

    class Latent(Scripted):
        def solve(self, problems: Sequence[Problem], finished: Finished = ignore) -> list[Trajectory]:
            answers = [replace(trajectory(index), latents=[torch.ones(3, 4)] * index) for index in range(len(problems))]
            for index, answer in enumerate(answers):
                finished(index, answer)
                assert answer.latents == []
            return answers

    assert [one.latents for one in evaluate(Latent(), PROBLEMS).records] == [3 * index for index in range(5)]


def test_records_keep_the_order_of_the_problems_and_everything_to_recount() -> None:
    report = evaluate(Scripted(), PROBLEMS)
    assert [one.id for one in report.records] == [problem.id for problem in PROBLEMS]
    assert [one.outcome for one in report.records] == OUTCOMES
    for index, (one, problem) in enumerate(zip(report.records, PROBLEMS, strict=True)):
        assert (one.task, one.family, one.level) == ("jsonl", FAMILIES[index], index)
        assert (one.prompt, one.gold) == (problem.prompt, "5")
        assert (one.text, one.visible_tokens, one.latents) == (TEXTS[index], 2, 3 * index)
        assert one.invocations == trajectory(index).invocations
        times = one.seconds, one.engine_seconds, one.synthesis_seconds
        assert times == (1.0 + index, 0.5 + index, 0.25 * index)
    assert [one.answer for one in report.records] == ["5", "6", None, None, "5"]
    assert [one.finish_reason for one in report.records] == ["eos", "eos", "eos", "length", "eos"]


def test_times_are_kept_to_three_digits(tmp_path: Path) -> None:
    kept = Answer.to(PROBLEMS[0], text="", seconds=12.3456, synthesis_seconds=0.00123456)
    assert (kept.seconds, kept.synthesis_seconds, kept.engine_seconds) == (12.3, 0.00123, None)
    with AnswerStore(tmp_path, SETTINGS) as store:
        assert all(
            len(str(one.elapsed).strip("0.")) <= 4 for one in evaluate(Scripted(), PROBLEMS, store=store).records
        )


def test_nothing_to_evaluate_is_refused() -> None:
    with pytest.raises(ValueError, match="the set of problems is empty"):
        evaluate(Scripted(), [])


def test_what_must_not_be_shown_is_not_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    hidden = replace(PROBLEMS[0], task="gpqa", answer="B")
    answer = answer_of(hidden, trajectory(0))
    one = shown(answer.graded(verdict_on(answer, OPTIONS)))
    assert (one.prompt, one.text, one.gold) == ("", None, "B")


def test_answers_are_kept_while_others_are_still_to_come(tmp_path: Path) -> None:
    lines: list[int] = []

    class Watching(Scripted):
        def solve(self, problems: Sequence[Problem], finished: Finished = ignore) -> list[Trajectory]:
            def watched(index: int, answer: Trajectory) -> None:
                finished(index, answer)
                lines.append(len(kept(tmp_path)))

            return super().solve(problems, watched)

    with AnswerStore(tmp_path, SETTINGS) as store:
        evaluate(Watching(), PROBLEMS, store=store)
    assert lines == [1, 2, 3, 4, 5]


def test_an_interrupted_evaluation_goes_on_without_answering_again(tmp_path: Path) -> None:
    dying, again = Dying(2), Scripted()
    others = [replace(problem, task="gsm8k") for problem in PROBLEMS]
    with AnswerStore(tmp_path, SETTINGS) as store, pytest.raises(Interrupted, match=r"2 of 5 answers .* resumes it"):
        evaluate(Scripted(), others, store=store)
        evaluate(dying, PROBLEMS, store=store)
    with AnswerStore(tmp_path, SETTINGS) as store:
        report = evaluate(again, PROBLEMS, store=store)
        merged = store.finish([one.key for one in report.records])
    assert dying.answered == ["p4", "p3"] and sorted(again.answered) == ["p0", "p1", "p2"]
    assert merged == list(report.records)
    assert without_times(report.records) == without_times(evaluate(Scripted(), PROBLEMS).records)
    assert [one.session for one in report.records] == [1, 1, 1, 0, 0]


def test_a_grader_that_fails_stops_the_evaluation(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> None:
        raise PermissionError("no code here")

    class Slow(Scripted):
        def solve(self, problems: Sequence[Problem], finished: Finished = ignore) -> list[Trajectory]:
            return super().solve(problems, lambda index, answer: (finished(index, answer), time.sleep(0.2)))

    monkeypatch.setattr(stored, "grade", refused)
    with pytest.raises(PermissionError, match="no code here"):
        evaluate(slow := Slow(), PROBLEMS)
    assert len(slow.answered) < len(PROBLEMS), "the others would be decoded for nothing"


# ------------------------------------------------------------------------------------------ the store


def test_a_torn_last_line_is_dropped_and_its_answer_given_again(tmp_path: Path) -> None:
    with AnswerStore(tmp_path, SETTINGS) as store:
        evaluate(Scripted(), PROBLEMS, store=store)
    file = tmp_path / "answers.jsonl"
    whole = file.read_bytes()
    file.write_bytes(whole[:-20])
    again = Scripted()
    with AnswerStore(tmp_path, SETTINGS) as store:
        report = evaluate(again, PROBLEMS, store=store)
    assert len(again.answered) == 1
    assert without_times(report.records) == without_times(evaluate(Scripted(), PROBLEMS).records)


def test_other_settings_are_refused_by_name(tmp_path: Path) -> None:
    AnswerStore(tmp_path, SETTINGS).close()
    with pytest.raises(RunError, match=r"other settings: budget was 3, is 4; choose another directory"):
        AnswerStore(tmp_path, SETTINGS | {"budget": 4})
    assert not (tmp_path / "answers.jsonl").exists()  # else the folder would look unfinished
    AnswerStore(tmp_path, SETTINGS).close()


def test_of_nested_settings_only_what_differs_is_said(tmp_path: Path) -> None:
    versions = {"torch": "2.13", "numpy": "2.4"}
    AnswerStore(tmp_path, {"versions": versions}).close()
    with pytest.raises(RunError, match=r"other settings: versions.torch was '2.13', is '2.14'; choose"):
        AnswerStore(tmp_path, {"versions": versions | {"torch": "2.14"}})


def test_shares_of_several_processes_become_one_file_in_order(tmp_path: Path) -> None:
    stores = [AnswerStore(tmp_path, SETTINGS, rank=rank) for rank in range(2)]
    for rank, store in enumerate(stores):
        evaluate(Scripted(), PROBLEMS[rank::2], store=store, show=False)
    assert (tmp_path / "answers-1.jsonl").is_file()
    assert sorted(answer.id for answer in kept(tmp_path)) == [problem.id for problem in PROBLEMS]
    keys = [("jsonl", problem.id, 0) for problem in PROBLEMS]
    merged = stores[0].finish(keys)
    for store in stores:
        store.close()
    assert [one.rank for one in merged] == [0, 1, 0, 1, 0]
    assert without_times(merged) == without_times(evaluate(Scripted(), PROBLEMS).records)
    assert read_records(tmp_path) == merged
    assert not (tmp_path / "answers-1.jsonl").exists()


def test_a_share_that_is_missing_is_told(tmp_path: Path) -> None:
    with AnswerStore(tmp_path, SETTINGS) as store:
        evaluate(Scripted(), PROBLEMS[:3], store=store)
        with pytest.raises(RunError, match=r"lacks 2 answers, first \('jsonl', 'p3', 0\)"):
            store.finish([("jsonl", problem.id, 0) for problem in PROBLEMS])


def test_answers_of_another_number_of_processes_are_used(tmp_path: Path) -> None:
    for rank in range(3):
        with AnswerStore(tmp_path, SETTINGS, rank=rank) as store:
            evaluate(Scripted(), PROBLEMS[rank::3][:1], store=store, show=False)
    again = Scripted()
    with AnswerStore(tmp_path, SETTINGS) as store:
        evaluate(again, PROBLEMS, store=store)
    assert sorted(again.answered) == ["p3", "p4"]


@pytest.mark.parametrize("line", ['{"task": "mini"}', "{}"])
def test_a_line_that_is_no_record_is_refused(tmp_path: Path, line: str) -> None:
    (tmp_path / "answers.jsonl").write_text(line + "\n")
    with pytest.raises(ValueError, match=r"answers.jsonl, line 1 is not an answer of this version"):
        read_records(tmp_path)


def test_answers_are_plain_json(tmp_path: Path) -> None:
    with AnswerStore(tmp_path, SETTINGS) as store:
        evaluate(Scripted(), PROBLEMS, store=store)
    lines = [json.loads(line) for line in (tmp_path / "answers.jsonl").read_text().splitlines()]
    assert next(line for line in lines if line["id"] == "p1")["invocations"] == [
        {"operator": "global", "position": 2, "num_latents": 3, "action": 2, "offset": 1}
    ]


# --------------------------------------------------------------------------------------- Tyler answers


def test_a_reasoner_answers_as_its_model_does_and_tells_each_when_it_is_done() -> None:
    model = tiny.tyler("qwen3")
    problems = [Problem(str(index), "jsonl", text, "5") for index, text in enumerate(tiny.PROMPTS)]
    for router, budget in ((None, 1), (AtBoundaries(), None), (Never(), None)):
        reasoner = TylerReasoner(
            "tyler", model, Sampling(1.0, seed=3), router=router, budget=budget, max_new_tokens=12, slots=2
        )
        seen: dict[int, Trajectory] = {}
        found = reasoner.solve(problems, seen.__setitem__)
        expected = [
            model.solve(
                problem.prompt,
                router=router,
                budget=budget,
                sampling=Sampling(1.0, seed=seed_of(3, "jsonl", problem.id)),
                max_new_tokens=12,
            )
            for problem in problems
        ]
        assert [one.actions for one in found] == [one.actions for one in expected]
        assert [seen[index].actions for index in range(len(found))] == [one.actions for one in expected]


def test_a_problem_with_an_instruction_of_its_own_is_put_with_it() -> None:
    model: Tyler = tiny.tyler("qwen3")
    plain = model.request(Problem("0", "jsonl", "two?", "2"))
    own = model.request(Problem("0", "jsonl", "two?", "2", instruction="Answer in Python."))
    decode = model.backbone.tokenizer.decode
    assert list(plain.prompt_ids) == list(model.request("two?").prompt_ids)
    assert "Answer in Python." in str(decode(own.prompt_ids)) and "boxed" not in str(decode(own.prompt_ids))


def test_a_random_router_draws_anew_for_every_problem() -> None:
    model: Tyler = tiny.tyler("qwen3")
    problems = [Problem(str(index), "jsonl", tiny.SHORT, "5") for index in range(24)]
    reasoner = TylerReasoner("half", model, router=AtBoundaries(rate=0.5, only=("global",)), max_new_tokens=4, slots=4)
    called = [trajectory.num_invocations for trajectory in reasoner.solve(problems)]
    assert {0, 1} <= set(called), "one problem 24 times: its first boundary is taken in some answers and not in others"


@pytest.mark.parametrize("long", [(1,), (0, 2), (0, 1, 2)])
def test_a_problem_that_is_too_long_is_kept_as_wrong_and_stops_nothing(tmp_path: Path, long: tuple[int, ...]) -> None:
    """Every reasoner decodes in an engine, which refuses a prompt before it decodes anything."""
    model = tiny.tyler("qwen3")
    texts = ["x " * 600 if place in long else f"what is {place}?" for place in range(3)]
    problems = [Problem(f"p{place}", "jsonl", text, "5") for place, text in enumerate(texts)]
    reasoner = TylerReasoner("tiny", model, router=Never(), max_new_tokens=5)
    with AnswerStore(tmp_path, SETTINGS) as store:
        report = evaluate(reasoner, problems, store=store)
    assert [one.outcome is Outcome.TOO_LONG for one in report.records] == [place in long for place in range(3)]
    assert not any(one.correct or one.text for one in report.records if one.outcome is Outcome.TOO_LONG)
    assert all(one.visible_tokens == 5 for one in report.records if one.outcome is not Outcome.TOO_LONG)
    assert {answer.key for answer in kept(tmp_path)} == {record.key for record in report.records}


# --- verdicts are made again


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


def test_a_changed_verdict_is_told_with_its_reason(
    finished: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    right = read_records(finished)
    for path in finished.glob("verdicts-*"):
        path.unlink()
    (name,) = read_answers(finished)
    wrong = [replace(right[0], outcome=Outcome.WRONG, answer="7"), *right[1:]]
    with monkeypatch.context() as patch:
        patch.setattr(stored, "grader_version", lambda options, _: {"revision": "0", "mode": options.mode})
        stored.write_verdicts(finished, OPTIONS, {name: wrong})
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
    stored.write_answers(finished / ANSWERS, {name: [replace(records[0], text="changed"), *records[1:]]})
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
    with pytest.raises(FileNotFoundError, match="holds no answers"):
        read_records(tmp_path)


def test_answers_without_a_verdict_of_this_grader_are_graded_and_not_asked_again(
    finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = read_records(finished)
    for change in (lambda: interrupt(finished), lambda: monkeypatch.setattr(stored, "grader_version", other)):
        change()
        again = Scripted()
        with AnswerStore(finished, {"model": "scripted"}) as kept:
            report = evaluate(again, PROBLEMS, store=kept)
            kept.finish([one.key for one in report.records])
        assert again.answered == [] and list(report.records) == records == read_records(finished)
        assert not list(finished.glob("*.jsonl"))
    assert len(verdict_files(finished)) == 2, "the earlier verdicts stay"


def other(options: GradeOptions, tasks: object) -> dict[str, str]:
    """Another grader, which says the same."""
    return {"revision": "1", "mode": options.mode}


def test_what_was_kept_without_its_text_keeps_its_verdict_and_is_not_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As GPQA is kept, under another grader too."""
    private = [replace(problem, task="gpqa", answer="B") for problem in PROBLEMS]
    found = []
    for version in (stored.grader_version, other):
        monkeypatch.setattr(stored, "grader_version", version)
        with AnswerStore(tmp_path, SETTINGS) as store:
            report = evaluate(again := Scripted(), private, store=store)
            found.append(store.finish([one.key for one in report.records]))
    assert again.answered == [] and found[0] == found[1] == read_records(tmp_path)
    assert {one.text for one in found[1]} == {None} and len(verdict_files(tmp_path)) == 1
    for path in tmp_path.glob("verdicts-*"):
        path.unlink()
    with AnswerStore(tmp_path, SETTINGS) as store:
        evaluate(again, private, store=store)
    assert len(again.answered) == 5, "nothing is known of them"


def test_an_answer_that_was_kept_without_its_text_does_not_hinder_the_others(finished: Path) -> None:
    first, *others = read_records(finished)
    keep(finished, [replace(first, text=None), *others])
    for _ in range(2):
        assert regrade(finished, GradeOptions()).without_text == 1
        assert {one.id for one in read_records(finished)} == {one.id for one in (first, *others)}, "no verdict is lost"


def test_a_verdict_on_a_refusal_is_not_one_on_the_answer_that_came_later(tmp_path: Path) -> None:
    answer = answer_of(PROBLEMS[0], trajectory(0))
    with AnswerStore(tmp_path, SETTINGS) as store:
        store.add_answer(replace(answer, text="", finish_reason="failed: 400"))
        assert not store.finish([answer.key])[0].correct
    with AnswerStore(tmp_path, SETTINGS) as store:
        store.forget_failed()
        store.add_answer(answer)  # and killed before it is graded
    assert read_evaluations(tmp_path) == {store.name: []}
    with AnswerStore(tmp_path, SETTINGS) as store:
        assert store.finish([answer.key])[0].correct
    assert read_records(tmp_path)[0].correct


def test_another_deadline_or_package_for_programs_makes_other_verdicts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(stored, "grade", lambda *_, deadline, **__: Verdict(OUTCOMES_BY_DEADLINE[deadline]))
    keep(tmp_path, [Record(task="humaneval", id="p", text="```python```", outcome=Outcome.TIMEOUT)])
    assert main(["grade", str(tmp_path), "--deadline", "20", "--packages", "numpy", "sympy"]) == 0
    said = capsys.readouterr().out
    assert "deadline was 5 s, is 20 s" in said and "packages was numpy, is numpy sympy" in said
    assert "humaneval p: timeout -> correct" in said
    assert read_records(tmp_path)[0].correct and len(verdict_files(tmp_path)) == 2, "the earlier verdicts stay"


OUTCOMES_BY_DEADLINE = {5.0: Outcome.TIMEOUT, 20.0: Outcome.CORRECT}


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
