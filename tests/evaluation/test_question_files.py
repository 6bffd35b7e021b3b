import json
import signal
from collections.abc import Callable, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tiny
from tyler.engine.sampling import Sampling
from tyler.evaluation import question_files
from tyler.reasoners.registry import Answerer
from tyler.runs.checkpoints import RunError
from tyler.runs.signals import Interrupted

SAMPLED = Sampling(1.0, seed=5)


@pytest.fixture(scope="module")
def answerer() -> Answerer:
    model = tiny.build("qwen3", tiny.SEEDS["qwen3"], psi_scale=1.0)
    return Answerer(
        lambda one, its: model.request(one, sampling=its, max_new_tokens=8), model.shared_engine, lambda: "w"
    )


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    path = tmp_path / "questions.jsonl"
    messages = [{"role": "user", "content": "x"}]
    rows = [{"problem": "x", "id": 7}, {"problem": "x"}, {"messages": messages}, {"problem": tiny.MEDIUM}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def run(answerer: Answerer, questions: Path, name: str = "answers.jsonl", **settings: Any) -> list[dict[str, Any]]:
    settings = {"sampling": SAMPLED, "settings": {"budget": None}, "num_samples": 2, **settings}
    return question_files.run(answerer, questions, questions.with_name(name), **settings)


def essence(lines: Sequence[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return [(line["line"], line["sample"], line["id"], line["text"], line["seed"]) for line in lines]


def test_answers_stand_in_the_order_of_their_questions_and_samples(answerer: Answerer, questions: Path) -> None:
    lines = run(answerer, questions)
    assert lines == [json.loads(line) for line in questions.with_name("answers.jsonl").read_text().splitlines()]
    assert [(line["line"], line["sample"]) for line in lines] == [(n, s) for n in (1, 2, 3, 4) for s in (0, 1)]
    assert [line["id"] for line in lines[::2]] == [7, None, None, None]
    assert lines[4]["messages"] == [{"role": "user", "content": "x"}]
    assert len({line["seed"] for line in lines}) == 8, "equal questions have streams of their own"


@pytest.mark.parametrize("kept", [0, 1, 5])
def test_a_killed_command_resumes_to_the_same_answers(answerer: Answerer, questions: Path, kept: int) -> None:
    whole = run(answerer, questions)
    output = questions.with_name("again.jsonl")
    lines = questions.with_name("answers.jsonl").read_text().splitlines(keepends=True)
    output.write_text("".join(reversed(lines[:kept])) + lines[kept][:20])
    asked: list[object] = []
    counting = Answerer(
        lambda one, its: asked.append(one) or answerer.request(one, its), answerer.engine, answerer.weights
    )
    assert essence(run(counting, questions, "again.jsonl")) == essence(whole)
    assert len(asked) == 8 - kept


def test_more_samples_are_added_to_those_that_are_there(answerer: Answerer, questions: Path) -> None:
    fewer = run(answerer, questions, num_samples=1)
    assert essence(run(answerer, questions, num_samples=2))[::2] == essence(fewer)


def test_an_interrupt_keeps_what_is_answered_and_says_how_to_resume(
    answerer: Answerer, questions: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(requests: Sequence[Any], *, slots: int, finished: Callable[..., None]) -> None:
        run_all(requests[:1], slots=slots, finished=finished)
        raise KeyboardInterrupt

    run_all = answerer.run

    def stopped(*arguments: Any, **settings: Any) -> None:
        raise Interrupted("stop", signal.SIGTERM)

    monkeypatch.setattr(Answerer, "run", stopped)
    with pytest.raises(Interrupted, match=r"0 of 8 answers are in .*; the same command resumes it") as asked:
        run(answerer, questions)
    assert asked.value.signum == signal.SIGTERM
    monkeypatch.setattr(Answerer, "run", lambda _, *arguments, **settings: interrupted(*arguments, **settings))
    with pytest.raises(Interrupted, match=r"1 of 8 answers are in .*; the same command resumes it") as caught:
        run(answerer, questions)
    assert caught.value.signum == signal.SIGINT
    assert len(questions.with_name("answers.jsonl").read_text().splitlines()) == 1


@pytest.mark.parametrize(
    "change",
    [{"sampling": Sampling(0.5)}, {"settings": {"budget": 2}}, {"weights": "other"}, {"dtype": "torch.bfloat16"}],
    ids=str,
)
def test_answers_under_other_settings_or_of_another_model_are_left_alone(
    answerer: Answerer, questions: Path, change: dict[str, Any]
) -> None:
    run(answerer, questions)
    before = questions.with_name("answers.jsonl").read_bytes()
    weights, dtype = change.pop("weights", "w"), change.pop("dtype", "torch.float32")
    other = Answerer(answerer.request, answerer.engine, lambda: weights, dtype)
    with pytest.raises(RunError, match=r"line 1 was answered by another model or under other settings"):
        run(other, questions, **change)
    assert questions.with_name("answers.jsonl").read_bytes() == before


def test_a_changed_question_fewer_samples_and_a_foreign_file_are_refused(answerer: Answerer, questions: Path) -> None:
    run(answerer, questions)
    with pytest.raises(RunError, match=r"line 2 answers .*, or more often than is asked now \(-n\)"):
        run(answerer, questions, num_samples=1)
    questions.write_text(questions.read_text().replace('"x"', '"y"'))
    with pytest.raises(RunError, match="line 1 answers a question that the input does not have"):
        run(answerer, questions)
    questions.with_name("answers.jsonl").write_text('{"a": 1}\n{"line')
    with pytest.raises(RunError, match="line 1 is not an answer of tyler solve"):
        run(answerer, questions)
    assert questions.with_name("answers.jsonl").read_text() == '{"a": 1}\n{"line'


def test_the_file_of_questions_is_no_place_for_answers(answerer: Answerer, questions: Path) -> None:
    questions.write_text('{"problem": "x"}')
    with pytest.raises(RunError, match="is the file of the questions; choose another --answers"):
        run(answerer, questions, questions.name)
    assert questions.read_text() == '{"problem": "x"}'


def test_what_could_not_be_asked_is_asked_again(answerer: Answerer, questions: Path) -> None:
    def refuse(one: object, its: Sampling) -> Any:
        raise ValueError("there is no room")

    refused = run(Answerer(refuse, answerer.engine, answerer.weights), questions)
    assert [line["error"] for line in refused] == ["there is no room"] * 8
    assert essence(run(answerer, questions)) == essence(run(answerer, questions, "other.jsonl"))


def test_an_id_of_any_kind_is_kept_and_what_is_no_unicode_is_named(answerer: Answerer, tmp_path: Path) -> None:
    table = pa.table({"id": [date(2026, 1, 2)], "problem": ["x"]})
    pq.write_table(table, tmp_path / "dated.parquet")
    assert {line["id"] for line in run(answerer, tmp_path / "dated.parquet")} == {"2026-01-02"}
    odd = tmp_path / "odd.jsonl"
    for row in ({"id": "\ud800", "problem": "x"}, {"messages": [{"role": "user", "content": "\ud800"}]}):
        odd.write_text(json.dumps(row) + "\n")
        with pytest.raises(ValueError, match=r"odd.jsonl, line 1: .* is not valid Unicode"):
            run(answerer, odd)


def test_a_row_without_a_question_is_named(answerer: Answerer, questions: Path) -> None:
    questions.write_text('{"question": "x"}\n')
    with pytest.raises(ValueError, match=r"questions.jsonl, line 1: field 'problem' is missing; there is question"):
        run(answerer, questions)
