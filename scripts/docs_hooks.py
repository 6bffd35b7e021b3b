"""What mkdocs is taught for this site: fences of `math` become MathML, which browsers draw without any script."""

from __future__ import annotations

import re
from typing import Any

from latex2mathml.converter import convert


def on_config(config: Any) -> Any:
    """Called by mkdocs once its settings are read."""
    fences = config.mdx_configs.setdefault("pymdownx.superfences", {}).setdefault("custom_fences", [])
    fences.append({"name": "math", "class": "math", "format": formula})
    return config


def formula(source: str, *_: Any, **__: Any) -> str:
    """One display formula, in LaTeX, as MathML."""
    return f'<div class="formula">{convert(" ".join(source.split()), display="block")}</div>'


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Fences that only tests tell apart are plain ones for a reader."""
    return re.sub(r"^( *```\w+) no-run$", r"\1", markdown, flags=re.MULTILINE)
