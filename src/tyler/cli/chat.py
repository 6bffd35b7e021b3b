"""`tyler chat`: a conversation with a model in a terminal."""

from __future__ import annotations

import sys
from typing import Annotated

from tyro.conf import arg

from tyler.cli.options import ModelName, last_part
from tyler.evaluation.options import Decoding, Loading

DEFAULT, LOADED = Decoding(), Loading()


def chat(
    model: ModelName,
    decoding: Annotated[Decoding, arg(name="")] = DEFAULT,
    loading: Annotated[Loading, arg(name="")] = LOADED,
) -> None:
    """Chat with a model in the terminal, operators shown where they are invoked; /help lists the commands.

    Args:
        model: A saved model, Tyler's or a baseline's (mini-tyler ships), or a plain backbone: mini, smollm2 (see tyler
            fetch), a folder, a GGUF file or a Hub id.
    """
    router, bound, sampling = decoding.routed, loading.bytes, decoding.sampling
    engine = loading.engine_choice
    from typing import cast

    from tyler.cli.conversation import Conversation, run
    from tyler.reasoners import registry
    from tyler.reasoners.reasoner import AnswerSettings, Servable

    settings = AnswerSettings(sampling, decoding.max_new_tokens)
    loaded = registry.load(
        model,
        loading.method,
        loading.method_set,
        name=last_part(model),
        backbone=loading.backbone,
        device=loading.device,
        dtype=loading.dtype,
        router=router,
        budget=decoding.budget,
        max_new_tokens=decoding.max_new_tokens,
        memory=bound,
        engine=engine,
    )
    if sys.stdin.isatty():
        import readline  # noqa: F401  # arrow keys and a history of what was typed

        print("/help lists the commands, Ctrl-D ends")
    talk = Conversation(cast(Servable, loaded.reasoner), settings, memory=bound)
    run(talk, lambda: input("> " if sys.stdin.isatty() else ""))
