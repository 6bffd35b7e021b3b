"""`tyler chat`: a conversation with a model in a terminal."""

from __future__ import annotations

import sys
from typing import Annotated, cast

from tyro.conf import arg

from tyler.cli.options import AnyModel
from tyler.evaluation.options import Decoding, Loading

DEFAULT, LOADED = Decoding(), Loading()


def chat(
    model: AnyModel,
    decoding: Annotated[Decoding, arg(name="")] = DEFAULT,
    placement: Annotated[Loading, arg(name="")] = LOADED,
) -> None:
    """Chat with a model in the terminal, operators shown where they are invoked; /help lists the commands."""
    from tyler.cli.conversation import Conversation, run
    from tyler.reasoners.reasoner import AnswerSettings, Servable

    settings = AnswerSettings(decoding.sampling, decoding.max_new_tokens)
    reasoner = placement.load(model, decoding).reasoner
    if sys.stdin.isatty():
        import readline  # noqa: F401  # arrow keys and a history of what was typed

        print("/help lists the commands, Ctrl-D ends")
    talk = Conversation(cast(Servable, reasoner), settings, memory=placement.bytes)
    run(talk, lambda: input("> " if sys.stdin.isatty() else ""))
