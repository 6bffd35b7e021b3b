"""MemGen on the engine: its weaver is a synthesizer with mapped inputs, its trigger a third reader.

The weaver reads r2w(X), which is position by position, so its cache stays valid: a block costs the tokens since the
last one plus the queries. The trigger has a context of its own, the visible tokens without latents, which it reads up
to the present only when it is asked.
"""

from __future__ import annotations

from collections import defaultdict

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tyler.backbone import Backbone
from tyler.context import RaggedContext, RaggedReader
from tyler.decoding import Engine
from tyler.operators import Operator
from tyler.policy import Policy
from tyler.reasoners.memgen.routing import TAIL, DelimiterSchedule, ends_in_delimiter
from tyler.reasoners.memgen.trigger import YES, Consultation, Trigger, decide
from tyler.reasoners.memgen.weaver import Weaver
from tyler.request import Row


class MemGenEngine(Engine):
    """The engine with a weaver and, where there is one, a trigger. `max_new_tokens` counts visible tokens.

    A trigger decides on the host, between two tokens; with one, the device never runs ahead.

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
        ahead: bool | None = None,
    ) -> None:
        policy = Policy(backbone, len(operators)).eval()
        ahead = ahead if trigger is None else False
        super().__init__(backbone, operators, policy, weaver, slots=slots, coalesce=coalesce, ahead=ahead)
        self.synthesis_reader.feed = self._weave
        self.weaver, self.trigger = weaver, trigger
        self.visible = RaggedContext(slots, backbone.dim, backbone.dtype, backbone.device)
        self.trigger_reader = RaggedReader(trigger.decoder() if trigger else policy.decoder(), self.visible)
        self.consultations: defaultdict[int, list[Consultation]] = defaultdict(list)

    def _weave(
        self, rows: Int[Tensor, "..."], positions: Int[Tensor, "rows seq"], embeds: Float[Tensor, "rows seq dim"]
    ) -> Float[Tensor, "rows seq dim"]:
        """r2w(X); the queries, which lie behind the context, are fed as they are."""
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
        assert self.trigger is not None, "only an active trigger is asked"
        with self.timings.clock("choice"):
            for place, slot in enumerate(asked):
                self._swap(place, slot)
            rows = range(len(asked))
            for slot in rows:
                self._show_trigger(slot)
            hidden, counts = self.trigger_reader.read(rows, self.visible.lengths[: len(asked)])
            logits = self.trigger.logits(hidden[rows, [count - 1 for count in counts]])
            for row, choice in zip(self.rows, logits, strict=False):
                schedule = schedule_of(row)
                decision, logprob = decide(choice, schedule.router.temperature, schedule.random)
                self.consultations[row.index].append(Consultation(len(row.visible), decision, logprob))
                schedule.answer(decision == YES)

    def _show_trigger(self, slot: int) -> None:
        """Append the visible tokens that the trigger's context does not hold yet."""
        row = self.rows[slot]
        new = [*row.request.prompt_ids, *row.visible.tokens][self.visible.lengths[slot] :]
        self.visible.append(slot, self.backbone.embed(torch.tensor(new, device=self.backbone.device)))

    def _counted(self, row: Row) -> int:
        return len(row.visible)

    def _swap(self, first: int, second: int) -> None:
        super()._swap(first, second)
        if first != second:
            self.visible.swap(first, second)
            self.trigger_reader.swap(first, second)

    def _forget(self, slot: int, length: int) -> None:
        super()._forget(slot, length)
        self.visible.truncate(slot, 0)
        self.trigger_reader.rewind(slot, 0)


def schedule_of(row: Row) -> DelimiterSchedule:
    """The row's schedule, which is MemGen's. Raises TypeError for a request with another router."""
    if not isinstance(row.schedule, DelimiterSchedule):
        raise TypeError(f"MemGen decodes with AtDelimiters, not with {type(row.request.router).__name__}")
    return row.schedule
