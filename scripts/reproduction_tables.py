"""docs/results/reproduction-tables.md from the tables that `tyler reproduce` wrote.

tyler reproduce all --scale mini --output docs/results/reproduction-mini    # runs what has no record
python scripts/reproduction_tables.py
"""

from __future__ import annotations

from pathlib import Path

from tyler.experiments import declared
from tyler.experiments.outputs import read_results
from tyler.runs.atomic_files import atomic_write

FOLDER = Path("docs/results/reproduction-mini")
BEGINNING = """# The paper's experiments on mini: tables

In brief:

- Every table of `tyler reproduce all --scale mini`; [what follows](reproduction.md) says it in words, with the figures.
- Each comes from the records in `docs/results/reproduction-mini` alone, and is there as LaTeX and CSV too.
- Intervals are 95%: Wilson's of a share and of averages of shares, bootstrap over problems of a difference.
- In brackets stands the paper's number, where it has one, of models with a thousand times the parameters of `mini`.
- The last line under a table is the command that prints one of its rows, or numbers, with the records behind it.

Written by `python scripts/reproduction_tables.py`.
"""


def tables(folder: Path) -> str:
    """All tables, an experiment after the other."""
    parts = [BEGINNING]
    for name in declared.names():
        results = read_results(folder / name)
        made = [file.read_text(encoding="utf-8").strip() for file in sorted((folder / name).glob("*.md"))]
        parts += [f"## `{name}`: {results['title']}", *(one.replace("## ", "### ", 1) for one in made)]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def main() -> None:
    file = FOLDER.parent / "reproduction-tables.md"
    atomic_write(file, tables(FOLDER))
    print(file)


if __name__ == "__main__":
    main()
