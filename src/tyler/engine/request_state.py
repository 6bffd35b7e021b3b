"""A request that is being answered: what it has done, and what it waits for."""

import math
import time
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from tyler.boundaries.detokenizer import IncrementalDetokenizer
from tyler.boundaries.placement import Call, Schedule
from tyler.engine.logits import LogitState
from tyler.engine.request import Event, FinishEvent, InvocationEvent, Request, TokenEvent
from tyler.engine.sampling import Choice
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
        self.offered, self.vocab_size = offered, backbone.vocab_size
        self.streamed = streamed  # whether it is told of before its end
        self.visible = IncrementalDetokenizer(backbone.tokenizer)
        self.text, self.ends = "", list[int]()  # of the visible tokens, and where each ends in it, if it may be stopped
        self.thought_open = thought_is_open(backbone.tokenizer, request.prompt_ids)
        if beyond := [token for token in request.stop_token_ids if token >= backbone.vocab_size]:
            last = backbone.vocab_size - 1
            raise ValueError(f"stop_token_ids has {beyond[0]}; the model's tokens are from 0 to {last}")
        self.end_ids = backbone.eos_ids.union(request.stop_token_ids)
        self.logit_state = logit_state(request, self.visible.tokens, backbone)
        self.random = request.sampling.stream(purpose=0)
        self.sampler_state = request.sampler and request.sampler.start(
            request.prompt_ids, request.sampling, request.max_new_tokens
        )  # the sampler's memory of this request
        self.ids = list(request.prompt_ids)  # of its context's positions
        self.held: list[int] = []  # tokens behind a call's place, which come again after its latents
        self.choices: list[Choice] = []  # its actions
        self.invocations: list[Invocation] = []
        self.latents: list[Tensor] = []
        self.call_seconds: list[float] = []  # of every call that was served
        self.call: Call | None = None  # parked: waits for this operator call, of a policy or a schedule
        self.called = Choice(-1)  # the action that it is
        self.told, self.told_calls = 0, 0  # actions that were told of, and those among them that are calls
        self.finish_reason = ""
        self.limited_by: str | None = None  # which limit ended it, where its finish_reason is "length"
        self.error: str | None = None  # why it could not be finished
        self.stopped_at: int | None = None  # characters before the stop string
        self.cached_tokens = 0  # of the prompt: those that were read for an earlier one
        self.queued, self.started = time.perf_counter(), 0.0  # when it was asked, and when it was admitted
        self.engine_seconds = 0.0  # of the passes that served it, split over their rows
        self.synthesis_seconds = 0.0  # of which operator calls

    @property
    def length(self) -> int:
        """T_t: positions of its context."""
        return len(self.ids)

    @property
    def may_call(self) -> bool:
        return self.request.budget is None or len(self.invocations) < self.request.budget

    @property
    def allowed(self) -> tuple[bool, ...]:
        """Which operators the policy may choose now."""
        return self.offered if self.may_call else (False,) * len(self.offered)

    @property
    def reports(self) -> bool:
        """Whether it tells p(operator) of each decision."""
        return self.request.operator_probs and any(self.offered)

    def reported(self, probs: Sequence[float]) -> tuple[float, ...]:
        """p(operator) of a decision as it is told; `probs` are empty where no row could choose an operator."""
        return (tuple(probs) or (0.0,) * len(self.offered)) if self.reports else ()

    @property
    def generated(self) -> int:
        """Positions of its answer and its soft prompt: tokens, also held ones, and latents."""
        thoughts = 0 if self.request.soft_prompt is None else len(self.request.soft_prompt.positions)
        return len(self.visible) + len(self.held) + sum(call.num_latents for call in self.invocations) + thoughts

    def act(self, choice: Choice, operators: Sequence[str]) -> bool:
        """Carry out an action that was drawn; whether it is a token, which then joins the context.

        Numbers that are not finite end the answer, whatever they would have chosen.
        """
        if self.is_lost(choice.logprob, f"the logits of step {len(self.choices) + 1}"):
            return False
        if choice.action >= self.vocab_size:
            self.call, self.called = Call(len(self.visible), operators[choice.action - self.vocab_size]), choice
            return False
        if choice.action in self.end_ids:
            self.choices.append(replace(choice, soft=False))
            self.finish_reason = "eos"
            return False
        self.show(choice)
        self.schedule.observe(self.visible)
        if self.request.stop:
            self._find_stop()
        return True

    def show(self, choice: Choice) -> None:
        """Take a visible token whose embedding goes to the end of the context."""
        self.choices.append(choice if choice.embed is None else replace(choice, embed=None))
        self.visible.tokens.append(choice.action)
        if self.request.stop:
            self.text += self.visible[len(self.visible) - 1]
            self.ends.append(len(self.text))

    def invoke(self, latents: Tensor) -> None:
        """Take the latents of the call that it waits for."""
        assert self.call is not None
        place, offset = len(self.visible), len(self.visible.text)
        self.invocations.append(Invocation(self.call.operator, place, len(latents), len(self.choices), offset))
        self.latents.append(latents)
        self.choices.append(self.called)
        self.call = None

    def hold_back(self) -> None:
        """Take back the visible tokens after the call's position, to be committed again after the latents."""
        assert self.call is not None
        held = self.visible.tokens[self.call.position :]
        self.held[:0] = held
        for history in (self.visible.tokens, self.ids, self.ends, self.choices):
            del history[len(history) - len(held) :]
        self.text = self.text[: self.ends[-1] if self.ends else 0]

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

    def _find_stop(self) -> None:
        """Finish when the visible text contains a stop string; only where its last token is new is searched."""
        known = self.ends[-2] if len(self.ends) > 1 else 0  # characters before its last token
        places = [self.text.find(stop, max(0, known - len(stop) + 1)) for stop in self.request.stop]
        if found := [place for place in places if place >= 0]:
            self.stopped_at, self.finish_reason = min(found), "stop"
            # a call within the stop string stands where the text has been cut
            self.invocations = [replace(call, offset=min(call.offset, min(found))) for call in self.invocations]

    def emit(self) -> list[Event]:
        """Events for the visible tokens that can no longer be held back or cut off by a stop string, and for the calls
        between them."""
        certain = len(self.visible)
        if not self.finish_reason:
            certain = min(certain, self.schedule.settled(), self.call.position if self.call else certain)
            certain = min(certain, self._before_partial_stop()) if self.request.stop else certain
        events: list[Event] = []
        for choice in self.choices[self.told :]:
            if choice.action >= self.vocab_size:
                call, seconds = self.invocations[self.told_calls], self.call_seconds[self.told_calls]
                events.append(InvocationEvent(self.index, call, seconds, choice.operator_probs))
                self.told_calls += 1
            elif self.told - self.told_calls < certain:
                events.append(self._token_event(choice))
            else:
                break
            self.told += 1
        return events

    def _token_event(self, choice: Choice) -> TokenEvent:
        index = self.told - self.told_calls
        text = self.visible[index]
        if cut := self.stopped_at is not None and self.ends[index] > self.stopped_at:
            text = text[: max(0, len(text) + self.stopped_at - self.ends[index])]
        return TokenEvent(self.index, choice.action, text, choice.operator_probs, choice.logprob, choice.top, cut)

    def _before_partial_stop(self) -> int:
        """Visible tokens that end before a suffix which could still grow into a stop string."""
        starts = (stop[:size] for stop in self.request.stop for size in range(1, len(stop)))
        overlap = max((len(start) for start in starts if self.text.endswith(start)), default=0)
        return bisect_right(self.ends, len(self.text) - overlap)

    def finished(self) -> FinishEvent:
        return FinishEvent(self.index, self.trajectory(), self.error, self.cached_tokens)

    def trajectory(self) -> Trajectory:
        return Trajectory(
            prompt_ids=list(self.request.prompt_ids),
            actions=[choice.action for choice in self.choices],
            logprobs=[choice.logprob for choice in self.choices],
            is_operator=[choice.action >= self.vocab_size for choice in self.choices],
            invocations=tuple(self.invocations),
            latents=[block.cpu() for block in self.latents],
            text=self.visible.text if self.stopped_at is None else self.text[: self.stopped_at],
            finish_reason=self.finish_reason,
            limited_by=self.limited_by,
            offered=self.offered,
            vocab_size=self.vocab_size,
            budget=self.request.budget,
            sampling=self.request.sampling,
            seconds=time.perf_counter() - self.started if self.started else 0.0,
            engine_seconds=self.engine_seconds,
            synthesis_seconds=self.synthesis_seconds,
            queue_seconds=(self.started or time.perf_counter()) - self.queued,
            is_soft=[choice.soft for choice in self.choices] if self.request.sampler else [],
            operator_probs=[choice.operator_probs for choice in self.choices] if self.reports else [],
            thought_open=self.thought_open,
            num_soft_prompt=0 if self.request.soft_prompt is None else len(self.request.soft_prompt.positions),
        )


def logit_state(request: Request, tokens: Sequence[int], backbone: Backbone) -> LogitState | None:
    """How the request changes logits, given the answer's visible tokens; None where it changes none."""
    given = request.logits, request.prompt_ids, tokens, backbone, request.sampling.scale
    return None if request.logits.plain else LogitState(*given)
