"""Figure pca-typed (c): how often each operator is invoked, and where in an answer, by task."""

from collections.abc import Sequence
from statistics import fmean
from typing import Any

import numpy as np

from tyler.evaluation.statistics import clustered
from tyler.experiments.averages import written
from tyler.experiments.cells import ACCURACY, TEXTS
from tyler.experiments.experiment import Entry, Experiment, Figures, Measured, Results, Table, entries_of, in_order
from tyler.experiments.scales import COLOURS, STAGE2, Scale, methods
from tyler.modeling.operators import PAPER_OPERATORS

BANDWIDTH, POINTS = 0.06, 51
"""Of the Gaussian that smooths relative positions, and where the curve is told."""
OPERATORS = tuple(operator.name for operator in PAPER_OPERATORS)


def entries(scale: Scale) -> list[Entry]:
    """The model after Stage 2 on every task; with texts where `removal` keeps them, so that cells are shared."""
    rows = {STAGE2: methods(scale)[STAGE2]}
    measures = {column: TEXTS if column in scale.explained else ACCURACY for column in scale.tasks}
    return [entry for column, measure in measures.items() for entry in entries_of(scale, rows, measure, "", [column])]


def findings(measured: Sequence[Measured]) -> dict[str, Any]:
    """For every task, and every family of problems of a task that has several: calls, shares and curves."""
    invocations = []
    for each in (entry for entry in measured if entry.records):
        families = sorted({answer.family for answer in each.pooled})
        for family in (None, *families) if len(families) > 1 else (None,):
            invocations += [
                {"column": each.entry.column, "family": family, **counted(each, family, name)} for name in OPERATORS
            ]
    return {"invocations": invocations}


def counted(measured: Measured, family: str | None, operator: str) -> dict[str, Any]:
    """One operator: calls an answer, the share of answers with any, calls for 100 visible tokens, and the curve."""
    by_seed = [
        [
            ([call.position for call in answer.calls if call.operator == operator], answer.visible_tokens)
            for answer in record["answers"]
            if family in (None, answer.family)
        ]
        for record in measured.answered
        if all(answer.invocations is not None for answer in record["answers"])
    ]
    answers = [answer for seed in by_seed for answer in seed]
    if not answers:
        return {"operator": operator, "answers": 0}
    relative = [position / max(1, visible) for positions, visible in answers for position in positions]
    shares = [fmean(bool(positions) for positions, _ in problem) for problem in zip(*by_seed, strict=True)]
    low, high = clustered(shares, len(by_seed))
    visible_tokens = max(1, sum(visible for _, visible in answers))
    return {
        "operator": operator,
        "answers": len(answers),
        "calls": round(len(relative) / len(answers), 4),
        "share": round(fmean(shares), 4),
        "low": round(low, 4),
        "high": round(high, 4),
        "rate": round(100 * len(relative) / visible_tokens, 4),
        "position": round(fmean(relative), 4) if relative else None,
        "curve": smoothed(relative, len(answers)),
    }


def smoothed(positions: Sequence[float], answers: int) -> list[float]:
    """Calls an answer by relative position: Gaussians that are mirrored at both ends, so that nothing is lost there.

    The area under the curve is the calls of an answer.
    """
    at = np.linspace(0, 1, POINTS)[:, None]
    own = np.asarray(positions, dtype=np.float64)[None, :]
    mirrored = np.concatenate([own, -own, 2 - own], axis=1)
    heights = np.exp(-(((at - mirrored) / BANDWIDTH) ** 2) / 2) / (BANDWIDTH * np.sqrt(2 * np.pi))
    return [round(float(height), 4) for height in heights.sum(axis=1) / answers]


def tables(results: Results) -> list[Table]:
    """One row for each task, family and operator."""
    rows = []
    for finding in results["invocations"]:
        if finding["answers"]:
            share = f"{100 * finding['share']:.1f} ({100 * finding['low']:.1f}–{100 * finding['high']:.1f})"
            numbers = (f"{finding['calls']:.2f}", share, f"{finding['rate']:.2f}", written(finding["position"], ".2f"))
            rows.append(
                (finding["column"], finding["family"] or "all", finding["operator"], str(finding["answers"]), *numbers)
            )
    header = ("task", "family", "operator", "answers", "calls", "% with any", "per 100 tokens", "mean position")
    return [Table("invocation", f"Invocations of {STAGE2} on {in_order(results, 'group')[0]}", header, tuple(rows))]


def figures(results: Results) -> Figures:
    """Smoothed calls by relative position, a panel for each task; a scale of square roots shows the rare ones too."""
    from tyler.experiments.figures import panels

    columns = in_order(results, "column")
    figure, drawn = panels(len(columns), height=2)
    for axes, column in zip(drawn, columns, strict=True):
        for finding in results["invocations"]:
            if finding["column"] == column and finding["family"] is None and finding["answers"]:
                name = finding["operator"]
                axes.plot(np.linspace(0, 1, POINTS), finding["curve"], color=COLOURS[name], label=name)
        axes.set_title(column)
        axes.set_xlabel("relative position in the answer")
        axes.set_ylabel("calls an answer (density)")
        axes.set_yscale("function", functions=(np.sqrt, np.square))
        axes.set_yticks((0, 0.5, 2, 5, 10, 15))
        axes.set_ylim(bottom=0)
        if axes.lines:
            axes.legend()
    return {"invocation": figure}


EXPERIMENT = Experiment(
    "Invocation: how often, and where",
    entries,
    tables,
    findings,
    figures,
    drawn="Curves are of the answers of all seeds.",
)
