"""The page of tables: every experiment of the paper on `mini` and every study, from the records in docs/results."""

import runpy
from pathlib import Path

from tyler.experiments import declared
from tyler.experiments.cells import Sources
from tyler.experiments.experiment import markdown
from tyler.experiments.records import folders_of_records
from tyler.experiments.records import read_all as read
from tyler.experiments.reproduction import Reproduction, provenance
from tyler.experiments.scales import SCALES

RESULTS = Path(__file__).parents[2] / "docs" / "results"
BEGINNING = """# Tables

In brief:

- Every table of the paper's experiments on `mini` and of the studies, made from the records in `docs/results` when this
  page is built; `tyler reproduce NAME --render` makes them anywhere, with LaTeX and figures.
- Intervals are over problems; comparisons are paired, with the p of sign flips and Holm's p of all in a table.
"""


def page() -> str:
    """All tables, an experiment after the other."""
    known = read(folders_of_records(RESULTS))
    parts = [BEGINNING]
    for name in (*declared.names(), *declared.studies()):
        experiment = declared.find(name)
        scale = next(size for size in SCALES.values() if experiment.entries(size))
        results = Reproduction([name], scale, Path("nowhere"), Sources({})).results(name, known)
        parts.append(f"## `{name}`: {results['title']}")
        tables = experiment.tables(results)
        parts += [markdown(table, []).strip().replace("## ", "### ", 1) for table in tables]
        parts.append("\n".join(provenance(results, tables)))
    parts += runpy.run_path(str(Path(__file__).parent / "lens.py"))["section"](RESULTS / "lens.json")
    return "\n\n".join(part.strip() for part in parts) + "\n"
