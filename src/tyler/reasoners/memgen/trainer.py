"""What `tyler train` can train of MemGen. Without torch."""

from __future__ import annotations

from tyler.reasoners.trainer import TRACES, Trainer

TRAINERS = {
    "memgen": Trainer(
        "MemGen's weaver on the traces of Stage 1", "memgen.sft:run", "memgen.weaver", ("memgen", *TRACES)
    ),
    "memgen-weaver-grpo": Trainer(
        "GRPO of a trained weaver",
        "memgen.grpo:run_weaver",
        "memgen.weaver_grpo",
        ("memgen", "rewards"),
        needs_start=True,
    ),
    "memgen-trigger": Trainer(
        "GRPO of the trigger of a trained weaver",
        "memgen.grpo:run_trigger",
        "memgen.trigger",
        ("memgen", "rewards"),
        True,
    ),
}
