"""How an answer with silent operators is shown to people."""

from __future__ import annotations

from rich.text import Text

from tyler.engine.trajectory import Invocation, Trajectory

COLOURS = ("cyan", "green", "magenta", "yellow", "blue", "red")


class Palette:
    """One colour per operator, in the order in which they first appear."""

    def __init__(self) -> None:
        self._colours: dict[str, str] = {}

    def mark(self, invocation: Invocation) -> Text:
        """The sign of one invocation: its operator and its number of latents."""
        colour = self._colours.setdefault(invocation.operator, COLOURS[len(self._colours) % len(COLOURS)])
        return Text(f"⟨{invocation.operator} ×{invocation.num_latents}⟩", style=f"bold {colour}")


def traced(trajectory: Trajectory) -> Text:
    """The visible text with every operator where it was invoked."""
    palette, result, shown = Palette(), Text(), 0
    for invocation in trajectory.invocations:
        result.append(trajectory.text[shown : invocation.offset])
        result.append_text(palette.mark(invocation))
        shown = invocation.offset
    return result.append(trajectory.text[shown:])
