"""What was tried on `mini` because Tyler does not pass SFT: chosen by, and only run on, development problems."""

from __future__ import annotations

from tyler.experiments.cells import Decoding, Questions, Training
from tyler.experiments.scales import MINI, Rows
from tyler.experiments.studies import mini
from tyler.experiments.studies.mini import STAGE1
from tyler.experiments.study import Study, cells_of, declared

COLUMNS = {"dev": Questions("mini", "dev", None, 160), "dev-harder": Questions("mini", "dev-harder", None, 192)}
HARDER, MATHEMATICS = "data.split=train-harder", "data.split=train-mathematics"
WIDE = (
    "lora.rank=32",
    "lora.alpha=64",
    "lora.target_modules=[q_proj,k_proj,v_proj,o_proj,gate_proj,up_proj,down_proj]",
)
ALONE = Decoding(only=("global",))


def after(*more: str, start: Training = STAGE1) -> tuple[Training, Decoding]:
    """A Stage 2 with what differs."""
    return MINI.training("stage2", *more, start=start), Decoding()


def learned(name: str, split: str) -> Rows:
    """The main methods, trained on another split."""
    stage1 = MINI.training("stage1", split)
    return {
        f"{name}: SFT": (MINI.training("sft", split), Decoding()),
        f"{name}: GRPO": (MINI.training("grpo", split), Decoding()),
        f"{name}: Stage 1, all boundaries": (stage1, Decoding()),
        f"{name}: Stage 1, global alone": (stage1, ALONE),
        f"{name}: Stage 2": after(split, start=stage1),
    }


MERGED = Training("merge", start=MINI.training("sft"))
DENSE, LARGER = MINI.training("stage1", "stage1.insertions.max=24"), MINI.training("stage1", *WIDE)
ON_SFT = MINI.training("stage1", HARDER, start=MERGED)
CHANGES: Rows = {
    "Stage 2, psi from 0.1, budget 2": after("stage2.calibration.rate=0.1", "grpo.budget=2"),
    "Stage 2, 150 steps": after("stage2.steps=150"),
    "Stage 2 on harder problems": after(HARDER),
    **learned("harder", HARDER),
    **learned("mathematics", MATHEMATICS),
    "dense: Stage 1, all boundaries": (DENSE, Decoding()),
    "dense: Stage 2": after(start=DENSE),
    "wide: SFT": (MINI.training("sft", *WIDE), Decoding()),
    "wide: Stage 1, all boundaries": (LARGER, Decoding()),
    "wide: Stage 2": after(*WIDE, start=LARGER),
    "on SFT: SFT": (MINI.training("sft", HARDER, start=MERGED), Decoding()),
    "on SFT: Stage 1, all boundaries": (ON_SFT, Decoding()),
    "on SFT: Stage 2": after(HARDER, start=ON_SFT),
}
HELD_AGAINST = ("CoT", "SFT", "GRPO", "Stage 1, all boundaries", "Stage 1, global alone", "Stage 2")
BEFORE: Rows = {row: mini.ROWS[row] for row in HELD_AGAINST}

AFTER_SFT = ("harder", "mathematics", "wide", "on SFT")
"""Changes of which SFT has a row of its own."""
COMPARISONS = declared(
    {
        mini.CLAIMED: [
            *((row, row.rpartition(": ")[2] if ": " in row else "Stage 2") for row in CHANGES),
            *((f"{change}: Stage 2", f"{change}: SFT") for change in AFTER_SFT),
            ("Stage 2 on harder problems", "harder: SFT"),
            *((row, "SFT") for row in ("Stage 2, psi from 0.1, budget 2", "Stage 2, 150 steps", "dense: Stage 2")),
            ("harder: Stage 2", "harder: GRPO"),
        ]
    }
)

STUDY = Study(
    title="The study on mini: what was tried",
    scale="mini",
    records="mini-dev",
    columns=COLUMNS,
    cells=cells_of(MINI.preset, BEFORE | CHANGES, COLUMNS.values(), (42,)),
    groups={"before the changes": (*HELD_AGAINST, *mini.MEANS[:2]), "the changes": tuple(CHANGES)},
    comparisons=COMPARISONS,
    kept=dict.fromkeys(mini.MEANS[:2], mini.AVERAGED),
)
EXPERIMENT = STUDY
