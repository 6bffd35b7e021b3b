"""What Tyler is compared with: one file each, on the same engine, problems and grader.

reasoner.py       the protocol that evaluation, serving and experiments know
tyler.py          Tyler as a reasoner
method.py         what a method says of itself, for evaluation and for training
table.py          methods and trainings by name
registry.py       how a model becomes a reasoner under one of them
cot.py            the backbone as it is
sft.py  grpo.py   fine-tuning without operators
softcot/          soft thoughts of an assistant
soft_thinking.py  mixtures of tokens
swireasoning.py   switching between mixtures and tokens
memgen/           latents of one kind, woven in at delimiters
"""
