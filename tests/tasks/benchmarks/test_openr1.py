from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tyler.tasks import Problem, grade, load_problems


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


def read(folder: Path, *rows: dict[str, Any]) -> list[Problem]:
    path = folder / "openr1_math.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in rows))
    return load_problems("OpenR1-Math", path=folder)


def test_the_trace_is_what_the_first_verified_generation_writes_after_its_thought(tmp_path):
    (problem,) = read(tmp_path, row())
    assert problem == Problem(
        "u1", "openr1", "Question u1", r"\frac{1}{2}", solution="We halve.\n\nIt is $\\boxed{0.5}$."
    )
    assert grade("openr1", problem.solution or "", problem.answer).correct


def test_a_solution_without_a_box_gets_one(tmp_path):
    (problem,) = read(tmp_path, row(generations=["", "<think>\n?\n</think>\nIt is a half."]))
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
    assert [problem.id for problem in read(tmp_path, row("bad", **changes), row("good"))] == ["good"]


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
        read(tmp_path, row("u1"), {**row("u2"), **changes})


def test_a_problem_that_comes_twice_counts_once(tmp_path, caplog):
    assert [problem.id for problem in read(tmp_path, row("a"), row("b"), row("a"))] == ["a", "b"]
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
