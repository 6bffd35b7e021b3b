"""Tyler as a reasoner: a model with everything about decoding decided."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tyler.engine.request import Request
from tyler.engine.routing import Router
from tyler.engine.sampling import Sampling, seed_of
from tyler.engine.soft_sampling import Sampler
from tyler.engine.trajectory import Trajectory
from tyler.model import Tyler
from tyler.reasoners.reasoner import AnswerSettings, Finished, ignore
from tyler.tasks import Problem
from tyler.tasks.prompts import Question


class EngineReasoner(ABC):
    """What all reasoners on an engine of a model share."""

    name: str
    model: Any
    sampling: Sampling
    max_new_tokens: int
    slots: int
    memory: int | None

    @abstractmethod
    def request(self, question: Question, settings: AnswerSettings) -> Request:
        """What the engine is asked for a question. Raises ValueError for one that cannot be asked."""

    def continuation(self, prompt_ids: Sequence[int], settings: AnswerSettings) -> Request:
        """What the engine is asked to continue."""
        return replace(self.request("a question", settings), prompt_ids=prompt_ids)

    def solve(self, problems: Sequence[str | Problem], finished: Finished = ignore) -> list[Trajectory]:
        requests = [
            self.request(problem, AnswerSettings(of_its_own(self.sampling, problem), self.max_new_tokens))
            for problem in problems
        ]
        answers: list[Trajectory] = self.model.shared_engine.run(
            requests, slots=self.slots, memory=self.memory, finished=finished
        )
        return answers


@dataclass(frozen=True)
class TylerReasoner(EngineReasoner):
    """A model with everything about decoding decided: router, budget, sampling, length, batch, another sampler.

    Every problem has a random stream of its own, from the sampling's seed and the problem's id: a router that skips
    boundaries at random skips others in every answer.
    """

    name: str
    model: Tyler
    router: Router | None = None
    budget: int | None = None
    sampling: Sampling = field(default_factory=Sampling)
    max_new_tokens: int = 2048
    slots: int = 32
    memory: int | None = None
    sampler: Sampler | None = None

    def request(self, question: Question, settings: AnswerSettings) -> Request:
        """What the engine is asked for a question. Raises ValueError for one that cannot be asked."""
        if self.sampler is not None:
            settings.check_without_operators(self.name)
        request = self.model.request(
            question,
            router=settings.router or self.router,
            budget=self.budget if settings.budget is None else settings.budget,
            sampling=settings.sampling,
            max_new_tokens=settings.max_new_tokens,
            sampler=self.sampler,
        )
        return settings.completed(request)


def of_its_own(sampling: Sampling, problem: str | Problem) -> Sampling:
    """The sampling with a random stream that is the problem's alone, from the seed, the problem's id and its sample."""
    if isinstance(problem, str):
        return sampling
    which = (problem.sample,) if problem.sample else ()
    return replace(sampling, seed=seed_of(sampling.seed, problem.task, problem.id, *which))
