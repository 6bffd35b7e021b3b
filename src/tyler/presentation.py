"""How an answer with silent operators is shown to people: every operator where it was invoked, in its own colour.

All colours are here, and the same in a terminal, on a page and in a plot. Each has a contrast of at least 4.5 with
white and with black, so it is read on either and white is read on it; the hues of operators are those of Okabe and Ito,
which the colour-blind tell apart.
"""

import re
import zlib
from collections.abc import Iterator, Sequence
from typing import Protocol

from markupsafe import Markup, escape
from rich.text import Text

COLOURS = {"global": "#007abf", "state": "#c15500", "procedure": "#008561"}
"""Of the paper's operators."""
MORE_COLOURS = ("#bc4d8b", "#9d6c00", "#7c66c8", "#618020", "#6e7682")
"""For other operators, by their names."""

SERIES = ("#5a6cd6", "#d43678", "#548120", "#a750c5")
"""Of runs that are compared in one plot, in their order."""
VERDICTS = {
    "correct": "#2c8543",
    "wrong": "#d14339",
    "no_box": "#996d08",
    "truncated": "#8760ca",
    "unparsable": "#6e7682",
    "timeout": "#158191",
    "gold_error": "#c1449c",
    "too_long": "#6d7d1f",
}
"""Of how an answer fared, by its outcome."""

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""What a terminal obeys instead of showing, and what turns the direction of writing; not a tab or a line's end."""


class Placed(Protocol):
    """An operator call as it stands in a text: `offset` is the number of characters before it."""

    @property
    def operator(self) -> str: ...

    @property
    def num_latents(self) -> int: ...

    @property
    def offset(self) -> int: ...


def colour_of(operator: str) -> str:
    """The colour of an operator, as #rrggbb: a function of its name alone."""
    return COLOURS.get(operator) or MORE_COLOURS[zlib.crc32(operator.encode()) % len(MORE_COLOURS)]


def pieces(text: str, calls: Sequence[Placed]) -> Iterator[str | Placed]:
    """The text and the calls in the order in which they came; texts may be empty."""
    shown = 0
    for call in calls:
        yield text[shown : call.offset]
        yield call
        shown = call.offset
    yield text[shown:]


def escaped(text: str) -> str:
    """The text with control characters written out, as in "\\x1b": whatever a model wrote, a terminal only shows it."""
    return _CONTROL.sub(lambda match: match[0].encode("unicode_escape").decode("ascii"), text)


def label(call: Placed) -> str:
    """An operator and its number of latents, as in "global ×8"."""
    return f"{call.operator} ×{call.num_latents}"


def sign(call: Placed) -> Text:
    """One call in a terminal."""
    return Text(f"⟨{label(call)}⟩", style=f"bold {colour_of(call.operator)}")


def as_text(text: str, calls: Sequence[Placed]) -> Text:
    """The text for a terminal, with every operator in its place and control characters written out."""
    return Text.assemble(*(escaped(piece) if isinstance(piece, str) else sign(piece) for piece in pieces(text, calls)))


def as_html(text: str, calls: Sequence[Placed]) -> Markup:
    """The text for a page that has a style for `op`, escaped, with every operator in its place and its colour."""
    chip = Markup('<span class="op" style="background:{}">{}</span>')
    return Markup("").join(
        escape(piece) if isinstance(piece, str) else chip.format(colour_of(piece.operator), label(piece))
        for piece in pieces(text, calls)
    )


def counted(count: int, word: str) -> str:
    """ "1 invocation", "2 invocations"."""
    return f"{count} {word}" if count == 1 else f"{count} {word}s"
