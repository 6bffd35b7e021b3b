"""Experiments run each cell once, resume where they were killed, and make their tables from results.json alone."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tiny_scale import TINY
from tyler.cli.main import main
from tyler.evaluation.store import name_of
from tyler.experiments import declared
from tyler.experiments.cells import Cell, Sources
from tyler.experiments.declared import main as main_experiment
from tyler.experiments.experiment import Entry, chance
from tyler.experiments.grid import Grid
from tyler.experiments.listing import memory_of, show_trace, sources_of
from tyler.experiments.records import names as read_names
from tyler.experiments.reproduction import RECORDS, RESULTS, Reproduction, with_seeds
from tyler.experiments.scales import SCALES, Scale
from tyler.experiments.smoke import LONGEST, one_problem, tokenizer_of
from tyler.experiments.study import Comparison, compared
from tyler.planning.plan import GB, KNOWN, Device
from tyler.tasks.problem import GradeOptions

SMALL = str(Path(__file__).parents[1] / "tiny_scale.py")
FEW = ("CoT", "Soft-Thinking", "Tyler, Stage 1", "Tyler, Stage 2")


@pytest.fixture(scope="module", autouse=True)
def few_methods() -> Iterator[None]:
    """The main table with the methods that take seconds."""
    every = main_experiment.methods
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(main_experiment, "methods", lambda scale: {row: every(scale)[row] for row in FEW})
        yield


def reproduction(folder: Path, scale: Scale = TINY) -> Reproduction:
    return Reproduction(["main"], scale, folder, Sources({}))


@pytest.fixture(scope="module")
def finished(few_methods: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reproduction") / "whole"
    reproduction(folder).run(GradeOptions())
    return folder


def test_a_reproduction_stopped_after_some_cells_ends_in_the_same_results(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, measured = Grid.measure, list[Cell]()

    def stopping(grid: Grid, cell: Cell, *place: Any) -> dict[str, object]:
        if len(measured) == 3:
            raise KeyboardInterrupt
        measured.append(cell)
        return whole(grid, cell, *place)

    monkeypatch.setattr(Grid, "measure", stopping)
    with pytest.raises(KeyboardInterrupt):
        reproduction(tmp_path / "stopped").run(GradeOptions())
    monkeypatch.setattr(Grid, "measure", whole)
    again = list[Cell]()
    monkeypatch.setattr(Grid, "measure", lambda grid, cell, *place: again.append(cell) or whole(grid, cell, *place))
    reproduction(tmp_path / "stopped").run(GradeOptions())
    assert len(again) == 2 * len(FEW) - 3 and not set(again) & set(measured)
    for file in sorted((finished / "main").iterdir()):
        assert file.read_bytes() == (tmp_path / "stopped" / "main" / file.name).read_bytes(), file.name


def test_a_changed_setting_makes_new_cells_and_keeps_the_old(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = {path: path.read_bytes() for path in (finished / RECORDS).iterdir()}
    made = reproduction(finished, replace(TINY, common=(*TINY.common, "stage2.learning_rate=1e-3")))
    names = {name_of(cell.unseeded.identity(made.sources)) for cell in made.cells()}
    assert len(names - read_names(finished / RECORDS)) == len(TINY.tasks)  # Stage 2 alone is another model
    assert made.results("main", made.known())["missing"] == len(TINY.tasks)
    assert {path: path.read_bytes() for path in (finished / RECORDS).iterdir()} == before


def test_a_table_says_n_seeds_intervals_command_and_version(finished: Path) -> None:
    for ending in ("md", "tex"):
        told = (finished / "main" / f"main-mini.{ending}").read_text()
        for part in (
            "n = 3, 4 problems",
            "seeds 42",
            "95%",
            "tyler reproduce main --scale tiny",
            "tyler 0.1.0",
            "--trace",
        ):
            assert part in told, (ending, part)


def test_a_number_is_traced_to_its_row_and_to_every_record_that_it_is_from(
    finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = reproduction(finished)
    (entry,) = [
        one
        for one in json.loads((finished / "main" / RESULTS).read_text())["entries"]
        if (one["row"], one["column"]) == ("Tyler, Stage 2", "harder")
    ]
    show_trace(made, ("Tyler, Stage 2", "harder"))
    shown = capsys.readouterr().out
    assert shown.startswith(f"main: mini, Tyler, Stage 2, harder\n  seed 42: {entry['k'][0]}/{entry['n']}, ")
    assert f"{finished / RECORDS / 'answers.parquet'}, {entry['records'][0]}" in shown
    show_trace(made, ("Tyler, Stage 2",))
    shown = capsys.readouterr().out
    assert all(f"main: mini, Tyler, Stage 2, {column}\n  seed" in shown for column in TINY.tasks)


def test_a_domain_is_traced_to_the_problems_that_count(root: Path) -> None:
    """And records of earlier studies to the files that hold them."""
    folder = root / "docs" / "results"
    scale, libraries = SCALES["mini"], (folder / "mini", folder / "reproduction-mini")
    made = Reproduction(["continual", "main"], scale, Path("nowhere"), Sources({}), libraries)
    known = made.known()
    results = made.results("continual", known)
    entry = declared.find("continual").entries(scale)[-1]
    (told,) = [one for one in results["entries"] if (one["group"], one["row"], one["column"]) == key_of(entry)]
    lines = sources_of(made.measured(entry, known))
    assert [line.partition(",")[0] for line in lines] == [
        f"seed {seed}: {k}/{told['n']}" for seed, k in zip(told["seeds"], told["k"], strict=True)
    ]
    stage2 = next(one for one in declared.find("main").entries(scale) if one.row == "Tyler, Stage 2")
    assert str(folder / "mini" / "answers.parquet") in sources_of(made.measured(stage2, known))[-1]


def test_rows_are_held_against_each_other_problem_by_problem(root: Path) -> None:
    folder = root / "docs" / "results"
    scale = with_seeds(SCALES["mini"], (42, 43, 44))
    libraries = (folder / "mini", folder / "reproduction-mini")
    made = Reproduction(["ablation"], scale, Path("nowhere"), Sources({}), libraries)
    known = made.known()
    entries = {(one.row, one.column): one for one in made.experiments["ablation"].entries(scale)}
    ours, other = (made.measured(entries[row, "harder"], known) for row in ("(e) Tyler", ROW_C))
    pair = compared(Comparison("(e) Tyler", ROW_C, ""), "harder", ours, other)
    shares = [
        sum(ours.right(ours.records[seed])[place] - other.right(other.records[seed])[place] for seed in scale.seeds)
        for place in range(300)
    ]
    assert (pair["only_first"], pair["only_second"]) == tuple(
        sum(sign * share > 0 for share in shares) for sign in (1, -1)
    )
    points = 100 * sum(shares) / 900
    assert pair["points"] == pytest.approx(points, abs=1e-3) and chance(pair["p"]) == "0.021"


ROW_C = "(c) + Stage 2, task reward only"


def key_of(entry: Entry) -> tuple[str, str, str]:
    return entry.group, entry.row, entry.column


def test_a_seed_that_the_scale_does_not_name_runs_after_those_that_it_does() -> None:
    seeds = [cell.seed for cell in Reproduction(["smollm2_growth"], SCALES["smollm2"], Path(), Sources({})).cells()]
    assert SCALES["smollm2"].seeds == (42,) and set(seeds) == {42, 43, 44} and seeds == sorted(seeds)


def test_cells_are_shared_between_experiments() -> None:
    alone = {name: Reproduction([name], TINY, Path(), Sources({})).cells() for name in ("main", "ablation")}
    both = Reproduction(["main", "ablation"], TINY, Path(), Sources({})).cells()
    shared = 3 * len(TINY.tasks)  # CoT, Stage 1, Stage 2
    assert len(both) == len(alone["main"]) + len(alone["ablation"]) - shared


def test_the_studies_on_mini_are_read_and_not_run_again(root: Path) -> None:
    libraries = tuple((root / "docs" / "results" / name) for name in ("mini", "baselines"))
    made = Reproduction(["main"], SCALES["mini"], Path("nowhere"), Sources({}), libraries)
    results = made.results("main", made.known())
    assert results["missing"] == 0
    (stage2,) = [one for one in results["entries"] if (one["row"], one["column"]) == ("Tyler, Stage 2", "harder")]
    assert (stage2["k"], stage2["n"], stage2["seeds"]) == ([165, 174, 174], 300, [42, 43, 44])


def test_all_stands_for_every_experiment() -> None:
    assert declared.chosen(("all", "main")) == declared.names() and declared.names()[:2] == ["main", "ablation"]


# ------------------------------------------------------------------------------------------------------------ bad input


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["mian"], "there is no experiment 'mian'; did you mean 'mini'? allowed: main, ablation"),
        (
            ["main", "--scale", "papre"],
            "there is no scale 'papre'; did you mean 'paper'? allowed: mini, smollm2, paper",
        ),
        (
            ["main", "--data", "no/such"],
            "--data no/such is not a folder; give the folder with the tasks' official files",
        ),
        (["main", "--trace", "CTO"], "no number is of 'CTO'; rows: 'CoT'"),
        (["main", "--dry-run", "--hardware", "H300"], "there is no device 'H300'; known are RTX-4090"),
        (["mini", "--seeds", "45"], "mini has the seeds [42, 43, 44] in its file, and not 45; omit --seeds"),
        (["continual", "--scale", "smollm2"], "scale 'smollm2' has no continual; it has the others"),
        (
            ["main", "--earlier", "no/such"],
            "no/such holds no earlier records; give --earlier DIR with some, or --earlier none",
        ),
        (["continual", "--scale", "paper"], "humaneval runs the programs of the model; give --allow-code-execution"),
    ],
)
def test_what_is_not_there_is_refused_in_a_sentence(
    argv: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["reproduce", *argv]) == 2
    assert said in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_scale_without_its_weights_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TYLER_HOME", str(tmp_path / "cache"))
    assert main(["reproduce", "main", "--scale", "smollm2"]) == 2
    refused = capsys.readouterr().err
    assert "backbone 'smollm2' is not on this machine yet" in refused and "run `tyler fetch smollm2`" in refused
    assert list(tmp_path.iterdir()) == []


def test_seeds_are_taken_once() -> None:
    assert with_seeds(TINY, (7, 7, 8)).seeds == (7, 8)


def test_a_dry_run_lists_cells_and_says_what_they_cost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["reproduce", "main", "--scale", "paper", "--dry-run", "--hardware", "H100-80GB"]) == 0
    told = capsys.readouterr().out
    assert f"paper: {3 * 4 * len(FEW)} cells, 0 of them finished; the others need 6 trainings" in told
    assert told.count("not here") == 3 * 4 * len(FEW)
    assert "which fits the 80 GB of H100-80GB" in told
    monkeypatch.setitem(KNOWN, "small", Device("small", 8 * GB))
    assert main(["reproduce", "main", "--scale", "paper", "--dry-run", "--hardware", "small"]) == 0
    assert "times that does NOT fit the 8 GB of small" in " ".join(capsys.readouterr().out.split())
    assert list(tmp_path.iterdir()) == []
    assert main(["reproduce", "continual", "--scale", "paper", "--dry-run", "--hardware", "H100-80GB"]) == 0
    rows = [line for line in capsys.readouterr().out.splitlines() if "not here" in line]
    assert len(rows) == 4 + 4 * 4 * 4 and all(line.rstrip()[-1].isdigit() for line in rows), "a cell is one line"


def test_memory_of_a_cell_counts_weights_that_a_processor_packs() -> None:
    [entry, *_] = declared.find("main").entries(SCALES["smollm2"])
    plain, packing = (
        memory_of(entry.cells[0], Device("this", 8 * GB, half=False, packs=packs)) for packs in (False, True)
    )
    assert packing > plain + 0.3 * GB, "SmolLM2-135M in float32 once more"


# ------------------------------------------------------------------------------------------------------- the smoke run


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--smoke"], "--smoke is a dry run; give --dry-run too"),
        (["--dry-run", "--smoke", "--scale", "paper"], "no backbone of scale 'paper' has a tokenizer here; in"),
    ],
)
def test_a_smoke_run_says_what_it_needs(argv: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "main", *argv]) == 2
    assert said in capsys.readouterr().err


def test_a_smoke_run_takes_every_method_through_a_step_and_an_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["reproduce", "main", "--scale", "mini", "--dry-run", "--smoke"]) == 0
    assert f"main: {len(FEW) * 2} cells, all of them ran" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []


def test_a_tokenizer_is_the_folder_whose_name_the_model_begins_with(tmp_path: Path) -> None:
    for name in ("qwen", "qwen3", "llama"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "tokenizer.json").write_text("{}")
    assert tokenizer_of("qwen3-4b", tmp_path) == tmp_path / "qwen3"
    assert tokenizer_of("qwen2.5-1.5b", tmp_path) == tmp_path / "qwen"
    assert tokenizer_of("smollm3-3b", tmp_path) is None


def test_a_task_without_files_lends_a_problem_of_mini(root: Path) -> None:
    paper, nothing = SCALES["paper"], GradeOptions()
    assert one_problem(paper.tasks["GPQA-Diamond"], Sources({}), nothing).task == "mini"
    assert one_problem(paper.tasks["GSM8K"], Sources({"gsm8k": "data"}), nothing) == replace(
        paper.tasks["GSM8K"], count=1, max_new_tokens=LONGEST
    )
    code = paper.domains[0].questions
    assert one_problem(code, Sources({"humaneval": "data"}), nothing).task == "mini"
    assert (
        one_problem(code, Sources({"humaneval": "data"}), GradeOptions(allow_code_execution=True)).task == "humaneval"
    )
