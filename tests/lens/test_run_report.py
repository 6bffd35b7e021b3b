"""`tyler report`: a page of runs and evaluations, from their records alone."""

from pathlib import Path

import pytest

from page_reader import parsed
from scripted import PROBLEMS, Scripted
from stored import write_lines
from tyler.cli import main
from tyler.config.files import dump, load_config
from tyler.evaluation.folders import EvaluationRun
from tyler.evaluation.html_report import save
from tyler.evaluation.pass_at_1 import evaluate
from tyler.evaluation.store import read_records
from tyler.lens import run_report
from tyler.runs.run import Run


def train(path: Path, *overrides: str) -> Path:
    """A Stage 2 of three steps, with two rollouts each."""
    with Run.create(path, dump(load_config("mini", list(overrides)))) as run:
        run.note_at_start({"training": "Stage 2", "steps": 3})
        for step in range(1, 4):
            calls = {"stage2/invocations": 2.0, "stage2/invocations_global": 2.0}
            run.log(step, {"stage2/reward": 0.1 * step, "stage2/success": 0.2 * step, "stage2/kl": 0.01, **calls})
            for member in range(2):
                line = {
                    "problem": f"p{step}",
                    "member": member,
                    "text": "So <b>5</b>",
                    "invocations": [["global", 1, 8, 3]],
                    "outcome": "wrong" if member else "correct",
                    "reward": 1.0 - member,
                }
                if step == 2:  # as where no grader answered in time, and with it no reward
                    line |= {"outcome": None, "reward": None} if member else {"reward": None}
                run.log_trajectories(step, [line])
        run.save_checkpoint(3, lambda folder: None)
    return path


def test_the_page_of_one_run_has_its_curves_rollouts_and_settings(tmp_path: Path, capsys) -> None:
    train(tmp_path / "run", "stage2.steps=3", "grpo.budget=4")
    assert main.main(["report", str(tmp_path / "run")]) == 0
    assert "report.html" in capsys.readouterr().out
    text = (tmp_path / "run" / "report.html").read_text()
    page = parsed(text)
    for title in ("Reward", "Success", "Invocations, sampled", "KL to the start"):
        assert title in page.text
    assert text.count("data:image/svg+xml") == 4 and "Stage 2, finished at step 3 of 3" in page.text
    assert 'So <span class="op" style="background:#007abf">global ×8</span>&lt;b&gt;5&lt;/b&gt;' in text
    for said in ("2 rollouts, mean reward 0.50", "2 rollouts, left out of its group", "reward 1.00, 1 invocation"):
        assert said in page.text
    assert "grpo.budget" in page.text and 'href="trajectories.jsonl.gz"' in text
    assert "http://" not in text.replace("http://www.w3.org/", "") and "https://" not in text


def test_several_runs_are_compared_in_one_plot_and_by_their_settings(tmp_path: Path) -> None:
    train(tmp_path / "a", "grpo.kl_weight=0.5")
    train(tmp_path / "b", "grpo.kl_weight=0.25")
    text = run_report.write([tmp_path / "a", tmp_path / "b"], tmp_path / "both.html").read_text()
    page = parsed(text)
    assert "Runs side by side" in page.text and "Reward: reward" in page.text
    assert "last tenth: a 0.3, b 0.3" in page.text
    assert "<td>grpo.kl_weight</td><td>0.5</td><td>0.25</td>" in text


def test_evaluations_stand_side_by_side_beside_runs(tmp_path: Path) -> None:
    report = evaluate(Scripted(), PROBLEMS)
    save([report], tmp_path / "evaluation", "x")
    train(tmp_path / "stage2")
    text = run_report.write([tmp_path]).read_text()
    page = parsed(text)
    assert "scripted-reasoner" in page.text and "40.0%" in page.text and "Reward" in page.text
    assert 'href="evaluation/scripted-reasoner/answers.parquet"' in text
    folder = tmp_path / "evaluation" / "scripted-reasoner"
    write_lines(folder, read_records(folder), rank="-1")  # killed while they were put together
    assert "40.0%" in parsed(run_report.write([folder], tmp_path / "one.html").read_text()).text
    assert EvaluationRun(folder).step == len(PROBLEMS)


@pytest.mark.parametrize(
    ("paths", "message"),
    [(["."], "holds neither a run"), (["x"], "there is no folder"), ([], "there is nothing to report on; give a run")],
)
def test_where_there_is_nothing_to_report_nothing_is_written(
    paths: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main.main(["report", *paths]) == 2
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
