"""`tyler plan CONFIG`: what a config trains, needs and takes, before any device is rented.

Nothing is loaded and torch is not imported: parameters and memory are `memory.py`'s, times `roofline.py`'s. Memory is
planned for the longest traces and answers that the config allows, time for mean lengths, which no config knows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from rich.console import Console
from rich.table import Table

from tyler.config.loops import OptimizationConfig
from tyler.config.schema import Config
from tyler.config.sections import Section
from tyler.modeling.architectures import settings_of
from tyler.planning import memory
from tyler.planning.hardware import GB, KNOWN, TERA, THIS, Device, device_named
from tyler.planning.memory import Parameters, Parts, Shape, Workload, count_parameters
from tyler.planning.roofline import (
    Cost,
    Lengths,
    learning_costs,
    mean_latents,
    rollout_costs,
    stage1_costs,
    total_seconds,
)
from tyler.training.micro_batches import LEAST_POSITIONS

MARGIN = 1.2
"""What is needed may be this much above the prediction: dry runs peaked up to 16% above it (docs/backbones.md)."""
BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
ANSWERS = 1000
"""Of the evaluation whose time is shown."""
GIB = 2**30

PHASES: dict[str, Callable[[Shape, Config, Workload, int], Parts]] = {
    "Stage 1 step": memory.stage1_memory,
    "calibration": memory.calibration_memory,
    "rollout": memory.rollout_memory,
    "Stage 2 step": memory.stage2_memory,
}

Changes = dict[str, Any]
"""Settings by dotted key, to be changed in a config."""

Part = TypeVar("Part", bound=Section)
"""A config, or a section of one."""


@dataclass(frozen=True)
class Times:
    """Seconds on one device, by stage; the steps' parts are one step's."""

    stage1_steps: int
    stage1: dict[str, float]
    start: float
    stage2_steps: int
    rollout: dict[str, float]
    learning: dict[str, float]
    evaluation: float
    answer: float

    @property
    def stage1_total(self) -> float:
        return self.stage1_steps * sum(self.stage1.values())

    @property
    def stage2_total(self) -> float:
        return self.start + self.stage2_steps * (sum(self.rollout.values()) + sum(self.learning.values()))


@dataclass(frozen=True)
class Advice:
    """How one phase stands to one device: "fits", "tight" or "too large", and what would make it fit."""

    verdict: str
    needed: int
    changes: Changes | None = None
    """None where no setting helps."""


def predicted(shape: Shape, config: Config, element: int) -> dict[str, Parts]:
    """Bytes of every phase by part, at the longest that the config allows."""
    work = Workload.of(config)
    return {name: phase(shape, config, work, element) for name, phase in PHASES.items()}


def dtype_on(config: Config, device: Device) -> str:
    """What `backbone.dtype` comes to there: auto is bfloat16 on a GPU and float32 on a CPU."""
    if config.backbone.dtype == "auto":
        return "bfloat16" if device.queued else "float32"
    return config.backbone.dtype


# ------------------------------------------------------------------------------------------------------------- time


def lengths_for(config: Config, prompt: int, target: int, answer: int) -> Lengths:
    """The given mean lengths, as far as the config allows them, and as many calls as its budget."""
    latents = math.ceil(config.stage1.insertions.max * mean_latents(config))
    room = config.stage1.max_length - prompt - latents
    if room < 1:
        raise ValueError(f"prompts of {prompt} tokens leave no room in stage1.max_length={config.stage1.max_length}")
    actions = min(answer, config.stage2.max_new_tokens)
    return Lengths(prompt, min(target, room), actions, min(config.grpo.budget, actions - 1))


def steps_of(config: OptimizationConfig, examples: int | None, section: str) -> int:
    """Optimizer steps of a stage. Raises ValueError where the number of examples is not given."""
    if config.steps is None and examples is None:
        raise ValueError(
            f"data.count is null, so nothing says how long an epoch is: give --examples, or {section}.steps"
        )
    return config.num_steps(examples or 0)


def times_on(shape: Shape, config: Config, lengths: Lengths, device: Device, examples: int | None) -> Times:
    """The estimate; `examples` replaces `data.count`."""
    dtype = dtype_on(config, device)
    element, count = BYTES[dtype], examples or config.data.examples
    stage2, alone = (
        config.stage2,
        config.model_copy(update={"decoding": config.decoding.model_copy(update={"slots": 1})}),
    )

    def seconds(costs: dict[str, Cost], times: float = 1) -> dict[str, float]:
        return {name: times * cost.seconds(device, dtype) for name, cost in costs.items()}

    rollouts = config.rows("stage2")
    calibration = rollout_costs(shape, config, lengths, stage2.calibration.num_problems, element)
    return Times(
        stage1_steps=steps_of(config.stage1, count, "stage1"),
        stage1=seconds(stage1_costs(shape, config, lengths, element)),
        start=total_seconds(calibration, device, dtype),
        stage2_steps=steps_of(stage2, count, "stage2"),
        rollout=seconds(rollout_costs(shape, config, lengths, rollouts, element)),
        learning=seconds(learning_costs(shape, config, lengths, element), config.grpo.updates_per_rollout),
        evaluation=total_seconds(rollout_costs(shape, config, lengths, ANSWERS, element), device, dtype),
        answer=total_seconds(rollout_costs(shape, alone, lengths, 1, element), device, dtype),
    )


# ----------------------------------------------------------------------------------------------------------- memory


def advise(shape: Shape, config: Config, phase: str, device: Device) -> Advice:
    """Whether a phase fits a device; where it does not, the mildest changes of settings after which it does."""
    element = BYTES[dtype_on(config, device)]

    def needed(one: Config) -> int:
        return sum(PHASES[phase](shape, one, Workload.of(one), element).values())

    now = needed(config)
    if MARGIN * now <= device.memory:
        return Advice("fits", now, {})
    verdict = "tight" if now <= device.memory else "too large"
    for changes in smaller(config, phase):
        if MARGIN * needed(changed(config, changes)) <= device.memory:
            return Advice(verdict, now, changes)
    return Advice(verdict, now)


def smaller(config: Config, phase: str) -> Iterator[Changes]:
    """Changes that need less memory, from what costs least to what changes the training."""
    if phase == "rollout":
        for slots in range(config.decoding.slots - 1, 0, -1):
            yield {"decoding.slots": slots}
        return
    if phase == "calibration":
        problems = config.stage2.calibration.num_problems
        while problems // 2 >= 1:
            problems //= 2
            yield {"stage2.calibration.num_problems": problems}
        return
    section = phase.split(" step")[0].lower().replace(" ", "")
    settings = getattr(config, section)
    changes: Changes = {}
    if not settings.gradient_checkpointing:
        changes[f"{section}.gradient_checkpointing"] = True
        yield dict(changes)
    for key, value, least in (
        micro_batches_to_halve(settings, config.rows(section)),
        *((key, getattr(settings, key), 256) for key in ("max_length", "max_new_tokens") if hasattr(settings, key)),
    ):
        while value // 2 >= least:
            value //= 2
            changes[f"{section}.{key}"] = value
            yield dict(changes)


def micro_batches_to_halve(settings: OptimizationConfig, rows: int) -> tuple[str, int, int]:
    """The setting that cuts a batch, what it is at, and its least; `auto` is at its least already."""
    tokens = settings.micro_batch_tokens
    if tokens is None:
        return "micro_batch_size", settings.micro_batch_size or rows, 1
    return "micro_batch_tokens", LEAST_POSITIONS if tokens == "auto" else tokens, LEAST_POSITIONS


def changed(config: Config, changes: Changes) -> Config:
    """The config with some settings replaced."""
    for key, value in changes.items():
        config = replaced(config, key, value)
    return config


def replaced(section: Part, key: str, value: Any) -> Part:
    """A copy of a config, or of a section of it, with the value at a dotted key."""
    name, _, rest = key.partition(".")
    return section.model_copy(update={name: replaced(getattr(section, name), rest, value) if rest else value})


# ------------------------------------------------------------------------------------------------------- the tables


def run(
    config: Config,
    *,
    devices: Sequence[str] = (),
    prompt: int,
    target: int,
    answer: int,
    examples: int | None = None,
) -> None:
    """Print the plan for the named devices, by default all that are known; for one alone also its steps by part."""
    for name, value in (("prompt", prompt), ("trace", target), ("answer", answer), ("examples", examples)):
        if value is not None and value < 1:
            raise ValueError(f"--{name} {value}: at least 1 is needed")
    shape = Shape.read(settings_of(config.backbone.id))
    lengths = lengths_for(config, prompt, target, answer)
    chosen = [find(name, config) for name in devices] or list(KNOWN.values())
    times = {device.name: times_on(shape, config, lengths, device, examples) for device in chosen}
    console = Console(highlight=False)
    console.print(f"{config.backbone.id}: a plan from shapes alone; nothing was loaded")
    console.print(parameter_table(count_parameters(shape, config.lora, config.operators)))
    for dtype in dict.fromkeys(dtype_on(config, device) for device in chosen):
        console.print(memory_table(shape, config, dtype))
        for line in checkpointing_lines(shape, config, dtype):
            console.print(line, soft_wrap=True)
    console.print(device_table(shape, config, chosen, times))
    if len(chosen) == 1:
        console.print(part_table(times[chosen[0].name], chosen[0]))
    for line in (*advice_lines(shape, config, chosen), *assumptions(config, lengths, chosen)):
        console.print(line, soft_wrap=True)


def find(name: str, config: Config) -> Device:
    """A device by name, by numbers, or the machine at hand, which is measured."""
    if name != THIS:
        return device_named(name)
    from tyler.planning.device_benchmark import this_device

    return this_device(config.backbone.dtype)


def parameter_table(counts: Parameters) -> Table:
    """Every part, and which stage trains it."""
    table = Table("part", "parameters", "trained in", title="parameters")
    for part, count, stage in (
        ("backbone", counts.backbone, "never"),
        ("LoRA phi", counts.phi, "Stage 1"),
        ("queries", counts.queries, "Stage 1"),
        ("projections", counts.projections, "Stage 1"),
        ("LoRA eta", counts.eta, "Stage 2"),
        ("psi", counts.psi, "Stage 2"),
        ("trained in Stage 1", counts.stage1, ""),
        ("trained in Stage 2", counts.stage2, ""),
    ):
        table.add_row(part, f"{count:,}", stage)
    table.columns[1].justify = "right"
    return table


def memory_table(shape: Shape, config: Config, dtype: str) -> Table:
    """Every part of every phase, and their sum."""
    phases = predicted(shape, config, BYTES[dtype])
    parts = dict.fromkeys(part for one in phases.values() for part in one)
    work = Workload.of(config)
    headings = [
        f"Stage 1 step\n{work.prefix.rows} traces",
        f"calibration\n{config.stage2.calibration.num_problems} answers",
        f"rollout\n{work.slots} slots",
        f"Stage 2 step\n{work.replay.rows} answers",
    ]
    table = Table("GiB", *headings, title=f"memory in {dtype}, at the config's longest")
    for part in parts:
        table.add_row(part, *(f"{one[part] / GIB:.2f}" if part in one else "" for one in phases.values()))
    table.add_section()
    table.add_row("in all", *(f"{sum(one.values()) / GIB:.2f}" for one in phases.values()))
    for column in table.columns[1:]:
        column.justify = "right"
    return table


def checkpointing_lines(shape: Shape, config: Config, dtype: str) -> Iterator[str]:
    """What a step of each stage needs with gradient checkpointing the other way, as an option of the command line."""
    for stage, phase in (("stage1", "Stage 1 step"), ("stage2", "Stage 2 step")):
        switched = {f"{stage}.gradient_checkpointing": not getattr(config, stage).gradient_checkpointing}
        total = sum(predicted(shape, changed(config, switched), BYTES[dtype])[phase].values()) / GIB
        yield f"{phase}: {total:.2f} GiB in {dtype} with {options(switched)}"


def device_table(shape: Shape, config: Config, devices: Sequence[Device], times: dict[str, Times]) -> Table:
    """What fits where, and how long it takes there."""
    one = next(iter(times.values()))
    headings = [f"Stage 1\n{one.stage1_steps:,} steps", f"Stage 2\n{one.stage2_steps:,} steps", f"{ANSWERS:,}\nanswers"]
    table = Table("device", "memory", *headings, "one\nanswer", title="estimated time")
    for device in devices:
        found = [advise(shape, config, phase, device) for phase in PHASES]
        worst = next((name for name in ("too large", "tight") if name in [one.verdict for one in found]), "fits")
        estimate = times[device.name]
        table.add_row(
            device.name,
            f"{max(one.needed for one in found) / GB:.0f} of {device.memory / GB:.0f} GB, {worst}",
            duration(estimate.stage1_total),
            duration(estimate.stage2_total),
            duration(estimate.evaluation),
            duration(estimate.answer),
        )
    for column in table.columns[2:]:
        column.justify = "right"
    return table


def part_table(times: Times, device: Device) -> Table:
    """One step of each stage, by part."""
    table = Table("step", "part", "time", "share", title=f"one step on {device.name}")
    for step, parts in (
        ("Stage 1", times.stage1),
        ("Stage 2, rollout", times.rollout),
        ("Stage 2, learning", times.learning),
    ):
        whole = sum(parts.values())
        for index, (part, seconds) in enumerate(parts.items()):
            table.add_row(step if not index else "", part, duration(seconds), f"{seconds / whole:.0%}")
    table.add_row("Stage 2, once", "start of psi", duration(times.start), "")
    for column in table.columns[2:]:
        column.justify = "right"
    return table


def advice_lines(shape: Shape, config: Config, devices: Sequence[Device]) -> Iterator[str]:
    """What to change where a phase does not fit, as options of the command line."""
    for device in devices:
        for phase in PHASES:
            advice = advise(shape, config, phase, device)
            if advice.verdict == "fits":
                continue
            needs = f"{device.name}: the {phase} needs about {advice.needed / GB:.0f} of {device.memory / GB:.0f} GB"
            if advice.changes is None:
                yield f"{needs}; no setting makes it fit: take a larger device"
            else:
                yield f"{needs}; it fits with {options(advice.changes)}"


def options(changes: Changes) -> str:
    """Changed settings as options of the command line, to be pasted."""
    return " ".join(f"--{key} {plain(value)}" for key, value in changes.items())


def plain(value: object) -> str:
    """A setting as YAML has it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def assumptions(config: Config, lengths: Lengths, devices: Sequence[Device]) -> Iterator[str]:
    """What the times stand on."""
    yield (
        f"Times are for prompts of {lengths.prompt} tokens, traces of {lengths.target}, answers of {lengths.answer} "
        f"actions and {lengths.calls:g} calls (--prompt, --trace, --answer, grpo.budget), without padding, grading, "
        "loading and checkpoints. They are a roofline, not a measurement: docs/plan.md says how far off it was."
    )
    for device in devices:
        rate = device.rate(dtype_on(config, device)) / TERA
        yield (
            f"{device.name}: assuming {device.bandwidth / GB:.4g} GB/s, {rate:.3g} TFLOP/s and "
            f"{device.launch * 1e3:.2g} ms to start a layer; {device.source}."
        )


def duration(seconds: float) -> str:
    """Two or three digits in a unit that people read."""
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} s" if seconds >= 1 else f"{seconds * 1e3:.0f} ms"
