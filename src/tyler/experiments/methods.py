"""The methods of the paper's tables as trainings and decodings of a scale, and the colour each has everywhere."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tyler.experiments.cells import LATENCY, Cell, Decoding, Training
from tyler.experiments.scales import Scale

COT, SFT, GRPO, SOFTCOT, SOFT_THINKING = "CoT", "SFT", "GRPO", "SoftCoT", "Soft-Thinking"
MEMGEN, SWIREASONING, STAGE1, STAGE2 = "MemGen", "SwiReasoning", "Tyler, Stage 1", "Tyler, Stage 2"
TYLER = "Tyler"

COLOURS: Mapping[str, str] = {
    COT: "#666666",
    SFT: "#e69f00",
    GRPO: "#882255",
    SOFTCOT: "#cc79a7",
    SOFT_THINKING: "#999999",
    MEMGEN: "#009e73",
    SWIREASONING: "#000000",
    STAGE1: "#56b4e9",
    STAGE2: "#0072b2",
    TYLER: "#0072b2",
    "global": "#0072b2",
    "state": "#d55e00",
    "procedure": "#009e73",
    "seconds": "#d55e00",
}
"""Of methods and operators: the palette of Okabe and Ito, which people who see few colours tell apart, and greys.

In the place of its yellow, faint on white, stands Tol's wine."""

HARD_CAP = 16
"""Calls of an answer whose latents are not those that the policy learned with: it may call for more without end."""


def methods(scale: Scale) -> dict[str, tuple[Training, Decoding]]:
    """Every method of the main table, in its order."""
    tyler1 = scale.training("stage1")
    soft, switching = (scale.decoded.get(name, ()) for name in ("soft-thinking", "swireasoning"))
    return {
        COT: (Training(), Decoding(router="never")),
        SFT: (scale.training("sft"), Decoding()),
        GRPO: (scale.training("grpo"), Decoding()),
        SOFTCOT: (scale.training("softcot"), Decoding("softcot")),
        SOFT_THINKING: (Training(), Decoding("soft-thinking", soft)),
        MEMGEN: (scale.training("memgen"), Decoding("memgen")),
        SWIREASONING: (Training(), Decoding("swireasoning", switching)),
        STAGE1: (tyler1, Decoding()),
        STAGE2: (scale.training("stage2", start=tyler1), Decoding()),
    }


TIMED = "timed"
"""The group of entries whose answers are timed one by one."""


def timed_cell(scale: Scale, row: str, made: tuple[Training, Decoding], column: str) -> Cell:
    """A method's cell on some problems of a column, one answer at a time; of the first seed alone."""
    asked = replace(scale.tasks[column], count=scale.timed)
    return Cell(row, scale.preset, *made, asked, scale.seeds[0], LATENCY).unseeded


def cell(scale: Scale, row: str, preset: str, made: tuple[Training, Decoding], column: str, seed: int) -> Cell:
    """A method's cell on the problems of a column."""
    return Cell(row, preset, *made, scale.tasks[column], seed)
