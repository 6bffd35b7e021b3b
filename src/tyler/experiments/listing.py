"""What `tyler reproduce` shows without running anything: cells with what they cost, and what a number is made of.

A cost is tokens that are learned and decoded, and bytes, from shapes alone; nothing is loaded. Bytes are those of
`tyler plan`, for every method's own step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Column, Table

from tyler.config.schema import Config
from tyler.evaluation.statistics import Paired, holm
from tyler.experiments.cells import UNTRAINED, Cell, Questions, Training, is_at_hand, name_of
from tyler.experiments.experiment import Entry, Measured, Record
from tyler.experiments.reproduction import Reproduction
from tyler.experiments.scales import Scale
from tyler.experiments.study import chance
from tyler.modeling.architectures import settings_of
from tyler.planning.memory import Shape
from tyler.planning.plan import BYTES, GB, MARGIN, PHASES, Device, device_named, dtype_on
from tyler.presentation import counted
from tyler.reasoners.table import TRAININGS
from tyler.tasks.grading import find_task
from tyler.tasks.mini import SPLITS
from tyler.tasks.task import Generated

WIDE = 200
"""Letters of a line that no terminal shows: a file has every row in one line."""
UNMADE = (UNTRAINED, "merge")
"""Methods that train nothing."""
FALLBACK = 2000
"""Training problems where a config says neither steps nor how many."""


@dataclass(frozen=True)
class Estimate:
    """Tokens of training and of answering, and the most bytes."""

    training: float
    answering: float
    memory: int


@dataclass(frozen=True)
class Estimator:
    """Estimates for one scale on one device; a training that several cells share is counted once."""

    scale: Scale
    device: Device

    def in_order(self, cells: Sequence[Cell]) -> list[Estimate]:
        """One estimate for each cell; a training is the first cell's that needs it, and costs the others nothing."""
        found, made = [], set[tuple[Training, str, int]]()
        for cell in cells:
            needed = [(one, cell.preset, cell.seed) for one in cell.training.stages]
            spent = sum(self.training(*one) for one in needed if one not in made)
            made.update(needed)
            found.append(Estimate(spent, self.answering(cell), self.memory(cell)))
        return found

    def training(self, training: Training, preset: str, seed: int) -> float:
        """Tokens that one training reads or samples, without what it starts from."""
        method, config = training.method, training.config(preset, seed)
        if method in UNMADE:
            return 0.0
        section = TRAININGS[method].loop if method in TRAININGS else method
        loop, mean = config.loops[section], self.scale.lengths
        rewarded = hasattr(loop, "max_new_tokens")
        length = mean.prompt + (mean.answer if rewarded else mean.trace)
        return loop.num_steps(config.data.examples or FALLBACK) * config.rows(section) * length

    def answering(self, cell: Cell) -> float:
        """Tokens of all answers."""
        longest = min(self.scale.lengths.answer, cell.questions.max_new_tokens)
        return number_of(cell.questions) * (self.scale.lengths.prompt + longest)

    def memory(self, cell: Cell) -> int:
        """The most bytes that its trainings and answers hold at once."""
        config = cell.training.config(cell.preset, cell.seed)
        element, shape = BYTES[dtype_on(config, self.device)], shape_of(config)
        peaks = [sum(PHASES["rollout"](shape, config, element).values())]
        for one in cell.training.stages:
            if one.method not in UNMADE:
                made = one.config(cell.preset, cell.seed)
                peaks.append(sum(PHASES[f"{one.method} step"](shape, made, element).values()))
        return max(peaks)


def shape_of(config: Config) -> Shape:
    """The architecture that a config's backbone has. Raises ValueError for one that is not known here."""
    return Shape.read(settings_of(config.backbone.id))


def number_of(asked: Questions) -> int:
    """How many problems are asked, without reading them."""
    task = find_task(asked.task)
    if asked.count is not None:
        return asked.count
    return SPLITS[asked.split].count if isinstance(task, Generated) else task.sources[asked.split].num_rows or FALLBACK


def show_cells(made: Reproduction, device: str) -> None:
    """Every cell with its name, whether it is finished, its tokens and its memory; then the sum."""
    cells, estimator = made.cells(), Estimator(made.scale, device_named(device))
    finished = made.finished()
    names = [name_of(cell.unseeded.identity(made.sources)) if is_at_hand(cell, made.sources) else "" for cell in cells]
    pending = [(cell, name) for cell, name in zip(cells, names, strict=True) if name not in finished]
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
    """The entries of a row, or of a row and a column, with every record they are from.

    Raises ValueError where no entry has all of the wanted words.
    """
    console = Console(highlight=False, soft_wrap=True)
    every = [(name, one) for name in made.names for one in made.experiments[name].entries(made.scale)]
    found = [(name, one) for name, one in every if set(wanted) <= {one.group, one.row, one.column}]
    if not found:
        rows, columns = ({repr(getattr(one, of)): None for _, one in every} for of in ("row", "column"))
        raise ValueError(
            f"no number is of {' and '.join(map(repr, wanted))}; rows: {', '.join(rows)}; columns: {', '.join(columns)}"
        )
    known = made.known()
    for name, entry in found:
        console.print(f"{name}: {entry.group}, {entry.row}, {entry.column}")
        for line in sources_of(made, entry, known):
            console.print(f"  {line}")
        for line in compared(made, name, entry, known) if len(wanted) > 1 else ():
            console.print(f"  {line}")


def compared(made: Reproduction, name: str, entry: Entry, known: Mapping[str, Record]) -> list[str]:
    """One line for every other row of the same column: the difference on the same problems, and how sure it is.

    A problem counts by its share of seeds, because answers to one problem are alike. The lines are a family.
    """
    ours, found = tuple(made.measured(entry, known).shares()), dict[str, Paired]()
    for one in made.experiments[name].entries(made.scale):
        theirs = tuple(made.measured(one, known).shares())
        if (one.group, one.column) == (entry.group, entry.column) and one.row != entry.row and ours and theirs:
            found[one.row] = Paired(theirs, ours)
    lines, ps = [], [both.p_value() for both in found.values()]
    for (row, both), p, adjusted in zip(found.items(), ps, holm(ps), strict=True):
        low, high = (100 * end for end in both.interval())
        lines.append(
            f"against {row}: {100 * both.difference:+.1f} points ({low:+.1f} to {high:+.1f}), better on "
            f"{counted(both.only_second, 'problem')}, worse on {both.only_first}, p {chance(p)}, Holm's p "
            f"{chance(adjusted)} of {counted(len(ps), 'comparison')}"
        )
    return lines


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
