"""Records of cells that have not run: what a grid would have measured, made up from the cell's own name."""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch

from stored import keep
from tyler.engine.trajectory import Invocation
from tyler.evaluation.answers import Record
from tyler.evaluation.store import name_of
from tyler.experiments.cells import LATENTS, Cell, Sources
from tyler.experiments.measures import packed
from tyler.experiments.scales import SOFTCOT
from tyler.tasks import Outcome

DIM = 6
OPERATORS = ("global", "state", "procedure")
VERDICTS = (*(3 * [Outcome.CORRECT]), Outcome.WRONG, Outcome.NO_BOX, Outcome.TRUNCATED)


def record(cell: Cell, sources: Sources) -> dict[str, Any]:
    """A finished cell as `records.read` gives it."""
    return {**about(cell), "name": cell.row, "answers": [] if cell.measure == LATENTS else records_of(cell, sources)}


def measure(cell: Cell, sources: Sources, folder: Path, identity: Mapping[str, Any]) -> dict[str, Any]:
    """As `Grid.measure` does: answers into a folder, and what they are of."""
    if cell.measure != LATENTS:
        keep(folder, records_of(cell, sources), name_of(dict(identity)))
    return about(cell)


def about(cell: Cell) -> dict[str, Any]:
    """What a record says of itself."""
    fields = {"row": cell.row, "seed": cell.seed, "task": cell.questions.task, "split": cell.questions.split}
    fields |= {"decoding": asdict(cell.decoding), "weights": "0", "environment": {}}
    fields |= {"training_seconds": 0.0, "decoding_seconds": 0.0}
    return fields | ({"latents": latents(cell, Random(repr(cell)))} if cell.measure == LATENTS else {})


def records_of(cell: Cell, sources: Sources) -> list[Record]:
    """Invented answers, with verdicts and calls drawn for each problem."""
    draw = Random(repr(cell))
    records = []
    for problem in sources.problems(cell.questions):
        calls = [Invocation(draw.choice(OPERATORS), draw.randrange(20), 4, 0) for _ in range(draw.randrange(4))]
        records.append(
            Record(
                task=problem.task,
                id=problem.id,
                family=problem.family,
                gold=problem.answer,
                text=(problem.solution or "").replace("=", draw.choice("==-")),
                outcome=draw.choice(VERDICTS),
                visible_tokens=draw.randrange(20, 40),
                latents=4 * len(calls),
                invocations=tuple(calls),
                seconds=draw.random(),
                synthesis_seconds=draw.random() / 10,
            )
        )
    return records


def latents(cell: Cell, draw: Random) -> dict[str, Any]:
    """Clusters by operator, or one for SoftCoT."""
    numbers = np.random.default_rng(draw.randrange(2**32))
    names = ("softcot",) if cell.row == SOFTCOT else OPERATORS
    return {name: packed(torch.tensor(numbers.normal(mean, 0.1, size=(8, DIM)))) for mean, name in enumerate(names)}
