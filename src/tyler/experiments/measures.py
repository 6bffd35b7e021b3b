"""What is measured in a cell: its answers, timed one by one or not, their latents or how far these differ."""

import base64
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from tyler.evaluation.pass_at_1 import evaluate
from tyler.evaluation.store import AnswerStore
from tyler.experiments.cells import ACCURACY, LATENCY, LATENTS, SPREAD, TEXTS
from tyler.lens.interventions import Blocks, blocks_of
from tyler.reasoners.reasoner import Reasoner
from tyler.reasoners.softcot.model import SoftCotReasoner
from tyler.tasks import Problem
from tyler.tasks.problem import GradeOptions

WARMING = 2
"""Problems that are answered before a clock runs: the first answers build what later ones find."""

MOST_CALLS = 150
"""Of an operator whose latents are kept: the first ones."""

Kept = dict[str, Any]
Measure = Callable[[Reasoner, Sequence[Problem], GradeOptions, AnswerStore], Kept]


def answers(reasoner: Reasoner, problems: Sequence[Problem], options: GradeOptions, store: AnswerStore) -> Kept:
    """Keep every answer and the verdict on it; nothing besides."""
    report = evaluate(reasoner, problems, options=options, store=store)
    store.finish([record.key for record in report.records])
    return {}


def latency(reasoner: Reasoner, problems: Sequence[Problem], options: GradeOptions, store: AnswerStore) -> Kept:
    """The same, of answers that are decoded one after the other on a warm engine.

    A clock starts when the engine begins with an answer: after tokenisation, before grading.
    """
    reasoner.solve(problems[:WARMING])
    return answers(reasoner, problems, options, store)


def latents(reasoner: Reasoner, problems: Sequence[Problem], options: GradeOptions, store: AnswerStore) -> Kept:
    """The latents themselves, by operator.

    Of each of the first 150 calls the mean over its slots is kept, so that a call counts once whatever its length.
    """
    means: dict[str, list[Tensor]] = defaultdict(list)
    for blocks in by_answer(reasoner, problems):
        for name, calls in blocks.items():
            means[name] += [block.float().mean(dim=0) for block in calls]
    return {"latents": {name: packed(torch.stack(calls[:MOST_CALLS])) for name, calls in sorted(means.items())}}


def spread(reasoner: Reasoner, problems: Sequence[Problem], options: GradeOptions, store: AnswerStore) -> Kept:
    """How far latents differ between problems, by operator: those of its first call in each answer. None is kept."""
    firsts: dict[str, list[Tensor]] = defaultdict(list)
    for blocks in by_answer(reasoner, problems):
        for name, calls in blocks.items():
            firsts[name].append(calls[0].float())
    return {"spread": {name: spread_of(torch.stack(calls)) for name, calls in sorted(firsts.items()) if len(calls) > 1}}


def spread_of(blocks: Float[Tensor, "calls latents dim"]) -> dict[str, float]:
    """The number of calls, the root mean square of their latents and of the mean over calls, slot by slot, and the
    share of the squares that is around that mean, as of calls without number: 0 for constants."""
    squares, mean = blocks.square().mean(), blocks.mean(dim=0)
    around = (blocks - mean).square().mean() * len(blocks) / (len(blocks) - 1)  # the mean is of these calls
    return {
        "calls": len(blocks),
        "scale": round(float(squares.sqrt()), 4),
        "scale_of_mean": round(float(mean.square().mean().sqrt()), 4),
        "around_mean": round(float(around / squares.clamp(min=1e-30)), 6),
    }


def by_answer(reasoner: Reasoner, problems: Sequence[Problem]) -> list[Blocks]:
    """The latents of every answer, which no store has: they are decoded. Those of SoftCoT are its thoughts."""
    if isinstance(reasoner, SoftCotReasoner):
        with torch.no_grad():
            return [{"softcot": [reasoner.model.thoughts(problem, reasoner.thoughts)]} for problem in problems]
    return [blocks_of([answer]) for answer in reasoner.solve(problems)]


def packed(vectors: Float[Tensor, "calls dim"]) -> dict[str, Any]:
    """Vectors as text: float16 of seven significant bits, which take a fifth less room than all eleven, base64.

    Raises ValueError where float16 cannot hold them.
    """
    exact = vectors.detach().cpu().half().numpy()
    rounded = ((exact.view(np.uint16) + 8) & 0xFFF0).view(np.float16)
    if not np.isfinite([exact, rounded]).all():
        raise ValueError("these latents are too large for float16, or not finite")
    return {"shape": list(exact.shape), "float16": base64.b64encode(rounded.tobytes()).decode()}


def unpacked(kept: Mapping[str, Any]) -> np.ndarray[Any, Any]:
    """The vectors [calls, dim] that `packed` wrote, in float64."""
    values = np.frombuffer(base64.b64decode(kept["float16"]), dtype=np.float16)
    return values.reshape(kept["shape"]).astype(np.float64)


MEASURES: Mapping[str, Measure] = {
    ACCURACY: answers,
    TEXTS: answers,
    LATENCY: latency,
    LATENTS: latents,
    SPREAD: spread,
}
