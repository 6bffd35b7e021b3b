"""What Tyler is compared with: one file each, on the same engine, problems and grader.

reasoner.py       the protocol that evaluation, serving and experiments know
tyler.py          Tyler as a reasoner
method.py         what a method says of itself, as METHOD
registry.py       every method by name: the modules that define METHOD are found, and nothing lists them
trainer.py        what a training says of itself
trainers.py       what `tyler train` trains, by name: those of packages are found
knobs.py          settings that make answers longer or shorter, and their bounds
cot.py            the backbone as it is
sft.py  grpo.py   fine-tuning without operators
softcot/          soft thoughts of an assistant
soft_thinking.py  mixtures of tokens
swireasoning.py   switching between mixtures and tokens
memgen/           latents of one kind, woven in at delimiters
"""
