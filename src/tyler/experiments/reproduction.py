"""`tyler reproduce`: experiments of the paper as grids of cells, and their tables and figures from results.json.

DIR/
  models/             the trained models of cells
  records/            finished cells, by the hash that names them
  EXPERIMENT/         results.json, and the tables and figures that are made from it alone
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tyler import __version__
from tyler.experiments import declared, records
from tyler.experiments.cells import ACCURACY, FORMAT, Cell, Sources, name_of
from tyler.experiments.experiment import Entry, Experiment, Measured, Record
from tyler.experiments.outputs import write_results
from tyler.experiments.scales import Scale

if TYPE_CHECKING:
    from tyler.tasks.task import GradeOptions

MODELS, RECORDS = "models", records.RECORDS


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
    def experiments(self) -> dict[str, Experiment]:
        """Those that are asked for, by name."""
        return {name: declared.find(name) for name in self.names}

    def cells(self) -> list[Cell]:
        """Every cell of them, each once whatever its rows are called, one seed of everything before the other seeds."""
        found = [
            cell
            for experiment in self.experiments.values()
            for entry in experiment.entries(self.scale)
            for cell in entry.cells
        ]
        once: dict[Cell, Cell] = {}
        for cell in found:
            once.setdefault(replace(cell, row=""), cell)
        order = {seed: place for place, seed in enumerate(self.scale.seeds)}
        return sorted(once.values(), key=lambda cell: order.get(cell.seed, -1))

    def known(self) -> Mapping[str, Record]:
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

    def report(self, known: Mapping[str, Record] | None = None) -> None:
        """Results, tables and figures from the records there are, which may be `known` already."""
        known = self.known() if known is None else known
        for name in self.names:
            write_results(self.folder / name, name, self.results(name, known))

    def results(self, name: str, known: Mapping[str, Record]) -> dict[str, Any]:
        """The content of an experiment's results.json."""
        experiment = declared.find(name)
        measured = [self.measured(entry, known) for entry in experiment.entries(self.scale)]
        missing = sum(max(0, len(one.entry.cells) - len(one.records)) for one in measured)
        return {
            "format": FORMAT,
            "version": __version__,
            "command": f"tyler reproduce {name} --scale {self.scale.name}{self._seeds()}",
            "title": experiment.title,
            "scale": self.scale.name,
            "seeds": list(self.scale.seeds),
            "missing": missing,
            "entries": [one.counted() for one in measured],
            **experiment.findings(measured),
        }

    def measured(self, entry: Entry, known: Mapping[str, Record]) -> Measured:
        """An entry with the records there are of it, by the names of its cells or by what records say of themselves."""
        if entry.records:
            return Measured(entry, by_label(entry, known, {entry.records, RECORDS}))
        names = {cell.seed: name_of(cell.unseeded.identity(self.sources)) for cell in entry.cells}
        return Measured(entry, {seed: (name, known[name]) for seed, name in names.items() if name in known})

    def _seeds(self) -> str:
        return f" --seeds {' '.join(map(str, self.scale.seeds))}"


def by_label(entry: Entry, known: Mapping[str, Record], folders: Collection[str]) -> dict[int, tuple[str, Record]]:
    """The records of an entry's row, task and split by their seeds, from folders of these names; later ones count."""
    measure = entry.cells[0].measure if entry.cells else ACCURACY
    wanted = (entry.row, entry.asked.task, entry.asked.split, measure)
    found = {
        record["seed"]: (name.partition("@")[0], record)
        for name, record in known.items()
        if Path(record["folder"]).name in folders and label_of(record) == wanted
    }
    return dict(sorted(found.items()))


def label_of(record: Record) -> tuple[str, str, str, str]:
    """What a record says that it is of, besides its seed."""
    return record["row"], record["task"], record["split"], record.get("identity", {}).get("measure", ACCURACY)


def with_seeds(scale: Scale, seeds: Sequence[int]) -> Scale:
    """The scale with other seeds, where some are given."""
    return replace(scale, seeds=tuple(dict.fromkeys(seeds))) if seeds else scale
