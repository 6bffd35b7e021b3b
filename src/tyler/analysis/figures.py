"""Figures of experiments: one style, one colour for each method, and the same bytes from the same numbers."""

from __future__ import annotations

import io
from contextlib import AbstractContextManager
from importlib.resources import files
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot, style
from matplotlib.axes import Axes
from matplotlib.figure import Figure

STYLE = str(files("tyler.analysis") / "tyler.mplstyle")
UNTIMED = {"svg": {"Date": None}, "png": {"Software": None}}
"""Metadata without a date or a version."""


def styled() -> AbstractContextManager[None]:
    """The style, for everything that is drawn inside."""
    return style.context(STYLE)


def panels(rows: int = 1, columns: int = 1, width: float = 3.4, height: float = 2.4) -> tuple[Figure, list[Axes]]:
    """A figure of so many panels, each of a size in inches, row by row."""
    figure, axes = pyplot.subplots(rows, columns, figsize=(width * columns, height * rows), squeeze=False)
    return figure, [one for row in axes for one in row]


def written(figure: Figure, kind: str) -> bytes:
    """A figure as a file of this kind, and closed."""
    out = io.BytesIO()
    metadata: dict[str, Any] = UNTIMED[kind]
    with style.context(STYLE):
        figure.savefig(out, format=kind, metadata=metadata)
    pyplot.close(figure)
    return out.getvalue()
