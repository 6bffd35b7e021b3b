"""MemGen (Zhang et al., 2025): one kind of latents after the prompt and one after delimiters, on our engine.

weaver.py    r2w, queries, LoRA, w2r: from the context to latents
trigger.py   Linear(d, 2) on a LoRA'd decoder over the visible tokens: whether a block is inserted
routing.py   where a block may be inserted
decoding.py  the engine, with a reader whose inputs are mapped and a third stream for the trigger
model.py     all of it as one object: start, save, load, solve; what an evaluation can change
sft.py       the weaver learns from traces
grpo.py      the weaver, or the trigger, learns from rewards
planned.py   what a step of each reads
"""
