"""MemGen on the engine: its weaver is a synthesizer with mapped inputs, its trigger a third reader.

The weaver reads r2w(X), which is position by position, so its cache stays valid: a block costs the tokens since the
last one plus the queries. The trigger has a context of its own, the visible tokens without latents, which it reads up
to the present only when it is asked.
"""

from collections import defaultdict
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from tyler.engine.native.attention import Span
from tyler.engine.native.cache import Context
from tyler.engine.native.engine import Engine, common_prefix
from tyler.engine.native.reader import Reader
from tyler.engine.native.row import Row, charged
from tyler.engine.request_state import RequestState
from tyler.modeling.backbone import Backbone
from tyler.modeling.lora import Adapted
from tyler.modeling.operators import Operator
from tyler.modeling.policy import Policy
from tyler.reasoners.memgen.routing import TAIL, DelimiterSchedule, ends_in_delimiter
from tyler.reasoners.memgen.weaver import YES, Consultation, Trigger, Weaver, decide

REMEMBERED = 4096
"""Requests whose consultations are kept."""


class MemGenEngine(Engine):
    """The engine with a weaver and, where there is one, a trigger. `max_new_tokens` counts visible tokens.

    `consultations` holds, by request index, every answer of the trigger in order, of the latest requests.
    """

    def __init__(
        self,
        backbone: Backbone,
        operators: tuple[Operator, ...],
        weaver: Weaver,
        trigger: Trigger | None,
        *,
        slots: int = 8,
        memory: int | None = None,
        positions: int | None = None,
    ) -> None:
        policy = Policy(backbone, len(operators)).eval()
        super().__init__(backbone, operators, policy, weaver, slots=slots, memory=memory, positions=positions)
        self.weaver, self.trigger = weaver, trigger
        self.trigger_context = None if trigger is None else TriggerContext(trigger, backbone, self.context)
        self.consultations: defaultdict[int, list[Consultation]] = defaultdict(list)

    def _feed(self, spans: Sequence[Span], embeds: Float[Tensor, "positions dim"]) -> Float[Tensor, "positions dim"]:
        """r2w(X); the queries, which lie after the context, are fed as they are."""
        lengths = {row.slot: row.length for row in self.rows}
        read = [position < lengths[span.slot] for span in spans for position in range(span.start, span.end)]
        return torch.where(torch.tensor(read, device=embeds.device)[:, None], self.weaver.map_inputs(embeds), embeds)

    def _schedule(self, rows: Sequence[Row]) -> None:
        for row in rows:
            look(row, self.backbone.tokenizer)
        if asked := [row for row in rows if schedule_of(row).candidate is not None]:
            self._consult(asked)
        super()._schedule(rows)

    def _consult(self, asked: Sequence[Row]) -> None:
        """Let the trigger read the asked rows' visible tokens up to the present, and answer."""
        assert self.trigger is not None and self.trigger_context is not None, "only an active trigger is asked"
        with charged([(row, 1, 0) for row in asked]):
            for row, choice in zip(asked, self.trigger.logits(self.trigger_context.read(asked)), strict=True):
                schedule = schedule_of(row)
                decision, logprob = decide(choice, schedule.router.temperature, schedule.random)
                row.is_lost(logprob, f"the trigger's logits after {len(row.visible)} visible tokens")
                self.consultations[row.index].append(Consultation(len(row.visible), decision, logprob))
                schedule.answer(decision == YES)

    def _retire(self) -> list[Row]:
        done = super()._retire()
        while len(self.consultations) > REMEMBERED:
            del self.consultations[next(iter(self.consultations))]
        for row in done:
            if self.trigger_context is not None and row.error is not None:
                self.trigger_context.wipe(row.slot)
        return done

    @property
    def adapted(self) -> list[Policy | Adapted]:
        """The modules whose LoRAs it decodes with, the trigger last."""
        return [*super().adapted, *([] if self.trigger is None else [self.trigger])]

    def refresh(self) -> bool:
        if self.trigger_context is not None:
            self.trigger_context.refresh()
        return super().refresh()

    def counted(self, row: RequestState) -> int:
        return len(row.visible)


class TriggerContext:
    """What the trigger reads of every row: its visible tokens without latents."""

    def __init__(self, trigger: Trigger, backbone: Backbone, beside: Context) -> None:
        self.backbone, self.trigger = backbone, trigger
        self.visible = Context(beside.room, backbone.dim, backbone.dtype, backbone.device)
        self.reader = Reader(trigger.decoder, self.visible)
        self._read = [list[int]() for _ in range(beside.room.slots)]  # of each slot, by the latest request in it

    def refresh(self) -> None:
        """Take the trigger's present weights, and forget what older ones have read."""
        self._read = [[] for _ in self._read]
        self.reader.refresh(self.trigger.decoder)

    def read(self, rows: Sequence[Row]) -> Float[Tensor, "rows dim"]:
        """Read what the rows have shown up to the present; the trigger's last hidden state of each."""
        spans = []
        for row in rows:
            shown = [*row.request.prompt_ids, *row.visible.tokens]
            start = min(common_prefix(self._read[row.slot], shown), len(shown) - 1)
            new = torch.tensor(shown[start:], device=self.backbone.device)
            self.visible.write(row.slot, start, self.backbone.embed(new))
            self._read[row.slot] = shown
            spans.append(Span(row.slot, start, len(shown)))
        hidden = self.reader.read(spans)
        lasts = torch.tensor([len(span) for span in spans], device=hidden.device).cumsum(0) - 1
        return hidden[lasts]

    def wipe(self, slot: int) -> None:
        """Leave nothing of what is not finite."""
        self.reader.wipe(slot, len(self._read[slot]))
        self._read[slot] = []


def look(row: RequestState, tokenizer: PreTrainedTokenizerBase) -> None:
    """Tell the row's schedule, where it asks, whether the text up to the present ends in a delimiter."""
    if (schedule := schedule_of(row)).unseen:
        schedule.look(ends_in_delimiter(tokenizer, [*row.request.prompt_ids[-TAIL:], *row.visible.tokens]))


def schedule_of(row: RequestState) -> DelimiterSchedule:
    """The row's schedule, which is MemGen's."""
    assert isinstance(row.schedule, DelimiterSchedule), "a MemGen asks with AtDelimiters"
    return row.schedule
