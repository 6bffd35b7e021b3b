"""A grid that several processes share: each cell is made once, what is timed comes last, and a kill leaves no lock."""

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from processes import Started
from tyler.evaluation.store import name_of
from tyler.experiments import grid as grids
from tyler.experiments import records
from tyler.experiments.cells import LATENCY, Cell, Decoding, Questions, Sources, Training
from tyler.experiments.grid import Grid

pytestmark = pytest.mark.usefixtures("one_thread")

SHORT = ("stage1.steps=1", "stage1.batch_size=2", "sft.steps=1", "sft.batch_size=2", "data.count=4", "data.held_out=[]")
STAGE1, SFT = Training("stage1", SHORT), Training("sft", SHORT)
ASKED = Questions("mini", "dev", 2, 12)


def cell(row: str, training: Training, **more: Any) -> Cell:
    return Cell(row, "mini", training, Decoding(), ASKED, 42, **more)


def grid_in(folder: Path) -> Grid:
    return Grid(folder / "models", folder / "records", Sources({}))


CELLS = [
    replace(cell("CoT", Training()), decoding=Decoding(router="never")),
    cell("Stage 1, timed", STAGE1, measure=LATENCY),
    cell("Stage 1", STAGE1),
    cell("SFT", SFT),
]
VARYING = ("folder", "source", "training_seconds", "decoding_seconds", "environment", "answers")


def told(folder: Path) -> dict[str, Any]:
    """Records without what differs from run to run."""
    return {
        name: {key: value for key, value in one.items() if key not in VARYING}
        | {"answered": [(answer.key, answer.text, answer.outcome, answer.invocations) for answer in one["answers"]]}
        for name, one in records.read(folder).items()
    }


def run_in(arguments: list[str]) -> int:
    grid_in(Path(arguments[0])).run(CELLS)
    return 0


def hang_in(arguments: list[str]) -> int:
    """The same with a measurement that never ends."""

    def endless(*_: Any) -> dict[str, Any]:
        print("at it")
        time.sleep(600)
        return {}

    Grid.measure = endless  # type: ignore[assignment, method-assign]
    return run_in(arguments)


def test_two_processes_make_the_records_of_one_and_make_each_once(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    grid_in(tmp_path / "one").run(CELLS)
    alone = [line for line in capfd.readouterr().out.splitlines() if " left: " in line]
    assert alone[-1] == "1 left: Stage 1, timed, mini dev, seed 42"
    both = [Started([str(tmp_path / "two")], tmp_path / f"{name}.txt", run_in) for name in "ab"]
    assert [process.wait() for process in both] == [0, 0]
    one, two = (told(tmp_path / name / "records") for name in ("one", "two"))
    assert len(one) == len(CELLS) and one == two
    said = [line for process in both for line in process.output.splitlines() if " left: " in line]
    assert len(said) == len(alone) and alone[-1] in said, "nothing was made twice"
    assert not list((tmp_path / "two" / "records").glob("*/cell.json")), "they are in one file"


def test_a_stage_that_another_process_trains_is_left_to_it_whatever_stands_on_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    grid, sources = grid_in(tmp_path), Sources({})
    grid.locks.mkdir()
    with grids.locked(grid.locks / name_of(STAGE1.identity("mini", 42, sources)), grids.AT_ONCE):
        for dtype in ("float32", "bfloat16"):
            later = cell("Stage 2", Training("stage2", (f"backbone.dtype={dtype}",), STAGE1))
            assert not grid._finish(later, "later", later.identity(sources), 1)
    assert not capsys.readouterr().out


def test_what_a_killed_process_was_at_is_free_again(tmp_path: Path) -> None:
    process = Started([str(tmp_path / "grid")], tmp_path / "said.txt", hang_in)
    process.until(lambda: "at it" in process.output)
    process.kill()
    grid_in(tmp_path / "grid").run(CELLS[:1])
    assert [one["row"] for one in records.read(tmp_path / "grid" / "records").values()] == ["CoT"]


def test_what_times_its_answers_runs_after_everything_and_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    running, beside, order = set[str](), dict[str, set[str]](), list[str]()

    def measure(self: Grid, cell: Cell, folder: Path, identity: object) -> dict[str, Any]:
        running.add(cell.row)
        order.append(cell.row)
        time.sleep(0.05)
        beside[cell.row] = running - {cell.row}
        running.discard(cell.row)
        return {"row": cell.row}

    monkeypatch.setattr(Grid, "measure", measure)
    monkeypatch.setattr(grids, "PATIENCE", 0.01)
    timed = [cell(f"timed {limit}", Training(), measure=LATENCY) for limit in range(2)]
    plain = [replace(cell(f"plain {limit}", Training()), decoding=Decoding(budget=limit)) for limit in range(4)]
    timed = [replace(one, decoding=Decoding(budget=limit)) for limit, one in enumerate(timed)]
    shared = [grid_in(tmp_path) for _ in range(2)]
    for one in shared:
        plain[0].unseeded.identity(one.sources)  # loads the backbone, which transformers does in one thread at a time
    with ThreadPoolExecutor(2) as threads:
        for done in [threads.submit(one.run, [*timed, *plain]) for one in shared]:
            done.result()
    assert len(order) == 6 and order[-2:] == ["timed 0", "timed 1"] and not beside["timed 0"] | beside["timed 1"]
    assert any(beside[one.row] for one in plain)


def test_a_merge_that_was_finished_and_not_noted_is_taken_as_it_is(tmp_path: Path) -> None:
    merge = Training("merge", start=SFT)
    grid = Grid(tmp_path, tmp_path / "records", Sources({}))
    folder, _ = grid.trained(merge, "mini", 42)
    note = Path(f"{folder}.done.json")
    note.unlink()
    before = {path: path.stat().st_mtime_ns for path in Path(folder).rglob("*")}
    assert grid.trained(merge, "mini", 42)[0] == folder and note.exists()
    assert {path: path.stat().st_mtime_ns for path in Path(folder).rglob("*")} == before
