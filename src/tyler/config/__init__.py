"""Settings: what they are and how they are read. Without torch.

schema.py  every key, its default, its bounds and its meaning
files.py   YAML and dotted overrides into a config, and back
"""
