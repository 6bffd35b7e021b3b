"""A request to the engine, what is known of it while it is decoded, and the events it gives rise to."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from jaxtyping import Float
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from tyler.choosing import Chooser
from tyler.routing import Call, Learned, Never, Router, Schedule
from tyler.sampling import Sampling, Uniforms
from tyler.trajectory import Invocation, Trajectory
from tyler.transcript import Transcript


@dataclass(frozen=True)
class SoftPrompt:
    """Vectors that stand in for the embeddings of some prompt positions."""

    positions: tuple[int, ...]
    embeds: Float[Tensor, "positions dim"]


@dataclass(frozen=True)
class Request:
    """One answer to decode. `budget` caps operator calls (None: no cap); `max_new_tokens` counts actions.

    `chooser` replaces the rule by which tokens and their embeddings are chosen (`choosing.py`), and goes without
    operators; `soft_prompt` replaces embeddings of the prompt.
    """

    prompt_ids: Sequence[int]
    router: Router = field(default_factory=Learned)
    sampling: Sampling = field(default_factory=Sampling)
    budget: int | None = None
    max_new_tokens: int = 2048
    stop: tuple[str, ...] = ()
    chooser: Chooser | None = None
    soft_prompt: SoftPrompt | None = None

    def __post_init__(self) -> None:
        if not self.prompt_ids:
            raise ValueError("the prompt is empty; give at least one token")
        if self.max_new_tokens < 1:
            raise ValueError(f"max_new_tokens={self.max_new_tokens}; it must be at least 1")
        if self.budget is not None and self.budget < 0:
            raise ValueError(f"budget={self.budget}; it must be 0 or more, or None for no cap")
        if "" in self.stop:
            raise ValueError("a stop string is empty; remove it")
        if self.chooser is not None and not isinstance(self.router, Never):
            raise ValueError(f"a request with a chooser has no operators; give router=Never(), not {self.router!r}")


@dataclass(frozen=True)
class TokenEvent:
    """A visible token of request `index`, and the text it completed (empty inside a multi-byte character)."""

    index: int
    token: int
    text: str


@dataclass(frozen=True)
class InvocationEvent:
    """An operator call of request `index` was served."""

    index: int
    invocation: Invocation


@dataclass(frozen=True)
class FinishEvent:
    """Request `index` is done."""

    index: int
    trajectory: Trajectory


Event = TokenEvent | InvocationEvent | FinishEvent


class Row:
    """One request in flight: what it has done, and what it waits for."""

    def __init__(
        self,
        index: int,
        request: Request,
        schedule: Schedule,
        offered: tuple[bool, ...],
        tokenizer: PreTrainedTokenizerBase,
    ) -> None:
        self.index, self.request, self.schedule = index, request, schedule
        self.offered = (
            offered  # operators that are actions of the policy: none under a fixed router, never a removed one
        )
        self.visible = Transcript(tokenizer)
        self.starts: list[int] = []  # context length before each visible token
        self.actions: list[int] = []
        self.logprobs: list[float] = []
        self.is_soft: list[bool] = []  # of a request with a chooser; else empty
        self.choosing = request.chooser and request.chooser.start(
            request.prompt_ids, request.sampling, request.max_new_tokens
        )  # the chooser's memory of this request
        self.invocations: list[Invocation] = []
        self.latents: list[Tensor] = []
        self.uniforms = Uniforms(request.sampling.stream(purpose=0))
        self.call: Call | None = None  # parked: waits for this operator call
        self.call_logprob = 0.0
        self.waited = 0
        self.emitted = 0
        self.after_prompt: Tensor | None = None  # the policy's hidden state there: others with the same prompt take it
        self.kept: Tensor | None = None  # the context of a row that had to make room and waits to go on
        self.finish_reason = ""
        self.stopped_at: int | None = None  # characters before the stop string
        self.started = 0.0  # when it was admitted
        self.synthesis_seconds = 0.0

    @property
    def length(self) -> int:
        """Positions of its context while it waits."""
        return len(self.request.prompt_ids) if self.kept is None else len(self.kept)

    def has_prompt_of(self, other: Row) -> bool:
        """Whether the two start from the same context."""
        mine, theirs = self.request, other.request
        return mine.soft_prompt is theirs.soft_prompt and mine.prompt_ids == theirs.prompt_ids

    @property
    def may_call(self) -> bool:
        return self.request.budget is None or len(self.invocations) < self.request.budget

    @property
    def allowed(self) -> tuple[bool, ...]:
        """Which operators the policy may choose now."""
        return self.offered if self.may_call else (False,) * len(self.offered)

    def park(self, call: Call, logprob: float) -> None:
        self.call, self.call_logprob, self.waited = call, logprob, 0

    def show(self, token: int, logprob: float, start: int) -> None:
        """Take a visible token whose embedding goes to context position `start`."""
        self.visible.tokens.append(token)
        self.starts.append(start)
        self.actions.append(token)
        self.logprobs.append(logprob)

    def hold_back(self) -> tuple[list[int], int]:
        """Take back the visible tokens behind the call's position, to be committed again after the latents.

        Returns them and the context length before them (0 where there are none).
        """
        assert self.call is not None
        held = self.visible.tokens[self.call.position :]
        start = self.starts[self.call.position] if held else 0
        for history in (self.visible.tokens, self.starts, self.actions, self.logprobs):
            del history[len(history) - len(held) :]
        return held, start

    def find_stop(self) -> None:
        """Finish when the visible text contains a stop string; only the text's tail is searched."""
        if not self.request.stop or not len(self.visible):
            return
        text = "".join(self.visible)
        new = len(self.visible[len(self.visible) - 1])
        found = [text.find(stop, max(0, len(text) - new - len(stop) + 1)) for stop in self.request.stop]
        if any(position >= 0 for position in found):
            self.stopped_at = min(position for position in found if position >= 0)
            self.finish_reason = "stop"

    def emit(self) -> list[Event]:
        """Events for the visible tokens that can no longer be held back or cut off by a stop string."""
        certain = min(
            len(self.visible), self.schedule.settled(), self.call.position if self.call else len(self.visible)
        )
        if self.finish_reason:
            certain = len(self.visible)
        elif self.request.stop:
            certain = min(certain, self._before_partial_stop())
        events: list[Event] = []
        for index in range(self.emitted, certain):
            text = self.visible[index]
            if self.stopped_at is not None:
                text = text[: max(0, self.stopped_at - sum(len(self.visible[before]) for before in range(index)))]
            events.append(TokenEvent(self.index, self.visible.tokens[index], text))
        self.emitted = max(self.emitted, certain)
        return events

    def _before_partial_stop(self) -> int:
        """Visible tokens that end before a suffix which could still grow into a stop string."""
        text = "".join(self.visible)
        overlap = max(
            (size for stop in self.request.stop for size in range(1, len(stop)) if text.endswith(stop[:size])),
            default=0,
        )
        kept, end = len(self.visible), len(text)
        while kept and end > len(text) - overlap:
            kept -= 1
            end -= len(self.visible[kept])
        return kept

    def trajectory(self, vocab_size: int) -> Trajectory:
        text = self.visible.text if self.stopped_at is None else "".join(self.visible)[: self.stopped_at]
        return Trajectory(
            prompt_ids=list(self.request.prompt_ids),
            actions=self.actions,
            logprobs=self.logprobs,
            is_operator=[action >= vocab_size for action in self.actions],
            invocations=tuple(self.invocations),
            latents=self.latents,
            text=text,
            finish_reason=self.finish_reason,
            offered=self.offered,
            vocab_size=vocab_size,
            budget=self.request.budget,
            sampling=self.request.sampling,
            seconds=time.perf_counter() - self.started if self.started else 0.0,
            synthesis_seconds=self.synthesis_seconds,
            is_soft=self.is_soft,
            num_soft_prompt=0 if self.request.soft_prompt is None else len(self.request.soft_prompt.positions),
        )
