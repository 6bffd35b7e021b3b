"""A request to the engine, and the events it gives rise to."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import index
from typing import Any

from jaxtyping import Float
from torch import Tensor

from tyler.engine.checks import check_whole
from tyler.engine.logits import LogitSettings
from tyler.engine.routing import Learned, Never, Router, check_router
from tyler.engine.sampling import Sampler, Sampling
from tyler.engine.trajectory import Invocation, Trajectory


class PromptTooLong(ValueError):
    """Prompts leave no room for an answer in the model's context; `places` says which of the requests they are of."""

    def __init__(self, message: str, places: tuple[int, ...] = (0,)) -> None:
        super().__init__(message)
        self.places = places


A_SAMPLING = "write Sampling(temperature=0.7, seed=1), for instance"


@dataclass(frozen=True)
class SoftPrompt:
    """Vectors that stand in for the embeddings of some prompt positions."""

    positions: tuple[int, ...]
    embeds: Float[Tensor, "positions dim"]


@dataclass(frozen=True)
class Request:
    """One answer to decode. `budget` caps operator calls (None: no cap); `max_new_tokens` counts actions.

    `max_generated` bounds tokens and latents together: a call that would pass it ends the answer unmade.
    `stop` ends the answer: one string or several; so does any of `stop_token_ids`, besides the model's own end tokens.
    `logits` changes which visible tokens are taken (`logits.py`). `sampler` replaces the rule by which tokens and their
    embeddings are chosen (`sampling.py`), and goes without operators; `soft_prompt` replaces embeddings of the
    prompt. `top_logprobs` asks to be told so many of the most probable tokens wherever a token was taken.
    `operator_probs` asks to be told p(operator) of every decision where the policy routes. `branch` begins the
    answer with actions of another one up to an invocation, which is then left out: the decision there is between
    tokens, or the fixed router's call is not made. Raises ValueError, with what is allowed, for an invalid setting.
    """

    prompt_ids: Sequence[int]
    router: Router = field(default_factory=Learned)
    sampling: Sampling = field(default_factory=Sampling)
    budget: int | None = None
    max_new_tokens: int = 2048
    max_generated: int | None = None
    stop: str | Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    logits: LogitSettings = field(default_factory=LogitSettings)
    sampler: Sampler | None = None
    soft_prompt: SoftPrompt | None = None
    top_logprobs: int = 0
    operator_probs: bool = False
    branch: Sequence[int] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "prompt_ids", ids_of(self.prompt_ids))
        if not self.prompt_ids:
            raise ValueError("the prompt is empty; give at least one token")
        check_whole("max_new_tokens", self.max_new_tokens, 1, "it must be a whole number, at least 1")
        check_whole("top_logprobs", self.top_logprobs, 0, "it must be a whole number, 0 for none")
        if self.max_generated is not None:
            check_whole("max_generated", self.max_generated, 1, "it must be a whole number, at least 1, or None")
        if self.budget is not None:
            check_whole("budget", self.budget, 0, "it must be a whole number, 0 or more, or None for no cap")
            object.__setattr__(self, "budget", int(self.budget))
        if not isinstance(self.sampling, Sampling):
            raise ValueError(f"sampling={self.sampling!r}; {A_SAMPLING}")
        check_router(self.router)
        object.__setattr__(self, "stop", stop_strings(self.stop))
        for token in self.stop_token_ids:
            check_whole("a token of stop_token_ids", token, 0, "it must be a token id")
        object.__setattr__(self, "stop_token_ids", tuple(self.stop_token_ids))
        if self.sampler is not None and not isinstance(self.router, Never):
            raise ValueError(f"a request with a sampler has no operators; give router=Never(), not {self.router!r}")
        asked = {"logits": not self.logits.plain, "top_logprobs": self.top_logprobs, "branch": self.branch is not None}
        for name in [name for name in asked if asked[name]]:
            if self.sampler is not None:
                raise ValueError(f"a request with a sampler chooses by the sampler's rule alone; leave {name} out")

    @property
    def reach(self) -> int:
        """Positions that its answer may take: without a budget, no more of them for latents than for tokens."""
        silent = self.budget == 0 or isinstance(self.router, Never)
        return len(self.prompt_ids) + self.max_new_tokens * (1 if silent else 2)


def ids_of(prompt: Any) -> list[int]:
    """The tokens of a prompt, which may be a tensor of one dimension. Raises ValueError for anything else."""
    try:
        return [index(one) for one in (prompt.tolist() if isinstance(prompt, Tensor) else prompt)]
    except TypeError as error:
        raise ValueError(f"prompt_ids={prompt!r:.80}; give one prompt's tokens as whole numbers") from error


def check_branch(request: Request, vocab_size: int, offered: Sequence[bool], ends: Collection[int]) -> None:
    """Raise ValueError for a branch that no answer can begin with; `offered` are the policy's operators, where the
    router is learned."""
    operators = [vocab_size + k for k, one in enumerate(offered) if one or not request.router.learned]
    for action in request.branch or ():
        if (not 0 <= action < vocab_size or action in ends) and action not in operators:
            raise ValueError(
                f"branch holds {action}; it may hold tokens below {vocab_size} that end no answer, and the operators "
                f"that this model offers, {operators}"
            )
    calls = sum(action >= vocab_size for action in request.branch or ())
    if request.budget is not None and calls > request.budget:
        raise ValueError(f"branch invokes {calls} operators, and budget={request.budget}; raise the budget")


def stop_strings(stop: str | Sequence[str]) -> tuple[str, ...]:
    """The stop strings as a tuple; a plain string is one of them. Raises ValueError for what is not text, or empty."""
    strings = tuple(stop) if isinstance(stop, Iterable) and not isinstance(stop, str) else (stop,)
    if not all(isinstance(string, str) and string for string in strings):
        raise ValueError(f"stop={stop!r}; give a text that is not empty, or several in a list; leave it out for none")
    return strings


@dataclass(frozen=True)
class TokenEvent:
    """A visible token of request `index`, and the text it completed (empty inside a multi-byte character).

    `logprob` is log p(a_t | x_t), and `top` the most probable tokens with theirs, of a request that asks for them. Of a
    token that is `cut` a stop string left only this text, or none. `operator_probs` is p(operator) of each operator
    where it was chosen, of a request that asks for it.
    """

    index: int
    token: int
    text: str
    operator_probs: tuple[float, ...] = field(default=(), compare=False)
    logprob: float = field(default=0.0, compare=False)
    top: tuple[tuple[int, float], ...] = field(default=(), compare=False)
    cut: bool = False


@dataclass(frozen=True)
class InvocationEvent:
    """An operator call of request `index` was served, in `seconds`: its share of a pass over several calls.

    `operator_probs` as a `TokenEvent` has them.
    """

    index: int
    invocation: Invocation
    seconds: float = field(default=0.0, compare=False)
    operator_probs: tuple[float, ...] = field(default=(), compare=False)


@dataclass(frozen=True)
class FinishEvent:
    """Request `index` is done, or could not be finished because of `error`: the trajectory ends where that came.

    `cached_tokens` of its prompt were not read, because an earlier one began with them.
    """

    index: int
    trajectory: Trajectory
    error: str | None = None
    cached_tokens: int = field(default=0, compare=False)


Event = TokenEvent | InvocationEvent | FinishEvent


def checked(events: Iterable[Event]) -> Iterator[Event]:
    """The events; raises FloatingPointError at the end of an answer that could not be finished."""
    for event in events:
        if isinstance(event, FinishEvent) and event.error is not None:
            raise FloatingPointError(f"answer {event.index}: {event.error}")
        yield event
