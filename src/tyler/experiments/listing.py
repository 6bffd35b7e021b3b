"""What `tyler reproduce` shows without running anything: cells with what they cost, and what a number is made of.

A cost is examples that are learned, answers, and bytes, which are those of `tyler plan`; nothing is loaded.
"""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Column, Table

from tyler.evaluation.store import name_of
from tyler.experiments.cells import NO_TRAINING, Cell, Questions, Training, is_at_hand
from tyler.experiments.experiment import Measured
from tyler.experiments.reproduction import Reproduction
from tyler.modeling.architectures import settings_of
from tyler.planning.plan import BYTES, GB, MARGIN, Device, device_named, dtype_on, of_phase
from tyler.reasoners.table import TRAININGS
from tyler.tasks.grading import find_task
from tyler.tasks.mini import SPLITS
from tyler.tasks.task import Generated
from tyler.training.planned import Shape

WIDE = 200
"""Letters of a line that no terminal shows: a file has every row in one line."""
FALLBACK = 2000
"""Training problems where a config says neither steps nor how many."""


def show_cells(reproduction: Reproduction, device_name: str) -> None:
    """Every cell that is not finished with its name, its answers and its memory; then the sum."""
    device, sources = device_named(device_name), reproduction.sources
    cells, finished = reproduction.cells(), reproduction.finished()
    names = [name_of(cell.unseeded.identity(sources)) if is_at_hand(cell, sources) else "" for cell in cells]
    pending = {cell: name for cell, name in zip(cells, names, strict=True) if name not in finished}
    console = Console(highlight=False, soft_wrap=True)
    if not console.is_terminal:
        console.width = WIDE
    table = Table("cell", Column("what", no_wrap=True), "problems", "seed", "answers", "GB", box=None)
    memory = {cell: memory_of(cell, device) / GB for cell in pending}
    for cell, name in pending.items():
        table.add_row(*described(cell, name), f"{memory[cell]:.1f}")
    console.print(table)
    most, room = max(memory.values(), default=0), device.memory / GB
    fits = "which fits" if MARGIN * most <= room else f"and {MARGIN:g} times that does NOT fit"
    stages = {(stage, cell.preset, cell.seed) for cell in pending for stage in cell.training.stages}
    learned = [examples_of(*stage) for stage in stages if stage[0].method not in NO_TRAINING]
    console.print(
        f"{reproduction.scale.name}: {len(cells)} cells, {len(cells) - len(pending)} of them finished; the others need "
        f"{len(learned)} trainings on {sum(learned):,} examples or rollouts, and "
        f"{sum(number_of(cell.questions) for cell in pending):,} answers; at most {most:.1f} GB, {fits} the "
        f"{room:.0f} GB of {device.name}."
    )


def described(cell: Cell, name: str) -> tuple[str, ...]:
    """A row of the listing."""
    questions = cell.questions
    what = cell.row if cell.measure == "accuracy" else f"{cell.row}: {cell.measure}"
    seed = "" if cell == cell.unseeded and cell.seed == 0 else str(cell.seed)
    return name or "not here", what, f"{questions.task} {questions.split}", seed, f"{number_of(questions):,}"


def number_of(questions: Questions) -> int:
    """How many problems are asked, without reading them."""
    task = find_task(questions.task)
    if questions.count is not None:
        return questions.count
    if isinstance(task, Generated):
        return SPLITS[questions.split].count
    return task.sources[questions.split].num_rows or FALLBACK


def examples_of(training: Training, preset: str, seed: int) -> int:
    """Examples that one training reads, or rollouts that it samples, without what it starts from."""
    config, section = training.config(preset, seed), TRAININGS[training.method].loop
    return config.loops[section].num_steps(config.data.examples or FALLBACK) * config.rows(section)


def memory_of(cell: Cell, device: Device) -> int:
    """The most bytes that its trainings and answers hold at once.

    Raises ValueError for an architecture that is not known here.
    """
    config = cell.training.config(cell.preset, cell.seed)
    element, shape = BYTES[dtype_on(config, device)], Shape.read(settings_of(config.backbone.id))
    phases = {"rollout": config} | {
        f"{stage.method} step": stage.config(cell.preset, cell.seed)
        for stage in cell.training.stages
        if stage.method not in NO_TRAINING
    }
    parts = (of_phase(phase, shape, settings, element, device.packs) for phase, settings in phases.items())
    return max(sum(part.values()) for part in parts)


def show_trace(reproduction: Reproduction, wanted: Sequence[str]) -> None:
    """The entries of a row, or of a row and a column, with every record they are from.

    Raises ValueError where no entry has all of the wanted words.
    """
    experiments = reproduction.experiments.items()
    every = [(name, entry) for name, experiment in experiments for entry in experiment.entries(reproduction.scale)]
    matching = [(name, entry) for name, entry in every if set(wanted) <= {entry.group, entry.row, entry.column}]
    if not matching:
        rows, columns = ({repr(getattr(entry, key)): None for _, entry in every} for key in ("row", "column"))
        raise ValueError(
            f"no number is of {' and '.join(map(repr, wanted))}; rows: {', '.join(rows)}; columns: {', '.join(columns)}"
        )
    known, console = reproduction.known(), Console(highlight=False, soft_wrap=True)
    for name, entry in matching:
        console.print(f"{name}: {entry.group}, {entry.row}, {entry.column}")
        for line in sources_of(reproduction.measured(entry, known)):
            console.print(f"  {line}")


def sources_of(measured: Measured) -> list[str]:
    """One line for each record of an entry: its seed, what is counted of it, and where it is."""
    lines = []
    for seed, record in measured.records.items():
        counted = Measured(measured.entry, {seed: record}).counted()
        counts = f"latents of {counted['n']} problems"
        if "k" in counted:
            tokens = f"{counted['visible']:.1f} visible, {counted['latents']:.1f} latents"
            counts = f"{counted['k'][0]}/{counted['n']}, {tokens}"
        if "seconds" in counted:
            counts += f", {counted['seconds']:.3f} s, {counted['synthesis_seconds']:.4f} s of synthesis"
        lines.append(f"seed {seed}: {counts}, {record['source']}")
    return lines or ["not measured yet"]
