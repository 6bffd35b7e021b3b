import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tyler.config.files import load_config
from tyler.tasks import Problem, decontamination, grade, load_problems
from tyler.tasks.data_files import Row
from tyler.tasks.grading import find_task
from tyler.tasks.task import Source, Task, boxed

datasets = pytest.importorskip("datasets")

WENG = {
    "question": "Weng earns $12 an hour for babysitting. Yesterday, she just did 50 minutes. How much did she earn?",
    "answer": "Weng earns 12/60 = $<<12/60=0.2>>0.2 per minute.\n"
    "Working 50 minutes, she earned 0.2 x 50 = $<<0.2*50=10>>10.\n#### 10",
}


def toy_problem(row: Row, split: str) -> Problem | None:
    if row.fields.get("picture"):
        return None
    return Problem(row.text("id"), "toy", row.text("question"), "7")


def toy(num_rows: int | None = 3, *, gated: bool = False, private: bool = False) -> Task:
    """A benchmark of a few rows."""
    sources = {
        split: Source((f"toy_{split}.jsonl", f"{split}-*.parquet"), "someone/toy", "main", split, num_rows, gated)
        for split in ("test", "train")
    }
    verdict = boxed(lambda answer, gold, options: answer == gold)
    return Task(name="toy", title="Toy", sources=sources, problem=toy_problem, verdict=verdict, private=private)


ROWS: list[dict[str, Any]] = [{"id": f"p{i}", "question": f"Question {i}"} for i in range(3)]


@pytest.fixture
def use(monkeypatch):
    """Puts a task in the place of gsm8k's."""

    def put(task: Task) -> None:
        monkeypatch.setattr("tyler.tasks.loading.find_task", lambda name: task)

    return put


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


# ------------------------------------------------------------------------------------------------------------ files


def test_a_config_says_which_revision_of_the_hub_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    requests: list[tuple[str, str | None]] = []
    monkeypatch.setattr(
        decontamination, "load_problems", lambda task, *_, revision, **__: requests.append((task, revision)) or []
    )
    config = load_config(
        "mini", ["data.task=gsm8k", "data.revision=abc", "evaluation.task=math500", "evaluation.revision=v2"]
    )
    config.training_set.load()
    (evaluated,) = (each for each in config.held_out_sets if each.task == "math500")
    evaluated.load()
    assert requests == [("gsm8k", "abc"), ("math500", "v2")]


def test_a_split_is_found_in_a_folder_by_its_official_name(tmp_path, use):
    use(toy())
    write(tmp_path / "toy_test.jsonl", ROWS)
    write(tmp_path / "toy_train.jsonl", [{**row, "id": f"t{row['id']}"} for row in ROWS])
    assert [problem.id for problem in load_problems("toy", path=tmp_path)] == ["p0", "p1", "p2"]
    assert [problem.id for problem in load_problems("toy", "train", path=str(tmp_path))] == ["tp0", "tp1", "tp2"]


def test_a_split_is_found_with_another_ending_too(tmp_path, use):
    use(toy())
    (tmp_path / "toy_test.csv").write_text("id,question\n" + "".join(f"p{i},Question {i}\n" for i in range(3)))
    assert len(load_problems("toy", path=tmp_path)) == 3


def test_all_the_files_of_a_split_in_pieces_are_read_in_order(tmp_path, use):
    use(toy())
    for i, row in enumerate(ROWS):
        datasets.Dataset.from_list([row]).to_parquet(tmp_path / f"test-0000{i}-of-00003.parquet")
    assert [problem.id for problem in load_problems("toy", path=tmp_path)] == ["p0", "p1", "p2"]


def test_rows_that_a_benchmark_leaves_out_are_not_counted(tmp_path, use):
    use(toy(2))
    path = write(tmp_path / "anything.jsonl", [ROWS[0], {**ROWS[1], "picture": "image.png"}, ROWS[2]])
    assert [problem.id for problem in load_problems("toy", path=path)] == ["p0", "p2"]


@pytest.mark.parametrize("num_rows", [2, 4])
def test_a_split_of_another_size_than_published_is_refused(tmp_path, use, num_rows):
    use(toy(num_rows))
    path = write(tmp_path / "toy_test.jsonl", ROWS)
    with pytest.raises(ValueError, match=rf"read 3 problems, but the test split of Toy has {num_rows}; .*count="):
        load_problems("toy", path=path)
    with pytest.raises(ValueError, match="read 3 problems"):
        load_problems("toy", path=path, count=2)


def test_two_rows_with_one_id_are_refused(tmp_path, use):
    use(toy())
    with pytest.raises(ValueError, match="two rows of Toy have the id 'p0'"):
        load_problems("toy", path=write(tmp_path / "toy_test.jsonl", [*ROWS[:2], ROWS[0]]))


def test_a_file_without_any_problem_is_refused(tmp_path, use):
    use(toy(None))
    with pytest.raises(ValueError, match=r"line 1: none of the rows up to here is a problem of Toy"):
        load_problems("toy", path=write(tmp_path / "a.jsonl", [{**ROWS[0], "picture": "image.png"}]))


def test_a_path_that_leads_nowhere_is_refused_with_what_was_looked_for(tmp_path, use):
    use(toy())
    with pytest.raises(ValueError, match=r"has none of toy_test\.jsonl, test-\*\.parquet .*someone/toy"):
        load_problems("toy", path=tmp_path)
    with pytest.raises(ValueError, match=r"no\.jsonl' is neither a file nor a folder"):
        load_problems("toy", path=tmp_path / "no.jsonl")
    with pytest.raises(ValueError, match="has no split 'dev'; allowed: test, train"):
        load_problems("toy", "dev", path=tmp_path)


def test_one_s_own_file_must_be_given_and_be_a_file(tmp_path):
    with pytest.raises(ValueError, match=r"task 'jsonl' reads a file; name one with --data"):
        load_problems("jsonl")
    with pytest.raises(ValueError, match="is not a file"):
        load_problems("jsonl", path=tmp_path)


def test_generated_problems_are_in_no_file(tmp_path):
    assert load_problems("mini", "eval", count=4, seed=3) == load_problems("mini", count=4, seed=3)
    with pytest.raises(ValueError, match="task 'mini' generates its problems"):
        load_problems("mini", "train", path=tmp_path)


# ---------------------------------------------------------------------------------------------------------- samples


@pytest.fixture
def thirty(tmp_path: Path, use: Any) -> Path:
    use(toy(30))
    return write(tmp_path / "toy_test.jsonl", [{"id": f"p{i}", "question": f"Question {i}"} for i in range(30)])


def test_a_sample_is_part_of_a_larger_one_in_the_order_of_the_rows_and_depends_on_the_seed_only(thirty):
    whole, sample = load_problems("toy", path=thirty), load_problems("toy", path=str(thirty), count=10, seed=1)
    positions = [whole.index(problem) for problem in sample]
    assert positions == sorted(set(positions)) and len(positions) == 10
    assert sample != load_problems("toy", path=thirty, count=10, seed=2)
    assert all(problem in sample for problem in load_problems("toy", path=thirty, count=5, seed=1))
    assert load_problems("toy", path=thirty, count=30) == whole
    thirty.write_text("\n".join(reversed(thirty.read_text().splitlines())))
    assert load_problems("toy", path=thirty, count=10, seed=1) == sample[::-1]


@pytest.mark.parametrize("count", [0, -1, 31])
def test_an_impossible_count_is_refused(thirty, count):
    with pytest.raises(ValueError, match=f"count.*{count}"):
        load_problems("toy", path=thirty, count=count)


# ---------------------------------------------------------------------------------------------------------- the Hub


def answer_with(monkeypatch: pytest.MonkeyPatch, given: Any) -> list[tuple[Any, ...]]:
    """Puts rows, or an error, in the place of the Hub; returns what is asked of it."""
    requests = []

    def load_dataset(path: str, name: str | None = None, *, split: str, revision: str | None = None) -> Any:
        requests.append((path, name, split, revision) if revision else (path, name, split))
        if isinstance(given, Exception):
            raise given
        return datasets.Dataset.from_list(given)

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    return requests


def test_without_a_path_a_split_comes_from_the_hub(monkeypatch, use):
    use(toy())
    requests = answer_with(monkeypatch, ROWS)
    assert [problem.id for problem in load_problems("toy", "train")] == ["p0", "p1", "p2"]
    assert requests == [("someone/toy", "main", "train")]


def test_a_data_set_of_the_hub_can_be_the_rows_of_a_task_that_reads_any_file(monkeypatch):
    rows = [{"problem": "1 + 1?", "answer": "2"}, {"problem": "1 + 2?", "answer": "3"}]
    requests = answer_with(monkeypatch, rows)
    results = load_problems("jsonl", path="hf://datasets/someone/sums", revision="abc123")
    assert [(each.id, each.answer) for each in results] == [("train-1", "2"), ("train-2", "3")]
    load_problems("jsonl", "dev", path="hf://datasets/someone/sums/hard")
    assert requests == [("someone/sums", None, "train", "abc123"), ("someone/sums", "hard", "dev")]
    with pytest.raises(ValueError, match="names no data set of the Hub; write hf://datasets/OWNER/NAME"):
        load_problems("jsonl", path="hf://datasets/someone")


def test_a_revision_of_the_hubs_copy_can_be_named_and_is_logged(monkeypatch, use, caplog, tmp_path):
    use(toy())
    requests = answer_with(monkeypatch, ROWS)
    caplog.set_level("INFO")
    load_problems("toy", "train", revision="abc123")
    assert requests == [("someone/toy", "main", "train", "abc123")]
    assert "Toy is read from the Hub (someone/toy), at abc123" in caplog.text
    with pytest.raises(ValueError, match="revision='abc123' is of the Hub's copy, and path="):
        load_problems("toy", "train", path=tmp_path, revision="abc123")


def test_a_broken_row_of_the_hub_is_named(monkeypatch, use):
    use(toy())
    answer_with(monkeypatch, [ROWS[0], {**ROWS[1], "question": ""}])
    with pytest.raises(ValueError, match=r"someone/toy \(test\), row 2: field 'question' is empty"):
        load_problems("toy")


def gated_error() -> Exception:
    from huggingface_hub.errors import GatedRepoError

    response = SimpleNamespace(headers={}, request=None)
    return GatedRepoError("Access to this repository is restricted", response=response)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "error",
    [
        datasets.exceptions.DatasetNotFoundError("Dataset 'someone/toy' is a gated dataset on the Hub."),
        gated_error(),
        ConnectionError("Couldn't reach the Hub"),
        datasets.exceptions.DatasetGenerationError("An error occurred while generating the dataset"),
        ValueError("BuilderConfig 'main' not found."),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_hub_that_does_not_answer_says_what_came_and_what_to_do(monkeypatch, use, error):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    use(toy())
    answer_with(monkeypatch, error)
    with pytest.raises(ValueError, match=r"cannot load Toy from the Hub \(someone/toy/main/test\)") as refused:
        load_problems("toy")
    assert f"{type(error).__name__}: {str(error)[:20]}" in str(refused.value)
    assert "give path (--data, of a config data.path) a folder with toy_test.jsonl" in str(refused.value)
    assert ("check the connection" in str(refused.value)) == isinstance(error, ConnectionError)
    assert "accept its terms" not in str(refused.value)


def test_a_gated_benchmark_says_how_to_get_it(monkeypatch, use):
    use(toy(gated=True))
    answer_with(monkeypatch, datasets.exceptions.DatasetNotFoundError("gated"))
    with pytest.raises(ValueError, match=r"terms at https://huggingface.co/datasets/someone/toy and log in .`hf auth"):
        load_problems("toy")


def test_offline_the_hub_is_refused_with_the_setting_that_did_it(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    answer_with(monkeypatch, ConnectionError("Couldn't reach"))
    with pytest.raises(ValueError, match=r"cannot load GSM8K .*HF_HUB_OFFLINE is set and nothing is cached: unset it"):
        load_problems("gsm8k")


# ------------------------------------------------------------------------------------------------------------ GSM8K


def read_gsm8k(row: dict[str, str]) -> Problem | None:
    task = find_task("gsm8k")
    assert isinstance(task, Task)
    return task.problem(Row(row, "train.jsonl, line 1", 1), "train")


def test_gsm8k_steps_become_paragraphs_without_annotations_and_end_in_a_box():
    problem = read_gsm8k(WENG)
    assert problem is not None
    assert (problem.id, problem.answer) == ("train-1", "10")
    assert problem.solution == (
        "Weng earns 12/60 = $0.2 per minute.\n\n"
        "Working 50 minutes, she earned 0.2 x 50 = $10.\n\n"
        "The answer is $\\boxed{10}$."
    )


@pytest.mark.parametrize("answer", ["It is 10.", "It is 10.\n#### ten", "10 ####", "#### 12,34"])
def test_gsm8k_without_a_gold_number_is_refused(answer):
    with pytest.raises(ValueError, match=r"line 1: field 'answer' must end in '#### NUMBER', got '"):
        read_gsm8k({**WENG, "answer": answer})


@pytest.mark.parametrize(("split", "num_problems", "num_with_commas"), [("train", 7473, 79), ("test", 1319, 14)])
def test_every_published_gsm8k_trace_grades_correct(data_dir, split, num_problems, num_with_commas):
    problems = load_problems("gsm8k", split, path=data_dir)
    assert len(problems) == len({problem.id for problem in problems}) == num_problems
    assert sum("," in problem.answer for problem in problems) == num_with_commas
    for problem in problems:
        assert problem.solution is not None
        assert grade("gsm8k", problem.solution, problem.answer).correct, problem.id
        assert "<<" not in problem.solution


# ----------------------------------------------------------------------------------- tasks of other people's files

SOURCE = """
from tyler.tasks.problem import Outcome, Problem, Verdict
from tyler.tasks.task import Task


def problem(row, split):
    return Problem(f"{split}-{row.number}", "parity", row.text("question"), row.text("answer"), "It is.")


def verdict(completion, gold, options):
    found = completion.strip().split()[-1] if completion.strip() else None
    return Verdict(Outcome.CORRECT if found == gold else Outcome.WRONG, found)


TASK = Task(name="parity", title="Parity", sources={}, problem=problem, verdict=verdict)
"""


@pytest.fixture
def location(tmp_path: Path) -> str:
    (tmp_path / "parity.py").write_text(SOURCE)
    (tmp_path / "rows.jsonl").write_text('{"question": "Is 3 even or odd?", "answer": "odd"}\n')
    return f"{tmp_path / 'parity.py'}:TASK"


def test_a_task_of_a_file_is_loaded_graded_and_named_in_a_config(location: str, tmp_path: Path) -> None:
    (problem,) = load_problems(location, path=tmp_path / "rows.jsonl")
    assert (problem.id, problem.task, problem.answer) == ("rows-1", location, "odd")
    assert grade(problem.task, "It is odd", problem.answer).correct
    assert not grade(problem.task, "even", problem.answer).correct
    assert load_config("mini", [f"data.task={location}"]).data.task == location


@pytest.mark.parametrize(
    ("location", "fault"),
    [
        ("nowhere.py:TASK", "FileNotFoundError"),
        ("tyler.tasks.benchmarks.gsm8k:NONE", "has no attribute 'NONE'"),
        ("tyler.tasks.benchmarks.gsm8k:problem", "is not a tyler.tasks.task.Task, but a function"),
    ],
)
def test_a_task_that_is_not_there_is_refused_by_name(location: str, fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        load_problems(location)


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
