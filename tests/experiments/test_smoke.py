"""The smoke run of the paper's scale: every experiment and every method, on small random backbones."""

import re
from pathlib import Path

import pytest

from tyler.cli.main import main
from tyler.experiments import declared
from tyler.experiments.cells import Sources
from tyler.experiments.reproduction import Reproduction
from tyler.experiments.scales import SCALES
from tyler.reasoners.table import METHODS, OWN, TRAININGS

OF_MEMGEN = {"memgen-weaver-grpo", "memgen-trigger"}
"""What the paper's MemGen does without; tests/planning takes both through a step."""


def test_the_experiments_need_every_method() -> None:
    cells = Reproduction(declared.names(), SCALES["paper"], Path("nowhere"), Sources({})).cells()
    assert {cell.decoding.method for cell in cells} == {OWN, *METHODS} - {"cot"}, "CoT is the backbone's own answer"
    trained = {stage.method for cell in cells for stage in cell.training.stages}
    assert trained >= {"stage1", "stage2", *TRAININGS} - OF_MEMGEN


@pytest.mark.slow
def test_all_of_them_run(
    data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["reproduce", "all", "--scale", "paper", "--dry-run", "--smoke", "--data", str(data_dir)]) == 0
    told = capsys.readouterr().out
    for name in declared.names():
        assert re.search(rf"^{name}: \d+ cells, all of them ran", told, re.MULTILINE), name
