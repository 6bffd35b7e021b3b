"""What `tyler reproduce` shows without running anything: cells with what they cost, and what a number is made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from rich.console import Console
from rich.table import Column, Table

from tyler.evaluation.statistics import Paired
from tyler.experiments.cells import Cell, is_at_hand, name_of
from tyler.experiments.estimates import UNMADE, Estimate, Estimator
from tyler.experiments.experiment import Entry, Measured, Record
from tyler.experiments.reproduction import Reproduction
from tyler.planning.plan import GB, MARGIN, device_named
from tyler.presentation import counted

WIDE = 200
"""Letters of a line that no terminal shows: a file has every row in one line."""


def estimator_of(made: Reproduction, device: str) -> Estimator:
    """Estimates on a device by name, or on this machine."""
    return Estimator(made.scale, device_named(device))


def show_cells(made: Reproduction, device: str) -> None:
    """Every cell with its name, whether it is finished, its tokens and its memory; then the sum."""
    cells, estimator = made.cells(), estimator_of(made, device)
    known = made.known()
    names = [name_of(cell.unseeded.identity(made.sources)) if is_at_hand(cell, made.sources) else "" for cell in cells]
    pending = [(cell, name) for cell, name in zip(cells, names, strict=True) if name not in known]
    estimates = estimator.in_order([cell for cell, _ in pending])
    console = Console(highlight=False, soft_wrap=True)
    if not console.is_terminal:
        console.width = WIDE
    table = Table("cell", Column("what", no_wrap=True), "problems", "seed", "M trained", "M answered", "GB", box=None)
    for (cell, name), estimate in zip(pending, estimates, strict=True):
        table.add_row(*described(cell, name, estimate))
    console.print(table)
    stages = {(one, cell.preset, cell.seed) for cell, _ in pending for one in cell.training.stages}
    trained = [one for one, _, _ in stages if one.method not in UNMADE]
    most, room = max((one.memory for one in estimates), default=0) / GB, estimator.device.memory / GB
    fits = "which fits" if MARGIN * most <= room else f"and {MARGIN:g} times that does NOT fit"
    console.print(
        f"{made.scale.name}: {len(cells)} cells, {len(cells) - len(pending)} of them finished; the others need "
        f"{len(trained)} trainings on about {millions(sum(one.training for one in estimates))} million tokens, and "
        f"answers of {millions(sum(one.answering for one in estimates))} million; at most {most:.1f} GB, {fits} the "
        f"{room:.0f} GB of {estimator.device.name}."
    )
    console.print("Tokens are counted from mean lengths; a training counts for the first cell that needs it.")


def millions(tokens: float) -> str:
    """Millions of tokens."""
    return f"{tokens / 1e6:,.2f}"


def described(cell: Cell, name: str, estimate: Estimate) -> tuple[str, ...]:
    """A row of the listing."""
    asked = cell.questions
    what = cell.row if cell.measure == "accuracy" else f"{cell.row}: {cell.measure}"
    seed = "" if cell == cell.unseeded and cell.seed == 0 else str(cell.seed)
    tokens = (millions(estimate.training) if estimate.training else "", millions(estimate.answering))
    return (name or "not here", what, f"{asked.task} {asked.split}", seed, *tokens, f"{estimate.memory / GB:.1f}")


def show_trace(made: Reproduction, wanted: Sequence[str]) -> None:
    """Rows of tables and the records behind them, of one row, or of a row and a column.

    Raises ValueError where no table and no record has what is wanted.
    """
    console = Console(highlight=False, soft_wrap=True)
    known = made.known()
    lines = [line for name in made.names for line in traced(made, name, wanted, known)]
    if not lines:
        raise ValueError(f"no number is of {' and '.join(map(repr, wanted))}; {there(made)}")
    for line in lines:
        console.print(line)


def there(made: Reproduction) -> str:
    """The rows and columns that can be traced."""
    entries = [entry for one in made.experiments.values() for entry in one.entries(made.scale)]
    rows = ", ".join(dict.fromkeys(repr(entry.row) for entry in entries))
    columns = ", ".join(dict.fromkeys(repr(entry.column) for entry in entries))
    return f"rows: {rows}; columns: {columns}"


def traced(made: Reproduction, name: str, wanted: Sequence[str], known: Mapping[str, Record]) -> list[str]:
    """What an experiment has of the wanted row and column: rows of its tables, and every record that they are from."""
    experiment = made.experiments[name]
    tables = experiment.tables(made.results(name, known))
    shown = [(table, row) for table in tables for row in table.rows if set(wanted) <= {*row, *table.columns}]
    chosen = chosen_entries(experiment.entries(made.scale), wanted, experiment.base)
    if not shown and not set(wanted) <= {word for entry in chosen for word in words(entry)}:
        return []
    lines = [f"{name}, {table.name}: {', '.join(map(' '.join, paired(table.columns, row)))}" for table, row in shown]
    for entry in chosen:
        lines.append(f"{name}: {entry.group}, {entry.row}, {entry.column}")
        lines += [f"  {line}" for line in sources_of(made, entry, known)]
        if {entry.row, entry.column} <= set(wanted):
            lines += [f"  {line}" for line in compared(made, name, entry, known)]
    return lines


def compared(made: Reproduction, name: str, entry: Entry, known: Mapping[str, Record]) -> list[str]:
    """One line for every other row of the same column: the difference on the same problems, and how sure it is.

    A problem counts by its share of seeds, because answers to one problem are alike.
    """
    shares, lines = shares_of(made.measured(entry, known)), []
    for one in made.experiments[name].entries(made.scale):
        other = shares_of(made.measured(one, known))
        if (one.group, one.column) == (entry.group, entry.column) and one.row != entry.row and shares and other:
            both = Paired(other, shares)
            low, high = (100 * end for end in both.interval())
            lines.append(
                f"against {one.row}: {100 * both.difference:+.1f} points ({low:+.1f} to {high:+.1f}), better on "
                f"{counted(both.only_second, 'problem')}, worse on {both.only_first}, {chance(both.p_value())}"
            )
    return lines


def chance(p: float) -> str:
    """The p of a test."""
    return "p < 0.001" if p < 0.001 else f"p = {p:.3f}"


def shares_of(measured: Measured) -> tuple[float, ...]:
    """The share of seeds that solved each problem; empty where answers are not graded or have no record."""
    tallies = [measured.right(record) for record in measured.found if "outcomes" in record]
    return tuple(fmean(column) for column in zip(*tallies, strict=True))


def paired(columns: Sequence[str], row: Sequence[str]) -> list[tuple[str, str]]:
    """A row of a table with its heads."""
    return list(zip(columns, row, strict=True))


def words(entry: Entry) -> set[str]:
    """What an entry is asked for by."""
    return {entry.group, entry.row, entry.column}


def chosen_entries(entries: Sequence[Entry], wanted: Sequence[str], base: str) -> list[Entry]:
    """The entries that have all of the wanted words which any entry has, and the base row's beside them.

    The other words are heads of tables: an average and a difference are made of all columns of a row.
    """
    asked = {word for word in wanted if any(word in words(entry) for entry in entries)}
    found = [entry for entry in entries if asked <= words(entry)]
    held = {(entry.group, base, entry.column) for entry in found}
    beside = [entry for entry in entries if (entry.group, entry.row, entry.column) in held and entry not in found]
    return [*found, *beside] if asked else []


def sources_of(made: Reproduction, entry: Entry, known: Mapping[str, Record]) -> list[str]:
    """One line for each cell of an entry: what is counted of it, its record, and how its model was trained."""
    lines = []
    for cell in entry.cells:
        name = name_of(cell.unseeded.identity(made.sources))
        how = " <- ".join(f"{one.method} {' '.join(one.overrides)}".strip() for one in reversed(cell.training.stages))
        if name not in known:
            lines.append(f"seed {cell.seed}: not measured yet (cell {name}); {how}")
            continue
        record = known[name]
        measured = Measured(entry, {cell.seed: (name, record)}).counted()
        where = record.get("source", f"{name}.json")
        lines.append(f"seed {cell.seed}: {told(measured)}, {where} (cell {name}); {how}")
    return lines


def told(measured: Mapping[str, Any]) -> str:
    """What is counted of one cell."""
    if "k" not in measured:
        return f"latents of {measured['n']} problems"
    parts = [
        f"{measured['k'][0]}/{measured['n']}",
        f"{measured['visible']:.1f} visible",
        f"{measured['latents']:.1f} latents",
    ]
    if "seconds" in measured:
        parts.append(f"{measured['seconds']:.3f} s, {measured['synthesis_seconds']:.4f} s of synthesis")
    return ", ".join(parts)
