"""The two studies on `mini` as cells: which training and decoding each of their records is of.

Both were run before cells had hashes (`scripts/study_mini.py`, `scripts/compare_mini.py`). `index` names their records
as the cells they are, so that experiments read them and run nothing twice. What has no cell (answers matched in cost,
latents averaged over other problems, silenced baselines) stays with the scripts.
"""

from __future__ import annotations

from pathlib import Path

from tyler.experiments.cells import Cell, Decoding, Questions, Sources, Training, name_of
from tyler.experiments.methods import HARD_CAP, methods
from tyler.experiments.scales import MINI

SEEDS = (42, 43, 44)
SPLITS = {"eval": 160, "harder": 192}
OPERATORS = ("global", "state", "procedure")
PAIRS = (("global", "state"), ("global", "procedure"), ("state", "procedure"))

Rows = dict[str, tuple[Training, Decoding]]
"""By the name of a record's file, without its seed."""

STAGE1 = MINI.training("stage1")
ONE = MINI.training("stage1", "stage1.insertions.max=1", "stage1.insertions.first=null")
STAGE2 = MINI.training("stage2", start=STAGE1)

CHANGED: dict[str, tuple[str, ...]] = {
    "without-anchor": ("grpo.anchor_weight=0",),
    "without-budget-penalty": ("grpo.budget_weight=0",),
    "budget-weight-0.5": ("grpo.budget_weight=0.5",),
    "budget-2": ("grpo.budget=2",),
    "budget-1-weight-0.5": ("grpo.budget=1", "grpo.budget_weight=0.5"),
    "psi-from-0.1": ("stage2.calibration.rate=0.1",),
    "psi-from-0.02": ("stage2.calibration.rate=0.02",),
}
"""Of Stage 2, by the end of the record's name."""


def study() -> Rows:
    """The records of docs/results/mini."""
    known = methods(MINI)
    return {
        "cot": known["CoT"],
        "sft": known["SFT"],
        "grpo": known["GRPO"],
        **{f"stage-1-{name}": (STAGE1, decoding) for name, decoding in routed().items()},
        "stage-1-of-one-insertion-all-boundaries": (ONE, Decoding()),
        "stage-1-of-one-insertion-global-alone": (ONE, Decoding(only=("global",))),
        "stage-2": (STAGE2, Decoding()),
        "stage-2-after-one-insertion": (MINI.training("stage2", start=ONE), Decoding()),
        "stage-2-operators-masked": (STAGE2, Decoding(router="never")),
        **{
            f"stage-2-{name}": (MINI.training("stage2", *more, start=STAGE1), Decoding())
            for name, more in CHANGED.items()
        },
        **{f"stage-2-{name}": (STAGE2, decoding) for name, decoding in intervened().items()},
    }


def routed() -> dict[str, Decoding]:
    """Of the model after Stage 1."""
    return {
        "all-boundaries": Decoding(),
        "never": Decoding(router="never"),
        **{f"{name}-alone": Decoding(only=(name,)) for name in OPERATORS},
        **{f"random-{rate:.0%}".removesuffix("%"): Decoding(router=f"boundaries:{rate}") for rate in (0.25, 0.5, 0.75)},
        "all-boundaries-latents-zeroed": Decoding(intervention="zeros"),
    }


def intervened() -> dict[str, Decoding]:
    """Of the model after Stage 2."""
    done = {
        "latents-zeroed": "zeros",
        **{f"{name}-removed": f"remove {name}" for name in OPERATORS},
        **{f"{name}-zeroed": f"zero {name}" for name in OPERATORS},
        **{f"{name}-for-all": f"share {name}" for name in OPERATORS},
        **{f"{one}-and-{other}-swapped": f"swap {one} {other}" for one, other in PAIRS},
    }
    return {name: Decoding(intervention=what, budget=HARD_CAP) for name, what in done.items()}


def comparison() -> Rows:
    """The records of docs/results/baselines."""
    known = methods(MINI)
    return {name.lower(): known[name] for name in ("SoftCoT", "Soft-Thinking", "MemGen", "SwiReasoning")}


def index(folder: Path, rows: Rows) -> dict[str, tuple[str, str]]:
    """The file and the split that each cell's record is, of those that are there."""
    sources, found = Sources({}), {}
    for row, (training, decoding) in rows.items():
        for seed in SEEDS:
            if not (folder / f"{row}-{seed}.json").is_file():
                continue
            for split, longest in SPLITS.items():
                cell = Cell(row, "mini", training, decoding, Questions("mini", split, None, longest), seed)
                found[name_of(cell.unseeded.identity(sources))] = (f"{row}-{seed}.json", split)
    return found
