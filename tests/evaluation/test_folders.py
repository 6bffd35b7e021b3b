"""What there is below a folder, from its records alone."""

import fcntl
import json
from pathlib import Path

import pytest

from stored import keep, write_lines
from tyler.cli import main
from tyler.evaluation.answers import Record
from tyler.evaluation.folders import EvaluationRun, runs_below
from tyler.runs.catalogue import TrainingRun
from tyler.runs.run import Run
from tyler.tasks import Outcome

CONFIG = "stage1: {steps: 3}\ngrpo: {budget: 5}\n"


def train(path: Path, steps: int, loop: str = "stage1") -> Path:
    """A run that logged some steps and saved the last one."""
    with Run.create(path, CONFIG) as run:
        run.note_at_start({"training": "Stage 1", "steps": 3})
        for step in range(1, steps + 1):
            run.log(step, {f"{loop}/loss": 1.0 / step})
        run.save_checkpoint(steps, lambda folder: None)
    return path


def evaluation(path: Path, answers: int, asked: int, samples: int = 1) -> Path:
    path.mkdir(parents=True)
    outcomes = [Outcome.CORRECT if place else Outcome.WRONG for place in range(answers)]
    records = [Record(task="mini", id=f"p{place}", outcome=outcome) for place, outcome in enumerate(outcomes)]
    (keep if answers == asked * samples else write_lines)(path, records)
    (path / "settings.json").write_text(json.dumps({"problems": {"mini": f"{asked}, sha256 x"}, "samples": samples}))
    return path


def test_a_run_is_finished_at_its_last_step_and_interrupted_before(tmp_path: Path) -> None:
    done, cut = TrainingRun(train(tmp_path / "a", 3)), TrainingRun(train(tmp_path / "b", 2))
    assert (done.what, done.step, done.total, done.status) == ("Stage 1", 3, 3, "finished")
    assert (cut.step, cut.total, cut.status) == (2, 3, "interrupted")


def test_a_run_knows_from_its_own_notes_what_it_trains_and_for_how_long(tmp_path: Path) -> None:
    with Run.create(tmp_path / "a", CONFIG) as run:
        run.note_at_start({"training": "GRPO", "steps": 9})
        run.log(1, {"stage2/reward": 0.5})
    found = TrainingRun(tmp_path / "a")
    assert (found.what, found.step, found.total, found.status, found.budget) == ("GRPO", 1, 9, "interrupted", 5)


def test_a_run_that_is_being_written_is_running(tmp_path: Path) -> None:
    with Run.create(tmp_path / "a", CONFIG) as run:
        run.log(1, {"stage1/loss": 1.0})
        assert TrainingRun(tmp_path / "a").status == "running"
    assert TrainingRun(tmp_path / "a").status == "interrupted"


def test_an_evaluation_counts_its_answers(tmp_path: Path) -> None:
    whole = EvaluationRun(evaluation(tmp_path / "a", 4, 2, samples=2))
    assert (whole.what, whole.status, whole.step, whole.accuracy) == ("eval mini", "finished", 4, 0.75)
    part = EvaluationRun(evaluation(tmp_path / "b", 3, 4))
    assert (part.status, part.total, part.accuracy) == ("interrupted", 4, None), "verdicts come at the end"
    with open(tmp_path / "b" / "answers.jsonl") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert part.status == "running"


def test_runs_are_listed_by_path_and_not_looked_into(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train(tmp_path / "b" / "stage1", 3)
    train(tmp_path / "a", 1)
    evaluation(tmp_path / "b" / "eval", 2, 2)
    (tmp_path / "empty").mkdir()
    assert [found.path.relative_to(tmp_path).as_posix() for found in runs_below(tmp_path)] == [
        "a",
        "b/eval",
        "b/stage1",
    ]
    assert main.main(["runs", str(tmp_path), "--json"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(line["what"], line["status"], line["step"], line["of"]) for line in lines] == [
        ("Stage 1", "interrupted", 1, 3),
        ("eval mini", "finished", 2, 2),
        ("Stage 1", "finished", 3, 3),
    ]
    assert lines[1]["best"] == "accuracy 50.0%"
    assert main.main(["runs", str(tmp_path)]) == 0
    assert "interrupted" in capsys.readouterr().out


def test_a_folder_without_runs_says_how_to_make_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["runs", str(tmp_path)]) == 0
    assert "tyler quickstart" in capsys.readouterr().out
    assert main.main(["runs", str(tmp_path / "nowhere")]) == 2
    assert "there is no folder" in capsys.readouterr().err
