"""What `tyler reproduce` shows without running anything: cells with what they cost, and what a number is made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Column, Table

from tyler.analysis.cells import Cell, name_of
from tyler.analysis.estimates import UNMADE, Estimate, Estimator
from tyler.analysis.experiment import Entry, Record
from tyler.analysis.reproduction import RECORDS, Reproduction
from tyler.analysis.sources import is_at_hand
from tyler.planning.hardware import GB, THIS, device_named
from tyler.runs.progress import clock_time


def estimator_of(made: Reproduction, device: str) -> Estimator:
    """Estimates on a device by name, or on this machine, which is measured."""
    if device != THIS:
        return Estimator(made.scale, device_named(device))
    from tyler.planning.device_benchmark import this_device

    return Estimator(made.scale, this_device())


def show_cells(made: Reproduction, device: str) -> None:
    """Every cell with its name, whether it is finished, and its estimated time and memory; then the sum."""
    cells, estimator = made.cells(), estimator_of(made, device)
    known = made.known()
    names = [name_of(cell.unseeded.identity(made.sources)) if is_at_hand(cell, made.sources) else "" for cell in cells]
    pending = [(cell, name) for cell, name in zip(cells, names, strict=True) if name not in known]
    estimates = estimator.in_order([cell for cell, _ in pending])
    console = Console(highlight=False, soft_wrap=True)
    table = Table("cell", Column("what", no_wrap=True), "problems", "seed", "training", "answering", "GB", box=None)
    for (cell, name), estimate in zip(pending, estimates, strict=True):
        table.add_row(*described(cell, name, estimate))
    console.print(table)
    stages = {(one, cell.preset, cell.seed) for cell, _ in pending for one in cell.training.stages}
    trained = [one for one, _, _ in stages if one.method not in UNMADE]
    console.print(
        f"{made.scale.name}: {len(cells)} cells, {len(cells) - len(pending)} of them finished; the others need "
        f"{len(trained)} trainings, about {clock_time(sum(one.training for one in estimates))}, and answer for about "
        f"{clock_time(sum(one.answering for one in estimates))} (h:mm:ss) on {estimator.device.name}; at most "
        f"{max((one.memory for one in estimates), default=0) / GB:.1f} GB."
    )
    console.print(
        "Times are a roofline from shapes (docs/plan.md); a training counts for the first cell that needs it."
    )


def described(cell: Cell, name: str, estimate: Estimate) -> tuple[str, ...]:
    """A row of the listing."""
    asked = cell.questions
    what = cell.row if cell.measure == "accuracy" else f"{cell.row}: {cell.measure}"
    seed = "" if cell == cell.unseeded and cell.seed == 0 else str(cell.seed)
    times = (clock_time(estimate.training) if estimate.training else "", clock_time(estimate.answering))
    return (name or "not here", what, f"{asked.task} {asked.split}", seed, *times, f"{estimate.memory / GB:.1f}")


def show_trace(made: Reproduction, wanted: Sequence[str]) -> None:
    """The records behind the numbers of a row, or of one column of it. Raises ValueError where there is no such row."""
    console = Console(highlight=False, soft_wrap=True)
    known = made.known()
    found = [(name, entry) for name in made.names for entry in made.experiments[name].entries(made.scale)]
    chosen = [(name, entry) for name, entry in found if set(wanted) <= {entry.group, entry.row, entry.column}]
    if not chosen:
        rows = ", ".join(dict.fromkeys(repr(entry.row) for _, entry in found))
        columns = ", ".join(dict.fromkeys(repr(entry.column) for _, entry in found))
        raise ValueError(f"no number is of {' and '.join(map(repr, wanted))}; rows: {rows}; columns: {columns}")
    for name, entry in chosen:
        console.print(f"{name}: {entry.group}, {entry.row}, {entry.column}")
        for line in traced(made, entry, known):
            console.print(f"  {line}")


def traced(made: Reproduction, entry: Entry, known: Mapping[str, Record]) -> list[str]:
    """One line for each cell of an entry: its record, k of n, and how its model was trained."""
    lines = []
    for cell in entry.cells:
        name = name_of(cell.unseeded.identity(made.sources))
        how = " <- ".join(f"{one.method} {' '.join(one.overrides)}".strip() for one in reversed(cell.training.stages))
        if name not in known:
            lines.append(f"seed {cell.seed}: not measured yet (cell {name}); {how}")
            continue
        record = known[name]
        outcomes = str(record.get("outcomes", ""))
        where = record.get("source", made.folder / RECORDS / f"{name}.json")
        lines.append(f"seed {cell.seed}: {outcomes.count('c')}/{len(outcomes)}, {where} (cell {name}); {how}")
    return lines
