"""The studies' pages say what their records say, and every cell of them can still be run."""

from __future__ import annotations

import argparse
import importlib
import json
import re
from itertools import product
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tyler.experiments import declared
from tyler.experiments import smollm2_study as smollm2
from tyler.experiments.cells import ACCURACY, SPREAD, name_of
from tyler.experiments.methods import COLOURS
from tyler.experiments.records import read as read_records
from tyler.experiments.scales import SCALES
from tyler.modeling.architectures import fetched_folder
from tyler.reasoners.registry import checkpoint_class
from tyler.tasks.mini import FAMILIES

TRIPLE = re.compile(r"\b\d{1,3}, \d{1,3}, \d{1,3}\b")
IDS = [str(number) for number in range(8)]
NO_COUNTS = {"42, 43, 44", "25, 50, 75"}
"""Seeds and rates."""


@pytest.fixture
def scripts(root: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[ModuleType, ModuleType]:
    """study_mini and compare_mini."""
    monkeypatch.chdir(root)
    monkeypatch.syspath_prepend(str(root / "scripts"))
    return importlib.import_module("study_mini"), importlib.import_module("compare_mini")


def read(scripts: tuple[ModuleType, ModuleType]) -> list[dict[str, list[dict[str, Any]]]]:
    """The records of the study, of the comparison and of what was tried on development problems, by cell or row."""
    study, compare = scripts
    compared = compare.read(compare.Places(Path(), compare.RECORDS, study.RECORDS))
    return [study.read(study.RECORDS), compared, study.read(study.RECORDS.with_name("mini-dev"))]


def test_the_tables_are_those_of_the_records(scripts: tuple[ModuleType, ModuleType], root: Path) -> None:
    study, compare = scripts
    results = root / "docs" / "results"
    for name in ("mini", "mini-dev"):
        told = (results / f"{name}-tables.md").read_text()
        assert told == study.tables(study.read(results / name)), "run `python scripts/study_mini.py report`"
    places = compare.Places(Path(), compare.RECORDS, study.RECORDS)
    told = (results / "baselines-tables.md").read_text()
    assert told == compare.write(compare.read(places), places), "run `python scripts/compare_mini.py report`"


def test_the_tables_of_the_real_model_are_those_of_the_records(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(root / "scripts"))
    study = importlib.import_module("study_smollm2")
    found = list(read_records(root / "docs" / "results" / "smollm2").values())
    told = (root / "docs" / "results" / "smollm2-tables.md").read_text()
    assert told == study.tables(found), "run `python scripts/study_smollm2.py report`"
    shown = [row for rows in study.GROUPS.values() for row in rows]
    assert sorted(shown) == sorted(smollm2.ROWS), "the figure shows every row once"


def test_the_figure_of_the_real_model_is_that_of_the_records(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(root / "scripts"))
    study = importlib.import_module("study_smollm2")
    found = list(read_records(root / "docs" / "results" / "smollm2").values())
    study.draw(found, tmp_path / "made.svg")
    kept = (root / "docs" / "results" / "smollm2.svg").read_bytes()
    assert (tmp_path / "made.svg").read_bytes() == kept, "run `python scripts/study_smollm2.py report`"


def test_the_page_of_the_real_model_says_how_far_its_study_is(root: Path) -> None:
    page = (root / "docs" / "results" / "smollm2.md").read_text()
    done = len(list((root / "docs" / "results" / "smollm2").glob("*.json")))
    cells = {cell.unseeded for cell in smollm2.cells()}
    assert f"{done} of {len(cells)} cells have records" in " ".join(page.split())


def models_of_the_study(root: Path) -> dict[str, dict[str, Any]]:
    return dict(json.loads((root / "docs" / "results" / "smollm2-models.json").read_text())["models"])


def test_the_study_names_the_weights_of_every_model_its_records_are_of(root: Path) -> None:
    records = read_records(root / "docs" / "results" / "smollm2").values()
    models = models_of_the_study(root)
    assert models
    for name, model in models.items():
        weights = {one["weights"] for one in records if name_of(one["identity"]["training"]) == name}
        assert weights <= {model["weights"]}, f"{model['method']} {model['seed']}: answer its cells again"
        if "location" in model:
            card = (root / "src" / "tyler" / "assets" / model["location"] / "README.md").read_text()
            assert f"`{model['weights']}`" in card


@pytest.mark.skipif(
    not fetched_folder("smollm2").is_dir(), reason="smollm2 is not on this machine: `tyler fetch smollm2`"
)
def test_the_model_that_ships_loads_as_it_was_measured(root: Path) -> None:
    (shipped,) = (model for model in models_of_the_study(root).values() if "location" in model)
    location = shipped["location"]
    assert checkpoint_class(location).from_pretrained(location).fingerprint() == shipped["weights"]


def test_a_comparison_counts_problem_by_problem_over_the_seeds_that_both_have(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(root / "scripts"))
    study = importlib.import_module("study_smollm2")
    rows = {
        "CoT": [{"row": "CoT", "seed": 0, "ids": IDS, "outcomes": "cwwwwwww"}],
        "SFT": [
            {"row": "SFT", "seed": 42, "ids": IDS, "outcomes": "wccccccc"},
            {"row": "SFT", "seed": 43, "ids": IDS, "outcomes": "cccwwwww"},
        ],
    }
    assert study.paired(rows)[2:] == ["| SFT | CoT | +50.0 | +18.8 to +75.0 | 7 | 1 | 8 | 0.070 |"]
    apart = {"SFT": rows["SFT"][:1], "Stage 1, all boundaries": [dict(rows["SFT"][1], row="Stage 1, all boundaries")]}
    assert not study.paired(apart)[2:], "what has no seed in common is not compared"
    shuffled = {"CoT": rows["CoT"], "SFT": [dict(rows["SFT"][0], ids=IDS[::-1])]}
    with pytest.raises(ValueError, match="SFT and CoT answered different problems"):
        study.paired(shuffled)


def test_rows_and_seeds_choose_among_the_cells_of_the_study(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(root / "scripts"))
    study = importlib.import_module("study_smollm2")

    def chosen(*seeds: int, row: str) -> set[tuple[int, str, str, str]]:
        cells = study.chosen(argparse.Namespace(study="first", seeds=list(seeds), rows=[row]))
        return {(one.seed, one.questions.task, one.questions.split, one.measure) for one in cells}

    tests = {(43, task, "test", ACCURACY) for task in ("mawps", "svamp")}
    assert chosen(43, row="Stage 2") == tests, "what one seed is enough for is not asked of the others"
    assert chosen(42, 43, row="Stage 2") == tests | {(42, *one) for _, *one in tests} | {(42, "mawps", "dev", SPREAD)}
    assert chosen(43, row="Soft-Thinking"), "what is not trained has no seed"
    with pytest.raises(SystemExit, match="no cell of 'SoftCoT' has one of the seeds"):
        chosen(43, row="SoftCoT")
    with pytest.raises(SystemExit, match="there is no row 'Stage2'; allowed: 'CoT'"):
        chosen(43, row="Stage2")
    assert len(study.chosen(argparse.Namespace(study="first", seeds=None, rows=[]))) == len(smollm2.cells())


def test_a_figure_of_one_panel_and_of_none(root: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(str(root / "scripts"))
    study = importlib.import_module("study_smollm2")
    found = read_records(root / "docs/results/smollm2").values()
    study.draw([one for one in found if (one["row"], one["task"]) == ("CoT", "mawps")], tmp_path / "one.svg")
    study.draw([], tmp_path / "none.svg")
    assert [path.name for path in tmp_path.iterdir()] == ["one.svg"]


def test_two_records_of_one_seed_are_refused(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(root / "scripts"))
    study = importlib.import_module("study_smollm2")
    asked = {"task": "mawps", "split": "test"}
    found = [{"row": "SFT", "seed": 42, "ids": IDS, "outcomes": outcomes, **asked} for outcomes in ("c" * 8, "w" * 8)]
    with pytest.raises(ValueError, match="2 records are of SFT, seed 42, mawps test; remove those of earlier settings"):
        study.by_row(found, smollm2.TEST)


@pytest.mark.parametrize("page", ["mini.md", "baselines.md"])
def test_the_counts_that_a_page_quotes_are_in_the_records(
    page: str, scripts: tuple[ModuleType, ModuleType], root: Path
) -> None:
    known = set(NO_COUNTS)
    splits = ("eval", "harder", "dev", "dev-harder")
    every = product([one for found in read(scripts) for one in found.values()], splits)
    for records, split in every:
        if split not in records[0]:
            continue
        for family in (None, *map(str, range(len(FAMILIES)))):
            ks = [
                sum(
                    outcome == "c" and family in (None, one)
                    for outcome, one in zip(record[split]["outcomes"], record[split]["families"], strict=True)
                )
                for record in records
            ]
            known.add(", ".join(map(str, ks)))
    quoted = set(TRIPLE.findall((root / "docs" / "results" / page).read_text()))
    assert len(quoted) > 15 and not quoted - known


def test_the_study_is_complete(scripts: tuple[ModuleType, ModuleType]) -> None:
    study, _ = scripts
    found, _, tried = read(scripts)
    assert set(found) == set(study.reported()) and set(tried) == {*study.COMPARED, *study.changes()}
    assert all(
        [record["seed"] for record in records] == [42, 43, 44] for name, records in found.items() if name != "CoT"
    )


def test_a_change_answers_no_evaluation_problem(
    scripts: tuple[ModuleType, ModuleType], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["study_mini.py", "run", "--cells", "wide: SFT"])
    with pytest.raises(SystemExit):
        scripts[0].main()
    assert "development problems only; give --development" in capsys.readouterr().err


def test_every_cell_can_be_run(scripts: tuple[ModuleType, ModuleType]) -> None:
    study, _ = scripts
    for name, cell in study.cells().items():
        training = study.TRAININGS[cell.training]
        assert study.config_of(training, 42).stage1.seed == 42, name
        assert training.start is None or training.start in study.TRAININGS


def test_the_figures_show_every_reported_cell_and_are_the_same_each_time(
    scripts: tuple[ModuleType, ModuleType], tmp_path: Path
) -> None:
    figures = importlib.import_module("study_figures")
    found, compared, _ = read(scripts)
    assert {name for names in figures.GROUPS.values() for name in names} == set(found)
    for draw, records in ((figures.draw_shares, found), (figures.draw_costs, compared)):
        first, second = tmp_path / "first.svg", tmp_path / "second.svg"
        draw(records, ["eval", "harder"], first)
        draw(records, ["eval", "harder"], second)
        assert first.read_bytes() == second.read_bytes()


def test_a_method_has_the_colour_that_it_has_in_every_figure(scripts: tuple[ModuleType, ModuleType]) -> None:
    figures = importlib.import_module("study_figures")
    assert figures.colour_of("Tyler, Stage 2") == COLOURS["Tyler, Stage 2"] != figures.colour_of("Tyler, Stage 1")
    assert figures.colour_of("MemGen, weaver by GRPO") == COLOURS["MemGen"]
    tables = [declared.find(name).entries(SCALES["mini"]) for name in ("main", "continual", "efficiency")]
    assert {entry.row for entries in tables for entry in entries} <= COLOURS.keys()
