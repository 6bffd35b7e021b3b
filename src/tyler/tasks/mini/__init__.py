"""`mini`: a generated world of small, verifiable reasoning problems, and the tokenizer of its backbone."""

from __future__ import annotations

from tyler.tasks.mini.world import FAMILIES, LEVELS, SPLITS, corpus, equal, load
from tyler.tasks.task import Generated, boxed

__all__ = ["FAMILIES", "LEVELS", "SPLITS", "TASK", "corpus", "equal", "load"]

TASK = Generated(
    name="mini",
    title="mini",
    splits=tuple(SPLITS),
    load=lambda split, count, seed: load(split, count=count, seed=seed),
    verdict=boxed(lambda answer, gold, options: equal(answer, gold)),
)
