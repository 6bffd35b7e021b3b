"""`tyler solve`: one answer, printed as it comes."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

from tyro.conf import Positional, arg

from tyler.cli.options import ModelName, RouterName, SomeBytes, SomeNumber, memory_of, router_of

if TYPE_CHECKING:
    from tyler.engine.request import Event


def solve(
    model: ModelName,
    question: Annotated[Positional[str], arg(metavar="QUESTION")],
    budget: SomeNumber = None,
    router: RouterName = None,
    temperature: float = 0.0,
    seed: int = 0,
    max_new_tokens: int = 2048,
    memory: SomeBytes = None,
) -> None:
    """Answer one question, printing tokens and operators as they come.

    Args:
        model: A saved model, Tyler's or a baseline's, or a plain backbone: mini, smollm2 (see tyler fetch), a folder, a
            GGUF file or a Hub id.
        question: The question; "-" reads it from standard input.
        budget: At most this many invocations; 0 is the model without operators; by default no limit.
        router: learned, never, boundaries or boundaries:0.25 (a share); by default what its last stage trained for.
        temperature: 0 is greedy.
        seed: Seed of sampling.
        max_new_tokens: At most this many actions.
        memory: At most so much context and caches, as 4GB or 512MiB; an answer that does not fit is refused.
    """
    chosen, bound = router_of(router), memory_of(memory)
    from tyler.engine.sampling import Sampling
    from tyler.reasoners import registry

    events = registry.stream(
        model,
        sys.stdin.read() if question == "-" else question,
        budget=budget,
        router=chosen,
        sampling=Sampling(temperature=temperature, seed=seed),
        max_new_tokens=max_new_tokens,
        memory=bound,
    )
    _show(events)


def _show(events: Iterable[Event]) -> None:
    """Print the tokens of one answer, and each operator where it was invoked, in its own colour."""
    from rich.console import Console
    from rich.text import Text

    from tyler.engine.presentation import sign
    from tyler.engine.request import FinishEvent, InvocationEvent, TokenEvent

    console = Console(highlight=False, soft_wrap=True)
    for event in events:
        match event:
            case TokenEvent():
                console.print(Text(event.text), end="")
            case InvocationEvent(invocation=invocation):
                console.print(sign(invocation), end="")
            case FinishEvent(trajectory=trajectory):
                console.print(Text(f"\n{trajectory.summary()}", style="dim"))
