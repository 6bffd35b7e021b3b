"""Sets of problems in the shares that their weights say."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping, Sequence

from tyler.tasks.problem import Problem

logger = logging.getLogger(__name__)


def in_proportion(sets: Mapping[str, Sequence[Problem]], weights: Sequence[float], seed: int) -> list[Problem]:
    """As many examples as there are problems, each set with its weight's share of them.

    A set that is too small for its share is repeated: every problem comes so often, and some, drawn with `seed`, once
    more. Of one that is too large some are drawn. Raises ValueError for a set that would have no example.
    """
    total, mixed, before = sum(map(len, sets.values())), list[Problem](), 0.0
    for (name, problems), weight in zip(sets.items(), weights, strict=True):
        after = before + total * weight / sum(weights)
        count, before = round(after) - round(before), after
        if not problems or not count:
            raise ValueError(
                f"the mixture gives {name} {count} of {total} examples, and it has {len(problems)} problems; "
                f"change its weight of {weight:g}, or leave it out"
            )
        times, rest = divmod(count, len(problems))
        drawn = {problem.id for problem in sorted(problems, key=lambda problem: _rank(problem, seed))[:rest]}
        mixed += [*problems] * times + [problem for problem in problems if problem.id in drawn]
        logger.info("%s: %d of %d examples, from %d problems", name, count, total, len(problems))
    return mixed


def _rank(problem: Problem, seed: int) -> bytes:
    return hashlib.sha256(f"mixture {seed} {problem.id}".encode()).digest()
