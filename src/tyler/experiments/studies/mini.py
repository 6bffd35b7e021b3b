"""The study on `mini`: every claim of the paper that this scale can test, over three seeds."""

from __future__ import annotations

from itertools import combinations

from tyler.experiments.cells import Decoding, Training
from tyler.experiments.scales import HARD_CAP, MINI, Rows, methods
from tyler.experiments.study import Study, cells_of, declared

COLUMNS = MINI.tasks
OPERATORS = ("global", "state", "procedure")

STAGE1 = MINI.training("stage1")
ONE = MINI.training("stage1", "stage1.insertions.max=1", "stage1.insertions.first=null")
STAGE2 = MINI.training("stage2", start=STAGE1)

CHANGED: dict[str, tuple[str, ...]] = {
    "Stage 2 without anchor": ("grpo.anchor_weight=0",),
    "Stage 2 without budget penalty": ("grpo.budget_weight=0",),
    "Stage 2, budget weight 0.5": ("grpo.budget_weight=0.5",),
    "Stage 2, budget 2": ("grpo.budget=2",),
    "Stage 2, budget 1, weight 0.5": ("grpo.budget=1", "grpo.budget_weight=0.5"),
    "Stage 2, psi from 0.1": ("stage2.calibration.rate=0.1",),
    "Stage 2, psi from 0.02": ("stage2.calibration.rate=0.02",),
}
MEANS = (
    "Stage 1, all boundaries, mean latents",
    *(f"Stage 1, {name} alone, mean latents" for name in OPERATORS),
    "Stage 2, mean latents",
)
AVERAGED = "latents averaged over the 300 development problems; the intervention `means` averages over 100"


def intervened(rows: dict[str, str]) -> Rows:
    """The model after Stage 2 under interventions, with a hard cap on its calls."""
    return {row: (STAGE2, Decoding(intervention=name, budget=HARD_CAP)) for row, name in rows.items()}


GROUPS: dict[str, dict[str, tuple[Training, Decoding] | None]] = {
    "without operators": {name: methods(MINI)[name] for name in ("CoT", "SFT", "GRPO")},
    "Stage 1: who is called": {
        "Stage 1, all boundaries": (STAGE1, Decoding()),
        **{
            f"Stage 1, random {rate:.0%}": (STAGE1, Decoding(router=f"boundaries:{rate}")) for rate in (0.75, 0.5, 0.25)
        },
        **{f"Stage 1, {name} alone": (STAGE1, Decoding(only=(name,))) for name in OPERATORS},
        "Stage 1, never": (STAGE1, Decoding(router="never")),
        "Stage 1 of one insertion, all boundaries": (ONE, Decoding()),
        "Stage 1 of one insertion, global alone": (ONE, Decoding(only=("global",))),
    },
    "Stage 1: what they say": {
        **dict.fromkeys(MEANS[:-1]),
        "Stage 1, all boundaries, latents zeroed": (STAGE1, Decoding(intervention="zeros")),
    },
    "Stage 2: how it is trained": {
        "Stage 2": (STAGE2, Decoding()),
        **{row: (MINI.training("stage2", *more, start=STAGE1), Decoding()) for row, more in CHANGED.items()},
        "Stage 2 after one insertion": (MINI.training("stage2", start=ONE), Decoding()),
    },
    "Stage 2: one operator taken away": {
        **intervened({f"Stage 2, {name} removed": f"remove {name}" for name in OPERATORS}),
        **intervened({f"Stage 2, {name} zeroed": f"zero {name}" for name in OPERATORS}),
        "Stage 2, operators masked": (STAGE2, Decoding(router="never")),
        **intervened({"Stage 2, latents zeroed": "zeros"}),
        MEANS[-1]: None,
    },
    "Stage 2: one for another": {
        **intervened({f"Stage 2, {name} for all": f"share {name}" for name in OPERATORS}),
        **intervened(
            {
                f"Stage 2, {first} and {other} swapped": f"swap {first} {other}"
                for first, other in combinations(OPERATORS, 2)
            }
        ),
    },
}
"""The rows as the figure shows them; what has no training is read and not run."""
ROWS: Rows = {row: how for rows in GROUPS.values() for row, how in rows.items() if how is not None}

PUBLISHED, CLAIMED = "2026-11-26T13:38:27+00:00", "2026-11-27T19:55:00+00:00"
"""When these comparisons were declared in a file: long after they, or what they say, had been published."""
ALL, ALONE = "Stage 1, all boundaries", "Stage 1, global alone"
DECLARED: dict[str, tuple[tuple[str, str], ...]] = {
    PUBLISHED: (
        ("SFT", "CoT"),
        *((ALL, row) for row in ("SFT", "Stage 1, never", ALONE, f"{ALL}, latents zeroed", f"{ALL}, mean latents")),
        (ALONE, f"{ALONE}, mean latents"),
        *(("Stage 2", row) for row in ("SFT", "GRPO", ALL, "Stage 2, operators masked")),
        *(("Stage 2", f"Stage 2, {latents}") for latents in ("latents zeroed", "mean latents")),
        *(("Stage 2", row) for row in CHANGED),
    ),
    CLAIMED: (
        ("Stage 2", ALONE),
        *(("Stage 2", f"Stage 1, random {rate}%") for rate in (25, 50, 75)),
        *(("Stage 2", f"Stage 2, {name} removed") for name in OPERATORS),
        ("Stage 2", "Stage 2, global for all"),
        ("Stage 2", "Stage 2 after one insertion"),
        *((ALONE, f"Stage 1, {name} alone") for name in OPERATORS[1:]),
        (ALL, "Stage 1 of one insertion, all boundaries"),
        (ALONE, "Stage 1 of one insertion, global alone"),
    ),
}
COMPARISONS = declared(DECLARED)


STUDY = Study(
    title="The study on mini",
    scale="mini",
    records="mini",
    columns=COLUMNS,
    cells=cells_of(MINI.preset, ROWS, COLUMNS.values(), MINI.seeds),
    groups=GROUPS,
    comparisons=COMPARISONS,
    kept=dict.fromkeys(MEANS, AVERAGED),
)
EXPERIMENT = STUDY
