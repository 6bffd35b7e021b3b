"""Tyler as a reasoner: a model with everything about decoding decided."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from tyler.engine.routing import Router
from tyler.engine.sampling import Sampling, seed_of
from tyler.engine.soft_sampling import Sampler
from tyler.engine.trajectory import Trajectory
from tyler.model import Tyler
from tyler.reasoners.reasoner import Finished, ignore
from tyler.tasks import Problem


@dataclass(frozen=True)
class TylerReasoner:
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
    coalesce: int | None = None
    memory: int | None = None
    sampler: Sampler | None = None

    def solve(self, problems: Sequence[Problem], finished: Finished = ignore) -> list[Trajectory]:
        requests = [
            self.model.request(
                problem,
                router=self.router,
                budget=self.budget,
                sampling=of_its_own(self.sampling, problem),
                max_new_tokens=self.max_new_tokens,
                sampler=self.sampler,
            )
            for problem in problems
        ]
        return self.model.shared_engine.run(
            requests, slots=self.slots, coalesce=self.coalesce, memory=self.memory, finished=finished
        )


def of_its_own(sampling: Sampling, problem: Problem) -> Sampling:
    """The sampling with a random stream that is the problem's alone, from the seed and the problem's id."""
    return replace(sampling, seed=seed_of(sampling.seed, problem.task, problem.id))
