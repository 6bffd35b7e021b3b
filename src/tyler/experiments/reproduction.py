"""`tyler reproduce`: experiments of the paper as grids of cells, and their tables and figures from results.json.

DIR/
  models/             the trained models of cells
  records/            finished cells, by the hash that names them
  EXPERIMENT/         results.json, and the tables and figures that are made from it alone
"""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tyler import __version__
from tyler.evaluation.store import name_of
from tyler.experiments import declared, records
from tyler.experiments.cells import ACCURACY, FORMAT, UNTRAINED, Cell, Sources
from tyler.experiments.experiment import WRITERS, CellRecord, Entry, Experiment, Measured, Results, Table
from tyler.experiments.scales import Scale
from tyler.experiments.study import Study
from tyler.runs.atomic_files import atomic_write
from tyler.tasks.problem import GradeOptions

MODELS, RECORDS, RESULTS = "models", records.RECORDS, "results.json"


@dataclass(frozen=True)
class Reproduction:
    """Some experiments at a scale, and where everything is.

    `libraries` are folders of records of earlier studies, which are read and never written.
    """

    names: Sequence[str]
    scale: Scale
    folder: Path
    sources: Sources
    libraries: tuple[Path, ...] = ()

    @property
    def experiments(self) -> dict[str, Experiment | Study]:
        """Those that are asked for, by name."""
        return {name: declared.find(name) for name in self.names}

    def cells(self) -> list[Cell]:
        """Every cell of them, each once whatever its rows are called, one seed of everything before the other seeds."""
        entries = [entry for experiment in self.experiments.values() for entry in experiment.entries(self.scale)]
        once: dict[Cell, Cell] = {}
        for cell in (cell for entry in entries for cell in entry.runnable):
            once.setdefault(replace(cell, row=""), cell)
        order = list(dict.fromkeys((0, *self.scale.seeds, *(cell.seed for cell in once.values()))))
        return sorted(once.values(), key=lambda cell: order.index(cell.seed))

    def known(self) -> Mapping[str, CellRecord]:
        """Every record there is, here and in the libraries, by the name of its cell."""
        return records.read_all([*self.libraries, self.folder / RECORDS])

    def finished(self) -> set[str]:
        """The names of the cells that have a record; their answers are not read."""
        return {name for folder in (*self.libraries, self.folder / RECORDS) for name in records.names(folder)}

    def run(self, options: GradeOptions, memory: int | None = None) -> None:
        """Run what has no record, and write every experiment's results, tables and figures.

        `memory` bounds, in bytes, the context and caches that decoding holds.
        """
        from tyler.experiments.grid import Grid

        grid = Grid(self.folder / MODELS, self.folder / RECORDS, self.sources, options, memory=memory)
        grid.run(self.cells(), known=self.finished())
        self.report()

    def report(self, known: Mapping[str, CellRecord] | None = None) -> None:
        """Results, tables and figures from the records there are, which may be `known` already."""
        known = self.known() if known is None else known
        for name in self.names:
            write_results(self.folder / name, name, self.results(name, known))

    def results(self, name: str, known: Mapping[str, CellRecord]) -> dict[str, Any]:
        """The content of an experiment's results.json."""
        experiment = declared.find(name)
        measured = [self.measured(entry, known) for entry in experiment.entries(self.scale)]
        missing = sum(max(0, len(each.entry.runnable) - len(each.records)) for each in measured)
        seeds = seeds_of(each.entry for each in measured) or list(self.scale.seeds)
        return {
            "format": FORMAT,
            "version": __version__,
            "command": f"tyler reproduce {name} --scale {self.scale.name} --seeds {' '.join(map(str, seeds))}",
            "title": experiment.title,
            "scale": self.scale.name,
            "seeds": seeds,
            "missing": missing,
            "entries": [each.counted() for each in measured],
            **experiment.findings(measured),
        }

    def measured(self, entry: Entry, known: Mapping[str, CellRecord]) -> Measured:
        """An entry with the records there are of it, by the names of its cells or by what records say of themselves."""
        if entry.records:
            return Measured(entry, by_label(entry, known, {*entry.records, RECORDS}))
        names = {cell.seed: name_of(cell.unseeded.identity(self.sources)) for cell in entry.cells}
        return Measured(entry, {seed: known[name] for seed, name in names.items() if name in known})


def by_label(entry: Entry, known: Mapping[str, CellRecord], folders: Collection[str]) -> dict[int, CellRecord]:
    """The records of an entry's row, task and split by their seeds, from folders of these names; later ones count."""
    cell = entry.cells[0]
    wanted = (entry.row, cell.questions.task, cell.questions.split, cell.measure)
    matching: dict[int, CellRecord] = {}
    for record in known.values():
        measure = record.get("identity", {}).get("measure", ACCURACY)
        label = (record["row"], record["task"], record["split"], measure)
        if label == wanted and Path(record["folder"]).name in folders:
            matching[record["seed"]] = record
    return dict(sorted(matching.items()))


def seeds_of(entries: Iterable[Entry]) -> list[int]:
    """The seeds of what is trained."""
    return sorted({cell.seed for entry in entries for cell in entry.cells if cell.training.method != UNTRAINED})


def with_seeds(scale: Scale, seeds: Sequence[int]) -> Scale:
    """The scale with other seeds, where some are given."""
    return replace(scale, seeds=tuple(dict.fromkeys(seeds))) if seeds else scale


def write_results(folder: Path, name: str, results: Mapping[str, Any]) -> None:
    """Write an experiment's results, then its tables and figures."""
    folder.mkdir(parents=True, exist_ok=True)
    atomic_write(folder / RESULTS, json.dumps(results, ensure_ascii=False, indent=1) + "\n")
    render(folder, name)


def render(folder: Path, name: str) -> None:
    """Make the tables and figures of an experiment from its results.json."""
    results, experiment = json.loads((folder / RESULTS).read_text(encoding="utf-8")), declared.find(name)
    for table in experiment.tables(results):
        for ending, write in WRITERS.items():
            atomic_write(folder / f"{table.name}.{ending}", write(table, provenance(results, [table])))
    drawn(folder, experiment, results)


def drawn(folder: Path, experiment: Experiment | Study, results: Results) -> None:
    """Write the figures of an experiment."""
    from tyler.experiments.figures import styled, written

    with styled():
        for stem, figure in experiment.figures(results).items():
            note = [f"{problems_and_seeds(results)} {experiment.drawn}".strip(), command(results)]
            atomic_write(folder / f"{stem}.svg", written(figure, note))


def provenance(results: Results, tables: Sequence[Table]) -> list[str]:
    """What stands under tables: problems, seeds, intervals, what is missing, command and version."""
    missing = results["missing"]
    lines = [
        f"{problems_and_seeds(results)} Intervals are 95% over problems, whose answers of several seeds count as "
        "alike: of a share Wilson's at the effective number of answers, put together (MOVER) for an average, and a "
        "bootstrap for a difference, whose p is of sign flips; Holm's p is of all comparisons of a table."
    ]
    if any("[" in cell for table in tables for row in table.rows for cell in row):
        lines += [
            "In brackets the paper's number where it has one, on its own backbone and benchmarks; † marks one that no "
            "count of right answers gives."
        ]
    lines += [f"{missing} cells are missing: the same command runs them."] * bool(missing)
    return [*lines, command(results), f"The records behind a row or a number: {results['command']} --trace ROW COLUMN"]


def problems_and_seeds(results: Results) -> str:
    """How many problems, and which seeds."""
    counts = sorted({entry["n"] for entry in results["entries"] if "n" in entry})
    seeds = ", ".join(map(str, results["seeds"]))
    return (
        f"n = {', '.join(map(str, counts)) or 'nothing yet'} problems; seeds {seeds}, one run of what is not trained; "
        "greedy decoding."
    )


def command(results: Results) -> str:
    """What makes these results, and which version did."""
    return f"{results['command']} (tyler {results['version']})"
