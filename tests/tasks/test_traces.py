from __future__ import annotations

import json
from pathlib import Path

import pytest

from tyler.tasks import Problem, grade, load_problems
from tyler.tasks.traces import read

ROW = {"problem": "What is 2 + 3?", "solution": "We add.\n\nIt is $\\boxed{5}$.", "answer": "5"}


def write(folder: Path, *lines: object) -> Path:
    """A JSONL file of these lines; a string is written as it is."""
    path = folder / "traces.jsonl"
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines), "utf-8")
    return path


def test_a_line_becomes_a_problem(tmp_path):
    (problem,) = read(write(tmp_path, {**ROW, "level": 3}), "train")
    assert problem == Problem("train-1", "jsonl", "What is 2 + 3?", "5", solution="We add.\n\nIt is $\\boxed{5}$.")


def test_a_solution_without_a_box_gets_a_final_paragraph_with_one(tmp_path):
    (problem,) = read(write(tmp_path, {**ROW, "solution": "It is 5."}), "train")
    assert problem.solution == "It is 5.\n\nThe answer is $\\boxed{5}$."
    assert grade("jsonl", problem.solution, problem.answer).correct


def test_a_box_may_write_the_answer_in_another_way(tmp_path):
    row = {"problem": "?", "solution": r"$\boxed{\dfrac{1}{2}}$", "answer": r"$\frac{1}{2}$"}
    assert read(write(tmp_path, row), "train")[0].solution == row["solution"]


def test_a_box_that_contradicts_the_answer_is_refused(tmp_path):
    path = write(tmp_path, ROW, {**ROW, "answer": "6"})
    with pytest.raises(ValueError, match=r"traces\.jsonl, line 2: field 'solution' ends in the box '5', but .* '6'"):
        read(path, "train")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 2: not JSON"),
        ("", "line 2: not JSON"),
        ("[" * 100_000, "line 2: not JSON"),
        ("[1]", "line 2: expected a JSON object, got list"),
        ("null", "line 2: expected a JSON object, got NoneType"),
        ("{}", "line 2: field 'problem' is missing; there is none"),
        ({"problem": "?", "answer": "5"}, "line 2: field 'solution' is missing; there is problem, answer"),
        ({**ROW, "answer": 5}, "line 2: field 'answer' must be a string, got int 5"),
        ({**ROW, "answer": None}, "line 2: field 'answer' must be a string, got NoneType None"),
        ({**ROW, "problem": ""}, "line 2: field 'problem' is empty"),
        ({**ROW, "solution": " \n"}, "line 2: field 'solution' is empty"),
        ({**ROW, "problem": "\ud800"}, "line 2: field 'problem' is not valid Unicode"),
    ],
)
def test_a_broken_line_is_named_with_its_file_and_field(tmp_path, line, message):
    path = write(tmp_path, ROW, line, ROW)
    with pytest.raises(ValueError, match=f"traces.jsonl, {message}"):
        read(path, "train")


def test_bytes_that_are_not_utf8_are_named_with_their_line(tmp_path):
    path = tmp_path / "traces.jsonl"
    path.write_bytes(json.dumps(ROW).encode() + b'\n{"problem": "\xff"}\n')
    with pytest.raises(ValueError, match=r"traces\.jsonl, line 2: not JSON .*utf-8"):
        read(path, "train")


def test_windows_files_and_trailing_blank_lines_are_fine(tmp_path):
    path = tmp_path / "traces.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + (json.dumps(ROW) + "\r\n").encode() * 2 + b"\r\n\n")
    assert [problem.id for problem in read(path, "dev")] == ["dev-1", "dev-2"]


def test_a_line_separator_inside_a_string_does_not_end_the_line(tmp_path):
    row = {**ROW, "problem": "one\u2028two\x85three"}
    assert read(write(tmp_path, json.dumps(row, ensure_ascii=False)), "dev")[0].prompt == row["problem"]


def test_an_empty_file_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"traces\.jsonl is empty; .* problem, solution, answer"):
        read(write(tmp_path, "", ""), "train")


# ------------------------------------------------------------------------------------------------------------ GSM8K

WENG = {
    "question": "Weng earns $12 an hour for babysitting. Yesterday, she just did 50 minutes. How much did she earn?",
    "answer": "Weng earns 12/60 = $<<12/60=0.2>>0.2 per minute.\n"
    "Working 50 minutes, she earned 0.2 x 50 = $<<0.2*50=10>>10.\n#### 10",
}


def test_gsm8k_steps_become_paragraphs_without_annotations_and_end_in_a_box(tmp_path):
    (problem,) = load_problems("gsm8k", "train", path=write(tmp_path, WENG))
    assert problem.answer == "10"
    assert problem.solution == (
        "Weng earns 12/60 = $0.2 per minute.\n\n"
        "Working 50 minutes, she earned 0.2 x 50 = $10.\n\n"
        "The answer is $\\boxed{10}$."
    )


@pytest.mark.parametrize("answer", ["It is 10.", "It is 10.\n#### ten", "10 ####", "#### 12,34"])
def test_gsm8k_without_a_gold_number_is_refused(tmp_path, answer):
    with pytest.raises(ValueError, match=r"line 1: field 'answer' must end in '#### NUMBER'"):
        load_problems("gsm8k", "train", path=write(tmp_path, {**WENG, "answer": answer}))


@pytest.mark.parametrize(("split", "num_problems", "num_with_commas"), [("train", 7473, 79), ("test", 1319, 14)])
def test_every_published_gsm8k_trace_grades_correct(data_dir, split, num_problems, num_with_commas):
    problems = load_problems("gsm8k", split, path=data_dir / f"gsm8k_{split}.jsonl")
    assert len(problems) == len({problem.id for problem in problems}) == num_problems
    assert sum("," in problem.answer for problem in problems) == num_with_commas
    for problem in problems:
        assert problem.solution is not None
        assert grade("gsm8k", problem.solution, problem.answer).correct, problem.id
        assert "<<" not in problem.solution


def test_math500_reads_as_traces_and_every_solution_grades_correct(data_dir):
    problems = load_problems("jsonl", "test", path=data_dir / "math500_test.jsonl")
    assert len(problems) == 500
    for problem in problems:
        assert grade("jsonl", problem.solution or "", problem.answer).correct, problem.id


# ---------------------------------------------------------------------------------------------------------- loading


@pytest.fixture
def thirty(tmp_path: Path) -> Path:
    return write(tmp_path, *({**ROW, "problem": f"Question {i}"} for i in range(30)))


def test_a_sample_has_no_repeats_keeps_the_order_and_depends_on_the_seed_only(thirty):
    whole = load_problems("jsonl", "dev", path=thirty)
    sample = load_problems("jsonl", "dev", path=thirty, count=10, seed=1)
    positions = [whole.index(problem) for problem in sample]
    assert positions == sorted(set(positions)) and len(positions) == 10
    assert sample == load_problems("jsonl", "dev", path=str(thirty), count=10, seed=1)
    assert sample != load_problems("jsonl", "dev", path=thirty, count=10, seed=2)


def test_a_smaller_sample_is_part_of_a_larger_one(thirty):
    small, large = (load_problems("jsonl", "dev", path=thirty, count=count) for count in (5, 20))
    assert all(problem in large for problem in small)


def test_sampling_all_of_them_gives_all_of_them(thirty):
    assert load_problems("jsonl", "dev", path=thirty, count=30) == load_problems("jsonl", "dev", path=thirty)


def test_generated_problems_need_no_file():
    problems = load_problems("mini", "eval", count=4, seed=3)
    assert len({problem.id for problem in problems}) == 4
    for problem in problems:
        assert problem.solution is not None
        assert grade("mini", problem.solution, problem.answer).correct
    assert problems == load_problems("mini", "eval", count=4, seed=3)
    assert problems != load_problems("mini", "eval", count=4, seed=4)


@pytest.mark.parametrize("count", [0, -1, 31])
def test_an_impossible_count_is_refused(thirty, count):
    with pytest.raises(ValueError, match=f"count.*{count}"):
        load_problems("jsonl", "dev", path=thirty, count=count)


def test_a_missing_or_needless_file_is_refused_by_name(tmp_path, thirty):
    with pytest.raises(ValueError, match="task 'gsm8k' reads a file; give path= to its 'test' split"):
        load_problems("gsm8k", "test")
    with pytest.raises(ValueError, match=r"no\.jsonl' is not a file"):
        load_problems("gsm8k", "test", path=tmp_path / "no.jsonl")
    with pytest.raises(ValueError, match="is not a file"):
        load_problems("jsonl", "test", path=tmp_path)
    with pytest.raises(ValueError, match="task 'mini' generates its problems"):
        load_problems("mini", "train", path=thirty)


def test_an_unknown_task_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match="unknown task 'nope'; known tasks are gsm8k, jsonl, mini"):
        load_problems("nope", "test")
