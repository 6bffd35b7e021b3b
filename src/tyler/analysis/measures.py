"""What is kept of a cell's answers: who is right, their texts or their times, their latents or how far these differ."""

from __future__ import annotations

import base64
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from tyler.analysis import records
from tyler.analysis.cells import ACCURACY, LATENCY, LATENTS, SPREAD, TEXTS
from tyler.evaluation.pass_at_1 import evaluate
from tyler.reasoners.reasoner import Reasoner
from tyler.reasoners.softcot.method import SoftCotReasoner
from tyler.tasks import Problem
from tyler.tasks.task import GradeOptions

WARMING = 2
"""Problems that are answered before a clock runs: the first answers build what later ones find."""

Kept = dict[str, Any]
Measure = Callable[[Reasoner, Sequence[Problem], GradeOptions], Kept]


def accuracy(reasoner: Reasoner, problems: Sequence[Problem], options: GradeOptions) -> Kept:
    """Verdict, tokens and calls of every answer."""
    return records.compact(evaluate(reasoner, problems, options=options, show=True).records)


def texts(reasoner: Reasoner, problems: Sequence[Problem], options: GradeOptions) -> Kept:
    """The same, and what was answered; of a task whose examples must not be shown, nothing."""
    report = evaluate(reasoner, problems, options=options, show=True)
    return {**records.compact(report.records), "texts": [record.completion for record in report.records]}


def latency(reasoner: Reasoner, problems: Sequence[Problem], options: GradeOptions) -> Kept:
    """The same, and seconds to the microsecond of answers that are decoded one after the other on a warm engine.

    A clock starts when the engine begins with an answer: behind tokenisation, before grading.
    """
    reasoner.solve(problems[:WARMING])
    report = evaluate(reasoner, problems, options=options, show=True)
    return {
        **records.compact(report.records),
        "seconds": [round(record.seconds, 6) for record in report.records],
        "synthesis_seconds": [round(record.synthesis_seconds, 6) for record in report.records],
    }


def latents(reasoner: Reasoner, problems: Sequence[Problem], options: GradeOptions) -> Kept:
    """The latents themselves, by operator.

    Of each call the mean over its slots is kept, so that a call counts once whatever its length.
    """
    blocks = blocks_of(reasoner, problems)
    return {"latents": {name: packed(found.mean(dim=1)) for name, found in blocks.items()}}


def spread(reasoner: Reasoner, problems: Sequence[Problem], options: GradeOptions) -> Kept:
    """How far latents differ between calls, by operator: none is kept."""
    return {"spread": {name: spread_of(found) for name, found in blocks_of(reasoner, problems).items()}}


def spread_of(blocks: Float[Tensor, "calls latents dim"]) -> dict[str, float]:
    """The number of calls, the root mean square of their latents and of the mean over calls, slot by slot, and the
    share of the squares that is around that mean: 0 for constants."""
    squares, mean = blocks.square().mean(), blocks.mean(dim=0)
    around = (blocks - mean).square().mean() / squares.clamp(min=1e-30)
    return {
        "calls": len(blocks),
        "scale": round(float(squares.sqrt()), 4),
        "scale_of_mean": round(float(mean.square().mean().sqrt()), 4),
        "around_mean": round(float(around), 6),
    }


def blocks_of(reasoner: Reasoner, problems: Sequence[Problem]) -> dict[str, Float[Tensor, "calls latents dim"]]:
    """The latents of every call, by operator, in the order of the problems; those of SoftCoT are its thoughts."""
    found: dict[str, list[Tensor]] = defaultdict(list)
    if isinstance(reasoner, SoftCotReasoner):
        with torch.no_grad():
            found["softcot"] = [reasoner.model.thoughts(problem, reasoner.thoughts) for problem in problems]
    else:
        for trajectory in reasoner.solve(problems):
            for call, block in zip(trajectory.invocations, trajectory.latents, strict=True):
                found[call.operator].append(block)
    return {name: torch.stack(blocks).float() for name, blocks in sorted(found.items())}


def packed(vectors: Float[Tensor, "calls dim"]) -> dict[str, Any]:
    """Vectors as text: float16, base64. Raises ValueError where float16 cannot hold them."""
    values = vectors.detach().cpu().numpy().astype(np.float16)
    if not np.isfinite(values).all():
        raise ValueError("these latents are too large for float16, or not finite")
    return {"shape": list(values.shape), "float16": base64.b64encode(values.tobytes()).decode()}


def unpacked(kept: Mapping[str, Any]) -> np.ndarray[Any, Any]:
    """The vectors [calls, dim] that `packed` wrote, in float64."""
    values = np.frombuffer(base64.b64decode(kept["float16"]), dtype=np.float16)
    return values.reshape(kept["shape"]).astype(np.float64)


MEASURES: Mapping[str, Measure] = {ACCURACY: accuracy, TEXTS: texts, LATENCY: latency, LATENTS: latents, SPREAD: spread}
