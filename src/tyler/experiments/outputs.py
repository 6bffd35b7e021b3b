"""results.json, and the tables and figures beside it, which are made from it alone."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tyler.experiments import declared
from tyler.experiments.cells import FORMAT
from tyler.experiments.experiment import WRITERS, Experiment, Results, Table, no_figures
from tyler.runs.atomic_files import atomic_write

RESULTS = "results.json"
IN_BRACKETS = "In brackets the paper's number where it has one; † marks one that no count of right answers gives."


def write_results(folder: Path, name: str, results: dict[str, Any]) -> None:
    """Write an experiment's results, then its tables and figures."""
    folder.mkdir(parents=True, exist_ok=True)
    atomic_write(folder / RESULTS, json.dumps(results, ensure_ascii=False, indent=1) + "\n")
    render(folder, name)


def read_results(folder: Path) -> Results:
    """An experiment's results. Raises FileNotFoundError for a missing file, ValueError for another format."""
    file = folder / RESULTS
    if not file.is_file():
        raise FileNotFoundError(f"{folder} holds no {RESULTS}; run the experiment first")
    results: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    if results.get("format") != FORMAT:
        raise ValueError(
            f"{file} is of format {results.get('format')}, this is format {FORMAT}; make it again elsewhere"
        )
    return results


def render(folder: Path, name: str) -> list[Path]:
    """Make the tables and figures of an experiment from its results.json; returns the files."""
    results, experiment, made = read_results(folder), declared.find(name), []
    for table in experiment.tables(results):
        note = provenance(results, [table])
        for ending, write in WRITERS.items():
            made.append(folder / f"{table.name}.{ending}")
            atomic_write(made[-1], write(table, note))
    return made + drawn(folder, experiment, results)


def drawn(folder: Path, experiment: Experiment, results: Results) -> list[Path]:
    """The figures of an experiment; without any, matplotlib is not imported."""
    if experiment.figures is no_figures:
        return []
    from tyler.experiments.figures import note, styled, written

    files = []
    with styled():
        for stem, figure in experiment.figures(results).items():
            note(figure, [f"{made_of(results)} {experiment.drawn}".strip(), command(results)])
            files.append(folder / f"{stem}.svg")
            atomic_write(files[-1], written(figure))
    return files


def provenance(results: Results, tables: Sequence[Table]) -> list[str]:
    """What stands under tables: problems, seeds, intervals, what is missing, command and version."""
    missing = results["missing"]
    lines = [
        f"{made_of(results)} Intervals are 95% over problems, whose answers of several seeds count as alike: of a "
        "share Wilson's at the effective number of answers, put together (MOVER) for an average, and a bootstrap for a "
        "difference, whose p is of sign flips; Holm's p is of all comparisons of a table.",
    ]
    lines += [IN_BRACKETS] * any("[" in cell for table in tables for row in table.rows for cell in row)
    lines += [f"{missing} cells are missing: the same command runs them."] * bool(missing)
    return [*lines, command(results), f"The records behind a row or a number: {results['command']} --trace ROW COLUMN"]


def made_of(results: Results) -> str:
    """How many problems, and which seeds."""
    counts = sorted({one["n"] for one in results["entries"] if "n" in one})
    seeds = ", ".join(map(str, results["seeds"]))
    return (
        f"n = {', '.join(map(str, counts)) or 'nothing yet'} problems; seeds {seeds}, one run of what is not trained; "
        "greedy decoding."
    )


def command(results: Results) -> str:
    """What makes these results, and which version did."""
    return f"{results['command']} (tyler {results['version']})"
