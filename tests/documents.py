"""What the documents say, for tests that hold the code to it."""

import inspect
import re
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any
from unittest import mock

from tyler.cli import main as command_line
from tyler.config.files import load_config
from tyler.reasoners.table import every_metrics

STEP = re.compile(
    r"^(?:<!-- not run: (?P<reason>.+?) -->\n+)?"
    r'^```(?P<language>python|bash|yaml(?= title="))(?: title="(?P<title>[^"]+)")?\n(?P<text>.*?)^```',
    re.MULTILINE | re.DOTALL,
)
"""A block that a reader would type: python, commands, or a file with its title. Any other word after the language
(`python no-run`) makes it a block that is only read."""

SHELL = """
tyler() { printf '%s\\0' "$#" "$@"; }
torchrun() { while [ "$1" != tyler ]; do shift; done; "$@"; }
accelerate() { torchrun "$@"; }
"""
"""bash reads a line as it reads a reader's, and reports the arguments instead of running them."""


def documented_metrics(section: str = "") -> set[str]:
    """The metrics that have a meaning; only those whose key begins with `section/` if a section is given."""
    return {
        key
        for metrics in every_metrics().values()
        for key in metrics.meanings
        if key.startswith(f"{section}/" if section else "")
    }


@dataclass(frozen=True)
class Step:
    """A block of a page, with the place where it begins and, where it is not to be run, the page's reason."""

    where: str
    language: str
    title: str | None
    text: str
    reason: str | None


def steps(text: str, page: str) -> Iterator[Step]:
    """The blocks of a page, in order."""
    for match in STEP.finditer(text):
        line = text[: match.start("language")].count("\n") + 1
        yield Step(f"{page}, line {line}", match["language"], match["title"], match["text"], match["reason"])


def commands(text: str) -> list[list[str]]:
    """The arguments of each call of `tyler` in a block of bash, those after torchrun and accelerate included.

    Raises CalledProcessError where bash does not know a program, or cannot read the block.
    """
    printed = subprocess.run(["bash", "-euc", SHELL + text], capture_output=True, text=True, check=True).stdout
    words = printed.split("\0")[:-1]
    calls = []
    while words:
        end = 1 + int(words[0])
        calls.append(words[1:end])
        words = words[end:]
    return calls


def parse(arguments: list[str]) -> None:
    """Has the command line read a command, its settings included. Nothing is run; AssertionError if it is refused."""
    unrun = {name: _checked(command) for name, command in command_line.COMMANDS.items()}
    with mock.patch.object(command_line, "COMMANDS", unrun):
        assert command_line.main(arguments) == 0, arguments


def _checked(command: Callable[..., None]) -> Callable[..., None]:
    @wraps(command)
    def check(*arguments: Any, **named: Any) -> None:
        given = inspect.signature(command).bind(*arguments, **named).arguments
        if "overrides" in given:
            load_config(given["config"], given["overrides"])

    return check


def follow(text: str, page: str, more: Mapping[str, str] | None = None) -> None:
    """Does what a page says, in order, in this folder and in one namespace.

    `more` are options that a command gets in addition, by what its line begins with. A block that the page marks with
    `<!-- not run: REASON -->` is not run, and commands of tyler in it are parsed.
    """
    namespace: dict[str, Any] = {"__name__": "a_page"}
    for step in steps(text, page):
        if step.title:
            Path(step.title).write_text(step.text)
        elif step.language == "python" and not step.reason:
            exec(compile(step.text, step.where, "exec"), namespace)
        elif step.language == "bash" and not step.reason:
            for arguments in commands(step.text):
                line = " ".join(arguments)
                added = [
                    option
                    for start, options in (more or {}).items()
                    if line.startswith(start)
                    for option in options.split()
                ]
                assert command_line.main([*arguments, *added]) == 0, f"{step.where}: tyler {line}"
        elif step.language == "bash":
            for line in tyler_lines(step.text):
                for arguments in commands(line):
                    parse(arguments)


def tyler_lines(text: str) -> list[str]:
    """The lines of a block that call `tyler`, by itself or after a launcher; a line that continues is one line."""
    lines = text.replace("\\\n", " ").splitlines()
    return [line for line in lines if re.match(r"(?:tyler|torchrun|accelerate)\s", line)]
