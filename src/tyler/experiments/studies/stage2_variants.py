"""Stage 2 with each loss, in half precision with and without the correction, and on vLLM: `mini`, three seeds.

Needs an environment with vLLM (`make test-vllm` builds one). All start from the same Stage 1 in float32. The reward of
every step and the gap between sampling and replay are in `metrics.jsonl` of every training run.
"""

from __future__ import annotations

from tyler.experiments.cells import Decoding
from tyler.experiments.scales import MINI, Rows
from tyler.experiments.studies import mini
from tyler.experiments.study import Comparison, Study, cells_of

LOSSES: dict[str, tuple[str, ...]] = {
    "dapo": ("loss=dapo", "clip_range_high=0.28", "mask_truncated=true", "redraws=3"),
    "dr_grpo": ("loss=dr_grpo", "scale_rewards=none"),
    "bnpo": ("loss=bnpo",),
    "gspo": ("importance=sequence",),
}
"""What each changes of `grpo`, the paper's."""
HALVES = {
    "bfloat16": ("backbone.dtype=bfloat16",),
    "float16": ("backbone.dtype=float16",),
    "bfloat16, corrected by answer": ("backbone.dtype=bfloat16", "grpo.correction=sequence"),
    "bfloat16, not corrected": ("backbone.dtype=bfloat16", "grpo.correction=none"),
}
"""Where nothing is said, the correction is by token, the default."""


def changed(overrides: dict[str, tuple[str, ...]]) -> Rows:
    """Stage 2 with some settings changed, by what they are called."""
    return {
        f"Stage 2, {name}": (MINI.training("stage2", *changes, start=mini.STAGE1), Decoding())
        for name, changes in overrides.items()
    }


OTHER_LOSSES = changed({name: tuple(f"grpo.{change}" for change in changes) for name, changes in LOSSES.items()})
IN_HALF = changed(HALVES)
ON_VLLM = changed({"rollouts on vLLM": ("decoding.engine=vllm",)})
ROWS: Rows = {"Stage 2": (mini.STAGE2, Decoding()), **ON_VLLM, **IN_HALF, **OTHER_LOSSES}

DECLARED = "2026-11-27T07:17:43+00:00"
"""When all of it was committed."""

STUDY = Study(
    title="Stage 2 with other losses, in half precision and on vLLM",
    scale="mini",
    records="losses",
    columns=mini.COLUMNS,
    cells=cells_of(MINI.preset, ROWS, mini.COLUMNS.values(), MINI.seeds),
    groups={
        "engine of the rollouts": ("Stage 2", *ON_VLLM),
        "dtype of rollouts and learner": tuple(IN_HALF),
        "loss": tuple(OTHER_LOSSES),
    },
    comparisons=tuple(Comparison(row, "Stage 2", DECLARED) for row in (*ON_VLLM, *IN_HALF, *OTHER_LOSSES)),
    kept={},
    dotted="Stage 2",
)
EXPERIMENT = STUDY
