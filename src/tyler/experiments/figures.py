"""Figures of experiments: one style, one colour for each method, and the same bytes from the same numbers."""

from __future__ import annotations

import io
import re
import textwrap
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from importlib.resources import files
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot, style
from matplotlib.axes import Axes
from matplotlib.figure import Figure

STYLE = str(files("tyler.experiments") / "tyler.mplstyle")
NOTE, LETTER = 5, 0.55
"""Points of a note under a figure, and the width of its letters in them."""
BAR: Mapping[str, Any] = {"fmt": "none", "elinewidth": 0.8, "capsize": 2, "capthick": 0.8}
UNTIMED = {"svg": {"Date": None}, "png": {"Software": None}}
"""Metadata without a date or a version."""


def styled() -> AbstractContextManager[None]:
    """The style, for everything that is drawn inside."""
    return style.context(STYLE)


def panels(rows: int = 1, columns: int = 1, width: float = 3.4, height: float = 2.4) -> tuple[Figure, list[Axes]]:
    """A figure of so many panels, each of a size in inches, row by row. One above the other they fit a column."""
    figure, axes = pyplot.subplots(rows, columns, figsize=(width * columns, height * rows), squeeze=False)
    return figure, [one for row in axes for one in row]


def panels_beside(columns: int, height: float, width: float = 10) -> tuple[Figure, list[Axes]]:
    """A figure of panels beside each other that share their rows."""
    size = (width, height)
    figure, axes = pyplot.subplots(1, columns, sharey=True, figsize=size, layout="constrained", squeeze=False)
    return figure, list(axes[0])


def bar(axes: Axes, x: float, y: float, ends: tuple[float, float], color: str) -> None:
    """An interval around a point."""
    low, high = ends
    axes.errorbar([x], [y], yerr=[[max(0.0, y - low)], [max(0.0, high - y)]], ecolor=color, **BAR)


def note(figure: Figure, lines: Sequence[str]) -> None:
    """Small lines under a figure: what it is made of, wrapped to its width."""
    letters = int(figure.get_figwidth() * 72 / (NOTE * LETTER))
    wrapped = [part for line in lines for part in textwrap.wrap(line, letters)]
    figure.supxlabel("\n".join(wrapped), x=0.01, ha="left", fontsize=NOTE, color="#555555", linespacing=1.4)


def written(figure: Figure, kind: str) -> bytes:
    """A figure as a file of this kind, and closed."""
    out = io.BytesIO()
    metadata: dict[str, Any] = UNTIMED[kind]
    with style.context(STYLE):
        figure.savefig(out, format=kind, metadata=metadata)
    pyplot.close(figure)
    return shortened(out.getvalue().decode()).encode() if kind == "svg" else out.getvalue()


def shortened(svg: str) -> str:
    """The same picture in half the bytes: two decimals of a point, and each style once, as a class."""
    svg = re.sub(r"(\d\.\d\d)\d+", r"\1", re.sub(r"\n(?=[A-Zz])", "", svg))
    classes: dict[str, str] = {}

    def named(match: re.Match[str]) -> str:
        return f'class="{classes.setdefault(match[1], f"s{len(classes)}")}"'

    svg = re.sub(r'style="([^"]*)"', named, svg)
    rules = "".join(f".{name}{{{rule}}}" for rule, name in classes.items())
    return svg.replace("</style>", f"{rules}</style>", 1)
