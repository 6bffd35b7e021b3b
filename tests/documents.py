"""What the documents say, for tests that hold the code to it."""

from __future__ import annotations

import re
from pathlib import Path


def documented_metrics(root: Path, section: str) -> set[str]:
    """The keys of docs/metrics.md that begin with `section/`."""
    text = (root / "docs" / "metrics.md").read_text()
    return set(re.findall(rf"^\| `({section}/[^`]+)` \|", text, re.MULTILINE))
