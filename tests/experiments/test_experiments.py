"""Every experiment, on records that are made up: what its tables and figures say follows from them, byte for byte."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pytest

import fabricated
from tyler.evaluation.statistics import wilson
from tyler.experiments import averages, declared
from tyler.experiments.averages import average_interval
from tyler.experiments.cells import Cell, Sources
from tyler.experiments.declared.invocation import POINTS, smoothed
from tyler.experiments.declared.removal import kind, steps
from tyler.experiments.declared.specialization import Vectors, distances_of, permuted, principal, silhouette
from tyler.experiments.grid import Grid
from tyler.experiments.outputs import RESULTS, render
from tyler.experiments.records import read
from tyler.experiments.reproduction import Reproduction
from tyler.experiments.scales import SCALES
from tyler.tasks import Outcome, load_problems
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


def points(apart: float) -> tuple[Vectors, list[int]]:
    draw = np.random.default_rng(0)
    labels = [0] * 10 + [1] * 12 + [2] * 9
    return draw.normal(size=(31, 4)) + apart * np.eye(4)[labels], labels


def test_a_silhouette_is_that_of_the_definition() -> None:
    vectors, labels = points(1.0)
    values = []
    for i, own in enumerate(labels):
        means = {
            label: fmean(
                float(np.linalg.norm(vectors[i] - vectors[j]))
                for j, one in enumerate(labels)
                if one == label and j != i
            )
            for label in set(labels)
        }
        inside = means.pop(own)
        values.append((min(means.values()) - inside) / max(inside, *[min(means.values())]))
    assert silhouette(distances_of(vectors), labels) == pytest.approx(fmean(values), abs=1e-9)


@pytest.mark.parametrize(("apart", "low", "high"), [(6.0, 0.0, 0.002), (0.0, 0.02, 1.0)])
def test_dealt_labels_reach_the_silhouette_where_there_are_no_clusters(apart: float, low: float, high: float) -> None:
    vectors, labels = points(apart)
    assert low <= permuted(distances_of(vectors), labels) <= high


def test_principal_components_carry_the_variance_and_point_the_same_way_each_time() -> None:
    vectors, _ = points(3.0)
    places, shares = principal(vectors)
    total = float(((vectors - vectors.mean(axis=0)) ** 2).sum())
    assert (places**2).sum(axis=0) / total == pytest.approx(shares)
    assert shares[0] > shares[1]
    again, _ = principal(vectors[::-1])
    np.testing.assert_allclose(np.abs(again[::-1]), np.abs(places), atol=1e-9)
    np.testing.assert_allclose(again[::-1], places, atol=1e-9)


def test_a_curve_loses_no_call_at_its_ends() -> None:
    for places in ([0.0], [1.0], [0.5, 0.02]):
        area = float(np.trapezoid(smoothed(places, answers=2), dx=1 / (POINTS - 1)))
        assert area == pytest.approx(len(places) / 2, abs=0.01)


RIGHT = "Step 1: $56 - 9 = 47$\n\nStep 2: $47 + 5 = 52$\n\nThe answer is $\\boxed{52}$"


def changed(old: str, new: str) -> str:
    assert old in RIGHT
    return RIGHT.replace(old, new)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (changed("boxed{52}", "boxed{53}"), "other"),
        (changed("47 + 5 = 52", "47 + 5 = 53"), "state"),
        (changed("47 + 5 = 52", "46 + 5 = 51"), "state"),
        (changed("56 - 9 = 47", "56 - 9 = 46"), "state"),
        (changed("47 + 5 = 52", "47 - 5 = 42"), "procedure"),
        (changed("Step 2: $47 + 5 = 52$\n\n", ""), "procedure"),
        (changed("The answer", "Step 3: $52 + 1 = 53$\n\nThe answer"), "procedure"),
        (changed("56 - 9 = 47", "65 - 9 = 56"), "strategy"),
        ("$56 - 9 + 5 = 53$\n\n$\\boxed{53}$", "strategy"),
        ("$\\boxed{53}$", "strategy"),
    ],
)
def test_the_first_step_that_differs_decides(text: str, expected: str) -> None:
    assert kind(Outcome.WRONG, text, RIGHT) == expected


@pytest.mark.parametrize("outcome", [outcome for outcome in Outcome if outcome not in (Outcome.CORRECT, Outcome.WRONG)])
def test_an_answer_without_a_verdict_wrong_fails_by_its_format(outcome: Outcome) -> None:
    assert kind(outcome, "", RIGHT) == "format"


def test_a_number_in_front_of_a_step_is_no_step() -> None:
    assert steps("1. 56 - 9 = 47\n\n2. 47 + 5 = 52") == steps(RIGHT) == ["56-9=47", "47+5=52"]


def test_steps_of_every_family_are_found() -> None:
    found = {problem.family: steps(problem.solution or "") for problem in load_problems("mini", "harder", count=5)}
    assert {family: len(one) for family, one in found.items()} == {
        "arithmetic": 5,
        "algebra": 5,
        "science": 4,
        "theorems": 5,
        "programs": 5,
    }
    assert found["programs"][2] == "39>55isFalse" and found["science"][:2] == ["voltage=current*resistance", "4*7=28"]


def test_a_condition_that_is_read_wrongly_is_a_state_and_another_law_another_strategy() -> None:
    _, _, science, _, programs = (problem.solution or "" for problem in load_problems("mini", "harder", count=5))
    assert kind(Outcome.WRONG, programs.replace("is False", "is True"), programs) == "state"
    assert kind(Outcome.WRONG, science.replace("current * resistance", "current * charge"), science) == "strategy"
    assert kind(Outcome.WRONG, science.replace("2 * 28 = 56", "2 * 28 = 65"), science) == "state"


LABELS = {
    "main": ("tab:main", "tab:qwen25-main"),
    "ablation": ("tab:unified-ablation",),
    "budget": ("tab:efficiency-budget",),
    "efficiency": ("tab:efficiency-overhead",),
    "continual": ("tab:continual-learning",),
}
PLAIN = re.compile(r"\\(textbf|underline|multirow|emph|rowcolor|cellcolor|cmidrule|quad|scriptsize|textcolor)\b")
NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


@pytest.fixture
def source() -> str:
    """The paper's LaTeX."""
    path = os.environ.get("TYLER_PAPER")
    if not path:
        pytest.skip("the paper's source is not here; set TYLER_PAPER to its .tex file")
    return Path(path).read_text()


def printed(source: str, label: str) -> list[list[float]]:
    """The numbers of each row of a table, differences with their sign."""
    end = source.index(rf"\label{{{label}}}")
    table = source[source.rindex(r"\begin{table", 0, end) : end]
    rows = re.findall(r"^(?!%).*\\\\", table[table.index(r"\midrule") :], re.MULTILINE)
    return [numbers for row in rows if (numbers := numbers_of(row))]


def numbers_of(row: str) -> list[float]:
    """Those of the cells after a row's name."""
    row = re.sub(r"\\(rowcolor|cellcolor|textcolor)\{[^}]*\}", "", row.rstrip("\\ "))
    row = row.replace(r"$\downarrow$", "-").replace(r"$\uparrow$", "")
    found = []
    for cell in row.split("&"):
        cell = re.sub(r"\\multirow\{\d+\}\{\*\}", "", cell)
        plain = re.sub(r"\\[a-zA-Z]+|[{}$()+\s]", " ", cell)
        if re.fullmatch(r"[\s\d.,-]*\d[\s\d.,-]*", plain.strip()):
            found += [float(number) for number in NUMBER.findall(plain)]
    return found


def test_every_number_is_the_papers(source: str) -> None:
    for table, labels in LABELS.items():
        rows = [row for label in labels for row in printed(source, label)]
        typed = [row for group in averages.contents()[table]["rows"].values() for row in group.values()]
        width = len(averages.contents()[table]["columns"])
        assert [row[-len([v for v in ours if v is not None]) :] for row, ours in zip(rows, typed, strict=True)] == [
            [value for value in row if value is not None] for row in typed
        ], table
        assert all(len(row) == width for row in typed)


@pytest.mark.parametrize(
    ("percent", "count", "possible"),
    [
        (30.50, 198, False),
        (30.30, 198, True),
        (33.50, 198, False),
        (85.21, 1319, True),
        (89.65, 1319, False),
        (100, 7, True),
    ],
)
def test_a_share_is_k_of_n_or_is_not(percent: float, count: int, possible: bool) -> None:
    """85.21 is 1124/1319 = 85.216... cut off; 60/198 is 30.30 and 61/198 is 30.81, so 30.50 is neither."""
    assert averages.is_share(percent, count) is possible


def test_impossible_numbers_are_marked_where_they_are_shown() -> None:
    assert averages.shown("main", "SmolLM3-3B", "Tyler, Stage 1", "GPQA-Diamond") == "30.50†"
    assert averages.shown("main", "SmolLM3-3B", "CoT", "GSM8K") == "58.91"
    assert averages.shown("main", "Qwen3-4B", "SFT", "Difference", "+.2f") == "-2.29"
    assert averages.shown("main", "mini", "CoT", "eval") == ""


def test_averages_are_those_of_their_rows() -> None:
    """To the rounding: the paper's averages follow from its own cells, but for those that are listed."""
    wrong = []
    for table in ("main", "ablation"):
        for group, rows in averages.contents()[table]["rows"].items():
            for row, (*shares, mean, _) in rows.items():
                if abs(sum(shares) / 4 - mean) > 0.0101:
                    wrong.append((group, row))
    assert wrong == []
