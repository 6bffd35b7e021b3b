"""Records of cells that nobody has run: what a grid would have measured, made up from the cell's own name."""

from __future__ import annotations

from dataclasses import asdict
from random import Random
from typing import Any

import numpy as np
import torch

from tyler.experiments.cells import LATENTS, TEXTS, Cell, Sources
from tyler.experiments.measures import packed
from tyler.experiments.methods import SOFTCOT

DIM = 6
OPERATORS = ("global", "state", "procedure")


def record(cell: Cell, sources: Sources) -> dict[str, Any]:
    """As `Grid.measure` gives it."""
    draw, problems = Random(repr(cell)), sources.problems(cell.questions)
    told = {"row": cell.row, "seed": cell.seed, "task": cell.questions.task, "split": cell.questions.split}
    told |= {"decoding": asdict(cell.decoding), "weights": "0", "training_seconds": 0.0, "environment": {}}
    if cell.measure == LATENTS:
        return told | {"latents": latents(cell, draw)}
    calls = [[[draw.choice(OPERATORS), draw.randrange(20)] for _ in range(draw.randrange(4))] for _ in problems]
    told |= {
        "ids": [problem.id for problem in problems],
        "families": [problem.family for problem in problems],
        "outcomes": "".join(draw.choice("cccwnt") for _ in problems),
        "visible": [draw.randrange(20, 40) for _ in problems],
        "latents": [4 * len(one) for one in calls],
        "calls": calls,
        "seconds": [draw.random() for _ in problems],
        "synthesis_seconds": [draw.random() / 10 for _ in problems],
    }
    if cell.measure == TEXTS:
        told["texts"] = [(problem.solution or "").replace("=", draw.choice("==-")) for problem in problems]
    return told


def latents(cell: Cell, draw: Random) -> dict[str, Any]:
    """Clusters by operator, or one for SoftCoT."""
    numbers = np.random.default_rng(draw.randrange(2**32))
    names = ("softcot",) if cell.row == SOFTCOT else OPERATORS
    return {name: packed(torch.tensor(numbers.normal(place, 0.1, size=(8, DIM)))) for place, name in enumerate(names)}
