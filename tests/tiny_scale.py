"""A scale of the experiments that takes seconds; as a program it is `tyler` with this scale."""

import sys
from dataclasses import replace

from tyler.cli.main import main
from tyler.experiments.cells import Questions
from tyler.experiments.scales import SCALES, Scale

TINY = Scale(
    name="tiny",
    backbones={"mini": "mini"},
    studied="mini",
    sequential="mini",
    tasks={"eval": Questions("mini", "eval", 4, 24), "harder": Questions("mini", "harder", 3, 24)},
    seeds=(42,),
    common=(
        *("stage1.steps=2", "stage1.batch_size=2", "stage2.steps=2", "stage2.batch_size=1", "stage2.max_new_tokens=16"),
        *("stage2.calibration.num_problems=2", "grpo.group_size=2", "sft.steps=2", "sft.batch_size=2"),
        *("softcot.steps=2", "softcot.batch_size=2", "memgen.weaver.steps=2", "memgen.weaver.batch_size=2"),
        *("data.count=8", "data.held_out=[]", "data.development=null"),
    ),
    timed=2,
    explained=("eval",),
    domains=tuple(
        replace(domain, learned=(*domain.learned[:1], "data.count=8"), questions=Questions("mini", "eval", 10, 24))
        for domain in SCALES["mini"].domains
    ),
    seen=3,
)

if __name__ == "__main__":
    SCALES["tiny"] = TINY
    sys.exit(main(sys.argv[1:]))
