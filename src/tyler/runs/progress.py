"""Progress bars with the time left, for whatever takes longer than a moment."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)


class Bar(Protocol):
    """A progress bar in use."""

    def advance(self, steps: int = 1, note: str = "") -> None:
        """Move on; `note` replaces the text at the end of the bar."""


class RichBar:
    """A Bar drawn by rich."""

    def __init__(self, progress: Progress, task: TaskID) -> None:
        self._progress, self._task = progress, task

    def advance(self, steps: int = 1, note: str = "") -> None:
        self._progress.update(self._task, advance=steps, note=note)


class NoBar:
    """A Bar that is not shown."""

    def advance(self, steps: int = 1, note: str = "") -> None:
        """Nothing to show."""


@contextmanager
def bar(description: str, total: int, done: int = 0) -> Iterator[Bar]:
    """A bar on stderr, so that results on stdout stay clean; a plain log keeps only its last state."""
    columns = (
        TextColumn("{task.description:<12}"),
        BarColumn(bar_width=28),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        TextColumn("[dim]{task.fields[note]}"),
    )
    with Progress(*columns, console=Console(stderr=True)) as progress:
        yield RichBar(progress, progress.add_task(description, total=total, completed=done, note=""))
