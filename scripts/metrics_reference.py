"""Write docs/metrics.md from `tyler.runs.metrics`: every key that a run logs. A test checks that it is current."""

from __future__ import annotations

import textwrap
from pathlib import Path

from tyler.runs.metrics import EVERY, Metrics

PAGE = Path(__file__).parent.parent / "docs" / "metrics.md"
HEAD = """# What is logged

Written by `make docs` from `tyler.runs.metrics`.

`metrics.jsonl` of a run has one line per step: `step` and the keys below. A value that is not finite is `null`.
"""


def reference() -> str:
    """The page as it should be."""
    return "\n".join([HEAD, *map(section, EVERY)])


def section(metrics: Metrics) -> str:
    """The table of one kind of training."""
    rows = [f"| `{key}` | {meaning.replace('|', chr(92) + '|')} |" for key, meaning in metrics.meanings.items()]
    about = [textwrap.fill(metrics.about, 120), ""] if metrics.about else []
    return "\n".join([f"## {metrics.title}", "", *about, "| key | meaning |", "|---|---|", *rows, ""])


if __name__ == "__main__":
    PAGE.write_text(reference(), encoding="utf-8")
    print(f"wrote {PAGE}")
