"""A reasoner answers problems with trajectories. Evaluation, serving and experiments know this and nothing more."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from tyler.engine.logits import LogitSettings
from tyler.engine.request import Request
from tyler.engine.routing import Router
from tyler.engine.sampling import Sampling, seed_of
from tyler.engine.shared_engine import SharedEngine
from tyler.engine.trajectory import Trajectory
from tyler.modeling.backbone import Backbone
from tyler.tasks import Problem
from tyler.tasks.prompts import Prompt, Question

Finished = Callable[[int, Trajectory], None]
"""Called with a problem's index as soon as its trajectory is done; order is not given."""


class Reasoner(Protocol):
    """Tyler under some setting, or a baseline."""

    @property
    def name(self) -> str: ...

    def solve(self, problems: Sequence[Problem], finished: Finished = ...) -> list[Trajectory]: ...


def ignore(index: int, trajectory: Trajectory) -> None:
    """The default of `finished`: do nothing."""


@dataclass(frozen=True)
class AnswerSettings:
    """How one answer is to be decoded, as a `Request` says it. `budget` and `router` None are those of the reasoner."""

    sampling: Sampling = field(default_factory=Sampling)
    max_new_tokens: int = 2048
    stop: tuple[str, ...] = ()
    budget: int | None = None
    router: Router | None = None
    max_generated: int | None = None
    stop_token_ids: tuple[int, ...] = ()
    logits: LogitSettings = field(default_factory=LogitSettings)
    top_logprobs: int = 0

    def completed(self, request: Request) -> Request:
        """A reasoner's request with what is said of every answer alike, whatever the reasoner is."""
        names = ("stop", "max_generated", "stop_token_ids", "logits", "top_logprobs")
        return replace(request, **{name: getattr(self, name) for name in names})

    def check_without_operators(self, name: str) -> None:
        """Raise ValueError where something is said about operators to a method that has none."""
        if self.budget is not None or self.router is not None:
            raise ValueError(f"{name} has no operators to route; leave budget and router out")


class AnsweringModel(Protocol):
    """What stands behind a reasoner."""

    @property
    def backbone(self) -> Backbone: ...

    @property
    def prompt(self) -> Prompt: ...

    @property
    def shared_engine(self) -> SharedEngine: ...


@dataclass(frozen=True)
class Servable(ABC):
    """A model with everything about decoding decided, which answers one request after another, each under its own
    settings.
    """

    name: str
    model: AnsweringModel
    sampling: Sampling = field(default_factory=Sampling)
    max_new_tokens: int = 2048
    slots: int = 32
    memory: int | None = None

    @abstractmethod
    def request(self, question: Question, settings: AnswerSettings) -> Request:
        """What the engine is asked for a question. Raises ValueError for one that cannot be asked."""

    def continuation(self, prompt_ids: Sequence[int], settings: AnswerSettings) -> Request:
        """What the engine is asked to continue, token by token as it is given."""
        return replace(self.request("a question", settings), prompt_ids=prompt_ids)

    def problem_request(self, problem: str | Problem) -> Request:
        """What the engine is asked for a problem, whose random stream is its own: from seed, task, id and sample."""
        sampling = self.sampling
        if isinstance(problem, Problem):
            which = (problem.sample,) if problem.sample else ()
            sampling = replace(sampling, seed=seed_of(sampling.seed, problem.task, problem.id, *which))
        return self.request(problem, AnswerSettings(sampling, self.max_new_tokens))

    def solve(self, problems: Sequence[str | Problem], finished: Finished = ignore) -> list[Trajectory]:
        engine, requests = self.model.shared_engine, [self.problem_request(problem) for problem in problems]
        return engine.run(requests, slots=self.slots, memory=self.memory, finished=finished)
