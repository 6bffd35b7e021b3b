"""A grid on several processes: what starts when, and the records of one process."""

from __future__ import annotations

import multiprocessing
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from tyler.experiments import jobs, records
from tyler.experiments.cells import LATENCY, Cell, Decoding, Questions, Sources, Training
from tyler.experiments.grid import Grid
from tyler.experiments.training import trained

pytestmark = pytest.mark.usefixtures("one_thread")

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
        pending(cell("CoT", Training()), cell("Stage 2", STAGE2), cell("Stage 1", STAGE1), cell("again", STAGE2)),
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
    cell("Stage 1, timed", STAGE1, measure=LATENCY),
]
VARYING = (
    "folder", "source", "training_seconds", "decoding_seconds", "seconds", "synthesis_seconds", "environment",
    "weights",
)  # fmt: skip


def told(folder: Path) -> dict[str, Any]:
    """Records without what differs from run to run: seconds, and weights, by the number of threads of a process."""
    read = records.read(folder)
    return {name: {key: value for key, value in one.items() if key not in VARYING} for name, one in read.items()}


@pytest.mark.parametrize("start", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_two_processes_make_the_records_of_one(
    start: str, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Started afresh, as they are for users, or forked: then nothing is imported again."""
    context = multiprocessing.get_context(start)
    monkeypatch.setattr(multiprocessing, "get_context", lambda _: context)
    for processes in (1, 2):
        grid = Grid(tmp_path / f"{processes}" / "models", tmp_path / f"{processes}" / "records", Sources({}))
        grid.run(CELLS, processes=processes)
    one, two = (told(tmp_path / f"{processes}" / "records") for processes in (1, 2))
    assert len(one) == len(CELLS)
    assert one == two
    said = capfd.readouterr().out.splitlines()
    assert said[-1].startswith("[3/3] Stage 1, timed, mini dev, seed 42; about ")
    assert sum("training stage1" in line for line in said) == 1
    assert any((tmp_path / "2" / "logs").iterdir())


@pytest.mark.parametrize(
    ("signum", "start"),
    [
        (signal.SIGKILL, ""),
        (signal.SIGTERM, ""),
        pytest.param(signal.SIGKILL, "trap '' INT;", id="where a shell has SIGINT ignored", marks=pytest.mark.slow),
    ],
)
def test_no_process_goes_on_without_the_one_that_started_it(signum: signal.Signals, start: str, tmp_path: Path) -> None:
    """Whether that was killed or ended in order; every training saves its step first, however long it takes."""
    command = f'{start} exec "$0" "$@"'
    grid = subprocess.Popen(
        ["sh", "-c", command, sys.executable, Path(__file__).parents[1] / "endless_grid.py", tmp_path]
    )
    try:
        names = ("sft.pid", "grpo.pid", "cell.pid")
        working = [until(lambda name=name: process_in(tmp_path / name)) for name in names]
        grid.send_signal(signum)
        for one in working:
            one.wait(30)
        assert (tmp_path / "sft.saved").exists() and (tmp_path / "grpo.saved").exists()
        assert grid.wait(30) != 0
    finally:
        grid.kill()
        grid.wait()


def process_in(file: Path) -> psutil.Process | None:
    """The process whose number a file holds; None as long as it does not."""
    text = file.read_text() if file.exists() else ""
    return psutil.Process(int(text)) if text else None


def until(found: Callable[[], psutil.Process | None], seconds: float = 60) -> psutil.Process:
    deadline = time.monotonic() + seconds
    while (process := found()) is None:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return process


@pytest.fixture
def in_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs run in threads of this process, which start at once."""

    @contextmanager
    def executor(grid: Grid, workers: int) -> Iterator[ThreadPoolExecutor]:
        monkeypatch.setattr(jobs, "_works", grid)
        monkeypatch.setattr(jobs, "_working", nullcontext())
        with ThreadPoolExecutor(workers) as started:
            yield started

    monkeypatch.setattr(jobs, "_executor", executor)


@pytest.mark.usefixtures("in_threads")
def test_an_error_leaves_the_records_and_the_same_call_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    grid, measured = Grid(tmp_path / "models", tmp_path / "records", Sources({})), list[str]()

    def measure(self: Grid, cell: Cell, folder: Path, identity: object) -> dict[str, Any]:
        measured.append(cell.row)
        if cell.row == "broken" and measured.count("broken") == 1:
            raise ValueError("no such latents")
        return {"row": cell.row}

    monkeypatch.setattr(Grid, "measure", measure)
    broken = replace(cell("broken", Training()), decoding=Decoding(intervention="blur"))
    with pytest.raises(ValueError, match="no such latents"):
        grid.run([CELLS[0], broken], processes=2)
    assert [one["row"] for one in records.read(grid.records).values()] == ["CoT"]
    grid.run([CELLS[0], broken], processes=2)
    assert sorted(measured) == ["CoT", "broken", "broken"]
    assert sorted(one["row"] for one in records.read(grid.records).values()) == ["CoT", "broken"]


@pytest.mark.usefixtures("in_threads")
def test_what_times_its_answers_runs_after_everything_and_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    running, beside, order = set[str](), dict[str, set[str]](), list[str]()

    def record(self: Grid, cell: Cell, name: str, identity: dict[str, Any]) -> None:
        running.add(cell.row)
        order.append(cell.row)
        time.sleep(0.05)
        beside[cell.row] = running - {cell.row}
        running.discard(cell.row)

    monkeypatch.setattr(Grid, "record", record)
    timed = [cell(f"timed {number}", Training(), measure=LATENCY) for number in range(2)]
    plain = [cell(f"plain {number}", Training()) for number in range(4)]
    made = {one.row: (one, {}) for pair in zip(timed, plain, strict=False) for one in pair} | pending(*plain)
    jobs.run(Grid(tmp_path, tmp_path, Sources({})), made, 2, lambda _: None, lambda _: None)
    assert order[-2:] == ["timed 0", "timed 1"] and not beside["timed 0"] | beside["timed 1"]
    assert any(beside[one.row] for one in plain)


def test_a_merge_that_was_finished_and_not_noted_is_taken_as_it_is(tmp_path: Path) -> None:
    merge = Training("merge", start=SFT)
    folder, _ = trained(merge, "mini", 42, Sources({}), tmp_path)
    note = Path(f"{folder}.done.json")
    note.unlink()
    before = {path: path.stat().st_mtime_ns for path in Path(folder).rglob("*")}
    assert trained(merge, "mini", 42, Sources({}), tmp_path)[0] == folder and note.exists()
    assert {path: path.stat().st_mtime_ns for path in Path(folder).rglob("*")} == before
