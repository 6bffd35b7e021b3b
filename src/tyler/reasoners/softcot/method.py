"""SoftCoT as a reasoner, and what an evaluation can change."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from tyler.engine.request import Request
from tyler.engine.trajectory import Trajectory
from tyler.reasoners.reasoner import AnswerSettings, Finished, Servable, ignore
from tyler.reasoners.softcot.model import SoftCot, is_checkpoint
from tyler.reasoners.table import CheckpointFormat, LengthSetting, Method, check_at_least
from tyler.tasks.problem import Problem
from tyler.tasks.prompts import Question


@dataclass(frozen=True)
class SoftCotSettings:
    """What can be changed at evaluation. `thoughts` None is the number in the checkpoint."""

    thoughts: int | None = None

    def __post_init__(self) -> None:
        if self.thoughts is not None:
            check_at_least(1, thoughts=self.thoughts)


@dataclass(frozen=True)
class SoftCotReasoner(Servable):
    """SoftCoT with everything about decoding decided. Its thoughts count as latents, their time as synthesis."""

    model: SoftCot
    thoughts: int = field(kw_only=True)

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

    def solve(self, problems: Sequence[str | Problem], finished: Finished = ignore) -> list[Trajectory]:
        requests, spent = [], []
        for problem in problems:
            started = time.perf_counter()
            requests.append(self.problem_request(problem))
            spent.append(time.perf_counter() - started)

        def done(index: int, trajectory: Trajectory) -> None:
            trajectory.seconds += spent[index]
            trajectory.engine_seconds += spent[index]
            trajectory.synthesis_seconds += spent[index]
            finished(index, trajectory)

        return self.model.shared_engine.run(requests, slots=self.slots, memory=self.memory, finished=done)


def reasoner(model: SoftCot, settings: SoftCotSettings) -> SoftCotReasoner:
    """A trained SoftCoT."""
    return SoftCotReasoner("softcot", model, thoughts=settings.thoughts or model.wording.thoughts)


METHOD = Method(
    SoftCotSettings, reasoner, (LengthSetting("thoughts", lowest=1),), CheckpointFormat(is_checkpoint, SoftCot)
)
