"""Table unified-ablation: the stages one after the other, shared and swapped operators, random routing.

# Deviation: (f) shares the head of O_g at inference; the paper does not say whether its shared modules were trained.
"""

from functools import partial

from tyler.experiments.averages import accuracy_table, held_against
from tyler.experiments.cells import Decoding
from tyler.experiments.experiment import Entry, Experiment, Results, Table, entries_of
from tyler.experiments.scales import COT, HARD_CAP, STAGE1, STAGE2, Rows, Scale, methods

BASE = "(a) CoT"
NO_BUDGET, NO_ANCHOR = "grpo.budget_weight=0", "grpo.anchor_weight=0"
RATES = (0.25, 0.5, 0.75)


def rows(scale: Scale) -> Rows:
    """Rows (a) to (k)."""
    known = methods(scale)
    stage1, full = known[STAGE1][0], known[STAGE2][0]
    shared = Decoding(intervention="share global", budget=HARD_CAP)
    swapped = Decoding(intervention="swap global state", budget=HARD_CAP)
    random = {f"({letter}) random {rate:.0%}": rate for letter, rate in zip("hij", RATES, strict=True)}
    return {
        BASE: known[COT],
        "(b) + Stage 1": known[STAGE1],
        "(c) + Stage 2, task reward only": (scale.training("stage2", NO_BUDGET, NO_ANCHOR, start=stage1), Decoding()),
        "(d) + Stage 2, with budget": (scale.training("stage2", NO_ANCHOR, start=stage1), Decoding()),
        "(e) Tyler": known[STAGE2],
        "(f) shared operators": (full, shared),
        "(g) O_s and O_g swapped": (full, swapped),
        **{row: (stage1, Decoding(router=f"boundaries:{rate}")) for row, rate in random.items()},
        "(k) random 100%": known[STAGE1],
    }


def entries(scale: Scale) -> list[Entry]:
    """Rows by tasks."""
    return entries_of(scale, rows(scale))


def tables(results: Results) -> list[Table]:
    """The one."""
    group = results["entries"][0]["group"]
    return [accuracy_table(results, "ablation", f"Ablation on {group}, Pass@1 in per cent", "ablation", group)]


EXPERIMENT = Experiment("Ablation: stages, types and routing", entries, tables, partial(held_against, BASE))
