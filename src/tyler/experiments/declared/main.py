"""Tables main and qwen25-main: every method on every task and backbone, the average, and the difference to CoT."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from tyler.experiments.averages import accuracy_table, differences
from tyler.experiments.experiment import Entry, Experiment, Measured, Results, Table, in_order, seeded
from tyler.experiments.scales import COT, Scale, cell, methods


def entries(scale: Scale) -> list[Entry]:
    """Methods by tasks, backbone by backbone."""
    return [
        Entry(title, row, column, seeded(scale, partial(cell, scale, row, preset, made, column)))
        for title, preset in scale.backbones.items()
        for row, made in methods(scale).items()
        for column in scale.tasks
    ]


def findings(measured: Sequence[Measured]) -> dict[str, Any]:
    """How far every method is from CoT."""
    return {"differences": differences(measured, COT)}


def tables(results: Results) -> list[Table]:
    """One for each backbone."""
    return [
        accuracy_table(results, f"main-{group.lower()}", f"Pass@1 in per cent on {group}", "main", group, ruled=(3, 7))
        for group in in_order(results, "group")
    ]


EXPERIMENT = Experiment("Main results: every method on every task", entries, tables, findings, base=COT)
