"""Figure pca-typed (b): what newly fails when an operator is removed, by kind of error (`KINDS`).

A new failure is a problem that the model solves with all its operators and not without one. How many are newly solved
stands beside it: where both are alike, the removal only changed answers.
"""

import re
from collections import Counter
from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

from tyler.evaluation.answers import Record
from tyler.evaluation.statistics import clustered
from tyler.experiments.cells import TEXTS, Decoding, Questions
from tyler.experiments.experiment import Entry, Experiment, Figures, Measured, Results, Table, entries_of, in_order
from tyler.experiments.scales import COLOURS, HARD_CAP, STAGE2, Scale, methods
from tyler.modeling.operators import PAPER_OPERATORS
from tyler.tasks import Outcome, load_problems

KINDS = ("strategy", "state", "procedure", "format", "other")
SEPARATORS = re.compile(r"\n|\$|```|\\\[|\\\]|\\\(|\\\)|\", \"|\": \"|[{}]?\"[}]?")
MARKER = re.compile(r"^\s*(?:Step \d+:|\d+\.(?=\s))\s*")
NUMBER = re.compile(r"\d+(?:\.\d+)?")
OPERATOR = re.compile(r"[-+*/|<>^]")


def steps(text: str) -> list[str]:
    """The formulas of a solution, in their order, without spaces."""
    parts = (MARKER.sub("", part) for part in SEPARATORS.split(text))
    return ["".join(part.split()).rstrip(".,") for part in parts if is_step(part)]


def is_step(part: str) -> bool:
    """Whether a part of a text is a formula."""
    return "boxed" not in part and ("=" in part or bool(NUMBER.search(part) and OPERATOR.search(part)))


def left(step: str) -> str:
    """All before the last equals sign, or before a truth value."""
    return step.rpartition("=")[0] or re.sub(r"is(True|False)$", "", step)


def form(step: str) -> str:
    """The left side with every number as #."""
    return NUMBER.sub("#", left(step))


def kind(outcome: Outcome, text: str, reference: str) -> str:
    """Which of KINDS a wrong answer is, `outcome` its verdict, `reference` a right solution."""
    if outcome != Outcome.WRONG:
        return "format"
    return difference(steps(text), steps(reference))


def difference(own: Sequence[str], right: Sequence[str]) -> str:
    """What sets two sequences of steps apart first."""
    if not own or not right or left(own[0]) != left(right[0]):
        return "strategy"
    if own[0] != right[0] and not NUMBER.search(left(right[0])):
        return "strategy"
    for ours, theirs in zip_longest(own, right, fillvalue=""):
        if ours != theirs:
            return "state" if ours and theirs and form(ours) == form(theirs) else "procedure"
    return "other"


WHOLE = "all operators"


def entries(scale: Scale) -> list[Entry]:
    """The model after Stage 2, whole and without each operator."""
    training, whole = methods(scale)[STAGE2]
    without = {
        operator.name: (training, Decoding(intervention=f"remove {operator.name}", budget=HARD_CAP))
        for operator in PAPER_OPERATORS
    }
    return entries_of(scale, {WHOLE: (training, whole), **without}, TEXTS, "", scale.explained)


def findings(measured: Sequence[Measured]) -> dict[str, Any]:
    """New failures by kind, for each operator and task over all seeds that both models have."""
    there = [each for each in measured if each.records]
    whole = {each.entry.column: each for each in there if each.entry.row == WHOLE}
    return {
        "failures": [
            {"row": each.entry.row, "column": each.entry.column, **induced(whole[each.entry.column], each)}
            for each in there
            if each.entry.row != WHOLE and each.entry.column in whole
        ]
    }


def induced(whole: Measured, without: Measured) -> dict[str, Any]:
    """What newly fails and what is newly solved without an operator."""
    both = [seed for seed in without.records if seed in whole.records]
    seeds = [(whole.records[seed]["answers"], without.records[seed]["answers"]) for seed in both]
    failed: list[tuple[int, str]] = []
    solved = repaired = 0
    for before, after in seeds:
        solved += sum(answer.correct for answer in before)
        pairs = list(zip(before, after, strict=True))
        repaired += sum(new.correct and not old.correct for old, new in pairs)
        broken = [index for index, (old, new) in enumerate(pairs) if old.correct and not new.correct]
        failed += zip(broken, kinds_of(whole.entry.cells[0].questions, before, after, broken), strict=True)
    count = len(seeds[0][0]) if seeds else 0
    by_kind = {kind: [index for index, other in failed if other == kind] for kind in KINDS}
    return {
        "solved": solved,
        "failed": len(failed),
        "repaired": repaired,
        "kinds": {kind: len(indices) for kind, indices in by_kind.items()},
        "intervals": {kind: interval(indices, count, len(seeds)) for kind, indices in by_kind.items()},
    }


def interval(problems: Sequence[int], count: int, seeds: int) -> list[float]:
    """The 95% interval of a number of failures, each of one of `count` problems, over the problems."""
    failures = Counter(problems)
    ends = clustered([failures[index] / seeds for index in range(count)], seeds) if seeds else (0.0, 0.0)
    return [round(count * seeds * end, 2) for end in ends]


def kinds_of(
    questions: Questions, before: Sequence[Record], after: Sequence[Record], broken: Sequence[int]
) -> list[str]:
    """The kind of each new failure, held against the solution of a generated problem, or the answer before."""
    references = [answer.text or "" for answer in before]
    if questions.task == "mini":
        problems = load_problems("mini", questions.split, count=questions.count)
        references = [problem.solution or "" for problem in problems]
    return [kind(after[index].outcome, after[index].text or "", references[index]) for index in broken]


def tables(results: Results) -> list[Table]:
    """One row for each operator and task."""
    rows = []
    for finding in results["failures"]:
        counts = (finding["solved"], finding["failed"], finding["repaired"], *finding["kinds"].values())
        rows.append((finding["row"], finding["column"], *map(str, counts)))
    group = in_order(results, "group")[0]
    header = ("removed", "task", "solved before", "newly failed", "newly solved", *KINDS)
    return [Table("removal", f"New failures on {group} without an operator, by kind", header, tuple(rows))]


def figures(results: Results) -> Figures:
    """New failures by kind, a bar for each operator, a panel for each task."""
    from tyler.experiments.figures import bar, panels

    columns = in_order(results, "column")
    figure, drawn = panels(len(columns))
    for axes, column in zip(drawn, columns, strict=True):
        here = [finding for finding in results["failures"] if finding["column"] == column]
        for nth, finding in enumerate(here):
            at = [number + 0.27 * (nth - 1) for number in range(len(KINDS))]
            counts = list(finding["kinds"].values())
            axes.bar(at, counts, width=0.25, color=COLOURS[finding["row"]], label=f"without {finding['row']}")
            for x, count, (low, high) in zip(at, counts, finding["intervals"].values(), strict=True):
                bar(axes, x, count, (low, high), "#333333")
                axes.annotate(str(count), (x, high), (0, 2), textcoords="offset points", ha="center", fontsize=5)
        axes.set_xticks(range(len(KINDS)), KINDS)
        axes.set_title(column)
        axes.set_ylabel("new failures")
        if here:
            axes.legend(loc="upper right")
    return {"removal": figure}


EXPERIMENT = Experiment(
    "Removal: what fails without each operator",
    entries,
    tables,
    findings,
    figures,
    drawn="Bars are 95% intervals of the counts over problems.",
)
