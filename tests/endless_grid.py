"""A grid whose work does not end, for `test_jobs.py`: python tests/endless_grid.py FOLDER."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

from tyler.experiments import jobs
from tyler.experiments.cells import Cell, Decoding, Questions, Training
from tyler.runs.signals import interruptible, unwinding


class Endless:
    """Trainings that go on until they are asked to stop, one with a long step, and a cell that just goes on."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.records = folder, folder / "records"

    def needed(self, cell: Cell) -> list[Training]:
        return [one for one in cell.training.stages if one.method != "backbone"]

    def train(self, training: Training, cell: Cell) -> None:
        with interruptible() as interruption:
            (self.folder / f"{training.method}.pid").write_text(str(os.getpid()))
            while not interruption.requested:
                time.sleep(0.05)
            time.sleep(STEPS[training.method])  # the step at hand
            (self.folder / f"{training.method}.saved").touch()
            raise interruption.stop("saved")

    def record(self, cell: Cell, name: str, identity: dict[str, Any]) -> None:
        (self.folder / "cell.pid").write_text(str(os.getpid()))
        time.sleep(600)


def main(folder: Path) -> None:
    asked = Questions("mini", "dev", 2, 12)
    cells = [Cell(row, "mini", training, Decoding(), asked, 42) for row, training in ROWS.items()]
    with unwinding():
        jobs.run(Endless(folder), {cell.row: (cell, {}) for cell in cells}, 3, lambda _: None, lambda _: None)


ROWS = {"CoT": Training(), "SFT": Training("sft"), "GRPO": Training("grpo")}
STEPS = {"sft": 0.2, "grpo": 3.0}
"""Seconds that a step takes: one training has saved long before the other."""

if __name__ == "__main__":
    main(Path(sys.argv[1]))
