"""Settings: what they are and how they are read. Without torch.

sections.py  the sections that every run has, and what all sections share
loops.py     the sections of the training loops
schema.py    the whole config; every key has its default, its bounds and its meaning
meanings.py  what each key means; a config with that as comments
engine_choice.py  which engine decodes, and with which arguments
sizes.py     bytes as people write them
files.py     YAML and dotted overrides into a config, and back
"""
