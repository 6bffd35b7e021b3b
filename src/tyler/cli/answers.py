"""Answers in a terminal."""

from collections.abc import Iterable

from rich.console import Console
from rich.text import Text

from tyler.engine.request import Event, FinishEvent, InvocationEvent, TokenEvent
from tyler.engine.trajectory import Trajectory
from tyler.presentation import escaped, pieces, sign


def print_answers(events: Iterable[Event], *, operators: bool = True, alone: bool = True) -> list[Trajectory]:
    """Print text: of an answer that is `alone` as it is decoded, of several one after the other; returns what ended.

    On a terminal control characters that a model wrote are shown and not obeyed; `operators` stand where they were
    invoked, in their colours, with a line of counts below, which goes to standard error in a pipe.
    """
    console, ended = Console(highlight=False, soft_wrap=True), list[Trajectory]()

    def write(text: str) -> None:
        console.file.write(escaped(text) if console.is_terminal else text)
        console.file.flush()

    for event in events:
        match event:
            case TokenEvent(text=text) if alone:
                write(text)
            case InvocationEvent(invocation=invocation) if alone and operators:
                console.print(sign(invocation), end="")
            case FinishEvent(trajectory=trajectory):
                if not alone:
                    for piece in pieces(trajectory.text, trajectory.invocations if operators else ()):
                        write(piece) if isinstance(piece, str) else console.print(sign(piece), end="")
                write("\n")
                if operators:
                    counts = console if console.is_terminal else Console(stderr=True, soft_wrap=True)
                    counts.print(Text(trajectory.summary(), style="dim"))
                ended.append(trajectory)
    return ended
