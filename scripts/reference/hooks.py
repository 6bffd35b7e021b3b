"""What mkdocs does for this site beyond Markdown: it writes the reference pages from the code, and draws formulas.

Fences of `math` become MathML, which browsers draw without a script.
"""

import re
import runpy
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.structure.files import File

PAGES = ("commands", "settings", "api", "metrics", "cases", "tables")
"""Each is a module beside this one whose `page()` is the page reference/NAME.md."""


def on_config(config: Any) -> Any:
    """Called by mkdocs once its settings are read."""
    fences = config.mdx_configs.setdefault("pymdownx.superfences", {}).setdefault("custom_fences", [])
    fences.append({"name": "math", "class": "math", "format": formula})
    return config


def on_files(files: Any, *, config: Any) -> Any:
    """Called by mkdocs once it knows the files of docs/."""
    for name in PAGES:
        page = runpy.run_path(str(Path(__file__).parent / f"{name}.py"))["page"]
        files.append(File.generated(config, f"reference/{name}.md", content=page()))
    return files


def formula(source: str, *_: Any, **__: Any) -> str:
    """One display formula, in LaTeX, as MathML."""
    return f'<div class="formula">{convert(" ".join(source.split()), display="block")}</div>'


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Fences that only tests tell apart are plain ones for a reader."""
    return re.sub(r"^( *```\w+) no-run$", r"\1", markdown, flags=re.MULTILINE)
