"""The page of commands, from the help of every command."""

import contextlib
import io
import os
from unittest import mock

from tyler.cli.main import COMMANDS, main

HEAD = """# Command line

The help of every command. What can be set: [every setting](settings.md).
"""


def page() -> str:
    """The page as Markdown."""
    texts = map(help_of, ["", *COMMANDS])
    titles = ["tyler", *(f"tyler {name}" for name in COMMANDS)]
    sections = [f"## `{title}`\n\n```text\n{text}\n```\n" for title, text in zip(titles, texts, strict=True)]
    return "\n".join([HEAD, *sections])


def help_of(command: str) -> str:
    """The help text at a fixed width and without colours."""
    shown = io.StringIO()
    plain = mock.patch.dict(os.environ, COLUMNS="92", NO_COLOR="1", TERM="dumb")
    with plain, contextlib.redirect_stdout(shown), contextlib.suppress(SystemExit):
        main([*filter(None, [command]), "--help"])
    return "\n".join(line.rstrip() for line in shown.getvalue().strip().splitlines())
