"""Progress with the time left: a bar on a terminal, a plain line now and then in a log."""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
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


class LogLines(Bar):
    """A Bar as lines of a log: at the start, after the first step, every 30 seconds, and at the end.

    A step that takes longer than that has a line of its own. `clock` gives seconds.
    """

    def __init__(
        self,
        description: str,
        total: int,
        done: int = 0,
        unit: str = "step",
        where: Path | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._description, self._total, self._done, self._unit, self._clock = description, total, done, unit, clock
        self._first = done
        self._started = self._said = clock()
        location = "" if where is None or where == Path() else f", in {where}"
        after = f", {done} of them done before" if done else ""
        logger.info("%s: %s%s%s", description, counted(total, unit), after, location)

    def advance(self, note: str = "") -> None:
        self._done += 1
        now = self._clock()
        is_first = self._done == self._first + 1
        if is_first or self._done >= self._total or now - self._said >= SECONDS_BETWEEN_LINES:
            self._said = now
            logger.info("%s", self._line(now - self._started, note))

    def _line(self, seconds: float, note: str) -> str:
        each = seconds / (self._done - self._first)
        parts = [f"{self._description}: {self._unit} {self._done} of {self._total}"]
        parts += [note] * bool(note)
        parts += [f"{each:.3g} s per {self._unit}", f"{clock_time(seconds)} elapsed"]
        if self._done < self._total:
            parts.append(f"{clock_time(each * (self._total - self._done))} left")
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
