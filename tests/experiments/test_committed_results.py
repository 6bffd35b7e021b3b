"""The committed results of `tyler reproduce` follow from their records, and the pages from them."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tyler.experiments import declared
from tyler.experiments.cells import Sources
from tyler.experiments.library import folders_of_records
from tyler.experiments.outputs import RESULTS, render, write_results
from tyler.experiments.reproduction import MARKER, Reproduction, with_seeds
from tyler.experiments.scales import SCALES
from tyler.experiments.tables import WRITERS


@pytest.fixture(scope="module")
def folder(root: Path) -> Path:
    return root / "docs" / "results" / "reproduction-mini"


@pytest.fixture(scope="module")
def made(folder: Path) -> Reproduction:
    (seeds,) = {tuple(json.loads((folder / name / RESULTS).read_text())["seeds"]) for name in declared.names()}
    scale = with_seeds(SCALES["mini"], seeds)
    return Reproduction(declared.names(), scale, folder, Sources({}), folders_of_records(folder.parent))


@pytest.mark.parametrize("name", declared.names())
def test_results_and_tables_follow_from_the_records(
    name: str, made: Reproduction, folder: Path, tmp_path: Path
) -> None:
    results = made.results(name, made.known())
    committed = json.loads((folder / name / RESULTS).read_text())
    assert results["missing"] == 0
    assert close(results, committed), "run tyler reproduce with --output docs/results/reproduction-mini"
    write_results(tmp_path / "again", name, results)
    for path in (path for ending in WRITERS for path in (tmp_path / "again").glob(f"*.{ending}")):
        assert path.read_bytes() == (folder / name / path.name).read_bytes(), path.name
    (tmp_path / RESULTS).write_text((folder / name / RESULTS).read_text())
    files = {path.name: path for path in render(tmp_path, name)}
    assert files.keys() == {path.name for path in (folder / name).iterdir()} - {RESULTS}
    for file, path in files.items():
        if path.suffix[1:] in (*WRITERS, "svg"):
            assert path.read_bytes() == (folder / name / file).read_bytes(), file


def close(found: Any, committed: Any) -> bool:
    """Whether all is the same, numbers but for the last digits: another processor adds in another order."""
    if isinstance(found, dict):
        return found.keys() == committed.keys() and all(close(found[key], committed[key]) for key in found)
    if isinstance(found, (list, tuple)):
        return len(found) == len(committed) and all(map(close, found, committed))
    if isinstance(found, float):
        return bool(found == pytest.approx(committed, rel=1e-3, abs=2e-4))
    return bool(found == committed)


def test_every_record_is_a_cell_of_today(made: Reproduction, folder: Path) -> None:
    assert {path.name for path in folder.iterdir()} >= {MARKER, "records", *declared.names()}
    used = {
        name
        for experiment in declared.names()
        for entry in json.loads((folder / experiment / RESULTS).read_text())["entries"]
        for name in entry["records"]
    }
    assert used >= {path.stem for path in (folder / "records").glob("*.json")}


def test_the_page_of_tables_is_current(root: Path, folder: Path) -> None:
    sys.path.insert(0, str(root / "scripts"))
    try:
        from reproduction_tables import tables
    finally:
        sys.path.pop(0)
    assert (root / "docs" / "results" / "reproduction-tables.md").read_text() == tables(folder)


def test_every_experiment_speaks_of_the_paper_and_shows_its_figures(root: Path, folder: Path) -> None:
    text = (root / "docs" / "results" / "reproduction.md").read_text()
    parts = {part.split("\n", 1)[0]: part for part in text.split("\n### ")[1:]}
    assert parts.keys() == set(declared.names())
    for name, part in parts.items():
        assert "paper" in part and len(part.split()) >= 40, f"{name} does not say what of the paper appears"
        assert all(f"reproduction-mini/{name}/{path.name}" in part for path in (folder / name).glob("*.svg"))
