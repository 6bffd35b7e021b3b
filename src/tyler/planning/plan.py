"""`tyler plan CONFIG`: what a config trains and how much memory each phase of every method needs, before any device is
rented.

Nothing is loaded and torch is not imported: parameters and bytes are `memory.py`'s, for the longest traces and answers
that the config allows.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Console
from rich.table import Column, Table

from tyler.config.loops import TracesConfig
from tyler.config.schema import Config
from tyler.modeling.architectures import settings_of
from tyler.planning import memory
from tyler.planning.memory import Parts
from tyler.reasoners.table import TRAININGS, find_training
from tyler.training.planned import Parameters, Shape, count_parameters

MARGIN = 1.25
"""What is needed may be this much above the prediction: dry runs peaked up to 20% above it (docs/backbones.md)."""
BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
GIB, GB = 2**30, 10**9


BEFORE: dict[str, Callable[[Shape, Config, int], Parts]] = {
    "calibration": memory.calibration_memory,
    "rollout": memory.rollout_memory,
}
"""What Stage 2 does before a step."""


PHASES = (*BEFORE, *(f"{name} step" for name in TRAININGS))
"""These, and a step of every training; `FILE.py:NAME step` is one of a method outside the package."""


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


def device_named(name: str) -> Device:
    """A known device, the machine at hand, or one of so many GB. Raises ValueError for anything else."""
    by_name = {known.lower(): device for known, device in KNOWN.items()}
    if name.lower() in by_name:
        return by_name[name.lower()]
    if name == "this":
        return this_device()
    if name.replace(".", "", 1).isdecimal() and float(name) > 0:
        return Device(f"{name} GB", float(name) * GB)
    raise ValueError(
        f"there is no device {name!r}; known are {', '.join(KNOWN)}; 'this' is this machine, and any other is its "
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


def predicted(
    shape: Shape, config: Config, element: int, packs: bool = False, phases: Sequence[str] = PHASES
) -> dict[str, Parts]:
    """Bytes of every phase by part, at the longest that the config allows; `packs` as of a Device."""
    return {phase: of_phase(phase, shape, config, element, packs) for phase in phases}


def of_phase(phase: str, shape: Shape, config: Config, element: int, packs: bool = False) -> Parts:
    """Bytes of one phase by part. Raises ValueError for a step that its method does not describe."""
    packed = memory.packed_weights(shape, config, element) if packs else {}
    if phase in BEFORE:
        return BEFORE[phase](shape, config, element) | packed
    training = find_training(phase.removesuffix(" step"))
    parts = memory.step_memory(shape, config, training.step(shape, config), element)
    return parts if isinstance(config.loops[training.loop], TracesConfig) else parts | packed


def verdict(shape: Shape, config: Config, phase: str, device: Device) -> str:
    """How a phase stands to a device: it "fits" with MARGIN, is "tight" without it, or does not fit: "no"."""
    needed = sum(of_phase(phase, shape, config, BYTES[dtype_on(config, device)], device.packs).values())
    if MARGIN * needed <= device.memory:
        return "fits"
    return "tight" if needed <= device.memory else "no"


def run(config: Config, devices: Sequence[str] = (), method: str | None = None) -> None:
    """Print the plan for the named devices, by default all that are known; with a method outside the package too."""
    shape = Shape.read(settings_of(config.backbone.id))
    chosen = [device_named(name) for name in devices] or list(KNOWN.values())
    phases = PHASES if method is None else tuple(dict.fromkeys((*PHASES, f"{method} step")))
    console = Console(highlight=False)
    console.print(f"{config.backbone.id}: a plan from shapes alone; nothing was loaded")
    console.print(parameter_table(count_parameters(shape, config.lora, config.operators)))
    for dtype, packs in dict.fromkeys((dtype_on(config, device), device.packs) for device in chosen):
        title = f"memory in {dtype}{' on a CPU' if packs else ''}, at the config's longest (GiB)"
        console.print(memory_table(predicted(shape, config, BYTES[dtype], packs, phases), title))
    console.print(device_table(shape, config, chosen, phases))


def parameter_table(counts: Parameters) -> Table:
    """Every part, and which stage trains it."""
    table = Table("part", Column("parameters", justify="right"), "trained in", title="parameters")
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


def device_table(shape: Shape, config: Config, devices: Sequence[Device], phases: Sequence[str] = PHASES) -> Table:
    """Which phases fit which devices."""
    heads = [device.name.replace("-", "\n") for device in devices]
    table = Table(Column("phase", no_wrap=True), *heads, title="what fits", box=box.SIMPLE)
    for phase in phases:
        table.add_row(phase.removesuffix(" step"), *(verdict(shape, config, phase, device) for device in devices))
    return table
