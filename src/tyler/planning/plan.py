"""`tyler plan CONFIG`: what a config trains and how much memory each phase of every method needs, before any device is
rented.

Nothing is loaded and torch is not imported: parameters and bytes are `memory.py`'s, for the longest traces and answers
that the config allows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from rich import box
from rich.console import Console
from rich.table import Column, Table

from tyler.config.files import value_at
from tyler.config.loops import OptimizationConfig
from tyler.config.schema import Config
from tyler.config.sections import Section
from tyler.modeling.architectures import settings_of
from tyler.planning import memory
from tyler.planning.memory import Parameters, Parts, Shape, count_parameters
from tyler.planning.steps import DECODING, STEPS, planned_step, section_of
from tyler.training.micro_batches import LEAST_POSITIONS

MARGIN = 1.2
"""What is needed may be this much above the prediction: dry runs peaked up to 16% above it (docs/backbones.md)."""
BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
GIB, GB = 2**30, 10**9

Changes = dict[str, Any]
"""Settings by dotted key, to be changed in a config."""

Part = TypeVar("Part", bound=Section)
"""A config, or a section of one."""


def _step(method: str, shape: Shape, config: Config, element: int) -> Parts:
    return memory.step_memory(shape, config, planned_step(shape, config, method), element)


PHASES: dict[str, Callable[[Shape, Config, int], Parts]] = {
    "calibration": memory.calibration_memory,
    "rollout": memory.rollout_memory,
    **{f"{method} step": partial(_step, method) for method in STEPS},
}
"""What Stage 2 does before a step, and a step of every training."""


# ---------------------------------------------------------------------------------------------------------- devices


@dataclass(frozen=True)
class Device:
    """Something that computes: its memory in bytes, and whether `auto` weights are half precision there."""

    name: str
    memory: float
    half: bool = True
    packs: bool = False
    """Whether decoding keeps packed weights beside the others, as on a CPU."""


KNOWN = {
    name: Device(name, size * GB)
    for name, size in (
        ("RTX-4090", 24), ("A100-40GB", 40), ("L40S", 48), ("A100-80GB", 80), ("H100-80GB", 80), ("H200", 141),
        ("B200", 180),
    )
}  # fmt: skip
"""From small to large, with the memory of their data sheets."""
THIS = "this"
"""The name of the machine at hand."""


def device_named(name: str) -> Device:
    """A known device, the machine at hand, or one of so many GB. Raises ValueError for anything else."""
    by_name = {known.lower(): device for known, device in KNOWN.items()}
    if name.lower() in by_name:
        return by_name[name.lower()]
    if name == THIS:
        return this_device()
    if name.replace(".", "", 1).isdecimal() and float(name) > 0:
        return Device(f"{name} GB", float(name) * GB)
    raise ValueError(
        f"there is no device {name!r}; known are {', '.join(KNOWN)}; {THIS!r} is this machine, and any other is its "
        "memory in GB: --hardware 96"
    )


def this_device() -> Device:
    """The GPU of this machine, or its processor."""
    import psutil
    import torch

    from tyler.engine.native.packing import can_pack

    if torch.cuda.is_available():
        return Device(torch.cuda.get_device_name(), torch.cuda.mem_get_info()[1])
    return Device("this CPU", psutil.virtual_memory().total, half=False, packs=can_pack(torch.float32))


def dtype_on(config: Config, device: Device) -> str:
    """What `backbone.dtype` comes to there: auto is bfloat16 on a GPU and float32 on a CPU."""
    if config.backbone.dtype == "auto":
        return "bfloat16" if device.half else "float32"
    return config.backbone.dtype


# ----------------------------------------------------------------------------------------------------------- memory


@dataclass(frozen=True)
class Advice:
    """How one phase stands to one device: "fits", "tight" or "no", and what would make it fit."""

    verdict: str
    needed: int
    changes: Changes | None = None
    """None where no setting helps."""


def predicted(shape: Shape, config: Config, element: int, packs: bool = False) -> dict[str, Parts]:
    """Bytes of every phase by part, at the longest that the config allows; `packs` as of a Device."""
    return {name: of_phase(name, shape, config, element, packs) for name in PHASES}


def of_phase(phase: str, shape: Shape, config: Config, element: int, packs: bool) -> Parts:
    """Bytes of one phase by part."""
    packed = packs and phase.removesuffix(" step") in DECODING
    return PHASES[phase](shape, config, element) | (memory.packed_weights(shape, config, element) if packed else {})


def advise(shape: Shape, config: Config, phase: str, device: Device) -> Advice:
    """Whether a phase fits a device; where it does not, the mildest changes of settings after which it does."""
    element = BYTES[dtype_on(config, device)]

    def needed(candidate: Config) -> int:
        return sum(of_phase(phase, shape, candidate, element, device.packs).values())

    now = needed(config)
    if MARGIN * now <= device.memory:
        return Advice("fits", now, {})
    verdict = "tight" if now <= device.memory else "no"
    for changes in smaller(config, phase):
        if MARGIN * needed(changed(config, changes)) <= device.memory:
            return Advice(verdict, now, changes)
    return Advice(verdict, now)


def smaller(config: Config, phase: str) -> Iterator[Changes]:
    """Changes that need less memory, from what costs least to what changes the training."""
    if phase == "rollout":
        yield from ({"decoding.slots": slots} for slots in range(config.decoding.slots - 1, 0, -1))
        return
    if phase == "calibration":
        problems = config.stage2.calibration.num_problems
        while problems // 2 >= 1:
            problems //= 2
            yield {"stage2.calibration.num_problems": problems}
        return
    method = phase.removesuffix(" step")
    section = section_of(method)
    loop = config.loops[section]
    changes: Changes = {}
    if not loop.gradient_checkpointing:
        changes[f"{section}.gradient_checkpointing"] = True
        yield dict(changes)
    key, rows, fewest = micro_batches_to_halve(loop, config.rows(section))
    longest = f"{section}.max_new_tokens" if hasattr(loop, "max_new_tokens") else "stage1.max_length"
    for name, value, least in ((f"{section}.{key}", rows, fewest), (longest, value_at(config, longest), 256)):
        while value // 2 >= least:
            value //= 2
            changes[name] = value
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


def run(config: Config, devices: Sequence[str] = ()) -> None:
    """Print the plan for the named devices, by default all that are known."""
    shape = Shape.read(settings_of(config.backbone.id))
    chosen = [device_named(name) for name in devices] or list(KNOWN.values())
    console = Console(highlight=False)
    console.print(f"{config.backbone.id}: a plan from shapes alone; nothing was loaded")
    console.print(parameter_table(count_parameters(shape, config.lora, config.operators)))
    for dtype, packs in dict.fromkeys((dtype_on(config, device), device.packs) for device in chosen):
        title = f"memory in {dtype}{' on a CPU' if packs else ''}, at the config's longest (GiB)"
        console.print(memory_table(predicted(shape, config, BYTES[dtype], packs), title))
    console.print(device_table(shape, config, chosen))
    for line in advice_lines(shape, config, chosen):
        console.print(line, soft_wrap=True)


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


def memory_table(phases: dict[str, Parts], title: str) -> Table:
    """What every phase needs, in all and by part."""
    table = Table("phase", "predicted", "by part", title=title)
    for name, parts in phases.items():
        table.add_row(name, f"{sum(parts.values()) / GIB:.2f}", by_part(parts))
    return table


def by_part(parts: Parts) -> str:
    """The parts in GiB, in one line."""
    return ", ".join(f"{name} {size / GIB:.2f}" for name, size in parts.items())


def device_table(shape: Shape, config: Config, devices: Sequence[Device]) -> Table:
    """Which phases fit which devices."""
    heads = [device.name.replace("-", "\n") for device in devices]
    table = Table(Column("phase", no_wrap=True), *heads, title="what fits", box=box.SIMPLE)
    for phase in PHASES:
        verdicts = [advise(shape, config, phase, device).verdict for device in devices]
        table.add_row(phase.removesuffix(" step"), *verdicts)
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
    return " ".join(f"--{key} {as_yaml(value)}" for key, value in changes.items())


def as_yaml(value: object) -> str:
    """A setting as YAML has it."""
    return str(value).lower() if isinstance(value, bool) else str(value)
