import json
import time
from pathlib import Path
from typing import Any

import pytest

from tyler.tasks import Problem, grade, load_problems
from tyler.tasks.benchmarks import jsonl

ROW = {"problem": "What is 2 + 3?", "solution": "We add.\n\nIt is $\\boxed{5}$.", "answer": "5"}


def read(path: Path, split: str) -> list[Problem]:
    return load_problems("jsonl", split, path=path)


def write(folder: Path, *lines: object) -> Path:
    """A JSONL file of these lines; a string is written as it is."""
    path = folder / "traces.jsonl"
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines), "utf-8")
    return path


def test_a_line_becomes_a_problem(tmp_path):
    (problem,) = read(write(tmp_path, {**ROW, "level": 3}), "train")
    assert problem == Problem("train-1", "jsonl", "What is 2 + 3?", "5", solution="We add.\n\nIt is $\\boxed{5}$.")


@pytest.mark.parametrize("row", [{"problem": "?", "answer": "5"}, {"problem": "?", "answer": "5", "solution": ""}])
def test_a_row_without_a_solution_can_be_graded(tmp_path, row):
    (problem,) = read(write(tmp_path, row), "test")
    assert problem.solution is None
    assert grade("jsonl", "It is $\\boxed{5}$.", problem.answer).correct


@pytest.mark.parametrize(
    ("answer", "text"),
    [(5, "5"), (-0.5, "-0.5"), (1e-7, "0.0000001"), (10**40, "1" + 40 * "0"), (1e22, "1" + 22 * "0")],
)
def test_an_answer_may_be_a_number(tmp_path, answer, text):
    (problem,) = read(write(tmp_path, {**ROW, "answer": answer, "solution": f"It is $\\boxed{{{text}}}$."}), "train")
    assert problem.answer == text
    assert grade("jsonl", problem.solution or "", problem.answer).correct


def test_ids_are_named_after_the_file_where_no_split_is_given(tmp_path):
    path = write(tmp_path, ROW, ROW)
    assert [problem.id for problem in load_problems("jsonl", path=path)] == ["traces-1", "traces-2"]
    assert [problem.id for problem in load_problems("jsonl", "dev", path=path)] == ["dev-1", "dev-2"]


@pytest.mark.parametrize(
    ("box", "answer"),
    [(r"\dfrac{1}{2}", r"$\frac{1}{2}$"), ("0.5", r"\frac12"), ("x+1", "1+x"), (r"2\sqrt{2}", r"\sqrt{8}")],
)
def test_a_box_may_write_the_answer_in_another_way(tmp_path, box, answer):
    row = {"problem": "?", "solution": rf"$\boxed{{{box}}}$", "answer": answer}
    assert read(write(tmp_path, row), "train")[0].solution == row["solution"]


@pytest.mark.parametrize("answer", ["6", r"\sqrt{5}", r"\text{five apples}"])
def test_a_box_that_contradicts_the_answer_is_refused(tmp_path, answer):
    path = write(tmp_path, ROW, {**ROW, "answer": answer})
    with pytest.raises(ValueError, match=r"traces\.jsonl, line 2: field 'solution' ends in the box '5', but"):
        read(path, "train")


def test_a_comparison_that_runs_out_of_time_contradicts_nothing(tmp_path, monkeypatch):
    def slow(answer: str, gold: str, options: object) -> bool:
        raise TimeoutError

    monkeypatch.setattr(jsonl, "equal", slow)
    assert len(read(write(tmp_path, {**ROW, "answer": "6"}), "train")) == 1


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 2: not JSON"),
        ("null", "line 2: expected a JSON object, got NoneType"),
        ("{}", "line 2: field 'answer' is missing; there is "),
        ({**ROW, "solution": 5}, "line 2: field 'solution' must be a string, got int 5"),
        ({**ROW, "answer": True}, "line 2: field 'answer' must be a string or a number, got True"),
        ({**ROW, "answer": [5]}, r"line 2: field 'answer' must be a string or a number, got list \[5\]"),
        ('{"problem": "?", "answer": NaN}', "line 2: field 'answer' must be a string or a number, got nan"),
        ({**ROW, "problem": ""}, "line 2: field 'problem' is empty"),
    ],
)
def test_a_broken_line_is_named_with_its_file_and_field(tmp_path, line, message):
    path = write(tmp_path, ROW, line, ROW)
    with pytest.raises(ValueError, match=f"traces.jsonl, {message}"):
        read(path, "train")


def test_a_line_separator_inside_a_string_does_not_end_the_line(tmp_path):
    row = {**ROW, "problem": "one\u2028two\x85three"}
    assert read(write(tmp_path, json.dumps(row, ensure_ascii=False)), "dev")[0].prompt == row["problem"]


def test_numbers_and_equal_texts_are_compared_without_waking_the_slow_grader(tmp_path, monkeypatch):
    monkeypatch.setattr("tyler.tasks.answers.mathematics.equal", None)
    path = write(tmp_path, *({**ROW, "problem": f"Question {i}"} for i in range(5000)))
    started = time.process_time()
    assert len(read(path, "train")) == 5000
    assert time.process_time() - started < 5


def row(uuid: str = "u1", **changes: Any) -> dict[str, Any]:
    """A row as the data set has them: the first of two generations is wrong."""
    return {
        "problem": f"Question {uuid}",
        "solution": "From a book.",
        "answer": r"\frac{1}{2}",
        "problem_type": "Algebra",
        "uuid": uuid,
        "generations": [
            "<think>\nIt is 3? \\boxed{3}\n</think>\n\nIt is $\\boxed{3}$.",
            "<think>\nA long thought.\n</think>\n\nWe halve.\n\nIt is $\\boxed{0.5}$.",
        ],
        "is_reasoning_complete": [True, True],
        "correctness_math_verify": [False, True],
        **changes,
    }


def read_openr1(folder: Path, *rows: dict[str, Any]) -> list[Problem]:
    path = folder / "openr1_math.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in rows))
    return load_problems("OpenR1-Math", path=folder)


def test_the_trace_is_what_the_first_verified_generation_writes_after_its_thought(tmp_path):
    (problem,) = read_openr1(tmp_path, row())
    assert problem == Problem(
        "u1", "openr1", "Question u1", r"\frac{1}{2}", solution="We halve.\n\nIt is $\\boxed{0.5}$."
    )
    assert grade("openr1", problem.solution or "", problem.answer).correct


def test_a_solution_without_a_box_gets_one(tmp_path):
    (problem,) = read_openr1(tmp_path, row(generations=["", "<think>\n?\n</think>\nIt is a half."]))
    assert problem.solution == "It is a half.\n\nThe answer is $\\boxed{\\frac{1}{2}}$."


@pytest.mark.parametrize(
    "changes",
    [
        {"correctness_math_verify": [False, False]},
        {"correctness_math_verify": [True, False], "is_reasoning_complete": [False, True]},
        {"correctness_math_verify": [None, None]},
        {"correctness_math_verify": None},
        {"is_reasoning_complete": None},
        {"generations": ["a", "<think> never ends \\boxed{0.5}"]},
        {"generations": ["a", "<think> says nothing </think> \n"]},
    ],
    ids=str,
)
def test_a_row_without_a_verified_complete_generation_is_left_out(tmp_path, changes):
    assert [problem.id for problem in read_openr1(tmp_path, row("bad", **changes), row("good"))] == ["good"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"correctness_math_verify": [True]}, "'correctness_math_verify' has 1 entries for 2 generations"),
        ({"is_reasoning_complete": [True] * 3}, "'is_reasoning_complete' has 3 entries for 2 generations"),
        ({"generations": "text"}, "'generations' must be a list, got str"),
        ({"generations": ["a", 7]}, "'generations' must hold strings, got int"),
        ({"answer": None}, "'answer' must be a string, got NoneType"),
        ({"uuid": ""}, "'uuid' is empty"),
    ],
    ids=str,
)
def test_a_broken_row_is_named_with_its_file_and_field(tmp_path, changes, message):
    with pytest.raises(ValueError, match=rf"openr1_math\.jsonl, line 2: field {message}"):
        read_openr1(tmp_path, row("u1"), {**row("u2"), **changes})


def test_a_problem_that_comes_twice_counts_once(tmp_path, caplog):
    assert [problem.id for problem in read_openr1(tmp_path, row("a"), row("b"), row("a"))] == ["a", "b"]
    assert caplog.messages == ["OpenR1-Math: left out 1 rows whose id had come before"]


def test_files_of_the_hub_and_the_hub_itself_give_the_same_sample(tmp_path, monkeypatch):
    datasets = pytest.importorskip("datasets")
    rows = [row(f"u{i}") for i in range(40)]
    (tmp_path / "data").mkdir()
    for part in (0, 1):
        name = f"train-0000{part}-of-00002.parquet"
        datasets.Dataset.from_list(rows[part * 20 : part * 20 + 20]).to_parquet(tmp_path / "data" / name)
    monkeypatch.setattr(datasets, "load_dataset", lambda *names, split, revision: datasets.Dataset.from_list(rows))
    sample = load_problems("openr1", "train", path=tmp_path, count=15, seed=42)
    assert sample == load_problems("openr1", count=15, seed=42)
    assert len(sample) == 15
