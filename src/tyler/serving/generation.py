"""The one stream that every endpoint renders: how answers begin, grow, invoke operators and end, and what they cost."""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any

from tyler.engine.request import Event, FinishEvent, InvocationEvent, Request, TokenEvent
from tyler.engine.routing import AtBoundaries, Router
from tyler.engine.shared_engine import Call, DecodingError
from tyler.engine.trajectory import Trajectory
from tyler.serving.dispatcher import Dispatcher, Told
from tyler.serving.errors import ApiError, answer_to
from tyler.serving.grammar import TextGrammar
from tyler.serving.metrics import Metrics

STREAM_SECONDS = 0.05
"""How long a stream's tokens are gathered after it was sent some: with a small model an event for each token costs more
than the token, and readers are slower. The first one, invocations and ends are never kept back."""
PING_SECONDS = 15.0
"""How long a stream may be quiet before it sends a comment."""


@dataclass(frozen=True)
class Started:
    """An answer was queued."""

    index: int


@dataclass(frozen=True)
class Text:
    """Text of an answer: that of the visible tokens which arrived together."""

    index: int
    text: str
    tokens: tuple[TokenEvent, ...] = ()


@dataclass(frozen=True)
class Invocation:
    """An operator call, as clients see it; the text before it has been sent."""

    index: int
    record: dict[str, Any]
    probs: tuple[float, ...] = ()


@dataclass(frozen=True)
class Finished:
    """An answer is complete; `Answer` has the rest."""

    index: int


@dataclass(frozen=True)
class Failed:
    """The engine lost the answers that were not finished; nothing follows."""

    error: ApiError


Piece = Started | Text | Invocation | Finished | Failed


def mark(record: dict[str, Any]) -> str:
    """How an invocation is shown to people."""
    return f"⟨{record['operator']} ×{record['latents']}⟩"


@dataclass
class Answer:
    """One answer to a request, as far as it has come. `tokens` are those of its text."""

    index: int
    request: Request
    asked: float
    times: list[float] = field(default_factory=list)
    """At which visible tokens were chosen, on the clock of `asked`."""
    tokens: list[TokenEvent] = field(default_factory=list)
    untold: list[TokenEvent] = field(default_factory=list)
    """Those that are in no piece of text yet."""
    invocations: list[dict[str, Any]] = field(default_factory=list)
    call_ends: list[float] = field(default_factory=list)
    """Of each invocation, in seconds since 1970."""
    trajectory: Trajectory | None = None
    ended: float = 0.0
    cached_tokens: int = 0
    """Of its prompt, which earlier requests had in common with it."""

    def take(self, event: Event, now: float) -> Iterator[Piece]:
        """Note what the engine did at `now`; what is told of it at once. Text waits for `tell`, a call or the end."""
        match event:
            case TokenEvent():
                self.times.append(now)
                if event.text or not event.cut:  # a stop string may leave nothing of its tokens
                    self.tokens.append(event)
                    self.untold.append(event)
            case InvocationEvent():
                self.invocations.append(self._record(event))
                self.call_ends.append(time.time())
                yield from self.tell()
                yield Invocation(self.index, self.invocations[-1], event.operator_probs)
            case FinishEvent():
                self.trajectory, self.ended, self.cached_tokens = event.trajectory, time.time(), event.cached_tokens
                yield from self.tell()
                yield Finished(self.index)

    def tell(self) -> Iterator[Piece]:
        """The text of the tokens that came since the last time, where there are any."""
        if self.untold:
            tokens, self.untold = tuple(self.untold), []
            yield Text(self.index, "".join(token.text for token in tokens), tokens)

    def _record(self, event: InvocationEvent) -> dict[str, Any]:
        """What a client is told of an invocation: `position` counts visible tokens, `offset` characters before it."""
        call, budget = event.invocation, self.request.budget
        return {
            "operator": call.operator,
            "position": call.position,
            "offset": call.offset,
            "latents": call.num_latents,
            "milliseconds": round(1000 * event.seconds, 3),
            "budget_left": None if budget is None else budget - len(self.invocations) - 1,
        }

    @property
    def done(self) -> Trajectory:
        assert self.trajectory is not None, "called before the answer finished"
        return self.trajectory

    @property
    def finish_reason(self) -> str:
        """What OpenAI's API calls the end."""
        return "length" if self.done.truncated else "stop"

    @property
    def latents(self) -> int:
        """Latents so far."""
        known = self.trajectory
        return sum(record["latents"] for record in self.invocations) if known is None else known.num_latents

    @property
    def generated(self) -> int:
        """Tokens and latents so far."""
        return self.latents + (len(self.times) if self.trajectory is None else self.done.num_visible)

    def details(self) -> dict[str, Any]:
        """What stands beside a choice under "tyler"."""
        return {
            "invocations": self.invocations,
            "budget": self.request.budget,
            "router": router_name(self.request.router),
            "seed": self.request.sampling.seed,
        }

    def decoding(self) -> dict[str, Any]:
        """Everything but the prompt and the weights that decides this answer, in JSON's types."""
        request, grammar = self.request, self.request.logits.grammar
        plain = ("budget", "max_new_tokens", "max_generated", "stop", "stop_token_ids")
        return {
            "sampling": asdict(request.sampling),
            "router": router_name(request.router),
            "logits": {name: value for name, value in vars(request.logits).items() if name != "grammar"},
            "grammar": grammar.source_of() if isinstance(grammar, TextGrammar) else None,
            **{name: getattr(request, name) for name in plain},
        }

    def logged(self, *, with_text: bool) -> dict[str, Any]:
        """What the audit log says of this answer."""
        ended, first = self.trajectory, self.times[0] - self.asked if self.times else None
        record: dict[str, Any] = {
            "finish_reason": ended and ended.finish_reason,
            "visible_tokens": self.generated - self.latents,
            "latents": self.latents,
            "invocations": [[one["operator"], one["position"], one["latents"]] for one in self.invocations],
            "decoding": self.decoding(),
            "branch": self.request.branch,
            "queue_seconds": ended and round(ended.queue_seconds, 6),
            "first_token_seconds": first and round(first, 6),
            "seconds": ended and round(ended.seconds, 6),
        }
        return record | ({"text": ended and ended.text} if with_text else {})


def router_name(router: Router) -> str:
    """How a request names a router that decides as this one does."""
    if isinstance(router, AtBoundaries):
        return "boundaries" if router.rate == 1 else f"boundaries:{router.rate:g}"
    return "learned" if router.learned else "never"


class Generation:
    """The answers to one HTTP request, `n` to each prompt."""

    def __init__(self, dispatcher: Dispatcher, requests: Sequence[Request], metrics: Metrics, n: int = 1) -> None:
        self.id, self.started = secrets.token_hex(12), time.time()
        self._firsts, asked = slice(0, None, n), time.perf_counter()
        self.answers = [Answer(index, one, asked) for index, one in enumerate(requests)]
        self.failure: ApiError | None = None
        self._dispatcher, self._metrics, self._closed = dispatcher, metrics, False
        self._opening: Future[Call]
        self._streams = True
        self._waiting, self._news, self._urgent = list[Piece](), asyncio.Event(), asyncio.Event()

    async def begin(self) -> None:
        """Queue the answers. Raises as `Dispatcher.ask`."""
        requests = [answer.request for answer in self.answers]
        self._opening = await self._dispatcher.ask(requests, self.take)

    def take(self, told: Told, now: float) -> None:
        """Note what the engine did at `now`, or that it lost what is unfinished."""
        urgent = (InvocationEvent, FinishEvent) if self._streams else (FinishEvent,)
        if isinstance(told, DecodingError):
            self.failure, told = answer_to(told), []
        for event in told:
            if isinstance(event, FinishEvent) and event.error is not None:
                self.failure = answer_to(DecodingError(event.error))
            elif not self._closed:
                answer = self.answers[event.index]
                self._waiting += answer.take(event, now)
                if isinstance(event, FinishEvent):
                    self._metrics.finished_answer(event.trajectory, answer.asked, answer.times, now)
        self._news.set()
        if self.failure is not None or any(isinstance(event, urgent) for event in told):
            self._urgent.set()

    async def pieces(self, *, streams: bool = True) -> AsyncIterator[list[Piece]]:
        """The stream, in the order in which each answer grew; what arrived together comes together.

        It is told seldom, and without `streams` when answers end. An empty list comes where nothing happened for a
        while.
        """
        self._streams = streams
        yield [Started(answer.index) for answer in self.answers]
        while self.unfinished or self._waiting:
            news = self._news if streams else self._urgent
            with suppress(TimeoutError):
                await asyncio.wait_for(news.wait(), PING_SECONDS)
            is_quiet = not news.is_set()
            self._news.clear()
            self._urgent.clear()
            if self.failure is not None:
                yield [Failed(self.failure)]
                return
            found, self._waiting = self._waiting, []
            for answer in self.answers:
                if answer.untold and answer.untold[-1].text:  # else inside a character, which another token completes
                    found += answer.tell()
            if found or is_quiet:
                yield found
            if streams and self.unfinished:
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._urgent.wait(), STREAM_SECONDS)

    @property
    def unfinished(self) -> int:
        return sum(answer.trajectory is None for answer in self.answers)

    @property
    def outcome(self) -> str:
        return "failed" if self.failure is not None else "aborted" if self.unfinished else "finished"

    @property
    def prompts(self) -> list[Sequence[int]]:
        """Each prompt once."""
        return [answer.request.prompt_ids for answer in self.answers[self._firsts]]

    def usage(self, read: str, generated: str) -> dict[str, Any]:
        """What it has cost so far, in a protocol's words: `read` and `generated` tokens.

        A prompt that several answers share is counted once; latents are among the generated tokens, and apart.
        """
        prompt, own = sum(map(len, self.prompts)), sum(one.generated for one in self.answers)
        return {
            f"{read}_tokens": prompt,
            f"{generated}_tokens": own,
            "total_tokens": prompt + own,
            f"{read}_tokens_details": {"cached_tokens": self.cached, "cache_write_tokens": 0},
            f"{generated}_tokens_details": {"reasoning_tokens": sum(one.latents for one in self.answers)},
        }

    @property
    def cached(self) -> int:
        """Tokens of the prompts that were not read again."""
        return sum(one.cached_tokens for one in self.answers[self._firsts])

    def close(self) -> None:
        """Abort what is unfinished."""
        self._closed = True
        self._dispatcher.end(self._opening, len(self.answers))
        counter = self._metrics.aborted if self.failure is None else self._metrics.failed
        counter.inc(self.unfinished)
