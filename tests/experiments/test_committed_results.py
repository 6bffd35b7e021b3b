"""The committed records: the paper's experiments are complete, their tables follow, and anyone can grade them again."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tyler.cli.main import main
from tyler.experiments import declared, outputs
from tyler.experiments.cells import Sources
from tyler.experiments.experiment import WRITERS
from tyler.experiments.outputs import read_results, write_results
from tyler.experiments.records import folders_of_records
from tyler.experiments.reproduction import Reproduction
from tyler.experiments.scales import SCALES


@pytest.fixture(scope="module")
def folder(root: Path) -> Path:
    return root / "docs" / "results"


@pytest.fixture(scope="module")
def made(folder: Path) -> Reproduction:
    return Reproduction(declared.names(), SCALES["mini"], Path("nowhere"), Sources({}), folders_of_records(folder))


@pytest.fixture(scope="module")
def known(made: Reproduction) -> dict[str, Any]:
    return dict(made.known())


@pytest.mark.parametrize("name", declared.names())
def test_tables_follow_from_the_records(name: str, made: Reproduction, known: dict[str, Any], tmp_path: Path) -> None:
    results = made.results(name, known)
    assert results["missing"] == 0
    write_results(tmp_path, name, results)
    assert read_results(tmp_path)["entries"] == results["entries"]
    for ending in WRITERS:
        assert list(tmp_path.glob(f"*.{ending}"))


def test_published_counts_are_those_of_the_records(made: Reproduction, known: dict[str, Any]) -> None:
    entries = {(one["row"], one["column"]): one for one in made.results("main", known)["entries"]}
    assert (entries["Tyler, Stage 2", "harder"]["k"], entries["Tyler, Stage 2", "harder"]["n"]) == (
        [167, 174, 174],
        300,
    )
    assert (entries["CoT", "eval"]["k"], entries["CoT", "eval"]["n"]) == ([342], 600)


def test_every_record_is_a_cell_of_today(made: Reproduction, known: dict[str, Any], folder: Path) -> None:
    used = {
        name for one in declared.names() for entry in made.results(one, known)["entries"] for name in entry["records"]
    }
    own = {name for name, one in known.items() if Path(one["folder"]).name == "reproduction-mini"}
    assert own <= used


def test_a_stranger_reads_an_answer_and_grades_it_again(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = pq.read_table(folder / "smollm2-cot-dev" / "answers.parquet").to_pylist()
    assert len(rows) == 300 and rows[0]["text"].startswith("1. First, we need to find")
    again = Path(shutil.copytree(folder / "smollm2-cot-dev", tmp_path / "again"))
    assert main(["grade", str(again), "--no-math-verify"]) == 0
    said = capsys.readouterr().out
    assert "graded 300 answers" in said and "0 verdicts changed" in said
    assert len(list(again.glob("verdicts-official-*.parquet"))) == 2


def test_tables_are_made_by_one_command_without_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All tables of all experiments and studies; figures, which take minutes, are left out here."""
    monkeypatch.setattr(outputs, "drawn", lambda *_: [])
    assert main(["reproduce", "--render", "--output", str(tmp_path / "r")]) == 0
    every = {*declared.names(), *declared.studies()} - {"smollm2_growth", "half_precision"}  # which have no records yet
    assert {path.parent.name for path in (tmp_path / "r").glob("*/*.md")} == every
    assert all(read_results(tmp_path / "r" / name)["missing"] == 0 for name in every)


def test_every_experiment_speaks_of_the_paper(folder: Path) -> None:
    section = (folder / "README.md").read_text().split("\n### The paper's experiments\n")[1].split("\n## ")[0]
    parts = {part.split("**")[0]: part for part in section.split("\n- **")[1:]}
    assert parts.keys() == set(declared.names())
    for name, part in parts.items():
        assert "paper" in part and len(part.split()) >= 25, f"{name} does not say what of the paper appears"
