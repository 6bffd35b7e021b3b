"""What ships: `smollm2-tyler` on every test problem of MAWPS, with its operators at all boundaries and without any.

Its answers are read and not run: `tyler eval` gave them, once each, before this file was written. So the comparison was
declared after its answers; the growth study had declared the same one for another recipe of skill and operators.
"""

from __future__ import annotations

from tyler.experiments.cells import Questions
from tyler.experiments.study import Comparison, Study

EVALUATED = "tyler eval smollm2-tyler --task mawps --data DIR --max-new-tokens 160"
WITH, WITHOUT = "Skill with operators", "Skill alone"

DECLARED = "2026-11-27T12:12:00+00:00"
"""When it was committed."""

STUDY = Study(
    title="smollm2-tyler on MAWPS",
    scale="smollm2",
    records="smollm2-skill",
    columns={"MAWPS, all of the test": Questions("mawps", "test", None, 160)},
    cells=(),
    groups={"what ships": (WITH, WITHOUT)},
    comparisons=(Comparison(WITH, WITHOUT, DECLARED),),
    kept={WITH: EVALUATED, WITHOUT: f"{EVALUATED} --router never"},
    dotted=WITHOUT,
)
EXPERIMENT = STUDY
