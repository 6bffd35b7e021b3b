"""`tyler chat`: a conversation with a model in a terminal, and the commands that change how it goes on."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, cast

from tyro.conf import arg

from tyler.cli.options import AnyModel
from tyler.evaluation.options import Decoding, Loading, router_of

if TYPE_CHECKING:
    from tyler.reasoners.reasoner import AnswerSettings, Servable
    from tyler.tasks.prompts import Message

DEFAULT, LOADED = Decoding(), Loading()
HELP = """\
/budget N        at most N invocations an answer; /budget alone: as the model was started
/router ROUTER   learned, never, boundaries or boundaries:RATE; /router alone: as the model was started
/temperature T   0 is greedy
/system TEXT     the system message, before the conversation; /system alone: nothing
/new             start a new conversation
/help            this list
/quit            or Ctrl-D; Ctrl-C ends an answer"""


def chat(
    model: AnyModel,
    decoding: Annotated[Decoding, arg(name="")] = DEFAULT,
    placement: Annotated[Loading, arg(name="")] = LOADED,
) -> None:
    """Chat with a model in the terminal, operators shown where they are invoked; /help lists the commands."""
    from tyler.reasoners.reasoner import AnswerSettings, Servable

    settings = AnswerSettings(decoding.sampling, decoding.max_new_tokens)
    reasoner = placement.load(model, decoding).reasoner
    if sys.stdin.isatty():
        import readline  # noqa: F401  # arrow keys and a history of what was typed

        print("/help lists the commands, Ctrl-D ends")
    talk = Conversation(cast(Servable, reasoner), settings, memory=placement.bytes)
    run(talk, lambda: input("> " if sys.stdin.isatty() else ""))


class Conversation:
    """One conversation with a model; `memory` bounds the bytes of its context and caches."""

    def __init__(self, servable: Servable, settings: AnswerSettings, *, memory: int | None = None) -> None:
        self._servable, self.settings, self._memory = servable, settings, memory
        self.turns: list[Message] = []
        self._system: list[Message] = []

    def take(self, line: str) -> str:
        """Answer a line, or carry out the command that it is; returns what to print.

        Raises ValueError for an unknown command, and for a question that cannot be answered.
        """
        if not line.startswith("/"):
            return self._answer(line) if line.strip() else ""
        name, _, rest = line[1:].partition(" ")
        rest = rest.strip()
        match name:
            case "budget":
                if rest and not rest.isdecimal():
                    raise ValueError(f"/budget {rest}: it is a whole number, 0 or more")
                self.settings = replace(self.settings, budget=int(rest) if rest else None)
            case "router":
                self.settings = replace(self.settings, router=router_of(rest or None))
            case "temperature":
                try:
                    temperature = float(rest)
                except ValueError as error:
                    raise ValueError(f"/temperature {rest}: it is a number, 0 or more") from error
                sampling = replace(self.settings.sampling, temperature=temperature)
                self.settings = replace(self.settings, sampling=sampling)
            case "system":
                self._system = [{"role": "system", "content": rest}] if rest else []
            case "new":
                self.turns = []
                return "a new conversation"
            case "help":
                return HELP
            case _:
                raise ValueError(f"there is no /{name}; /help lists the commands")
        return f"{name}: {rest or 'as started'}"

    def _answer(self, question: str) -> str:
        """Ask, and remember both sides. An answer that was interrupted is forgotten with its question."""
        from tyler.cli.answers import print_answers

        turns: list[Message] = [*self.turns, {"role": "user", "content": question}]
        request = self._servable.request([*self._system, *turns], self.settings)
        events = self._servable.model.shared_engine.events([request], memory=self._memory)
        with contextlib.closing(events):  # an interrupt frees the row at once
            try:
                (trajectory,) = print_answers(events)
            except KeyboardInterrupt:
                return "\ninterrupted"
        self.turns = [*turns, {"role": "assistant", "content": trajectory.text}]
        return ""


def run(conversation: Conversation, read: Callable[[], str]) -> None:
    """Take lines until there are no more, or one of them is /quit."""
    while True:
        try:
            line = read()
        except EOFError:
            return
        except KeyboardInterrupt:  # at the prompt it only drops the line
            print()
            continue
        if line.strip() in ("/quit", "/exit"):
            return
        try:
            reply = conversation.take(line)
        except ValueError as error:
            reply = str(error).removeprefix("--")
        if reply:
            print(reply)
