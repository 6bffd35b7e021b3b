"""The study on SmolLM2-135M-Instruct: its cells are run once, and what is there is not run again.

python scripts/study_smollm2.py run --data path/to/files          # everything; a killed study resumes
python scripts/study_smollm2.py run --data path/to/files --rows "Stage 2" --seeds 43    # and what it starts from
python scripts/study_smollm2.py status                             # which cells have records
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
from pathlib import Path

import torch

from tyler.analysis import records
from tyler.analysis.cells import Sources
from tyler.analysis.grid import Grid
from tyler.analysis.studies import smollm2

RECORDS = Path("docs/results/smollm2")
TASKS = ("mawps", "svamp", "gsm8k")


def run(args: argparse.Namespace) -> None:
    """Run the cells that have no record yet, in the order of the study."""
    torch.set_num_threads(args.threads)
    grid = Grid(args.work, args.records, Sources(dict.fromkeys(TASKS, str(args.data))))
    asked = (smollm2.DEVELOPMENT,) if args.development else (smollm2.TEST, smollm2.HARDER)
    cells = smollm2.cells(args.seeds or smollm2.SEEDS, asked)
    grid.run([cell for cell in cells if not args.rows or cell.row in args.rows])


def status(args: argparse.Namespace) -> None:
    """One line for each record: row, seed, split, k of n, and processor seconds of training and decoding."""
    for found in records.read(args.records).values():
        k, n = found["outcomes"].count("c"), len(found["outcomes"])
        seconds = f"{found['training_seconds']:.0f} s training, {found['decoding_seconds']:.0f} s decoding"
        print(f"{found['row']:34} {found['seed']:3} {found['task']:6} {found['split']:5} {k:4}/{n}  {seconds}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=Path, default=RECORDS)
    commands = parser.add_subparsers(dest="command", required=True)
    running = commands.add_parser("run", help="run the cells that have no record")
    running.add_argument("--data", type=Path, required=True, help="the folder with the tasks' official files")
    running.add_argument("--work", type=Path, default=Path("runs/smollm2"), help="where models are trained")
    running.add_argument("--rows", nargs="+", default=[], metavar="ROW")
    running.add_argument("--seeds", nargs="+", type=int, help="42 43 44 by default")
    running.add_argument("--threads", type=int, default=1)
    running.add_argument("--development", action="store_true", help="answer development problems, to choose by")
    commands.add_parser("status", help="what has been measured")
    args = parser.parse_args()
    {"run": run, "status": status}[args.command](args)


if __name__ == "__main__":
    main()
