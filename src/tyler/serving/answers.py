"""What becomes of a request: its answers as they grow, what they cost, and what is logged of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tyler.engine.request import Event, FinishEvent, InvocationEvent, Request, TokenEvent
from tyler.engine.routing import AtBoundaries, Router
from tyler.engine.trajectory import Trajectory
from tyler.serving.metrics import Stopwatch

FINISH_REASONS = {"eos": "stop", "stop": "stop", "length": "length"}
"""What the API calls the ends of a trajectory."""


def mark(record: dict[str, Any]) -> str:
    """How an invocation is shown to people."""
    return f"⟨{record['operator']} ×{record['latents']}⟩"


@dataclass
class Answer:
    """One answer to a request, as far as it has come."""

    request: Request
    watch: Stopwatch
    tokens: int = 0
    invocations: list[dict[str, Any]] = field(default_factory=list)
    trajectory: Trajectory | None = None

    def see(self, event: Event) -> None:
        """Note what happened."""
        match event:
            case TokenEvent():
                self.tokens += 1
            case InvocationEvent():
                self.invocations.append(self._record(event))
            case FinishEvent(trajectory=trajectory):
                self.trajectory = trajectory

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
        assert self.trajectory is not None, "who asks has waited for the end"
        return self.trajectory

    @property
    def text(self) -> str:
        return self.done.text

    @property
    def finish_reason(self) -> str:
        return FINISH_REASONS[self.done.finish_reason]

    @property
    def prompt_tokens(self) -> int:
        return len(self.request.prompt_ids)

    @property
    def latents(self) -> int:
        """Latents so far."""
        if self.trajectory is not None:
            return self.trajectory.num_latents
        return sum(record["latents"] for record in self.invocations)

    @property
    def generated(self) -> int:
        """Tokens and latents so far."""
        return self.latents + (self.tokens if self.trajectory is None else self.trajectory.num_visible)

    def details(self) -> dict[str, Any]:
        """What stands beside a choice under "tyler"."""
        return {
            "invocations": self.invocations,
            "budget": self.request.budget,
            "router": router_name(self.request.router),
            "seed": self.request.sampling.seed,
        }

    def logged(self, with_text: bool) -> dict[str, Any]:
        """What the audit log says of this answer."""
        ended = self.trajectory
        record: dict[str, Any] = {
            "finish_reason": None if ended is None else ended.finish_reason,
            "visible_tokens": self.generated - self.latents,
            "latents": self.latents,
            "invocations": [[one["operator"], one["position"], one["latents"]] for one in self.invocations],
            "budget": self.request.budget,
            "temperature": self.request.sampling.temperature,
            "seed": self.request.sampling.seed,
            "queue_seconds": None if ended is None else round(ended.queue_seconds, 6),
            "first_token_seconds": rounded(self.watch.first_token_seconds),
            "seconds": None if ended is None else round(ended.seconds, 6),
        }
        return record | ({"text": None if ended is None else ended.text} if with_text else {})


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

    @classmethod
    def of(cls, answers: Sequence[Answer], prompts: int) -> Usage:
        """Of all answers; a prompt that several answers share is counted once: `prompts` are different ones."""
        per_prompt = max(1, len(answers) // max(1, prompts))
        prompt = sum(answer.prompt_tokens for answer in answers[::per_prompt])
        return cls(prompt, sum(one.generated for one in answers), sum(one.latents for one in answers))

    def of_chat(self) -> dict[str, Any]:
        """As chats and completions say it."""
        return {
            "prompt_tokens": self.prompt,
            "completion_tokens": self.generated,
            "total_tokens": self.prompt + self.generated,
            "completion_tokens_details": {"reasoning_tokens": self.latents},
        }

    def of_response(self) -> dict[str, Any]:
        """As responses say it."""
        return {
            "input_tokens": self.prompt,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": self.generated,
            "output_tokens_details": {"reasoning_tokens": self.latents},
            "total_tokens": self.prompt + self.generated,
        }
