"""MemGen (Zhang et al., 2025): one kind of latents after the prompt and one after delimiters, on our engine.

settings.py  the section `memgen` of a config
weaver.py    r2w, queries, LoRA, w2r: from the context to latents; and the trigger, Linear(d, 2) on a LoRA'd decoder
             over the visible tokens: whether a block is inserted
routing.py   where a block may be inserted
decoding.py  the engine, with a reader whose inputs are mapped and a third stream for the trigger
model.py     all of it as one object: start, save, load; what an evaluation can change
sft.py       the weaver learns from traces
grpo.py      the weaver, or the trigger, learns from rewards
planned.py   what a step of each reads
"""

from tyler.reasoners.method import TRACES, Training

REWARDED = ("memgen", "rewards")
SETTINGS = "tyler.reasoners.memgen.settings:MemGenConfig"

TRAININGS = {
    "memgen": Training(
        "MemGen's weaver on the traces of Stage 1",
        "tyler.reasoners.memgen.sft:run", "memgen.weaver", ("memgen", *TRACES), SETTINGS,
        planned="tyler.reasoners.memgen.planned:weaver", rehearsed="tyler.reasoners.memgen.sft:rehearsed",
    ),
    "memgen-weaver-grpo": Training(
        "GRPO of a trained weaver",
        "tyler.reasoners.memgen.grpo:run_weaver", "memgen.weaver_grpo", REWARDED, SETTINGS, ("memgen",),
        planned="tyler.reasoners.memgen.planned:weaver", rehearsed="tyler.reasoners.memgen.grpo:rehearsed_weaver",
    ),
    "memgen-trigger": Training(
        "GRPO of the trigger of a trained weaver",
        "tyler.reasoners.memgen.grpo:run_trigger", "memgen.trigger", REWARDED, SETTINGS,
        ("memgen", "memgen-weaver-grpo"),
        planned="tyler.reasoners.memgen.planned:trigger", rehearsed="tyler.reasoners.memgen.grpo:rehearsed_trigger",
    ),
}  # fmt: skip
