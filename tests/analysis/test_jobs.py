"""A grid on several processes: what starts when, and the records of one process."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tyler.analysis import jobs, records
from tyler.analysis.cells import LATENCY, Cell, Decoding, Questions, Sources, Training
from tyler.analysis.grid import Grid

SHORT = ("stage1.steps=1", "stage1.batch_size=2", "sft.steps=1", "sft.batch_size=2", "data.count=4", "data.held_out=[]")
STAGE1, SFT = Training("stage1", SHORT), Training("sft", SHORT)
STAGE2 = Training("stage2", SHORT, start=STAGE1)
ASKED = Questions("mini", "dev", 2, 12)


def cell(row: str, training: Training, **more: Any) -> Cell:
    return Cell(row, "mini", training, Decoding(), ASKED, 42, **more)


def pending(*cells: Cell) -> dict[str, tuple[Cell, dict[str, Any]]]:
    return {one.row: (one, {}) for one in cells}


def test_a_training_is_one_job_however_many_cells_need_it() -> None:
    found = jobs.jobs_of(
        pending(cell("CoT", Training()), cell("Stage 2", STAGE2), cell("Stage 1", STAGE1), cell("again", STAGE2))
    )
    keys = {job.key: job for job in found}
    one, two = (STAGE1, "mini", 42), (STAGE2, "mini", 42)
    assert list(keys) == ["CoT", one, two, "Stage 2", "Stage 1", "again"]
    assert [keys[key].needs for key in keys] == [set(), set(), {one}, {two}, {one}, {two}]


def test_no_job_starts_before_what_it_needs_and_no_more_than_there_are_processes() -> None:
    waiting = jobs.jobs_of(pending(cell("Stage 2", STAGE2), cell("SFT", SFT)))
    one, two, sft = ((training, "mini", 42) for training in (STAGE1, STAGE2, SFT))

    def startable(done: set[Any], free: int) -> list[Any]:
        return [job.key for job in jobs._startable([job for job in waiting if job.key not in done], done, free)]

    assert startable(set(), 2) == [one, sft]
    assert startable(set(), 1) == [one]
    assert startable({sft}, 3) == [one, "SFT"]
    assert startable({one, two, sft}, 0) == []


CELLS = [
    replace(cell("CoT", Training()), decoding=Decoding(router="never")),
    cell("Stage 1", STAGE1),
    replace(cell("zeros", STAGE1), decoding=Decoding(intervention="zeros")),
    cell("SFT", SFT),
    cell("Stage 1, timed", STAGE1, measure=LATENCY),
]
VARYING = ("training_seconds", "decoding_seconds", "seconds", "synthesis_seconds", "environment", "weights")


def told(folder: Path) -> dict[str, Any]:
    """Records without what differs from run to run: seconds, and weights, by the number of threads of a process."""
    read = records.read(folder)
    return {name: {key: value for key, value in one.items() if key not in VARYING} for name, one in read.items()}


def test_two_processes_make_the_records_of_one(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for processes in (1, 2):
        grid = Grid(tmp_path / f"{processes}" / "models", tmp_path / f"{processes}" / "records", Sources({}))
        grid.run(CELLS, processes=processes)
    one, two = (told(tmp_path / f"{processes}" / "records") for processes in (1, 2))
    assert len(one) == len(CELLS)
    assert one == two
    said = capfd.readouterr().out.splitlines()
    assert said[-1].startswith("[5/5] Stage 1, timed, mini dev, seed 42; about ")
    assert sum("training stage1" in line for line in said) == 1
    assert any((tmp_path / "2" / "logs").iterdir())


def test_an_error_leaves_the_records_and_the_same_call_resumes(tmp_path: Path) -> None:
    grid = Grid(tmp_path / "models", tmp_path / "records", Sources({}))
    broken = replace(cell("broken", Training()), decoding=Decoding(intervention="blur"))
    with pytest.raises(ValueError, match="no intervention 'blur'"):
        grid.run([CELLS[0], broken], processes=2)
    grid.run([CELLS[0]], processes=2)
    assert [json.loads(path.read_text())["row"] for path in grid.records.iterdir()] == ["CoT"]
