"""Tyler as a reasoner: a model with everything about decoding decided."""

from dataclasses import dataclass

from tyler.engine.request import Request
from tyler.engine.routing import Router
from tyler.engine.sampling import Sampler
from tyler.model import Tyler
from tyler.reasoners.reasoner import AnswerSettings, Servable
from tyler.tasks.prompts import Question


@dataclass(frozen=True)
class TylerReasoner(Servable):
    """A model with everything about decoding decided: router, budget, sampling, length, batch, another sampler.

    Every problem has a random stream of its own, from the sampling's seed and the problem's id: a router that skips
    boundaries at random skips others in every answer.
    """

    model: Tyler
    router: Router | None = None
    budget: int | None = None
    sampler: Sampler | None = None

    def request(self, question: Question, settings: AnswerSettings) -> Request:
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
