"""MemGen as a method that an evaluation can name."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace

from tyler.engine.request import Request
from tyler.engine.sampling import Sampling
from tyler.reasoners.memgen.model import MemGen, MemGenReasoner, is_memgen
from tyler.reasoners.table import Knob, Method, Saved, check_at_least
from tyler.tasks.prompts import Question

KNOBS = (Knob("max_insertions", highest=31),)


@dataclass(frozen=True)
class Settings:
    """What can be changed at evaluation; None is what the checkpoint says. `max_insertions` is K."""

    max_insertions: int | None = None
    trigger_at_prompt: bool | None = None

    def __post_init__(self) -> None:
        if self.max_insertions is not None:
            check_at_least(0, max_insertions=self.max_insertions)


def reasoner(
    model: MemGen, settings: Settings, *, name: str, sampling: Sampling, max_new_tokens: int, slots: int
) -> MemGenReasoner:
    """A trained MemGen."""
    changed = {key: value for key, value in asdict(settings).items() if value is not None}
    model = replace(model, settings=replace(model.settings, **changed))
    return MemGenReasoner(name, model, sampling, max_new_tokens, slots)


def request(model: MemGen, question: Question, sampling: Sampling, max_new_tokens: int) -> Request:
    """A question whose trigger is sampled as its tokens are."""
    return model.request(
        question, sampling=sampling, max_new_tokens=max_new_tokens, trigger_temperature=sampling.temperature
    )


METHOD = Method(Settings, reasoner, KNOBS, Saved(is_memgen, MemGen, request))
