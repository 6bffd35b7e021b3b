"""The page of commands, from the help of every command."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

from tyler.cli.main import COMMANDS

HEAD = """# Command line

The help of every command. What can be set: [every setting](settings.md).
"""


def page() -> str:
    """The page as Markdown."""
    with ThreadPoolExecutor(2) as pool:
        texts = list(pool.map(help_of, ["", *COMMANDS]))
    titles = ["tyler", *(f"tyler {name}" for name in COMMANDS)]
    sections = [f"## `{title}`\n\n```text\n{text}\n```\n" for title, text in zip(titles, texts, strict=True)]
    return "\n".join([HEAD, *sections])


def help_of(command: str) -> str:
    """The help text at a fixed width and without colours."""
    arguments = [sys.executable, "-m", "tyler", *filter(None, [command]), "--help"]
    environment = {**os.environ, "COLUMNS": "92", "NO_COLOR": "1", "TERM": "dumb"}
    shown = subprocess.run(arguments, capture_output=True, text=True, check=True, env=environment).stdout
    return "\n".join(line.rstrip() for line in shown.strip().splitlines())
