"""What is kept of a cell's answers: who is right, and for some cells also their texts, their times or their latents."""

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
from tyler.analysis.cells import ACCURACY, LATENCY, LATENTS, TEXTS
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
    """The latents themselves, by operator; those of SoftCoT are its thoughts.

    Of each call the mean over its slots is kept, so that a call counts once whatever its length.
    """
    blocks = thoughts(reasoner, problems) if isinstance(reasoner, SoftCotReasoner) else of_calls(reasoner, problems)
    return {"latents": {name: packed(torch.stack(found)) for name, found in sorted(blocks.items())}}


def thoughts(reasoner: SoftCotReasoner, problems: Sequence[Problem]) -> dict[str, list[Tensor]]:
    """SoftCoT's, of every problem."""
    with torch.no_grad():
        return {"softcot": [reasoner.model.thoughts(problem, reasoner.thoughts).mean(dim=0) for problem in problems]}


def of_calls(reasoner: Reasoner, problems: Sequence[Problem]) -> Mapping[str, list[Tensor]]:
    """Those of every operator call, in the order of the problems."""
    found: dict[str, list[Tensor]] = defaultdict(list)
    for trajectory in reasoner.solve(problems):
        for call, block in zip(trajectory.invocations, trajectory.latents, strict=True):
            found[call.operator].append(block.float().mean(dim=0))
    return found


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


MEASURES: Mapping[str, Measure] = {ACCURACY: accuracy, TEXTS: texts, LATENCY: latency, LATENTS: latents}
