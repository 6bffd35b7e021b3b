"""`mini`: a generated world of small, verifiable reasoning problems, and the tokenizer of its backbone."""

from __future__ import annotations

from tyler.tasks.mini.world import FAMILIES, SPLITS, corpus, equal, load

__all__ = ["FAMILIES", "SPLITS", "corpus", "equal", "load"]
