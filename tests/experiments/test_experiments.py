"""Every experiment, on records that are made up: what its tables and figures say follows from them, byte for byte."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import fabricated
from tyler.evaluation.statistics import wilson
from tyler.experiments import declared
from tyler.experiments.averages import average_interval
from tyler.experiments.cells import Cell, Sources
from tyler.experiments.grid import Grid
from tyler.experiments.outputs import RESULTS, render
from tyler.experiments.records import read
from tyler.experiments.reproduction import Reproduction
from tyler.experiments.scales import SCALES
from tyler.tasks.task import GradeOptions

TINY = SCALES["tiny"]


def fabricated_measure(grid: Grid, cell: Cell, folder: Path, identity: Mapping[str, Any]) -> dict[str, Any]:
    return fabricated.measure(cell, grid.sources, folder, identity)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("experiments")
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(Grid, "measure", fabricated_measure)
        Reproduction(declared.names(), TINY, folder, Sources({})).run(GradeOptions())
    return folder


def results(made: Path, name: str) -> dict[str, list[dict[str, object]]]:
    found: dict[str, list[dict[str, object]]] = json.loads((made / name / RESULTS).read_text())
    return found


@pytest.mark.parametrize("name", declared.names())
def test_nothing_is_missing_and_everything_is_made_from_results_alone(name: str, made: Path, tmp_path: Path) -> None:
    assert results(made, name)["missing"] == 0
    (tmp_path / RESULTS).write_bytes((made / name / RESULTS).read_bytes())
    files = render(tmp_path, name)
    assert {path.name for path in files} == {path.name for path in (made / name).iterdir()} - {RESULTS}
    assert {path.suffix for path in files} >= {".md", ".tex", ".csv"}
    for path in files:
        assert path.read_bytes() == (made / name / path.name).read_bytes(), path.name


@pytest.mark.parametrize("name", declared.names())
def test_an_experiment_without_records_has_tables_of_dashes(name: str, tmp_path: Path) -> None:
    made = Reproduction([name], TINY, tmp_path, Sources({}))
    made.report()
    found = results(tmp_path, name)
    assert found["missing"] == sum(len(entry.cells) for entry in declared.find(name).entries(TINY))
    assert all("cells are missing" in path.read_text() for path in (tmp_path / name).glob("*.md"))


def test_a_share_of_synthesis_is_its_seconds_over_all(made: Path) -> None:
    (one,) = [
        one
        for one in results(made, "efficiency")["entries"]
        if (one["group"], one["row"], one["column"]) == ("timed", "Tyler, Stage 2", "eval")
    ]
    share = 100 * one["synthesis_seconds"] / one["seconds"]  # type: ignore[operator]
    row = f"| eval | {one['seconds']:.3f} | {one['synthesis_seconds']:.4f} | {share:.1f} |"
    assert row in (made / "efficiency" / "efficiency-overhead.md").read_text()


@pytest.mark.parametrize("name", declared.names())
def test_a_figure_says_n_seeds_intervals_command_and_version(name: str, made: Path) -> None:
    for file in (made / name).glob("*.svg"):
        text = " ".join(re.findall(r"<text[^>]*>([^<]*)</text>", file.read_text()))
        parts = ("n = ", "problems; seeds 42", f"tyler reproduce {name} --scale tiny --seeds 42 (tyler ")
        assert declared.find(name).drawn in text and all(part in text for part in parts), text


def test_the_interval_of_an_average_is_wilsons_for_one_task_and_smaller_for_more() -> None:
    entries = [
        {"group": "g", "row": "r", "column": column, "seeds": [1, 2], "k": k, "n": 50, "low": low, "high": high}
        for column, k in (("a", [20, 30]), ("b", [20, 30]), ("c", [0, 0]))
        for low, high in [[100 * end for end in wilson(sum(k), 100)]]
    ]
    told = {"entries": entries}
    low, high = (100 * end for end in wilson(50, 100))
    assert average_interval(told, "g", "r", ["a"]) == pytest.approx((low, high))
    both = average_interval(told, "g", "r", ["a", "b"])
    assert both == pytest.approx((50 - (50 - low) / 2**0.5, 50 + (high - 50) / 2**0.5))
    assert average_interval(told, "g", "r", ["c"]) == pytest.approx((0, 100 * wilson(0, 100)[1]), abs=1e-9)
    assert average_interval(told, "g", "r", ["a", "d"]) is None


def test_timed_answers_are_of_one_seed_and_of_the_problems_that_the_scale_says() -> None:
    cells = [cell for entry in declared.find("budget").entries(TINY) for cell in entry.cells]
    timed = [cell for cell in cells if cell.measure == "latency"]
    assert len(timed) == 5 * len(TINY.tasks)
    assert {(cell.seed, cell.questions.count) for cell in timed} == {(42, TINY.timed)}
    assert {cell.decoding.budget for cell in cells} == {0, 1, 2, 5, 8}


def test_the_papers_scale_times_its_four_benchmarks() -> None:
    entries = declared.find("efficiency").entries(SCALES["paper"])
    asked = {cell.questions.task for entry in entries for cell in entry.cells if cell.measure == "latency"}
    assert asked == {"gsm8k", "math500", "gpqa", "theoremqa"}
    assert all(isinstance(cell, Cell) and cell.preset == "qwen3-4b" for entry in entries for cell in entry.cells)


def test_new_failures_are_counted_problem_by_problem(made: Path) -> None:
    records = read(made / "records")
    entries = {one["row"]: one for one in results(made, "removal")["entries"]}
    for one in results(made, "removal")["failures"]:
        before, after = (records[entries[row]["records"][0]]["outcomes"] for row in ("all operators", one["row"]))  # type: ignore[index]
        pairs = list(zip(before, after, strict=True))
        assert one["failed"] == sum(old == "correct" != new for old, new in pairs) == sum(one["kinds"].values())  # type: ignore[attr-defined]
        assert one["repaired"] == sum(new == "correct" != old for old, new in pairs)


def test_invocations_are_counted_by_family_too(made: Path) -> None:
    found = results(made, "invocation")["invocations"]
    every = [one for one in found if one["column"] == "eval"]
    assert {one["family"] for one in every} == {None, "arithmetic", "algebra", "science", "theorems"}
    whole = {one["operator"]: one for one in every if one["family"] is None}
    for operator, one in whole.items():
        parts = [part for part in every if part["family"] and part["operator"] == operator]
        calls = sum(part["calls"] * part["answers"] for part in parts)  # type: ignore[operator,misc]
        assert calls == pytest.approx(one["calls"] * one["answers"], abs=1e-3)  # type: ignore[operator]


def test_made_up_clusters_are_found_and_softcot_lies_in_the_same_plane(made: Path) -> None:
    found = results(made, "specialization")
    assert {(one["row"], one["p"] < 0.05) for one in found["separation"]} == {  # type: ignore[operator]
        ("Tyler, Stage 1", True),
        ("untrained operators", True),
    }
    assert {point[0] for point in found["points"]} == {"Tyler, Stage 1", "untrained operators", "SoftCoT"}  # type: ignore[index]
