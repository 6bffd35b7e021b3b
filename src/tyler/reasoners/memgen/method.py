"""MemGen as a method that an evaluation can name."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace

from tyler.reasoners.memgen.model import MemGen, MemGenReasoner, is_memgen
from tyler.reasoners.table import Knob, Method, Saved, check_at_least


@dataclass(frozen=True)
class Settings:
    """What can be changed at evaluation; None is what the checkpoint says. `max_insertions` is K."""

    max_insertions: int | None = None
    trigger_at_prompt: bool | None = None

    def __post_init__(self) -> None:
        if self.max_insertions is not None:
            check_at_least(0, max_insertions=self.max_insertions)


def reasoner(model: MemGen, settings: Settings) -> MemGenReasoner:
    """A trained MemGen."""
    changed = {key: value for key, value in asdict(settings).items() if value is not None}
    return MemGenReasoner("memgen", replace(model, settings=replace(model.settings, **changed)))


METHOD = Method(Settings, reasoner, (Knob("max_insertions", highest=31),), Saved(is_memgen, MemGen))
