"""Name the records of the two studies on `mini` as the cells they are: docs/results/{mini,baselines}/cells.json.

To be run where a new setting with a default changes the names of all cells; where a setting that the records were made
with has changed its value, the records are not of today's cells, and their rows must leave the index.

    python scripts/index_studies.py
"""

from __future__ import annotations

import json
from pathlib import Path

from tyler.experiments import mini_study as mini
from tyler.experiments.library import INDEX
from tyler.runs.atomic_files import atomic_write

FOLDERS = {Path("docs/results/mini"): mini.study, Path("docs/results/baselines"): mini.comparison}


def main() -> None:
    for folder, rows in FOLDERS.items():
        found = mini.index(folder, rows())
        atomic_write(folder / INDEX, json.dumps(found, indent=0) + "\n")
        print(f"{folder / INDEX}: {len(found)} cells")


if __name__ == "__main__":
    main()
