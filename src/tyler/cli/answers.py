"""An answer in a terminal, as it is decoded."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console
from rich.text import Text

from tyler.engine.request import Event, FinishEvent, InvocationEvent, TokenEvent
from tyler.engine.trajectory import Trajectory
from tyler.presentation import escaped, sign


def print_answer(events: Iterable[Event]) -> Trajectory | None:
    """Print the tokens of one answer, and each operator where it was invoked, in its own colour.

    Returns the trajectory, or None where the events end without one.
    """
    console = Console(highlight=False, soft_wrap=True)
    for event in events:
        match event:
            case TokenEvent():
                # Control characters that a model wrote are shown on a terminal, and not obeyed.
                console.file.write(escaped(event.text) if console.is_terminal else event.text)
                console.file.flush()
            case InvocationEvent(invocation=invocation):
                console.print(sign(invocation), end="")
            case FinishEvent(trajectory=trajectory):
                console.print()
                counts = console if console.is_terminal else Console(stderr=True, soft_wrap=True)
                counts.print(Text(trajectory.summary(), style="dim"))
                return trajectory
    return None
