"""Every experiment, on records that are made up: what its tables and figures say follows from them, byte for byte."""

import json
import os
import re
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pytest
import torch

import fabricated
from tiny_scale import TINY
from tyler.config.files import load_config
from tyler.evaluation.statistics import Paired, resolution, wilson
from tyler.evaluation.store import read_records
from tyler.experiments import averages, declared
from tyler.experiments.averages import average, macro_difference
from tyler.experiments.cells import Cell, Decoding, Questions, Sources
from tyler.experiments.declared.continual import BASE, entries, findings, forgetting, trainings
from tyler.experiments.declared.invocation import POINTS, smoothed
from tyler.experiments.declared.removal import interval, kind, steps
from tyler.experiments.declared.specialization import Vectors, distances_of, permuted, principal, silhouette
from tyler.experiments.experiment import Measured, adjust
from tyler.experiments.grid import Grid
from tyler.experiments.records import read
from tyler.experiments.reproduction import RESULTS, Reproduction, render
from tyler.experiments.scales import SCALES
from tyler.model import Tyler
from tyler.reasoners.memgen import sft as memgen
from tyler.reasoners.memgen.model import MemGen
from tyler.runs.checkpoints import latest_checkpoint
from tyler.tasks import Outcome, load_problems
from tyler.tasks.problem import GradeOptions
from tyler.training import stage1


def fabricated_measure(grid: Grid, cell: Cell, folder: Path, identity: Mapping[str, Any]) -> dict[str, Any]:
    return fabricated.measure(cell, grid.sources, folder, identity)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("experiments")
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(Grid, "measure", fabricated_measure)
        monkeypatch.setattr(Grid, "trained", lambda *_: None)
        Reproduction(declared.names(), TINY, folder, Sources({})).run(GradeOptions())
    return folder


def results(made: Path, name: str) -> dict[str, list[dict[str, object]]]:
    found: dict[str, list[dict[str, object]]] = json.loads((made / name / RESULTS).read_text())
    return found


@pytest.mark.parametrize("name", declared.names())
def test_nothing_is_missing_and_everything_is_made_from_results_alone(name: str, made: Path, tmp_path: Path) -> None:
    assert results(made, name)["missing"] == 0
    (tmp_path / RESULTS).write_bytes((made / name / RESULTS).read_bytes())
    render(tmp_path, name)
    files = list(tmp_path.iterdir())
    assert {path.name for path in files} == {path.name for path in (made / name).iterdir()}
    assert {path.suffix for path in files} >= {".md", ".tex"}
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
    assert average(told, "g", "r", ["a"]) == pytest.approx((50, low, high))
    both = average(told, "g", "r", ["a", "b"])
    assert both == pytest.approx((50, 50 - (50 - low) / 2**0.5, 50 + (high - 50) / 2**0.5))
    assert average(told, "g", "r", ["c"]) == pytest.approx((0, 0, 100 * wilson(0, 100)[1]), abs=1e-9)
    assert average(told, "g", "r", ["a", "d"]) is None


def test_a_difference_of_averages_is_tested_and_has_the_resolution_of_its_problems() -> None:
    ours, theirs = [1.0, 1.0, 0.5, 0.0, 1.0, 1.0, 1.0] * 30, [0.0, 1.0, 1.0, 0.0, 0.5, 0.0, 1.0] * 30
    pair, found = Paired(tuple(theirs), tuple(ours)), macro_difference([ours], [theirs])
    assert found["p"] == pair.p_value() and found["points"] == pytest.approx(100 * pair.difference, abs=1e-4)
    assert (found["low"], found["high"]) == pytest.approx([100 * end for end in pair.interval()], abs=1)
    nothing = macro_difference([ours, theirs], [ours, theirs])
    assert (nothing["points"], nothing["p"]) == (0.0, 1.0) and nothing["low"] == -nothing["high"]
    assert nothing["high"] == pytest.approx(100 * resolution(len(ours))[1] / 2**0.5, abs=1e-4)
    family = [{"of": "a", "p": 0.01}, {"of": "a", "p": 0.04}, {"of": "b", "p": 0.04}]
    adjust(family, "of")
    assert [(one["holm"], one["family"]) for one in family] == [(0.02, 2), (0.04, 2), (0.04, 1)]


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
        before, after = (records[entries[row]["records"][0]]["answers"] for row in ("all operators", one["row"]))  # type: ignore[index]
        pairs = list(zip(before, after, strict=True))
        assert one["failed"] == sum(old.correct and not new.correct for old, new in pairs) == sum(one["kinds"].values())  # type: ignore[attr-defined]
        assert one["repaired"] == sum(new.correct and not old.correct for old, new in pairs)
        for count, (low, high) in zip(one["kinds"].values(), one["intervals"].values(), strict=True):  # type: ignore[attr-defined]
            assert low <= count <= high or (count == low == 0 and high > 0)


def test_failures_of_one_problem_in_three_seeds_are_not_those_of_three_problems() -> None:
    alike, apart = interval([0, 1, 2, 3] * 3, 100, 3), interval(list(range(12)), 100, 3)
    assert alike[0] < apart[0] < 12 < apart[1] < alike[1]
    assert interval([], 100, 3) == [0.0, pytest.approx(300 * wilson(0, 100)[1], abs=0.01)]


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
        typed = [row for group in averages.PUBLISHED[table]["rows"].values() for row in group.values()]
        width = len(averages.PUBLISHED[table]["columns"])
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


def test_the_papers_averages_stand_beside_those_of_a_backbone_that_it_does_not_have(made: Path) -> None:
    for name, table, row, numbers in (
        ("main", "main-mini", "SFT", ("[54.27]", "[-2.29]")),
        ("ablation", "ablation", "(e) Tyler", ("[65.78]", "[+9.22]")),
        ("budget", "budget", "5", ("[65.78]", "[6.90]", "[28]")),
    ):
        text = (made / name / f"{table}.md").read_text()
        (line,) = [line for line in text.splitlines() if line.startswith(f"| {row} |")]
        assert all(number in line for number in numbers) and "on its own backbone and benchmarks" in text, line


def test_averages_are_those_of_their_rows() -> None:
    """To the rounding: the paper's averages follow from its own cells, but for those that are listed."""
    wrong = []
    for table in ("main", "ablation"):
        for group, rows in averages.PUBLISHED[table]["rows"].items():
            for row, (*shares, mean, _) in rows.items():
                if abs(sum(shares) / 4 - mean) > 0.0101:
                    wrong.append((group, row))
    assert wrong == []


def test_forgetting_of_the_papers_accuracies_is_the_papers_forgetting() -> None:
    steps = {step: rows for step, rows in averages.PUBLISHED["continual"]["rows"].items() if step != "0 base"}
    for row in ("SFT", "GRPO", "MemGen", "Tyler"):
        after = []
        for rows in steps.values():
            *shares, _, printed = rows[row]
            after.append(shares)
            assert forgetting(after) == pytest.approx(printed, abs=0.0101), row


def test_a_step_is_told_once_all_its_domains_have_records_and_the_means_are_of_its_own_problems() -> None:
    every, sources, shared = entries(TINY), Sources({}), dict[Cell, Any]()
    measured = []
    for entry in every:
        for cell in entry.cells:
            shared.setdefault(cell, fabricated.record(cell, sources))
        measured.append(Measured(entry, {cell.seed: shared[cell] for cell in entry.cells}))
    whole = findings(measured)["retention"]
    steps = list(dict.fromkeys(entry.group for entry in every if entry.group != BASE))
    assert [one["step"] for one in whole if one["row"] == "SFT"] == steps
    missing = every[-1]  # the last domain of the last method after the last step
    cut = [one for one in measured if one.entry is not missing]
    assert findings(cut)["retention"] == [
        one for one in whole if (one["row"], one["step"]) != (missing.row, missing.group)
    ]
    (base,) = [entry for entry in every[:1] if entry.group == BASE]  # the first domain's, of which columns begin
    held = [replace(one, records={}) if one.entry is base else one for one in measured]
    assert findings(held)["retention"] == [one for one in whole if one["row"] != base.row]
    (one,) = [
        one for one in measured if (one.entry.row, one.entry.column, one.entry.group) == ("SFT", "science", steps[0])
    ]
    (record,) = one.records.values()
    own = [answer.visible_tokens for answer in record["answers"] if answer.family in one.entry.families]
    assert 0 < len(own) < len(record["answers"])
    assert one.counted()["visible"] == pytest.approx(sum(own) / len(own), abs=1e-3)


def test_every_method_goes_on_from_the_domain_before() -> None:
    chains = trainings(TINY)
    assert {row: len(chain) for row, chain in chains.items()} == dict.fromkeys(("SFT", "GRPO", "MemGen", "Tyler"), 4)
    for row, chain in chains.items():
        for before, after in pairwise(chain):
            earlier = before.start if row == "Tyler" else before  # Phi goes on, the policy is learned anew
            assert earlier in after.stages
    splits = ["train-programs", "train-science", "train-mathematics", "train-theorems"]
    assert [one.config("mini", 42).data.split for one in chains["Tyler"]] == splits


def test_a_step_answers_the_problems_of_all_domains_once() -> None:
    found = entries(TINY)
    assert len(found) == (1 + 4 * 4) * 4
    assert len({cell for entry in found for cell in entry.cells}) == 1 + 4 * 4  # on mini they are parts of one split
    assert {entry.families for entry in found if entry.column == "mathematics"} == {("arithmetic", "algebra")}
    assert [entry.group for entry in found[:4]] == [BASE] * 4


def short(*more: str) -> list[str]:
    return [*TINY.common, *more]


def test_operators_go_on_learning_from_those_of_another_stage1(tmp_path: Path) -> None:
    first = stage1.run(load_config("mini", short()), output=tmp_path / "first")
    config = load_config("mini", short("data.split=train-science", "stage1.learning_rate=1e-12"))
    second = stage1.run(config, start=tmp_path / "first", output=tmp_path / "second")
    assert second.stage == "stage1"
    for name, tensor in first.synthesizer.state_dict().items():
        torch.testing.assert_close(second.synthesizer.state_dict()[name], tensor, atol=1e-9, rtol=0)
    config = load_config("mini", short("data.split=train-science"))
    third = stage1.run(config, start=tmp_path / "first", output=tmp_path / "third")
    moved = (third.synthesizer.mapping()["global"].queries - first.synthesizer.mapping()["global"].queries).abs().max()
    assert moved > 1e-4


def test_stage1_refuses_to_go_on_from_what_is_no_stage1(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is a stage2 model; Stage 1 goes on from a Stage 1 model"):
        stage1.run(load_config("mini", short()), start="mini-tyler", output=tmp_path / "run")


def test_a_weaver_goes_on_learning_from_that_of_another_memgen(tmp_path: Path) -> None:
    first = memgen.run(load_config("mini", short()), output=tmp_path / "first")
    config = load_config("mini", short("data.split=train-science", "memgen.weaver.learning_rate=1e-12"))
    second = memgen.run(config, start=tmp_path / "first", output=tmp_path / "second")
    for name, tensor in first.weaver.state_dict().items():
        torch.testing.assert_close(second.weaver.state_dict()[name], tensor, atol=1e-9, rtol=0)
    assert MemGen.from_pretrained(str(latest_checkpoint(tmp_path / "second"))).trigger is None


def test_sft_goes_on_from_the_merged_model_of_the_last_step(tmp_path: Path) -> None:
    chain = trainings(TINY)["SFT"]
    grid = Grid(tmp_path / "models", tmp_path / "records", Sources({}))
    place, _ = grid.trained(chain[2], "mini", 42)
    model = Tyler.from_pretrained(place)
    before, _ = grid.trained(chain[1], "mini", 42)
    merged = Path(model.backbone.path or model.backbone.id)
    assert merged.parent == tmp_path / "models" and merged != Path(before)
    cell = Cell("SFT", "mini", chain[2], Decoding(), Questions("mini", "eval", 2, 16), 42)
    grid.measure(cell, tmp_path / "cell", {})
    assert len(read_records(tmp_path / "cell")) == 2


def test_traces_of_ones_own_are_read_by_the_name_of_their_split() -> None:
    assert Sources({"jsonl": "data"}).path("jsonl", "code") == "data/code.jsonl"
    assert Sources({"gsm8k": "data"}).path("gsm8k", "train") == "data"
    assert Sources({}).path("jsonl", "code") is None
