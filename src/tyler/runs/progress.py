"""Progress with the time left: a bar on a terminal, a plain line now and then in a log."""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path

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

from tyler.presentation import counted

logger = logging.getLogger(__name__)

SECONDS_BETWEEN_LINES = 30.0

_hidden: ContextVar[bool] = ContextVar("progress is hidden", default=False)


class Bar:
    """Progress; this one is not shown."""

    def advance(self, note: str = "") -> None:
        """Move on by a step; `note` says how it is going, as "loss 0.512"."""


class RichBar(Bar):
    """A Bar drawn by rich."""

    def __init__(self, progress: Progress, task: TaskID) -> None:
        self._progress, self._task = progress, task

    def advance(self, note: str = "") -> None:
        self._progress.update(self._task, advance=1, note=note)


@dataclass
class LogLines(Bar):
    """A Bar as lines of a log: at the start, after the first step, every 30 seconds, and at the end.

    A step that takes longer than that has a line of its own. `clock` gives seconds.
    """

    description: str
    total: int
    done: int = 0
    unit: str = "step"
    where: Path | None = None
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self.done_before, self.started = self.done, self.clock()
        self.said = self.started
        location = "" if self.where is None or self.where == Path() else f", in {self.where}"
        after = f", {self.done} of them done before" if self.done else ""
        logger.info("%s: %s%s%s", self.description, counted(self.total, self.unit), after, location)

    def advance(self, note: str = "") -> None:
        self.done += 1
        now = self.clock()
        is_first = self.done == self.done_before + 1
        if is_first or self.done >= self.total or now - self.said >= SECONDS_BETWEEN_LINES:
            self.said = now
            logger.info("%s", self._line(now - self.started, note))

    def _line(self, seconds: float, note: str) -> str:
        each = seconds / (self.done - self.done_before)
        parts = [f"{self.description}: {self.unit} {self.done} of {self.total}"]
        parts += [note] * bool(note)
        parts += [f"{each:.3g} s per {self.unit}", f"{clock_time(seconds)} elapsed"]
        if self.done < self.total:
            parts.append(f"{clock_time(each * (self.total - self.done))} left")
        return ", ".join(parts)


@contextmanager
def bar(description: str, total: int, done: int = 0, *, unit: str = "step", where: Path | None = None) -> Iterator[Bar]:
    """Progress towards `total`, of which `done` were done before: a bar on stderr where that is a terminal.

    Elsewhere it is lines of the log (level INFO of `tyler.runs.progress`), which say `where` the work is kept.
    """
    console = Console(stderr=True)
    if _hidden.get():
        yield Bar()
    elif not (console.is_terminal or console.is_jupyter):
        yield LogLines(description, total, done, unit, where)
    else:
        columns = (
            TextColumn("{task.description:<12}"),
            BarColumn(bar_width=28),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            TextColumn("[dim]{task.fields[note]}"),
        )
        with Progress(*columns, console=console) as progress:
            yield RichBar(progress, progress.add_task(description, total=total, completed=done, note=""))


@contextmanager
def hidden() -> Iterator[None]:
    """No progress is shown inside."""
    token = _hidden.set(True)
    try:
        yield
    finally:
        _hidden.reset(token)


def clock_time(seconds: float) -> str:
    """Seconds as minutes:seconds, or hours:minutes:seconds."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"
