"""The study on a real language model: SmolLM2-135M-Instruct on word problems it has not seen, and on harder ones.

Every method of the paper at equal examples, Tyler's stages also on a backbone that has the skill (merged SFT), and the
controls that tell whether latents carry anything: zeros, means, shuffled latents, a random router, and pause tokens in
their places. The main methods also learn and answer GSM8K, and SFT has one row at the compute of Stage 1.
"""

from __future__ import annotations

from functools import partial

from tyler.experiments.cells import SPREAD, Cell, Decoding, Questions, Training
from tyler.experiments.scales import SMOLLM2, Rows
from tyler.experiments.study import Study, cells_of, declared

PRESET = SMOLLM2.preset
SEEDS = (42, 43, 44)
TEST, HARDER = SMOLLM2.tasks["MAWPS"], SMOLLM2.tasks["SVAMP"]
DEVELOPMENT = Questions("mawps", "dev", None, 160)
"""What choices are made on: 300 problems."""
SPREAD_OVER = Questions("mawps", "dev", 100, 160)
"""Between the answers to these it is measured how far latents differ."""
GSM8K = Questions("gsm8k", "test", 500, 300)
"""99% of its traces have fewer than 240 tokens."""

BACKBONE, SFT, GRPO = Training(), Training("sft"), Training("grpo")
STAGE1 = Training("stage1")
STAGE2 = Training("stage2", start=STAGE1)
PAUSE = Training("stage1", ("stage1.latents=constant", "stage1.learning_rate=0.1"))
"""With a learning rate chosen on development problems: at the operators' own, constants cannot grow as latents do."""
MERGED = Training("merge", start=SFT)
ON_SFT = Training("stage1", start=MERGED)
STAGE2_ON_SFT = Training("stage2", start=ON_SFT)
LONGER_SFT = Training("sft", ("sft.steps=250",))
"""Takes the processor as long as 100 steps of Stage 1, of which one takes 2.4 to 2.7 times as long as one of SFT."""
LONGER_STAGE1 = Training("stage1", ("stage1.steps=250",))
"""The examples of LONGER_SFT; added when that had answered 144 of 500 problems and SFT with 100 steps 83."""
SOFTCOT, MEMGEN = Training("softcot"), Training("memgen")

LEARN_GSM8K = (
    "data.task=gsm8k",
    "data.development=null",
    "evaluation.task=gsm8k",
    "stage1.max_length=640",
    *(f"{section}.max_new_tokens=300" for section in ("stage2", "decoding")),
    *(f"{section}.steps=50" for section in ("sft", "stage1")),
    "stage2.steps=15",
)
"""The preset's settings, room for longer answers, and half its steps: a trace is twice as long. Nothing is chosen on a
development set."""

GLOBAL_ALONE = Decoding(only=("global",))
CONTROLS = ("zeros", "means", "shuffled")

MAIN: Rows = {
    "CoT": (BACKBONE, Decoding(router="never")),
    "SFT": (SFT, Decoding()),
    "Stage 1, all boundaries": (STAGE1, Decoding()),
    "Stage 1, global alone": (STAGE1, GLOBAL_ALONE),
    "Stage 2": (STAGE2, Decoding()),
    "GRPO": (GRPO, Decoding()),
}
"""What has three seeds."""

MORE: Rows = {
    "Stage 1, never": (STAGE1, Decoding(router="never")),
    **{f"Stage 1, {name}": (STAGE1, Decoding(intervention=name)) for name in CONTROLS},
    "Pause tokens, all boundaries": (PAUSE, Decoding()),
    "Pause tokens, global alone": (PAUSE, GLOBAL_ALONE),
    "Stage 1, random 50%": (STAGE1, Decoding(router="boundaries:0.5")),
    "SFT, merged": (MERGED, Decoding(router="never")),
    "On SFT: Stage 1, all boundaries": (ON_SFT, Decoding()),
    "On SFT: Stage 1, global alone": (ON_SFT, GLOBAL_ALONE),
    "On SFT: Stage 1, zeros": (ON_SFT, Decoding(intervention="zeros")),
    "On SFT: Stage 2": (STAGE2_ON_SFT, Decoding()),
    **{f"Stage 2, {name}": (STAGE2, Decoding(intervention=name, budget=16)) for name in CONTROLS},
    "Soft-Thinking": (BACKBONE, Decoding("soft-thinking")),
    "SwiReasoning": (BACKBONE, Decoding("swireasoning")),
    "SoftCoT": (SOFTCOT, Decoding("softcot")),
    "MemGen": (MEMGEN, Decoding("memgen")),
    "SFT, equal compute": (LONGER_SFT, Decoding()),
    "Stage 1, longer": (LONGER_STAGE1, Decoding()),
    "Stage 1, longer, means": (LONGER_STAGE1, Decoding(intervention="means")),
}
"""What has at least one seed, of the test on the first task alone. The means of the longer Stage 1 were added when it
had answered 79 of 500 problems, and Stage 1 with 100 steps 44."""

_GSM8K_STAGE1 = Training("stage1", LEARN_GSM8K)
ON_GSM8K: Rows = {
    "CoT": (BACKBONE, Decoding(router="never")),
    "GSM8K: SFT": (Training("sft", LEARN_GSM8K), Decoding()),
    "GSM8K: Stage 1": (_GSM8K_STAGE1, Decoding()),
    "GSM8K: GRPO": (Training("grpo", LEARN_GSM8K), Decoding()),
    "GSM8K: Stage 2": (Training("stage2", LEARN_GSM8K, start=_GSM8K_STAGE1), Decoding()),
}
"""What learns GSM8K and answers its test problems, with one seed."""

EVERY_MAP = "[q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj]"
CENTRED = Training("stage1", ("stage1.latents=centred",))
CHANGES: Rows = {
    "SFT": (SFT, Decoding()),
    "Stage 1, all boundaries": (STAGE1, Decoding()),
    "Stage 1, dense": (Training("stage1", ("stage1.insertions.min=4", "stage1.insertions.max=12")), Decoding()),
    "Stage 1, wide": (
        Training("stage1", ("lora.rank=32", "lora.alpha=64", f"lora.target_modules={EVERY_MAP}")),
        Decoding(),
    ),
    "Stage 1, fast": (Training("stage1", ("stage1.learning_rate=3.0e-3",)), Decoding()),
    "Stage 1, centred": (CENTRED, Decoding()),
    "Stage 1, centred, means": (CENTRED, Decoding(intervention="means")),
    "Stage 1, longer": (LONGER_STAGE1, Decoding()),
}
"""What may limit Stage 1, tried on development problems with one seed: blocks as dense as they are decoded, LoRAs of
rank 32 on every map, three times the learning rate, and a constant part of latents that learns apart, beside what they
are compared with; and 250 steps, added when their model had answered the test."""

DIFFERING = (
    "Stage 1, all boundaries",
    "Stage 2",
    "On SFT: Stage 1, all boundaries",
    "On SFT: Stage 2",
    *(f"Stage 1, {change}" for change in ("dense", "wide", "fast", "centred", "longer")),
)
"""Whose latents are looked at, whether they are of their problem or the same for all."""


def cells() -> list[Cell]:
    """All cells in the order in which they are worth running: one seed of everything, the changes, how far
    latents differ, then the other seeds of MAIN, and GSM8K last.

    Controls and what else has one seed are asked the first task alone: the harder one tells little where few are right.
    """
    known = {**MAIN, **MORE, **CHANGES}
    differing = {row: known[row] for row in DIFFERING}
    of, first, more = partial(cells_of, PRESET), SEEDS[:1], SEEDS[1:]
    return [
        *of(MAIN, [TEST, HARDER], first),
        *of(MORE, [TEST], first),
        *of(CHANGES, [DEVELOPMENT], first),
        *of(differing, [SPREAD_OVER], first, SPREAD),
        *of(MAIN, [TEST, HARDER], more),
        *of(ON_GSM8K, [GSM8K], first),
    ]


FIRST, COMPUTE, LIMITS = "2026-11-22T23:36:33+00:00", "2026-11-24T09:46:42+00:00", "2026-11-24T21:50:06+00:00"
CENTRES, SAID, OTHERS = "2026-11-25T03:51:06+00:00", "2026-11-25T04:14:14+00:00", "2026-11-25T14:50:13+00:00"
LONGER, LAST = "2026-11-25T15:50:54+00:00", "2026-11-26T02:35:46+00:00"
"""When comparisons were committed, by the repository's history."""
ALL = "Stage 1, all boundaries"
DECLARED: dict[str, tuple[tuple[str, str], ...]] = {
    FIRST: (
        ("SFT", "CoT"),
        (ALL, "CoT"),
        (ALL, "SFT"),
        (ALL, "Stage 1, global alone"),
        (ALL, "Stage 1, never"),
        *((ALL, f"Stage 1, {name}") for name in CONTROLS),
        (ALL, "Pause tokens, all boundaries"),
        ("Stage 2", ALL),
        ("Stage 2", "GRPO"),
        ("On SFT: Stage 1, all boundaries", "SFT, merged"),
        ("On SFT: Stage 2", "SFT, merged"),
    ),
    COMPUTE: (
        (ALL, "SFT, equal compute"),
        ("GSM8K: SFT", "CoT"),
        ("GSM8K: Stage 1", "CoT"),
        ("GSM8K: Stage 1", "GSM8K: SFT"),
        ("GSM8K: Stage 2", "GSM8K: Stage 1"),
        ("GSM8K: Stage 2", "GSM8K: GRPO"),
    ),
    LIMITS: tuple((f"Stage 1, {name}", ALL) for name in ("dense", "wide", "fast")),
    CENTRES: (("Stage 1, centred", ALL), ("Stage 1, centred", "Stage 1, centred, means")),
    SAID: tuple(("Stage 2", f"Stage 2, {name}") for name in CONTROLS),
    OTHERS: ((ALL, "MemGen"), (ALL, "SoftCoT")),
    LONGER: (("Stage 1, longer", "SFT, equal compute"), ("Stage 1, longer", ALL)),
    LAST: (("Stage 1, longer", "Stage 1, longer, means"),),
}
COMPARISONS = declared(DECLARED)
GROUPS = {
    "without operators": ("CoT", "SFT", "SFT, equal compute", "GRPO", "GSM8K: SFT", "GSM8K: GRPO"),
    "Stage 1: who is called, and how it is trained": (
        *(ALL, "Stage 1, global alone", "Stage 1, random 50%", "Stage 1, never"),
        *(f"Stage 1, {change}" for change in ("dense", "wide", "fast", "centred", "longer")),
        "GSM8K: Stage 1",
    ),
    "Stage 1: what they say": (
        *(f"Stage 1, {control}" for control in CONTROLS),
        *("Stage 1, centred, means", "Stage 1, longer, means"),
        *("Pause tokens, all boundaries", "Pause tokens, global alone"),
    ),
    "Stage 2": ("Stage 2", *(f"Stage 2, {control}" for control in CONTROLS), "GSM8K: Stage 2"),
    "on the merged SFT model": ("SFT, merged", *(row for row in MORE if row.startswith("On SFT"))),
    "other latent methods": ("Soft-Thinking", "SwiReasoning", "SoftCoT", "MemGen"),
}
STUDY = Study(
    title="The study on SmolLM2-135M",
    scale="smollm2",
    records="smollm2",
    columns={"MAWPS": TEST, "SVAMP": HARDER, "GSM8K": GSM8K, "MAWPS, development": DEVELOPMENT},
    cells=cells(),
    groups=GROUPS,
    comparisons=COMPARISONS,
    kept={},
    dotted="SFT",
)
EXPERIMENT = STUDY
