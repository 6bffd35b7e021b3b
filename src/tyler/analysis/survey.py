"""The operator lens over a set of problems: what the blocks of each operator do, with intervals.

Means are over problems, blocks of one problem first averaged, and intervals resample problems: a problem with many
blocks counts once, and differences between replacements are paired.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np
from torch import Tensor

from tyler.analysis.lens import REPLACEMENTS, Effect, Reading, read_blocks
from tyler.engine.routing import Router
from tyler.engine.trajectory import Trajectory
from tyler.model import Tyler

DRAWS = 2000


@dataclass(frozen=True)
class Estimate:
    """A mean over problems and its 95% bootstrap interval."""

    mean: float
    low: float
    high: float
    count: int


@dataclass(frozen=True)
class Survey:
    """What a set of answers shows, by operator and replacement: KL in nats a token, and log p lost behind the block.

    `enough` is how many latents of a block, from the first, every token behind it needs to stay the likeliest.
    """

    divergences: dict[str, dict[str, Estimate]]
    effects: dict[str, dict[str, Estimate]]
    enough: dict[str, Estimate]
    num_problems: int


def survey(
    model: Tyler,
    problems: Sequence[str],
    *,
    router: Router | None = None,
    max_new_tokens: int = 256,
    seed: int = 0,
    memory: int | None = None,
) -> Survey:
    """Answer the problems, put every block under the lens, and count.

    `memory` bounds the bytes of context and caches while they are answered.
    Raises ValueError where fewer than two answers invoke an operator: a block needs another problem's as its control.
    """
    answers = model.solve(list(problems), router=router, max_new_tokens=max_new_tokens, memory=memory)
    answers = [one for one in answers if one.invocations]
    if len(answers) < 2:
        raise ValueError(f"{len(answers)} of {len(problems)} answers invoked an operator; at least 2 are needed")
    readings = [read_blocks(model, one, others_of(answers, one), seed) for one in answers]
    return count(readings, seed)


def others_of(answers: Sequence[Trajectory], one: Trajectory) -> dict[str, list[Tensor]]:
    """The latents of all other answers by operator; where no other has an operator's, the answer's own."""
    found: dict[str, list[Tensor]] = defaultdict(list)
    for answer in (*(other for other in answers if other is not one), one):
        for call, latents in zip(answer.invocations, answer.latents, strict=True):
            if answer is not one or not found[call.operator]:
                found[call.operator].append(latents)
    return found


def count(readings: Sequence[Sequence[Reading]], seed: int = 0) -> Survey:
    """Means with intervals of the readings of each problem."""
    operators = sorted({reading.operator for one in readings for reading in one})

    def over_problems(operator: str, value: Callable[[Reading], float]) -> Estimate:
        own = [[value(reading) for reading in one if reading.operator == operator] for one in readings]
        return bootstrap([fmean(values) for values in own if values], seed)

    def effect_of(name: str, value: Callable[[Effect], float]) -> Callable[[Reading], float]:
        return lambda reading: value(reading.effects[name])

    def table(value: Callable[[Effect], float]) -> dict[str, dict[str, Estimate]]:
        return {
            operator: {name: over_problems(operator, effect_of(name, value)) for name in REPLACEMENTS}
            for operator in operators
        }

    return Survey(
        divergences=table(lambda effect: effect.divergence),
        effects=table(lambda effect: effect.loss),
        enough={operator: over_problems(operator, lambda reading: reading.enough) for operator in operators},
        num_problems=len(readings),
    )


def bootstrap(values: Sequence[float], seed: int = 0) -> Estimate:
    """The mean of some values with its 95% percentile bootstrap interval. Raises ValueError without values."""
    if not values:
        raise ValueError("there is nothing to average")
    draws = np.random.default_rng(seed).integers(len(values), size=(DRAWS, len(values)))
    low, high = np.quantile(np.asarray(values)[draws].mean(axis=1), (0.025, 0.975))
    return Estimate(fmean(values), float(low), float(high), len(values))
