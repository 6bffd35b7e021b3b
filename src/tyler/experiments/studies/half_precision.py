"""Whether Stage 2 learns in half precision as in float32: `mini`, three seeds, from the same Stage 1 in float32.

The gap between sampling and replay is in `metrics.jsonl` of every training run.
"""

from __future__ import annotations

from tyler.experiments.cells import Decoding
from tyler.experiments.scales import MINI, Rows
from tyler.experiments.studies import mini
from tyler.experiments.study import Comparison, Study, cells_of

HALVES = ("bfloat16", "float16")
ROWS: Rows = {
    "Stage 2": (mini.STAGE2, Decoding()),
    **{
        f"Stage 2 in {dtype}": (MINI.training("stage2", f"backbone.dtype={dtype}", start=mini.STAGE1), Decoding())
        for dtype in HALVES
    },
}
DECLARED = "2026-11-26T22:25:00+00:00"
"""When all of it was committed."""

STUDY = Study(
    title="Stage 2 in half precision",
    scale="mini",
    records="half-precision",
    columns=mini.COLUMNS,
    cells=cells_of(MINI.preset, ROWS, mini.COLUMNS.values(), MINI.seeds),
    groups={"dtype of rollouts and learner": tuple(ROWS)},
    comparisons=tuple(Comparison(f"Stage 2 in {dtype}", "Stage 2", DECLARED) for dtype in HALVES),
    kept={},
    dotted="Stage 2",
)
EXPERIMENT = STUDY.experiment
