"""MemGen on the engine: its weaver is a synthesizer with mapped inputs, its trigger a third reader.

The weaver reads r2w(X), which is position by position, so its cache stays valid: a block costs the tokens since the
last one plus the queries. The trigger has a context of its own, the visible tokens without latents, which it reads up
to the present only when it is asked.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tyler.engine.native.engine import Engine
from tyler.engine.native.ragged import RaggedContext, RaggedReader
from tyler.engine.request_state import RequestState
from tyler.engine.weight_watch import Adaptable
from tyler.modeling.backbone import Backbone
from tyler.modeling.operators import Operator
from tyler.modeling.policy import Policy
from tyler.reasoners.memgen.routing import TAIL, DelimiterSchedule, ends_in_delimiter
from tyler.reasoners.memgen.trigger import YES, Consultation, Trigger, decide
from tyler.reasoners.memgen.weaver import Weaver


class MemGenEngine(Engine):
    """The engine with a weaver and, where there is one, a trigger. `max_new_tokens` counts visible tokens.

    `consultations` holds, by request index, every answer of the trigger in order.
    """

    def __init__(
        self,
        backbone: Backbone,
        operators: tuple[Operator, ...],
        weaver: Weaver,
        trigger: Trigger | None,
        *,
        slots: int = 8,
        coalesce: int | None = None,
        memory: int | None = None,
    ) -> None:
        policy = Policy(backbone, len(operators)).eval()
        super().__init__(backbone, operators, policy, weaver, slots=slots, coalesce=coalesce, memory=memory)
        self.batch.synthesis_reader.feed = self._weave
        self.weaver, self.trigger = weaver, trigger
        self.trigger_context = None if trigger is None else TriggerContext(trigger, backbone, slots)
        self.batch.companions += [self.trigger_context] if self.trigger_context else []
        self.consultations: defaultdict[int, list[Consultation]] = defaultdict(list)

    def _weave(
        self, rows: Int[Tensor, "..."], positions: Int[Tensor, "rows seq"], embeds: Float[Tensor, "rows seq dim"]
    ) -> Float[Tensor, "rows seq dim"]:
        """r2w(X); the queries, which lie after the context, are fed as they are."""
        lengths = torch.tensor(self.context.lengths, device=embeds.device)
        return torch.where((positions < lengths[rows])[..., None], self.weaver.map_inputs(embeds), embeds)

    def _park_scheduled(self) -> None:
        for row in self.rows:
            if schedule_of(row).unseen:
                ids = [*row.request.prompt_ids[-TAIL:], *row.visible.tokens]
                schedule_of(row).look(ends_in_delimiter(self.backbone.tokenizer, ids))
        asked = [slot for slot, row in enumerate(self.rows) if schedule_of(row).candidate is not None]
        if asked:
            self._consult(asked)
        super()._park_scheduled()

    def _consult(self, asked: list[int]) -> None:
        """Let the trigger read the asked rows' visible tokens up to the present, and answer."""
        assert self.trigger is not None and self.trigger_context is not None, "only an active trigger is asked"
        with self.timings.clock("choice", [self.rows[slot] for slot in asked]):
            for place, slot in enumerate(asked):
                self.batch.swap(place, slot)
            rows = self.rows[: len(asked)]
            for row, choice in zip(rows, self.trigger.logits(self.trigger_context.read(rows)), strict=True):
                schedule = schedule_of(row)
                decision, logprob = decide(choice, schedule.router.temperature, schedule.random)
                row.is_lost(logprob, f"the trigger's logits after {len(row.visible)} visible tokens")
                self.consultations[row.index].append(Consultation(len(row.visible), decision, logprob))
                schedule.answer(decision == YES)

    @property
    def adapted(self) -> list[Adaptable]:
        """The modules whose LoRAs it decodes with, the trigger last."""
        return [*super().adapted, *([] if self.trigger is None else [self.trigger])]

    def refresh(self) -> bool:
        """Fold the adapters' present weights in; False where they are other modules now, and need a new engine."""
        known = self.trigger_context is None or self.trigger_context.is_current()
        return super().refresh() and known

    def forget(self, index: int) -> None:
        """Drop the trigger's answers about a finished request."""
        self.consultations.pop(index, None)

    def _counted(self, row: RequestState) -> int:
        return len(row.visible)


class TriggerContext:
    """What the trigger reads of every row: its visible tokens without latents. A companion of the batch."""

    def __init__(self, trigger: Trigger, backbone: Backbone, slots: int) -> None:
        self.backbone, self.trigger = backbone, trigger
        self.visible = RaggedContext(slots, backbone.dim, backbone.dtype, backbone.device)
        self.reader = RaggedReader(trigger.decoder(), self.visible)

    def is_current(self) -> bool:
        """Fold the trigger's present weights in; False where they are another module now."""
        return self.reader.refresh(self.trigger.decoder())

    def read(self, rows: Sequence[RequestState]) -> Float[Tensor, "rows dim"]:
        """Read what the first rows have shown up to the present; the trigger's last hidden state of each."""
        for slot, row in enumerate(rows):
            new = [*row.request.prompt_ids, *row.visible.tokens][self.visible.lengths[slot] :]
            self.visible.append(slot, self.backbone.embed(torch.tensor(new, device=self.backbone.device)))
        hidden, counts = self.reader.read(range(len(rows)), self.visible.lengths[: len(rows)])
        return hidden[range(len(rows)), [count - 1 for count in counts]]

    def swap(self, first: int, second: int) -> None:
        self.visible.swap(first, second)
        self.reader.swap(first, second)

    def forget(self, slot: int, length: int) -> None:
        """Forget the row altogether: which visible tokens are left is not told by a length with latents in it."""
        self.visible.truncate(slot, 0)
        self.reader.rewind(slot, 0)


def schedule_of(row: RequestState) -> DelimiterSchedule:
    """The row's schedule, which is MemGen's. Raises TypeError for a request with another router."""
    if not isinstance(row.schedule, DelimiterSchedule):
        raise TypeError(f"MemGen decodes with AtDelimiters, not with {type(row.request.router).__name__}")
    return row.schedule
