"""`tyler reproduce`: the experiments of the paper, at a scale."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tyro.conf import Positional, arg

from tyler.evaluation.options import EngineOptions, OptionalBytes, OptionalFolder, memory_of

if TYPE_CHECKING:
    from tyler.experiments.reproduction import Reproduction
    from tyler.experiments.scales import Scale

RESULTS = Path(__file__).parents[3] / "docs" / "results"
"""Where the checkout that this is run from keeps the records of earlier studies, whatever the working directory."""
NO_RECORDS = Path("none")


@dataclass(frozen=True)
class Instead:
    """What is shown or tried in place of running the experiments."""

    render: bool = False
    """Run nothing: make results, tables and figures of the records there are, without weights or data of a study. With
    all experiments, also those of our own studies."""
    dry_run: bool = False
    """Run nothing: list every cell with its tokens and memory."""
    smoke: bool = False
    """With --dry-run: run everything once, on backbones of two layers with random weights, one step in each training
    and one problem of each task, in a folder that is removed at the end. The backbones' tokenizers are in --data, in
    folders such as tokenizers/qwen3."""
    trace: Annotated[tuple[str, ...], arg(metavar="ROW COLUMN", help_behavior_hint="")] = ()
    """Run nothing: one number or row of a table, by the row and the column, with every record that it is from."""


EVERYTHING = Instead()
ON_NATIVE = EngineOptions()


def reproduce(
    names: Annotated[Positional[tuple[str, ...]], arg(metavar="NAME [NAME ...]", help_behavior_hint="")] = ("all",),
    scale: str = "mini",
    seeds: Annotated[tuple[int, ...], arg(metavar="[N [N ...]]", help_behavior_hint="")] = (),
    output: OptionalFolder = None,
    data: OptionalFolder = None,
    earlier: Annotated[Path, arg(metavar="DIR", help_behavior_hint="")] = RESULTS,
    memory: OptionalBytes = None,
    hardware: Annotated[str, arg(metavar="NAME")] = "this",
    allow_code_execution: bool = False,
    engine: Annotated[EngineOptions, arg(name="")] = ON_NATIVE,
    instead: Annotated[Instead, arg(name="")] = EVERYTHING,
) -> None:
    """Run experiments of the paper: their cells, each once, then tables and figures beside the paper's numbers.

    Cells that have a record are not run again; a killed run resumes with the same command.

    Args:
        names: Experiments: main, ablation, budget, continual, efficiency, invocation, removal, specialization, or all;
            or a study of ours by name: mini, mini_development, baselines, stage2_variants, smollm2,
            smollm2_growth, smollm2_skill.
        scale: mini (a CPU, hours), smollm2 (a CPU, a day) or paper (GPUs, weeks).
        seeds: Seeds of everything that is trained; by default those of the scale. A study that declares its own runs
            them all, these first, and no others.
        output: Where models, records and results go; by default runs/reproduce-SCALE.
        data: The folder with the tasks' official files; what it lacks comes from the Hub.
        earlier: A folder with records of earlier studies, in folders of their own, or none; by default docs/results of
            the checkout. They are read, and never written.
        memory: At most this much context and cache, such as 4GB or 512MiB: answers wait for room; by default
            half of what is free.
        hardware: For estimates of memory: this machine, or a device as in `tyler plan`.
        allow_code_execution: Let humaneval run the programs of the model, in a sandbox.
        engine: What answers and rolls out; cells with interventions, and methods with an engine of their own, stay on
            the native one.
    """
    from tyler.experiments import listing, smoke
    from tyler.experiments.cells import sources_in
    from tyler.experiments.reproduction import Reproduction, with_seeds
    from tyler.experiments.scales import scale_named
    from tyler.tasks.problem import GradeOptions

    sources = replace(sources_in(data), engine=engine.engine_choice)
    output, chosen = output or Path("runs") / f"reproduce-{scale}", with_seeds(scale_named(scale), seeds)
    reproduction = Reproduction(possible(names, chosen), chosen, output, sources, earlier_records(earlier))
    check_seeds(reproduction, seeds)
    options = GradeOptions(allow_code_execution=allow_code_execution)
    if instead.smoke and not instead.dry_run:
        raise ValueError("--smoke is a dry run; give --dry-run too")
    if instead.smoke:
        smoke.run(reproduction, data, options)
    elif instead.render:
        render(reproduction)
    elif instead.dry_run:
        listing.show_cells(reproduction, hardware)
    elif instead.trace:
        listing.show_trace(reproduction, instead.trace)
    else:
        check_code(reproduction, allow_code_execution)
        reproduction.run(options, memory_of(memory))
        say_where(reproduction)


def render(reproduction: Reproduction) -> None:
    """Results, tables and figures of the records there are; for all experiments, those of our studies too."""
    known = reproduction.known()
    for part in (reproduction, *studies_beside(reproduction)):
        part.report(known)
        say_where(part)


def check_seeds(reproduction: Reproduction, seeds: Sequence[int]) -> None:
    """Raise ValueError for a seed that a study, which declares its own, does not have."""
    from tyler.experiments.reproduction import seeds_of

    for name, experiment in reproduction.experiments.items() if seeds else ():
        own = seeds_of(experiment.entries(reproduction.scale))
        if own and (unknown := {*seeds} - {*own}):
            raise ValueError(f"{name} has the seeds {own} in its file, and not {min(unknown)}; omit --seeds")


def earlier_records(earlier: Path) -> tuple[Path, ...]:
    """The folders of records of earlier studies. Raises ValueError without any, unless that is what was said."""
    from tyler.experiments.records import folders_of_records

    libraries = folders_of_records(earlier)
    if not libraries and earlier != NO_RECORDS:
        raise ValueError(
            f"{earlier} holds no earlier records; give --earlier DIR with some, or --earlier none: then every model is "
            "trained here"
        )
    return libraries


def possible(names: Sequence[str], scale: Scale) -> list[str]:
    """The experiments that are asked for and that a scale has. Raises ValueError for one that is not there, or that
    the scale has not, unless all were asked for."""
    from tyler.experiments import declared

    experiments = {name: declared.find(name) for name in declared.chosen(tuple(names))}
    there = [name for name, experiment in experiments.items() if experiment.entries(scale)]
    if missing := [name for name in experiments if name not in there]:
        lacking = f"scale {scale.name!r} has no {', '.join(missing)}"
        if "all" not in names:
            raise ValueError(f"{lacking}; it has {', '.join(there) or 'the others'}")
        print(f"{lacking}; the others follow")
    return there


def studies_beside(reproduction: Reproduction) -> list[Reproduction]:
    """The studies of our own, each at its scale, where all experiments are shown."""
    from tyler.experiments import declared
    from tyler.experiments.scales import SCALES

    if set(reproduction.names) != set(declared.names()):
        return []
    every = {name: declared.find(name) for name in declared.studies()}
    at_scale = [(scale, [name for name in every if every[name].entries(scale)]) for scale in SCALES.values()]
    return [replace(reproduction, names=names, scale=scale) for scale, names in at_scale if names]


def check_code(reproduction: Reproduction, allowed: bool) -> None:
    """Raise ValueError where programs of the model would have to run, and may not."""
    from tyler.tasks import find_task

    tasks = [cell.questions.task for cell in reproduction.cells() if find_task(cell.questions.task).runs_code]
    if tasks and not allowed:
        raise ValueError(
            f"{tasks[0]} runs the programs of the model; give --allow-code-execution, or leave continual out"
        )


def say_where(reproduction: Reproduction) -> None:
    """The folder of every experiment."""
    for name in reproduction.names:
        print(f"{reproduction.folder / name}: results.json, tables and figures")
