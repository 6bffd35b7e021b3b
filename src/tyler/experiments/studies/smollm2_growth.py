"""What more training does on SmolLM2-135M-Instruct: declared before any of its answers, and reported whole.

Two questions that the first study (`smollm2.py`) left, with problems without end (`mawpsvaried`), so that no
example is read twice:

1. *Do latents begin to say something of the problem?* On the unmodified backbone Stage 1, SFT and pause tokens learn
   for 250, 1,000 and 2,500 steps of 4, and Stage 1 answers with its own latents and with their means. The answer is
   the difference of the two after 1,000 steps, over three seeds and 500 test problems of MAWPS: latents say something
   of the problem where its 95% interval, clustered by problem, is above zero, and not where it is not. The curve of
   that difference over steps, and of Stage 1 against pause tokens, is reported beside it whatever it shows.
2. *Do operators help a model that has the skill?* SFT learns problems without end, its adapter becomes part of the
   backbone, and both stages are trained on top, with the same controls.

What is changed of this is changed before a test problem is answered, and said here. Every setting that is not named is
the preset's.

Changed so far, for lack of a processor's time: the curve was to learn in float32 from 16 examples a step, which takes
two cores some 60 hours. It learns in bfloat16 autocast from 4 examples a step, so that 1,000 steps read
as many examples as the longest row of the first study, and looks at development problems every 250 steps. Two trainings
that had begun the other way were dropped after 165 steps, before they answered anything.

The rest was changed for the same reason and by development problems: the skill's adapter was to learn for
2,500 steps of float32 at alpha 32. It learned in bfloat16 at alpha 16, for 1,000 steps at first and, from step 120 of
that run on, on a schedule of 600; from there on rows were packed, 1,024 positions at once. It then solved 124 of 300
development problems, and 110 of the 176 others had right steps with a wrong result, most often of a subtraction. A
second adapter on top of the first therefore learns as many chains of arithmetic (`chains`) as word problems, 16 in a
step, on a schedule that was cut and lengthened as time allowed (460, 320, 240, 460 and 400 steps). Both together solve
147 of 300 (the target is 55%); the best adapter of rank 8 for their sum, by singular values, solves 136.

From there on traces compute digit by digit, because most wrong answers had right steps. A third adapter starts at that
sum (`--start`): 20 steps with what is worked out in formulas of its own, then 140 steps with it as text, 32 texts a
step of 12,000 varied problems and 4,000 chains, bfloat16 autocast, a cosine from 1e-3. It solves 163 of 300, and 162
cut down to rank 6 in eight bits, which is what ships; 60 more steps from 8e-4 solve 156, and are not used. On it Stage
1 learned 40 steps in bfloat16 autocast with a LoRA of rank 4 instead of 8. Both were chosen by development problems,
and by the size that may ship; then 501 test problems were answered once with operators and once without
(`docs/results/smollm2-skill`). The other seeds, Stage 2 and the controls on this skill have not run.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from tyler.experiments.cells import SPREAD, Cell, Decoding, Training
from tyler.experiments.scales import Rows
from tyler.experiments.studies.smollm2 import (
    CONTROLS,
    DEVELOPMENT,
    EVERY_MAP,
    GLOBAL_ALONE,
    PRESET,
    SEEDS,
    SPREAD_OVER,
    TEST,
)
from tyler.experiments.study import Comparison, Study, cells_of

STEPS = (250, 1_000, 2_500)
REPEATED = (250, 1_000)
"""Steps that three seeds take; more take the first alone."""
WITHOUT_END = (
    "data.task=mawpsvaried",
    "data.count=40000",
    "data.development.task=mawps",
)
"""More examples than 2,500 steps read."""
MEANS = Decoding(intervention="means")


def learning(section: str, steps: int) -> Training:
    """A training of the curve."""
    settings = f"steps={steps}", "batch_size=4", "autocast=true", "eval_every=250", "checkpoint_every=50"
    return Training(section, (*WITHOUT_END, *(f"{section}.{setting}" for setting in settings)))


def grown(steps: int) -> Rows:
    """The rows of the curve at one number of steps."""
    stage1 = learning("stage1", steps)
    pause = ("stage1.latents=constant", "stage1.learning_rate=0.1")  # the first study chose it on development problems
    return {
        f"Stage 1, {steps} steps": (stage1, Decoding()),
        f"Stage 1, {steps} steps, means": (stage1, MEANS),
        f"Pause tokens, {steps} steps": (Training("stage1", (*stage1.overrides, *pause)), Decoding()),
        f"SFT, {steps} steps": (learning("sft", steps), Decoding()),
    }


CURVE: dict[int, Rows] = {steps: grown(steps) for steps in STEPS}

SKILL = Training(
    "sft",
    (
        *WITHOUT_END,
        "data.count=16000",
        "sft.steps=600",
        "sft.autocast=true",
        "lora.rank=8",
        "lora.alpha=16",
        "lora.dropout=0",
        f"lora.target_modules={EVERY_MAP}",
    ),
)
"""The first adapter, of 5 MB in half precision. Of 300 development problems it solved 51 after 100 steps and 124 after
600. It is in commit 84b7e8afbdae, docs/results/smollm2-growth/skill; the second one, which continues it, is in commit
183049c75307, skill2 beside it. The third one ships, in `smollm2-tyler`."""
MERGED = Training("merge", start=SKILL)
STAGE1 = Training("stage1", WITHOUT_END, start=MERGED)
PAUSE = Training("stage1", (*WITHOUT_END, "stage1.latents=constant", "stage1.learning_rate=0.1"), start=MERGED)
STAGE2 = Training("stage2", WITHOUT_END, start=STAGE1)

ON_SKILL: Rows = {
    "Skill alone": (MERGED, Decoding(router="never")),
    "Skill: Stage 1": (STAGE1, Decoding()),
    "Skill: Stage 2": (STAGE2, Decoding()),
}
"""The main rows, with three seeds of both stages on one adapter's recipe."""
CONTROLLED: Rows = {
    **{f"Skill: Stage 1, {control}": (STAGE1, Decoding(intervention=control)) for control in CONTROLS},
    "Skill: Stage 1, random 50%": (STAGE1, Decoding(router="boundaries:0.5")),
    "Skill: Stage 1, global alone": (STAGE1, GLOBAL_ALONE),
    "Skill: pause tokens": (PAUSE, Decoding()),
}
"""What tells whether a gain is of latents; of the first seed."""

PAIRS = (
    *((f"Stage 1, {steps} steps", f"Stage 1, {steps} steps, means") for steps in STEPS),
    *((f"Stage 1, {steps} steps", f"Pause tokens, {steps} steps") for steps in STEPS),
    *((f"Stage 1, {steps} steps", f"SFT, {steps} steps") for steps in STEPS),
    ("Skill: Stage 1", "Skill alone"),
    ("Skill: Stage 2", "Skill alone"),
    ("Skill: Stage 2", "Skill: Stage 1"),
    *(("Skill: Stage 1", row) for row in CONTROLLED),
)
"""The comparisons: paired, over the seeds that both sides have. The first that counts is the one at 1,000 steps."""

ROWS = tuple(dict.fromkeys([*(row for rows in CURVE.values() for row in rows), *ON_SKILL, *CONTROLLED]))
"""In the order of tables."""


def cells(seeds: Sequence[int] = SEEDS) -> list[Cell]:
    """All cells in the order in which they are worth running: the curve by steps, then the skill and its controls."""
    of, first, more = partial(cells_of, PRESET), seeds[:1], seeds[1:]
    stage1 = {row: rows[row] for steps, rows in CURVE.items() for row in [f"Stage 1, {steps} steps"]}
    return [
        *(cell for steps in REPEATED for cell in of(CURVE[steps], [TEST], seeds)),
        *(cell for steps in STEPS if steps not in REPEATED for cell in of(CURVE[steps], [TEST], first)),
        *of(stage1, [SPREAD_OVER], first, SPREAD),
        *of(ON_SKILL, [DEVELOPMENT, TEST], first),
        *of(CONTROLLED, [TEST], first),
        *of(ON_SKILL, [TEST], more),
    ]


DECLARED = "2026-11-26T13:32:10+00:00"
"""When all of it was committed."""
STUDY = Study(
    title="More training of SmolLM2-135M",
    scale="smollm2",
    records="smollm2-growth",
    columns={"MAWPS": TEST, "MAWPS, development": DEVELOPMENT},
    cells=cells(),
    groups={
        **{f"{steps} steps": tuple(rows) for steps, rows in CURVE.items()},
        "on the skill": (*ON_SKILL, *CONTROLLED),
    },
    comparisons=tuple(Comparison(first, second, DECLARED) for first, second in PAIRS),
    kept={},
    dotted="Skill alone",
)
EXPERIMENT = STUDY
