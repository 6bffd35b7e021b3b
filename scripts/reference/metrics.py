"""The page of metrics, from what trainers say (METRICS): every key that a run logs."""

import textwrap

from tyler.reasoners.table import every_metrics
from tyler.runs.metrics import Metrics

HEAD = """# What is logged

`metrics.jsonl` of a run has one line per step: `step` and the keys below. A value that is not finite is `null`.
"""


def page() -> str:
    """The page as Markdown."""
    return "\n".join([HEAD, *map(section, every_metrics().values())])


def section(metrics: Metrics) -> str:
    """The table of one kind of training."""
    rows = [f"| `{key}` | {meaning.replace('|', chr(92) + '|')} |" for key, meaning in metrics.meanings.items()]
    about = [textwrap.fill(metrics.about, 120), ""] if metrics.about else []
    return "\n".join([f"## {metrics.title}", "", *about, "| key | meaning |", "|---|---|", *rows, ""])
