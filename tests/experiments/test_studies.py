"""The committed records: every declared row has some, tables follow, the page quotes them, anyone can grade them."""

import json
import re
import subprocess
from collections import Counter
from collections.abc import Callable
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from matplotlib.axes import Axes

from tyler.cli.main import main
from tyler.evaluation.store import name_of
from tyler.experiments import declared, reproduction
from tyler.experiments.cells import Sources
from tyler.experiments.experiment import WRITERS
from tyler.experiments.records import folders_of_records
from tyler.experiments.records import read_all as read
from tyler.experiments.reproduction import RESULTS, Reproduction, write_results
from tyler.experiments.scales import COLOURS, SCALES
from tyler.experiments.study import Study, compared, read_study
from tyler.model import Tyler
from tyler.modeling.architectures import fetched_folder

GROWTH = read_study("smollm2_growth")
STUDIES = {name: read_study(name) for name in declared.studies()}
TRIPLE = re.compile(r"\b\d{1,3}, \d{1,3}, \d{1,3}\b")
NO_COUNTS = {"42, 43, 44", "25, 50, 75"}
"""Seeds and rates."""


@pytest.fixture(scope="module")
def known(root: Path) -> dict[str, dict[str, Any]]:
    """Every committed record."""
    return read(folders_of_records(root / "docs" / "results"))


def page(root: Path) -> str:
    return (root / "docs" / "results" / "README.md").read_text()


Results = Callable[[str], dict[str, Any]]


@pytest.fixture(scope="module")
def results(known: dict[str, dict[str, Any]]) -> Results:
    """The results of an experiment or a study from the committed records, made once."""

    @cache
    def made(name: str) -> dict[str, Any]:
        scale = SCALES[read_study(name).scale if name in declared.studies() else "mini"]
        return Reproduction([name], scale, Path("nowhere"), Sources({})).results(name, known)

    return made


@pytest.mark.parametrize("name", STUDIES)
def test_a_study_is_complete_and_its_tables_are_made_from_the_store(
    name: str, results: Results, root: Path, tmp_path: Path
) -> None:
    """And the picture on the page, where it has one, shows what the records draw."""
    found, study = results(name), STUDIES[name]
    assert [one for one in found["entries"] if not one["seeds"]] == [] and found["missing"] == 0
    declared_pairs = {(one.first, one.second) for one in study.comparisons}
    assert {(one["first"], one["second"]) for one in found["comparisons"]} == declared_pairs
    shown = [row for rows in study.groups.values() for row in rows]
    assert len(shown) == len(set(shown)) and {one["row"] for one in found["entries"]} == set(shown)
    write_results(tmp_path, name, found)
    text = "".join(path.read_text() for path in sorted(tmp_path.glob("*.md")))
    for one in (one for one in found["entries"] if "k" in one):
        low, high = f"{one['low']:.1f}", f"{one['high']:.1f}"
        assert f"| {one['row']} | {', '.join(map(str, one['k']))} | " in text and f" | {low}–{high} | " in text
    assert {path.suffix for path in tmp_path.iterdir()} == {".md", ".tex", ".json", ".svg"}
    picture = root / "docs" / "results" / f"{study.records}.svg"
    if picture.exists():
        assert_drawn_from_the_store(picture, tmp_path / picture.name)


def test_the_curve_shows_shares_and_differences_by_steps(results: Results, root: Path, tmp_path: Path) -> None:
    found = results("smollm2_growth")
    write_results(tmp_path, "smollm2_growth", found)
    assert_drawn_from_the_store(root / "docs" / "results" / CURVE, tmp_path / CURVE)
    panels = [points_in(axes) for axes in GROWTH.figures(found)[Path(CURVE).stem].axes]
    shares, gains = ({name: dict(points) for name, points in panel.items()} for panel in panels)
    assert shares.keys() == {"Stage 1", "Stage 1, means", "Pause tokens", "SFT"}
    assert gains.keys() == {"Stage 1, means", "Pause tokens"}, "SFT reads no latents"
    k = {one["row"]: one["k"] for one in found["entries"] if one["column"] == "MAWPS" and "k" in one}
    points = {(one["first"], one["second"]): one["points"] for one in found["comparisons"]}
    for steps in (250, 1000, 2500):
        own, means = f"Stage 1, {steps} steps", f"Stage 1, {steps} steps, means"
        if own in k:
            assert shares["Stage 1"][steps] == pytest.approx(sum(k[own]) / len(k[own]) / 5)
        assert (steps in shares["Stage 1"], gains["Stage 1, means"].get(steps)) == (own in k, points.get((own, means)))


CURVE = "smollm2-growth-curve.svg"


def points_in(axes: Axes) -> dict[str, list[tuple[float, float]]]:
    """The lines of a panel that its legend names."""
    return {
        str(line.get_label()): [(x, y) for x, y in line.get_xydata()]
        for line in axes.lines
        if not str(line.get_label()).startswith("_")
    }


def assert_drawn_from_the_store(picture: Path, expected: Path) -> None:
    texts, points = drawn_in(picture)
    expected_texts, expected_points = drawn_in(expected)
    assert texts == expected_texts and len(points) >= 30, "render the study again"
    assert points == pytest.approx(expected_points, abs=0.02), "render the study again"


def drawn_in(picture: Path) -> tuple[list[str], list[float]]:
    """The words of a figure, and where its marks are."""
    text = picture.read_text()
    marks = re.findall(r'<use [^>]*?x="([\d.]+)" y="([\d.]+)"', text)
    return re.findall(r">([^<>]+)</text>", text), [float(place) for mark in marks for place in mark]


def test_the_counts_that_the_page_quotes_are_in_the_records(root: Path, known: dict[str, dict[str, Any]]) -> None:
    counts = set(NO_COUNTS)
    for name, study in STUDIES.items():
        scale = SCALES[study.scale]
        made = Reproduction([name], scale, Path("nowhere"), Sources({}))
        for entry in study.entries(scale):
            records = made.measured(entry, known).answered
            for family in (None, *{answer.family for one in records for answer in one["answers"]}):
                ks = [
                    sum(answer.correct and family in (None, answer.family) for answer in one["answers"])
                    for one in records
                ]
                counts.add(", ".join(map(str, ks)))
    quoted = set(TRIPLE.findall(page(root)))
    assert len(quoted) > 30 and not quoted - counts


@pytest.mark.parametrize(
    ("problems", "column"),
    [("600 of the levels", "eval"), ("300 of harder levels", "harder"), ("500 of MAWPS", "MAWPS")],
)
def test_the_table_of_the_readme_is_of_the_records(problems: str, column: str, root: Path, results: Results) -> None:
    (line,) = [line for line in (root / "README.md").read_text().splitlines() if f"| {problems}" in line]
    told = [float(re.sub(r"\*|\(.*", "", cell)) for cell in line.strip("|").split("|")[2:]]
    entries = [one for name in ("mini", "baselines", "smollm2") for one in results(name)["entries"]]
    of = {
        one["row"]: 100 * sum(one["k"]) / one["n"] / len(one["k"])
        for one in entries
        if one["column"] == column and "k" in one
    }
    rows = ("CoT", "SFT", "GRPO", "MemGen", "Stage 1, all boundaries", "Stage 2")
    assert told == [round(of[row], 1) for row in rows]


CALLED = {"Tyler, Stage 1": "Stage 1, all boundaries", "Tyler, Stage 2": "Stage 2"}
"""Rows of the page's table of methods by their names in a study."""


def test_the_table_of_methods_is_of_the_records(root: Path, results: Results) -> None:
    entries = [one for name in ("mini", "baselines") for one in results(name)["entries"]]
    of = {(one["row"], one["column"]): one for one in entries}
    cost = {row: one["visible"] + one["latents"] for (row, column), one in of.items() if column == "eval"}
    table = page(root).split("| method | `eval`, of 600 |")[1].split("\n\n")[0].splitlines()[2:]
    assert len(table) == 11
    for line in table:
        method, *told = (cell.strip() for cell in line.strip("|").split("|"))
        row = CALLED.get(method, method)
        own = (of[row, "eval"], of[row, "harder"])
        counts = [(", ".join(map(str, one["k"])), f"{one['low']:.1f}–{one['high']:.1f}") for one in own]
        assert told[:4] == [*counts[0], *counts[1]], method
        latents = f"{own[0]['latents']:.1f}" if own[0]["latents"] else "0"
        assert told[4:] == [f"{cost[row] / cost['Stage 2']:.2f}", latents], method


def test_the_table_of_minis_page_is_of_its_record(root: Path, known: dict[str, dict[str, Any]]) -> None:
    plain = [one for one in known.values() if one["folder"].endswith("/mini") and one["row"] == "CoT"]
    right, asked = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    for one in plain:
        for answer in one["answers"]:
            for level in (answer.id.split("-")[1], one["split"]):
                asked[answer.family, level] += 1
                right[answer.family, level] += answer.correct
    text = (root / "docs" / "mini.md").read_text()
    for family in sorted({family for family, _ in asked}):
        cells = [f"{right[family, at]}/{asked[family, at]}" for at in ("1", "2", "3", "eval", "4", "5", "harder")]
        assert f"| {family} | {' | '.join(cells)} |" in text


AFTER = {
    **{
        name: {(pair.first, pair.second) for pair in STUDIES[name].comparisons}
        for name in ("mini", "mini_development", "baselines")
    },
    "smollm2": {
        ("Stage 1, all boundaries", "MemGen"),
        ("Stage 1, all boundaries", "SoftCoT"),
        ("Stage 2", "Stage 2, means"),
    },
}
"""The comparisons that were declared after their answers, by study; of the others none was."""
SAID = (
    "Those of `mini`, of its development problems and of the baselines were declared after their answers",
    "all declared before",
    "three comparisons were declared after their answers (Stage 1 with MemGen and with SoftCoT, Stage 2 with its",
    "declared before its answers (`smollm2_skill`)",
)


DIFFERENCE = re.compile(r"(\d+\.\d)[^\d(]{0,30}?[(,] ?(-?\d+\.\d) to (-?\d+\.\d)")
"""Its size and its interval, as in "−7.0 points (−9.3 to −4.8)"."""


def test_every_difference_on_the_page_is_of_a_declared_comparison(root: Path, results: Results) -> None:
    """Either way round, as it is counted from the records."""
    found = [pair for name in declared.studies() for pair in results(name)["comparisons"]]
    found += [pair for name in ("main", "ablation", "budget") for pair in results(name)["differences"]]
    ways = [(pair["points"], pair["low"], pair["high"]) for pair in found]
    ways += [(points, -high, -low) for points, low, high in ways]
    told = {(f"{abs(points):.1f}", f"{low + 0:.1f}", f"{high + 0:.1f}") for points, low, high in ways}
    quoted = set(DIFFERENCE.findall(" ".join(page(root).split()).replace("−", "-").replace("+", "")))
    assert len(quoted) > 40 and not quoted - told


@pytest.mark.parametrize("name", STUDIES)
def test_the_comparisons_that_came_after_their_answers_are_told_in_the_tables(name: str, results: Results) -> None:
    found = results(name)["comparisons"]
    after = {(pair["first"], pair["second"]) for pair in found if pair["declared"] > pair["answered"]}
    assert after == AFTER.get(name, set())
    rows = [row for table in STUDIES[name].tables(results(name)) for row in table.rows if "declared" in table.columns]
    assert {(row[0], row[1]) for row in rows if row[-1] == "after its answers"} == after


def test_the_page_says_which_comparisons_came_after_their_answers(root: Path) -> None:
    text = " ".join(page(root).split())
    assert all(sentence in text for sentence in SAID)


@pytest.mark.parametrize("name", STUDIES)
def test_when_a_comparison_was_declared_is_in_the_history(name: str, root: Path) -> None:
    folders = ("scripts", "src/tyler/analysis", "src/tyler/experiments")
    command = ["git", "log", "--full-history", "--format=%cI", "--", *folders]
    times = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False).stdout.split()
    if len(times) < 30:
        pytest.skip("the history is not here")
    study = declared.find(name)
    assert isinstance(study, Study) and {pair.declared for pair in study.comparisons} <= set(times)


def test_a_comparison_is_of_the_seeds_that_both_have(known: dict[str, dict[str, Any]]) -> None:
    made = Reproduction(["smollm2"], SCALES["smollm2"], Path("nowhere"), Sources({}))
    entries = {
        (one.row, one.column): made.measured(one, known) for one in STUDIES["smollm2"].entries(SCALES["smollm2"])
    }
    first, second = entries["SFT", "MAWPS"], entries["CoT", "MAWPS"]
    (pair,) = (one for one in STUDIES["smollm2"].comparisons if (one.first, one.second) == ("SFT", "CoT"))
    told = compared(pair, "MAWPS", first, second)
    shares = [sum(first.right(record)[place] for record in first.answered) / 3 for place in range(500)]
    plain = second.right(second.answered[0])
    assert told["points"] == pytest.approx(100 * sum(a - b for a, b in zip(shares, plain, strict=True)) / 500, abs=1e-3)
    assert told["low"] < told["points"] < told["high"] and told["n"] == 500


def test_every_cell_of_a_study_has_its_record_under_its_name(known: dict[str, dict[str, Any]]) -> None:
    """Where names can be told without a network: those of `mini`."""
    sources = Sources({})
    entries = [entry for name in ("mini", "baselines") for entry in STUDIES[name].entries(SCALES["mini"])]
    for cell in (cell for entry in entries for cell in entry.runnable):
        name = name_of(cell.identity(sources))
        assert known[name]["task"] == "mini" and known[name]["split"] == cell.questions.split


def models_of_the_study(root: Path) -> dict[str, dict[str, Any]]:
    return dict(json.loads((root / "docs" / "results" / "smollm2-models.json").read_text())["models"])


def test_the_study_names_the_weights_of_every_model_its_records_are_of(
    root: Path, known: dict[str, dict[str, Any]]
) -> None:
    records = [one for one in known.values() if one["folder"].endswith("smollm2")]
    models = models_of_the_study(root)
    assert models and len(records) == len({cell.unseeded for cell in STUDIES["smollm2"].cells})
    for name, model in models.items():
        weights = {one["weights"] for one in records if name_of(one["identity"]["training"]) == name}
        assert weights <= {model["weights"]}, f"{model['method']} {model['seed']}: answer its cells again"


@pytest.mark.skipif(
    not fetched_folder("smollm2").is_dir(), reason="smollm2 is not on this machine: `tyler fetch smollm2`"
)
def test_the_model_that_ships_loads_as_it_was_measured(root: Path) -> None:
    card = (root / "src" / "tyler" / "assets" / "smollm2-tyler" / "README.md").read_text()
    weights = Tyler.from_pretrained("smollm2-tyler", dtype="float32", device="cpu").fingerprint()
    assert f"`{weights}`" in card


def test_a_study_runs_when_it_is_asked_for_by_name() -> None:
    assert set(declared.studies()) >= set(STUDIES) and not set(declared.studies()) & set(declared.chosen(("all",)))
    assert all(isinstance(study, Study) for study in STUDIES.values())
    tables = [declared.find(name).entries(SCALES["mini"]) for name in ("main", "continual", "efficiency")]
    assert {entry.row for entries in tables for entry in entries} <= COLOURS.keys()


def test_what_more_training_does_is_declared_whole() -> None:
    """Each step count has Stage 1 with its own latents and with means, pause tokens and SFT, the first two thrice."""
    cells = GROWTH.cells
    assert len({(cell.row, cell.questions, cell.seed, cell.measure) for cell in cells}) == len(cells)
    asked = [(cell.row, cell.seed) for cell in cells if cell.questions == GROWTH.columns["MAWPS"]]
    for steps, kind in product((250, 1000, 2500), ("Stage 1, {}", "Stage 1, {}, means", "Pause tokens, {}", "SFT, {}")):
        row = kind.format(f"{steps} steps")
        assert [seed for name, seed in asked if name == row] == ([42, 43, 44] if steps < 2500 else [42])
    shown = {row for rows in GROWTH.groups.values() for row in rows}
    assert {row for pair in GROWTH.comparisons for row in (pair.first, pair.second)} <= shown
    assert shown == {cell.row for cell in cells} == {row for row in GROWTH.rows if "10000" not in row}


@pytest.mark.parametrize("row", GROWTH.rows)
def test_the_settings_of_a_declared_row_are_valid_and_learn_problems_without_end(row: str) -> None:
    training, preset = GROWTH.rows[row][0], SCALES[GROWTH.scale].preset
    for stage in training.stages:
        if stage.method != "merge":
            config = stage.config(preset, 42)
            watched = config.development_set
            assert config.data.task == "mawpsvaried" and config.data.count == 40_000
            assert watched is not None and (watched.task, watched.split) == ("mawps", "dev")
    steps = [int(number.replace(",", "")) for number in re.findall("([0-9]+) steps", row)]
    for count in steps:
        assert getattr(training.config(preset, 42), training.method).steps == count


# --- the paper's experiments


@pytest.fixture(scope="module")
def folder(root: Path) -> Path:
    return root / "docs" / "results"


@pytest.mark.parametrize("name", declared.names())
def test_tables_follow_from_the_records(name: str, results: Results, tmp_path: Path) -> None:
    found = results(name)
    assert found["missing"] == 0
    write_results(tmp_path, name, found)
    assert json.loads((tmp_path / RESULTS).read_text()) == found
    for ending in WRITERS:
        assert list(tmp_path.glob(f"*.{ending}"))


def test_every_record_is_a_cell_of_today(results: Results, known: dict[str, Any]) -> None:
    used = {name for one in declared.names() for entry in results(one)["entries"] for name in entry["records"]}
    assert {name for name, one in known.items() if Path(one["folder"]).name == "reproduction-mini"} <= used


def test_a_stranger_reads_an_answer_and_grades_it_again(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answers = pq.read_table(
        folder / "reproduction-mini" / "answers.parquet", columns=["evaluation", "text"]
    ).to_pylist()
    name, count = Counter(one["evaluation"] for one in answers if one["text"] is not None).most_common(1)[0]
    assert any("boxed{" in one["text"] for one in answers if one["evaluation"] == name)
    again = tmp_path / "again"
    again.mkdir()
    for path in (folder / "reproduction-mini").glob("*.parquet"):
        table = pq.read_table(path)
        pq.write_table(
            table.filter(pa.array([one == name for one in table["evaluation"].to_pylist()])), again / path.name
        )
    assert main(["grade", str(again)]) == 0
    said = capsys.readouterr().out
    assert f"graded {count} answers" in said and "0 verdicts changed" in said
    assert len(list(again.glob("verdicts-official-*.parquet"))) == 2


def test_tables_are_made_by_one_command_without_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, known: dict[str, Any], results: Results
) -> None:
    """All tables of all experiments and studies, whose numbers are made above; figures, which take long, are not."""
    every = {*declared.names(), *declared.studies()}
    found = {name: results(name) for name in every}

    def read(made: Reproduction) -> dict[str, Any]:
        assert set(map(Path, {one["folder"] for one in known.values()})) <= {*made.libraries}
        return known

    def counted(made: Reproduction, name: str, known: dict[str, Any]) -> dict[str, Any]:
        return found[name]

    monkeypatch.setattr(reproduction, "drawn", lambda *_: [])
    monkeypatch.setattr(Reproduction, "known", read)
    monkeypatch.setattr(Reproduction, "results", counted)
    assert main(["reproduce", "--render", "--output", str(tmp_path / "r")]) == 0
    assert {path.parent.name for path in (tmp_path / "r").glob("*/*.md")} == every
    assert {path.name for path in (tmp_path / "r").iterdir()} == every
    read_back = {name: json.loads((tmp_path / "r" / name / RESULTS).read_text()) for name in every}
    assert not {name for name, results in read_back.items() if results["missing"]}


def test_every_experiment_speaks_of_the_paper(folder: Path) -> None:
    section = (folder / "README.md").read_text().split("\n### The paper's experiments\n")[1].split("\n## ")[0]
    parts = {part.split("**")[0]: part for part in section.split("\n- **")[1:]}
    assert parts.keys() == set(declared.names())
    for name, part in parts.items():
        assert "paper" in part and len(part.split()) >= 25, f"{name} does not say what of the paper appears"
