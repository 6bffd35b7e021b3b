"""`tyler chat`: a conversation with a model in a terminal."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from tyro.conf import UseAppendAction, arg

from tyler.cli.options import (
    ModelName,
    RouterName,
    SomeBackbone,
    SomeBytes,
    SomeDevice,
    SomeNumber,
    memory_of,
    router_of,
)


def chat(
    model: ModelName,
    budget: SomeNumber = None,
    router: RouterName = None,
    temperature: float = 0.0,
    seed: int = 0,
    max_new_tokens: int = 2048,
    method: Annotated[str | None, arg(metavar="METHOD", help_behavior_hint="")] = None,
    method_set: Annotated[UseAppendAction[tuple[str, ...]], arg(metavar="KEY=VALUE")] = (),
    memory: SomeBytes = None,
    backbone: SomeBackbone = None,
    device: SomeDevice = None,
) -> None:
    """Talk with a model, operators shown where they are invoked; /help names what can be changed on the way.

    Args:
        model: A saved model, Tyler's or a baseline's, or a plain backbone: a folder or a Hub id.
        budget: At most this many invocations an answer; by default no limit.
        router: learned, never, boundaries or boundaries:0.25 (a share); by default what its last stage trained for.
        temperature: 0 is greedy.
        seed: Seed of sampling.
        max_new_tokens: At most this many actions an answer.
        method: tyler (with its operators), cot, or another baseline, as softcot; by default what the model was
            trained for.
        method_set: Change one setting of the method: `--method-set min_p=0.01`.
        memory: At most so much context and caches, as 4GB or 512MiB; an answer that does not fit is refused.
        backbone: Where the backbone of a checkpoint is, if it is not where it was: a folder, a GGUF file or a Hub id.
        device: cpu, cuda, cuda:1 or mps; by default a CUDA device where there is one.
    """
    chosen, bound = router_of(router), memory_of(memory)
    from typing import cast

    from tyler.cli.conversation import Conversation, run
    from tyler.engine.sampling import Sampling
    from tyler.reasoners import registry
    from tyler.reasoners.reasoner import AnswerSettings, Servable

    settings = AnswerSettings(Sampling(temperature=temperature, seed=seed), max_new_tokens)
    loaded = registry.load(
        model,
        method,
        method_set,
        name=Path(model).name,
        backbone=backbone,
        device=device,
        router=chosen,
        budget=budget,
        max_new_tokens=max_new_tokens,
        memory=bound,
    )
    if sys.stdin.isatty():
        import readline  # noqa: F401  # arrow keys and a history of what was typed

        print("/help names the commands, Ctrl-D ends")
    talk = Conversation(cast(Servable, loaded.reasoner), settings, memory=bound)
    run(talk, lambda: input("> " if sys.stdin.isatty() else ""))
