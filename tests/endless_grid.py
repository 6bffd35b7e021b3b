"""A grid whose work does not end, for `test_jobs.py`: python tests/endless_grid.py FOLDER."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

from tyler.analysis import jobs
from tyler.analysis.cells import Cell, Decoding, Questions, Training
from tyler.runs.signals import interruptible, unwinding


class Endless:
    """A training that goes on until it is asked to stop, and a cell that just goes on."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.records = folder, folder / "records"

    def train(self, training: Training, cell: Cell) -> None:
        with interruptible() as interruption:
            (self.folder / "training.pid").write_text(str(os.getpid()))
            while not interruption.requested:
                time.sleep(0.05)
            time.sleep(0.2)  # the step at hand
            (self.folder / "saved").touch()
            raise interruption.stop("saved")

    def record(self, cell: Cell, name: str, identity: dict[str, Any]) -> None:
        (self.folder / "cell.pid").write_text(str(os.getpid()))
        time.sleep(600)


def main(folder: Path) -> None:
    asked = Questions("mini", "dev", 2, 12)
    cells = [Cell(row, "mini", training, Decoding(), asked, 42) for row, training in ROWS.items()]
    with unwinding():
        jobs.run(Endless(folder), {cell.row: (cell, {}) for cell in cells}, 2, lambda _: None, lambda _: None)


ROWS = {"CoT": Training(), "SFT": Training("sft")}

if __name__ == "__main__":
    main(Path(sys.argv[1]))
