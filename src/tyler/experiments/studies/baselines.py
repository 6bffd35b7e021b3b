"""Tyler and the baselines on `mini`, as they are and at the cost of Tyler's answers."""

from __future__ import annotations

from tyler.experiments.scales import MINI, Rows, methods
from tyler.experiments.studies import mini
from tyler.experiments.study import Study, cells_of, declared

NAMES = ("SoftCoT", "Soft-Thinking", "MemGen", "SwiReasoning")
ROWS: Rows = {name: methods(MINI)[name] for name in NAMES}
KEPT = {
    "Stage 2": "tyler reproduce mini",
    "MemGen, weaver by GRPO": "tyler train memgen-weaver-grpo mini",
    "MemGen with trigger": "tyler train memgen-trigger mini",
    **{f"{name}, latents zeroed": "the last projection of the model is set to zero" for name in ("SoftCoT", "MemGen")},
    **{
        f"{name}, matched": "tyler eval MODEL --match DIR, DIR an evaluation of Tyler after Stage 2"
        for name in (*NAMES, "MemGen, weaver by GRPO", "MemGen with trigger")
    },
}
CHOICES = {
    "SoftCoT, training": {"learning_rate=1e-3": 239, "learning_rate=3e-3": 239, "learning_rate=1e-2": 238},
    "SoftCoT, setting": {"thoughts=4": 239, "thoughts=8": 237},
    "MemGen, weaver": {"learning_rate=1e-3": 226, "learning_rate=3e-3": 224, "learning_rate=1e-2": 228},
    "MemGen, weaver by GRPO": {"learning_rate=1e-3": 223, "learning_rate=2e-3": 227},
    "MemGen, trigger": {"learning_rate=2e-3": 228, "learning_rate=5e-3": 228},
    "Soft-Thinking": {"default": 138, "temperature=0.3": 137, "temperature=1.0": 122, "max_topk=3": 141},
    "SwiReasoning": {"default": 114, "window=8": 117, "window=32": 114},
}
"""Solved of 300 problems, 150 of `dev` and of `dev-harder`, with seed 42; the first of the best was kept."""
COMPARISONS = declared(
    {
        mini.PUBLISHED: [(name, f"{name}, latents zeroed") for name in ("SoftCoT", "MemGen")],
        mini.CLAIMED: [("Stage 2", name + more) for name in ("SoftCoT", "MemGen") for more in ("", ", matched")],
    }
)

STUDY = Study(
    title="Baselines on mini",
    scale="mini",
    records="baselines",
    columns=mini.COLUMNS,
    cells=cells_of(MINI.preset, ROWS, mini.COLUMNS.values(), MINI.seeds),
    groups={
        "Tyler, Stage 2": ("Stage 2",),
        "one pass over the problem": ("SoftCoT", "SoftCoT, latents zeroed", "MemGen", "MemGen, latents zeroed"),
        "MemGen, trained further": ("MemGen, weaver by GRPO", "MemGen with trigger"),
        "without training": ("Soft-Thinking", "SwiReasoning"),
        "at the cost of Tyler, Stage 2": tuple(row for row in KEPT if row.endswith("matched")),
    },
    comparisons=COMPARISONS,
    kept=KEPT,
    dotted="Stage 2",
    beside=(mini.STUDY.records,),
)
EXPERIMENT = STUDY
