"""`tyler quickstart`: what its scale scales, and that a scaled one ends."""

import re
from pathlib import Path

import pytest

from tyler.cli import quickstart
from tyler.config.files import load_config
from tyler.evaluation.store import read_records
from tyler.tasks import load_problems


@pytest.mark.parametrize(
    ("scale", "counts"), [(0.1, (25, 5, 6, 10, 60)), (1, (250, 50, 64, 100, 600)), (0.0001, (1,) * 5)]
)
def test_the_scale_is_of_every_number_of_steps_and_problems(scale: float, counts: tuple[int, ...]) -> None:
    config = quickstart.configure(7, scale)
    assert config.data.development is not None
    assert counts == (
        config.stage1.steps,
        config.stage2.steps,
        config.stage2.calibration.num_problems,
        config.data.development.count,
        config.evaluation.count,
    )
    assert (config.stage1.seed, config.stage2.seed) == (7, 7)


def test_the_whole_quickstart_answers_what_the_preset_evaluates() -> None:
    evaluation, preset = quickstart.configure(42, 1).evaluation, load_config("mini").evaluation
    assert load_problems("mini", evaluation.split, count=evaluation.count) == load_problems("mini", preset.split)


def test_the_answers_of_the_run_are_counted() -> None:
    assert quickstart.num_answers(quickstart.configure(42, 1)) == 3 * 600 + 5 * 100
    assert quickstart.num_answers(quickstart.configure(42, 0.1)) == 3 * 60


@pytest.mark.slow
def test_a_quick_look_trains_and_evaluates_little(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    quickstart.run(output=tmp_path / "q", scale=0.01)
    shown = capsys.readouterr()
    predicted, took = (
        float(re.search(text, shown.out)[1]) for text in (r"takes about ([\d.]+) minutes", r"Done in ([\d.]+)")
    )
    assert 0 < predicted < took, "what it says is of the run alone, without the two steps"
    assert shown.err.count("near held-out") <= 2, "the two steps print nothing"
    for method in ("cot", "tyler-stage-1", "tyler-stage-2"):
        assert len(read_records(tmp_path / "q" / "evaluation" / method)) == 6


@pytest.mark.parametrize("scale", [0.0, -1.0, float("inf"), float("nan")])
def test_a_scale_that_scales_nothing_is_refused(scale: float, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="it must be a finite number above 0"):
        quickstart.run(output=tmp_path, scale=scale)
