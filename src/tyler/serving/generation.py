"""The one stream that every endpoint renders: how answers begin, grow, invoke operators and end, and what they cost."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from tyler.engine.request import Event, FinishEvent, InvocationEvent, Request, TokenEvent
from tyler.engine.routing import AtBoundaries, Router
from tyler.engine.shared_engine import DecodingError
from tyler.engine.trajectory import Trajectory
from tyler.serving.dispatcher import Answering
from tyler.serving.errors import ApiError, engine_failed
from tyler.serving.grammar import TextGrammar
from tyler.serving.metrics import Stopwatch
from tyler.serving.settings import InvocationStyle

FINISH_REASONS = {"eos": "stop", "stop": "stop", "length": "length"}
"""What OpenAI's API calls the ends of a trajectory."""


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
    """One answer to a request, as far as it has come."""

    index: int
    request: Request
    watch: Stopwatch
    started: float = field(default_factory=time.time)
    ended: float = 0.0
    tokens: list[TokenEvent] = field(default_factory=list)
    untold: list[TokenEvent] = field(default_factory=list)
    """Those that are in no piece of text yet."""
    invocations: list[dict[str, Any]] = field(default_factory=list)
    calls: list[tuple[str, float, float, dict[str, Any]]] = field(default_factory=list)
    """Of each invocation, for traces: operator, start, end and what else is known."""
    trajectory: Trajectory | None = None
    cached_tokens: int = 0
    """Of its prompt, which earlier requests had in common with it."""

    def take(self, event: Event, style: InvocationStyle) -> Iterator[Piece]:
        """Note what happened; what is told of it at once. Text waits for `tell`, an invocation or the end."""
        match event:
            case TokenEvent():
                self.tokens.append(event)
                self.untold.append(event)
            case InvocationEvent():
                self.invocations.append(self._record(event))
                now = time.time()
                details = {f"tyler.{key}": value for key, value in self.invocations[-1].items()}
                self.calls.append((event.invocation.operator, now - event.seconds, now, details))
                if style == "inline":
                    yield from self.tell()
                if style != "hidden":
                    yield Invocation(self.index, self.invocations[-1], event.operator_probs)
            case FinishEvent(trajectory=trajectory):
                self.trajectory, self.ended = trajectory, time.time()
                self.cached_tokens = event.cached_tokens
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
        """The finished trajectory."""
        assert self.trajectory is not None, "called before the answer finished"
        return self.trajectory

    @property
    def text(self) -> str:
        return self.done.text

    @property
    def finish_reason(self) -> str:
        return FINISH_REASONS[self.done.finish_reason]

    @property
    def latents(self) -> int:
        """Latents so far."""
        if self.trajectory is not None:
            return self.trajectory.num_latents
        return sum(record["latents"] for record in self.invocations)

    @property
    def generated(self) -> int:
        """Tokens and latents so far."""
        return self.latents + (len(self.tokens) if self.trajectory is None else self.trajectory.num_visible)

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
        request = self.request
        return {
            "sampling": asdict(request.sampling),
            "router": router_name(request.router),
            "budget": request.budget,
            "max_new_tokens": request.max_new_tokens,
            "max_generated": request.max_generated,
            "stop": list(request.stop),
            "stop_token_ids": list(request.stop_token_ids),
            "logits": {name: value for name, value in vars(request.logits).items() if name != "grammar"},
            "grammar": grammar.source_of() if isinstance(grammar := request.logits.grammar, TextGrammar) else None,
        }

    def logged(self, *, with_text: bool) -> dict[str, Any]:
        """What the audit log says of this answer."""
        ended = self.trajectory
        record: dict[str, Any] = {
            "finish_reason": None if ended is None else ended.finish_reason,
            "visible_tokens": self.generated - self.latents,
            "latents": self.latents,
            "invocations": [[one["operator"], one["position"], one["latents"]] for one in self.invocations],
            "decoding": self.decoding(),
            "queue_seconds": None if ended is None else round(ended.queue_seconds, 6),
            "first_token_seconds": rounded(self.watch.first_token_seconds),
            "seconds": None if ended is None else round(ended.seconds, 6),
        }
        return record | ({"text": None if ended is None else ended.text} if with_text else {})

    def span_attributes(self) -> dict[str, Any]:
        """What a trace says of this answer, in OpenTelemetry's words where it has some."""
        self.ended = self.ended or time.time()
        return {
            "gen_ai.usage.input_tokens": len(self.request.prompt_ids),
            "gen_ai.usage.output_tokens": self.generated,
            "gen_ai.response.finish_reasons": [self.trajectory.finish_reason] if self.trajectory else ["abort"],
            "gen_ai.request.temperature": self.request.sampling.temperature,
            "tyler.latents": self.latents,
            "tyler.router": router_name(self.request.router),
        }


def router_name(router: Router) -> str:
    """How a request names a router that decides as this one does."""
    if isinstance(router, AtBoundaries):
        return "boundaries" if router.rate == 1 else f"boundaries:{router.rate:g}"
    return "learned" if router.learned else "never"


def rounded(seconds: float | None) -> float | None:
    """To microseconds."""
    return None if seconds is None else round(seconds, 6)


@dataclass(frozen=True)
class Usage:
    """What a request cost: latents are counted among the generated tokens, and apart."""

    prompt: int
    generated: int
    latents: int
    cached: int = 0

    def of_chat(self) -> dict[str, Any]:
        """As chats and completions say it."""
        return {
            "prompt_tokens": self.prompt,
            "completion_tokens": self.generated,
            "total_tokens": self.prompt + self.generated,
            "prompt_tokens_details": {"cached_tokens": self.cached},
            "completion_tokens_details": {"reasoning_tokens": self.latents},
        }

    def of_response(self) -> dict[str, Any]:
        """As responses say it."""
        return {
            "input_tokens": self.prompt,
            "input_tokens_details": {"cached_tokens": self.cached, "cache_write_tokens": 0},
            "output_tokens": self.generated,
            "output_tokens_details": {"reasoning_tokens": self.latents},
            "total_tokens": self.prompt + self.generated,
        }


class Generation:
    """The answers to one HTTP request. Its opener closes it: that aborts what is unfinished, and logs it."""

    def __init__(
        self, id: str, answering: Answering, prompts: Sequence[Sequence[int]], closed: Callable[[str, Generation], None]
    ) -> None:
        self.id, self.created, self.prompts, self.started = id, int(time.time()), prompts, time.time()
        self.done = answering.done
        pairs = zip(answering.requests, answering.watches, strict=True)
        self.answers = [Answer(index, request, watch) for index, (request, watch) in enumerate(pairs)]
        self._answering, self._on_close, self._closed = answering, closed, False

    async def pieces(self, style: InvocationStyle = "inline") -> AsyncIterator[list[Piece]]:
        """The stream, in the order in which each answer grew; what arrived together comes together.

        Under the style "first" an answer's text follows all its invocations, under "hidden" there are no invocations.
        """
        yield [Started(answer.index) for answer in self.answers]
        try:
            async for batch in self._answering.batches():
                if found := self._told(batch, style):
                    yield found
        except DecodingError as error:
            yield [Failed(engine_failed(str(error)))]

    async def finished(self, style: InvocationStyle = "inline") -> list[Piece]:
        """The whole stream at its end. Raises DecodingError when the engine failed."""
        self._answering.streams = False
        return [piece async for batch in self._answering.batches() for piece in self._told(batch, style)]

    def _told(self, batch: Sequence[Event], style: InvocationStyle) -> list[Piece]:
        """Note what happened; what it comes to. Tokens inside a character wait for the one that completes it."""
        found = [piece for event in batch for piece in self.answers[event.index].take(event, style)]
        if style != "first":
            for answer in self.answers:
                if answer.untold and answer.untold[-1].text:
                    found += answer.tell()
        return found

    @property
    def usage(self) -> Usage:
        """What it has cost so far; a prompt that several answers share is counted once."""
        answers = self.answers
        firsts = answers[:: max(1, len(answers) // len(self.prompts))]
        return Usage(
            prompt=sum(map(len, self.prompts)),
            generated=sum(one.generated for one in answers),
            latents=sum(one.latents for one in answers),
            cached=sum(one.cached_tokens for one in firsts),
        )

    async def close(self) -> None:
        """Abort what is unfinished and have it logged; once."""
        if not self._closed:
            self._closed, answering = True, self._answering
            outcome = "failed" if answering.failed else "aborted" if answering.unfinished else "finished"
            answering.close()
            self._on_close(outcome, self)
