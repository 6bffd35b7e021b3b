"""What the library logs, as plain lines on stderr; and how `--quiet` silences them."""

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

logger = logging.getLogger("tyler")


class PlainLines(logging.Handler):
    """A line of text for each message on whatever stderr is now; a warning says that it is one.

    Of several processes only the first prints anything below a warning.
    """

    def __init__(self) -> None:
        super().__init__(logging.INFO if os.environ.get("RANK", "0") == "0" else logging.WARNING)

    def emit(self, record: logging.LogRecord) -> None:
        prefix = "" if record.levelno < logging.WARNING else "warning: "
        print(f"{prefix}{record.getMessage()}", file=sys.stderr, flush=True)


@contextmanager
def plain_lines() -> Iterator[None]:
    """Messages of the library are shown inside, from INFO on."""
    handler, level = PlainLines(), logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


@contextmanager
def quietly(quiet: bool, least: int = logging.WARNING) -> Iterator[None]:
    """Where `quiet`, only warnings are shown inside, or what else is the `least`, and no progress."""
    if not quiet:
        yield
        return
    from tyler.runs.progress import hidden

    level = logger.level
    logger.setLevel(least)
    try:
        with hidden():
            yield
    finally:
        logger.setLevel(level)


def loading(model: str) -> AbstractContextManager[object]:
    """On a terminal a line says what is being loaded, and is gone afterwards."""
    from rich.console import Console

    return Console(stderr=True).status(f"loading {model} ...")
