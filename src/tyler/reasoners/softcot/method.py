"""SoftCoT as a reasoner, and what an evaluation can change."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from tyler.engine.request import Request
from tyler.engine.sampling import Sampling
from tyler.engine.trajectory import Trajectory
from tyler.reasoners.reasoner import AnswerSettings, Finished, ignore
from tyler.reasoners.softcot.model import SoftCot, is_checkpoint
from tyler.reasoners.table import Knob, Method, Saved, check_at_least
from tyler.reasoners.tyler import of_its_own
from tyler.tasks.problem import Problem
from tyler.tasks.prompts import Question

KNOBS = (Knob("thoughts", lowest=1),)


@dataclass(frozen=True)
class Settings:
    """What can be changed at evaluation. `thoughts` None is the number in the checkpoint."""

    thoughts: int | None = None

    def __post_init__(self) -> None:
        if self.thoughts is not None:
            check_at_least(1, thoughts=self.thoughts)


@dataclass(frozen=True)
class SoftCotReasoner:
    """SoftCoT with everything about decoding decided. Its thoughts count as latents, their time as synthesis."""

    name: str
    model: SoftCot
    thoughts: int
    sampling: Sampling
    max_new_tokens: int = 2048
    slots: int = 32
    memory: int | None = None

    def request(self, question: Question, settings: AnswerSettings) -> Request:
        """What the engine is asked for a question. Raises ValueError for one that cannot be asked."""
        settings.check_without_operators(self.name)
        request = self.model.request(
            question, self.thoughts, sampling=settings.sampling, max_new_tokens=settings.max_new_tokens
        )
        return settings.completed(request)

    def continuation(self, prompt_ids: Sequence[int], settings: AnswerSettings) -> Request:
        """Raises ValueError: soft thoughts have their place in the user's turn."""
        raise ValueError(f"{self.name} puts soft thoughts into a question and continues no text; ask it in a chat")

    def solve(self, problems: Sequence[Problem], finished: Finished = ignore) -> list[Trajectory]:
        requests, spent = [], []
        for problem in problems:
            started = time.perf_counter()
            sampling = of_its_own(self.sampling, problem)
            requests.append(
                self.model.request(problem, self.thoughts, sampling=sampling, max_new_tokens=self.max_new_tokens)
            )
            spent.append(time.perf_counter() - started)

        def done(index: int, trajectory: Trajectory) -> None:
            trajectory.seconds += spent[index]
            trajectory.engine_seconds += spent[index]
            trajectory.synthesis_seconds += spent[index]
            finished(index, trajectory)

        return self.model.shared_engine.run(requests, slots=self.slots, memory=self.memory, finished=done)


def reasoner(
    model: SoftCot, settings: Settings, *, name: str, sampling: Sampling, max_new_tokens: int, slots: int
) -> SoftCotReasoner:
    """A trained SoftCoT."""
    thoughts = settings.thoughts or model.wording.thoughts
    return SoftCotReasoner(name, model, thoughts, sampling, max_new_tokens, slots)


def request(model: SoftCot, question: Question, sampling: Sampling, max_new_tokens: int) -> Request:
    """A question with as many thoughts as the checkpoint says."""
    return model.request(question, model.wording.thoughts, sampling=sampling, max_new_tokens=max_new_tokens)


METHOD = Method(Settings, reasoner, KNOBS, Saved(is_checkpoint, SoftCot, request))
