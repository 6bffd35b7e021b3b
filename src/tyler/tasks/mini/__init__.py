"""`mini`: a generated world of small, verifiable reasoning problems."""

from tyler.tasks.mini.world import FAMILIES, SPLITS, corpus, equal, load

__all__ = ["FAMILIES", "SPLITS", "corpus", "equal", "load"]
