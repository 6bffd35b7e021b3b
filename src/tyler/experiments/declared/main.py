"""Tables main and qwen25-main: every method on every task and backbone, the average, and the difference to CoT."""

from functools import partial

from tyler.experiments.averages import accuracy_table, held_against
from tyler.experiments.experiment import Entry, Experiment, Results, Table, entries_of, in_order
from tyler.experiments.scales import COT, Scale, methods


def entries(scale: Scale) -> list[Entry]:
    """Methods by tasks, backbone by backbone."""
    return [entry for title in scale.backbones for entry in entries_of(scale, methods(scale), group=title)]


def tables(results: Results) -> list[Table]:
    """One for each backbone."""
    return [
        accuracy_table(results, f"main-{group.lower()}", f"Pass@1 in per cent on {group}", "main", group)
        for group in in_order(results, "group")
    ]


EXPERIMENT = Experiment("Main results: every method on every task", entries, tables, partial(held_against, COT))
