"""A request that is being answered: what it has done, and what it waits for."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from tyler.boundaries.detokenizer import IncrementalDetokenizer
from tyler.boundaries.schedule import Call, Schedule
from tyler.engine.logits import LogitState
from tyler.engine.request import Event, FinishEvent, InvocationEvent, Request, TokenEvent
from tyler.engine.sampling import Uniforms
from tyler.engine.trajectory import Invocation, Trajectory
from tyler.modeling.backbone import Backbone
from tyler.tasks.prompts import thought_is_open

GRAMMAR_FAILED = "the answer's grammar cannot be kept to any further"
"""How the error of such an answer begins."""


class RequestState:
    """One request that is being answered: what it has done, and what it waits for."""

    def __init__(
        self,
        index: int,
        request: Request,
        schedule: Schedule,
        offered: tuple[bool, ...],
        backbone: Backbone,
        streamed: bool,
    ) -> None:
        self.index, self.request, self.schedule = index, request, schedule
        # Operators that are actions of the policy: none under a fixed router, never a removed one.
        self.offered = offered
        self.streamed = streamed  # whether its tokens are reported as they come
        self.visible = IncrementalDetokenizer(backbone.tokenizer)
        self.thought_open = thought_is_open(backbone.tokenizer, request.prompt_ids)
        self.end_ids = end_ids(request, backbone)
        self.logit_state = logit_state(request, self.visible.tokens, backbone)
        self.top: tuple[tuple[int, float], ...] = ()  # the most probable tokens at the latest decision
        self.tops: list[tuple[tuple[int, float], ...]] = []  # where each visible token was chosen
        self.ids = list(request.prompt_ids)  # of its context's positions
        self.held: list[int] = []  # tokens behind a call's place, which come again after its latents
        self.starts: list[int] = []  # context length before each visible token
        self.actions: list[int] = []
        self.logprobs: list[float] = []
        self.operator_probs: list[tuple[float, ...]] = []  # of each decision, where they are asked for
        self.is_soft: list[bool] = []  # of a request with a sampler; else empty
        self.sampler_state = request.sampler and request.sampler.start(
            request.prompt_ids, request.sampling, request.max_new_tokens
        )  # the sampler's memory of this request
        self.invocations: list[Invocation] = []
        self.latents: list[Tensor] = []
        self.uniforms = Uniforms(request.sampling.stream(purpose=0))
        self.call: Call | None = None  # parked: waits for this operator call
        self.call_logprob = 0.0
        self.emitted = 0  # visible tokens that were told of
        self.call_seconds: list[float] = []  # of every call that was served
        self.told_calls = 0  # those that were told of
        self.finish_reason = ""
        self.limited_by: str | None = None  # which limit ended it, where its finish_reason is "length"
        self.error: str | None = None  # why it could not be finished
        self.stopped_at: int | None = None  # characters before the stop string
        self.queued, self.started = time.perf_counter(), 0.0  # when it was asked, and when it was admitted
        self.engine_seconds = 0.0  # of the passes that served it, split over their rows
        self.synthesis_seconds = 0.0  # of which operator calls

    cached_tokens = 0
    """Of the prompt: those that were read for an earlier one."""

    def start(self) -> None:
        """Note when it was admitted."""
        self.started = time.perf_counter()

    @property
    def length(self) -> int:
        """T_t: positions of its context."""
        return len(self.ids)

    def has_prompt_of(self, other: RequestState) -> bool:
        """Whether the two start from the same context."""
        mine, theirs = self.request, other.request
        return mine.soft_prompt is theirs.soft_prompt and mine.prompt_ids == theirs.prompt_ids

    def ends(self, token: int) -> bool:
        """Whether a visible token ends the answer."""
        return token in self.end_ids

    @property
    def may_call(self) -> bool:
        return self.request.budget is None or len(self.invocations) < self.request.budget

    @property
    def allowed(self) -> tuple[bool, ...]:
        """Which operators the policy may choose now."""
        return self.offered if self.may_call else (False,) * len(self.offered)

    @property
    def reports(self) -> bool:
        """Whether it tells p(operator) of each decision: every decision is an action then, in the same order."""
        return self.request.operator_probs and any(self.offered)

    def report(self, probs: Sequence[float]) -> None:
        """Note p(operator) of a decision, where that is asked for; empty where no row could choose an operator."""
        if self.reports:
            self.operator_probs.append(tuple(probs) or (0.0,) * len(self.offered))

    def reported_at(self, action: int) -> tuple[float, ...]:
        """p(operator) of the decision about an action, where it is told."""
        return self.operator_probs[action] if action < len(self.operator_probs) else ()

    def generated(self) -> int:
        """Positions of its answer and its soft prompt: tokens, also held ones, and latents."""
        thoughts = 0 if self.request.soft_prompt is None else len(self.request.soft_prompt.positions)
        return len(self.visible) + len(self.held) + sum(call.num_latents for call in self.invocations) + thoughts

    def park(self, call: Call, logprob: float) -> None:
        self.call, self.call_logprob = call, logprob

    def show(self, token: int, logprob: float, start: int) -> None:
        """Take a visible token whose embedding goes to context position `start`."""
        self.visible.tokens.append(token)
        self.tops.append(self.top)
        self.starts.append(start)
        self.actions.append(token)
        self.logprobs.append(logprob)

    def act(self, action: int, logprob: float, start: int, operators: Sequence[str], vocab_size: int) -> bool:
        """Carry out an action that was drawn; whether it is a token, which then joins the context at `start`.

        Numbers that are not finite end the answer, whatever they would have chosen.
        """
        if self.is_lost(logprob, f"the logits of step {len(self.actions) + 1}"):
            return False
        if action >= vocab_size:
            self.park(Call(len(self.visible), operators[action - vocab_size]), logprob)
            return False
        if self.ends(action):
            self.actions.append(action)
            self.logprobs.append(logprob)
            self.finish_reason = "eos"
            return False
        self.show(action, logprob, start)
        self.schedule.observe(self.visible)
        self.find_stop()
        return True

    def invoke(self, latents: Tensor, action: int) -> Invocation:
        """Take the latents of the call that it waits for; `action` is the operator's number in V'."""
        assert self.call is not None
        made = Invocation(
            self.call.operator, len(self.visible), len(latents), len(self.actions), len(self.visible.text)
        )
        self.invocations.append(made)
        self.latents.append(latents)
        self.actions.append(action)
        self.logprobs.append(self.call_logprob)
        self.call = None
        return made

    def finish_if_full(self, actions: int, longest: int, *, latents: int = 0) -> None:
        """End it where a limit is reached: `actions` used, what is generated with the `latents` of the call that it
        waits for, or a context over `longest`, after which no other action would fit. All count the held tokens, too.
        """
        if self.finish_reason:
            return
        most = math.inf if self.request.max_generated is None else self.request.max_generated
        if actions + len(self.held) >= self.request.max_new_tokens:
            self.limited_by = "max_new_tokens"
        elif self.generated() + max(latents, 1) > most:
            self.limited_by = "max_generated"
        elif self.length + len(self.held) > longest:
            self.limited_by = "context"
        else:
            return
        self.finish_reason, self.call = "length", None

    def hold_back(self) -> None:
        """Take back the visible tokens after the call's position, to be committed again after the latents."""
        assert self.call is not None
        position = self.call.position
        if held := self.visible.tokens[position:]:
            self.held[:0] = held
            del self.ids[self.starts[position] :]
        for history in (self.visible.tokens, self.tops, self.starts, self.actions, self.logprobs):
            del history[len(history) - len(held) :]

    def tell_of_call(self, seconds: float) -> list[InvocationEvent]:
        """That its latest call was served; of an answer that is streamed once the tokens before it are told of."""
        self.call_seconds.append(seconds)
        return [] if self.streamed else self._calls_up_to(len(self.visible))

    def is_lost(self, logprob: float, where: str) -> bool:
        """Whether nothing can have been drawn; then the answer ends with an error that says why: the numbers at `where`
        are not finite, or its grammar has failed."""
        if self.logit_state is not None and self.logit_state.error is not None:
            self.error = f"{GRAMMAR_FAILED}: {self.logit_state.error}"
        elif math.isfinite(logprob):
            return False
        else:
            self.error = (
                f"{where} are not finite (the log-probability of what was drawn is {logprob}): a weight or an "
                "activation overflowed. Check the weights; instead of float16, decode in bfloat16 or float32"
            )
        self.finish_reason, self.call = "error", None
        return True

    def find_stop(self) -> None:
        """Finish when the visible text contains a stop string; only the text's tail is searched."""
        if not self.request.stop or not len(self.visible):
            return
        new = len(self.visible[len(self.visible) - 1])
        tail = self._tail(new + max(map(len, self.request.stop)) - 1)
        found = [tail.find(stop, max(0, len(tail) - new - len(stop) + 1)) for stop in self.request.stop]
        if any(position >= 0 for position in found):
            before = sum(map(len, self.visible)) - len(tail)
            end = before + min(position for position in found if position >= 0)
            self.stopped_at, self.finish_reason = end, "stop"
            # a call within the stop string stands where the text has been cut
            self.invocations = [replace(call, offset=min(call.offset, end)) for call in self.invocations]

    def _tail(self, length: int) -> str:
        """The end of the visible text: its last tokens, of so many characters or more, where there are so many."""
        start, found = len(self.visible), 0
        while start and found < length:
            start -= 1
            found += len(self.visible[start])
        return "".join(self.visible[index] for index in range(start, len(self.visible)))

    def emit(self) -> list[Event]:
        """Events for the visible tokens that can no longer be held back or cut off by a stop string, and for the calls
        between them."""
        certain = len(self.visible)
        if not self.finish_reason:
            certain = min(certain, self.schedule.settled(), self.call.position if self.call else certain)
            certain = min(certain, self._before_partial_stop()) if self.request.stop else certain
        events: list[Event] = []
        start = 0 if self.stopped_at is None else sum(len(self.visible[index]) for index in range(self.emitted))
        for index in range(self.emitted, certain):
            events += self._calls_up_to(index)
            text = self.visible[index]
            kept = text if self.stopped_at is None else text[: max(0, self.stopped_at - start)]
            action = index + sum(call.position <= index for call in self.invocations)
            token, cut = self.visible.tokens[index], self.stopped_at is not None and start + len(text) > self.stopped_at
            probs, logprob = self.reported_at(action), self.logprobs[action]
            events.append(TokenEvent(self.index, token, kept, probs, logprob, self.tops[index], cut))
            start += len(text)
        self.emitted = max(self.emitted, certain)
        return events + self._calls_up_to(self.emitted)

    def _calls_up_to(self, position: int) -> list[InvocationEvent]:
        """The calls that can be told of once so many visible tokens have been."""
        served = list(zip(self.invocations, self.call_seconds, strict=False))[self.told_calls :]
        told = [(call, seconds) for call, seconds in served if call.position <= position]
        self.told_calls += len(told)
        return [InvocationEvent(self.index, call, seconds, self.reported_at(call.action)) for call, seconds in told]

    def _before_partial_stop(self) -> int:
        """Visible tokens that end before a suffix which could still grow into a stop string."""
        tail = self._tail(max(map(len, self.request.stop)) - 1)
        sizes = ((stop, size) for stop in self.request.stop for size in range(1, min(len(stop), len(tail) + 1)))
        overlap = max((size for stop, size in sizes if tail.endswith(stop[:size])), default=0)
        kept, end = len(self.visible), len(tail)
        while kept and end > len(tail) - overlap:
            kept -= 1
            end -= len(self.visible[kept])
        return kept

    def finished(self, vocab_size: int) -> FinishEvent:
        """The event that reports its end."""
        return FinishEvent(self.index, self.trajectory(vocab_size), self.error, self.cached_tokens)

    def trajectory(self, vocab_size: int) -> Trajectory:
        text = self.visible.text if self.stopped_at is None else "".join(self.visible)[: self.stopped_at]
        return Trajectory(
            prompt_ids=list(self.request.prompt_ids),
            actions=self.actions,
            logprobs=self.logprobs,
            is_operator=[action >= vocab_size for action in self.actions],
            invocations=tuple(self.invocations),
            latents=[block.cpu() for block in self.latents],
            text=text,
            finish_reason=self.finish_reason,
            limited_by=self.limited_by,
            offered=self.offered,
            vocab_size=vocab_size,
            budget=self.request.budget,
            sampling=self.request.sampling,
            seconds=time.perf_counter() - self.started if self.started else 0.0,
            engine_seconds=self.engine_seconds,
            synthesis_seconds=self.synthesis_seconds,
            queue_seconds=(self.started or time.perf_counter()) - self.queued,
            is_soft=self.is_soft,
            operator_probs=self.operator_probs[: len(self.actions)],
            thought_open=self.thought_open,
            num_soft_prompt=0 if self.request.soft_prompt is None else len(self.request.soft_prompt.positions),
        )


def end_ids(request: Request, backbone: Backbone) -> frozenset[int]:
    """The tokens that end an answer. Raises ValueError for one that the model does not have."""
    if beyond := [token for token in request.stop_token_ids if token >= backbone.vocab_size]:
        raise ValueError(f"stop_token_ids has {beyond[0]}; the model's tokens are from 0 to {backbone.vocab_size - 1}")
    return frozenset(request.stop_token_ids).union(backbone.eos_ids)


def logit_state(request: Request, tokens: Sequence[int], backbone: Backbone) -> LogitState | None:
    """How the request changes logits, given the answer's visible tokens; None where it changes none."""
    if request.logits.plain:
        return None
    eos_ids, vocab_size, temperature = backbone.eos_ids, backbone.vocab_size, request.sampling.scale
    given = request.logits, request.prompt_ids, tokens
    return LogitState(*given, eos_ids=eos_ids, vocab_size=vocab_size, temperature=temperature)
