"""Tasks that other people's files define."""

from __future__ import annotations

from pathlib import Path

import pytest

from tyler.config.files import load_config
from tyler.tasks import grade, load_problems

SOURCE = """
from tyler.tasks.problem import Outcome, Problem, Verdict
from tyler.tasks.task import Task


def problem(row, split):
    return Problem(f"{split}-{row.number}", "parity", row.text("question"), row.text("answer"), "It is.")


def verdict(completion, gold, options):
    found = completion.strip().split()[-1] if completion.strip() else None
    return Verdict(Outcome.CORRECT if found == gold else Outcome.WRONG, found)


TASK = Task("parity", "Parity", {}, problem, verdict)
"""


@pytest.fixture
def place(tmp_path: Path) -> str:
    (tmp_path / "parity.py").write_text(SOURCE)
    (tmp_path / "rows.jsonl").write_text('{"question": "Is 3 even or odd?", "answer": "odd"}\n')
    return f"{tmp_path / 'parity.py'}:TASK"


def test_a_task_of_a_file_is_loaded_graded_and_named_in_a_config(place: str, tmp_path: Path) -> None:
    (problem,) = load_problems(place, path=tmp_path / "rows.jsonl")
    assert (problem.id, problem.task, problem.answer) == ("rows-1", place, "odd")
    assert grade(problem.task, "It is odd", problem.answer).correct
    assert not grade(problem.task, "even", problem.answer).correct
    assert load_config("mini", [f"data.task={place}"]).data.task == place


@pytest.mark.parametrize(
    "place, fault",
    [
        ("nowhere.py:TASK", "FileNotFoundError"),
        ("tyler.tasks.benchmarks.gsm8k:NONE", "has no attribute 'NONE'"),
        ("tyler.tasks.benchmarks.gsm8k:problem", "is not a tyler.tasks.task.Task, but a function"),
    ],
)
def test_a_task_that_is_not_there_is_refused_by_name(place: str, fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        load_problems(place)


def chat(tmp_path: Path, *lines: str) -> Path:
    file = tmp_path / "chats.jsonl"
    file.write_text("\n".join(lines) + "\n")
    return file


def test_rows_of_chats_are_problems(tmp_path: Path) -> None:
    file = chat(
        tmp_path,
        '{"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "1 + 1?"}, '
        '{"role": "assistant", "content": "It is \\\\boxed{2}."}]}',
        '{"prompt": "2 + 1?", "completion": "Three.", "answer": 3}',
        '{"prompt": [{"role": "user", "content": "Hello"}], "completion": [{"role": "assistant", "content": "Hi."}]}',
    )
    boxed, answered, talk = load_problems("jsonl", path=file)
    assert (boxed.prompt, boxed.answer, boxed.solution) == ("Be brief.\n\n1 + 1?", "2", "It is \\boxed{2}.")
    assert (answered.answer, answered.solution) == ("3", "Three.\n\nThe answer is $\\boxed{3}$.")
    assert (talk.prompt, talk.answer, talk.solution) == ("Hello", "", "Hi.")


@pytest.mark.parametrize(
    "line, fault",
    [
        ('{"messages": [{"role": "user", "content": "a"}]}', "has the turns user; a row"),
        ('{"messages": [{"role": "user"}]}', "must be messages with a role and a text"),
        ('{"prompt": [], "completion": "b"}', "must be messages"),
    ],
)
def test_a_chat_that_is_no_question_and_answer_is_named(line: str, fault: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=rf"chats.jsonl, line 1: field .* {fault}"):
        load_problems("jsonl", path=chat(tmp_path, line))
