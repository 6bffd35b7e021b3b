"""The rows that are decoded together: x_t of each, what policy and synthesizer have read of it, and who stands where.

Policy and synthesizer are two readers of one context (`context.py`). Every pass runs over neighbouring rows, so rows
are kept in the order running, parked, and whoever leaves gives way to the last.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Protocol

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import PreTrainedModel

from tyler.engine.native.context import Reader, position_bytes
from tyler.engine.native.ragged import RaggedContext, RaggedReader
from tyler.engine.request import Request
from tyler.engine.request_state import RequestState
from tyler.modeling.attention import cache_dtype
from tyler.modeling.backbone import Backbone
from tyler.modeling.policy import Policy


class Companion(Protocol):
    """Something else that is kept for every row and moves with it."""

    def swap(self, first: int, second: int) -> None: ...

    def forget(self, slot: int, length: int) -> None: ...


class Batch:
    """Up to `slots` rows.

    `memory` bounds the bytes of context and caches; `scheduler.py` keeps to it, and pages are made by it. `synthesizer`
    makes the decoder of operator calls, when the first of them comes.
    """

    def __init__(
        self,
        backbone: Backbone,
        policy: Policy,
        synthesizer: Callable[[], PreTrainedModel],
        *,
        slots: int,
        memory: int | None,
    ) -> None:
        self.backbone, self.slots, self.memory = backbone, slots, memory
        self.rows: list[RequestState] = []
        self.hidden = torch.zeros(slots, backbone.dim, dtype=backbone.dtype, device=backbone.device)
        """Of each row the policy's last hidden state, from which its next action follows."""
        self.companions: list[Companion] = []
        kept = cache_dtype(backbone.dtype, backbone.device)
        self.position_bytes = 2 * position_bytes(backbone.model.config, kept)
        self.position_bytes += backbone.dim * backbone.dtype.itemsize
        self._synthesizer = synthesizer
        self.context = RaggedContext(slots, backbone.dim, backbone.dtype, backbone.device)
        self.policy_reader = RaggedReader(policy.decoder(), self.context)
        self.readers = [self.policy_reader]

    @cached_property
    def synthesis_reader(self) -> Reader:
        """The synthesizer's, made with the first operator call: who calls none holds no second set of weights."""
        self.readers.append(RaggedReader(self._synthesizer(), self.context))
        return self.readers[-1]

    def prepare_calls(self) -> None:
        """Fold the synthesizer in now where no call has come yet: the clock of the first one does not run."""
        _ = self.synthesis_reader

    # -- who is here ---------------------------------------------------------------------------------------------

    def join(self, joining: Sequence[RequestState]) -> None:
        """Give rows the next places and read their prompts.

        Rows that start from the same prompt, as those of a group, read it once: the others copy what the first read.
        """
        leaders: list[RequestState] = []
        for row in joining:
            known = [one for one in (*self.rows, *leaders) if row.saved_context is None and one.has_prompt_of(row)]
            leaders += [] if known else [row]
        first = len(self.rows)
        followers = [row for row in joining if row not in leaders]
        for row in (*leaders, *followers):
            self._enter(row)
        if leaders:
            self.read(range(first, first + len(leaders)))
        for slot, row in enumerate(leaders, start=first):
            row.after_prompt = self.hidden[slot].clone() if row.after_prompt is None else row.after_prompt
        for slot, row in enumerate(followers, start=first + len(leaders)):
            self._follow(slot, row)

    def _enter(self, row: RequestState) -> None:
        """Give a row the next place, with its prompt or with the context it had when it was preempted."""
        slot = len(self.rows)
        self.rows.append(row)
        self.context.append(slot, self._embed_prompt(row.request) if row.saved_context is None else row.saved_context)
        row.saved_context = None

    def _follow(self, slot: int, row: RequestState) -> None:
        """Start a row where another one stood after the same prompt."""
        source = next(place for place, one in enumerate(self.rows) if one is not row and one.has_prompt_of(row))
        self.policy_reader.share(source, slot, len(row.request.prompt_ids))
        after_prompt = self.rows[source].after_prompt
        assert after_prompt is not None, "whoever runs has read its prompt"
        self.hidden[slot] = row.after_prompt = after_prompt

    def _embed_prompt(self, request: Request) -> Float[Tensor, "seq dim"]:
        embeds = self.backbone.embed(torch.tensor(request.prompt_ids, device=self.backbone.device))
        if request.soft_prompt is not None:
            embeds[list(request.soft_prompt.positions)] = request.soft_prompt.embeds.to(embeds)
        return embeds

    def leave(self, slot: int) -> None:
        """Let a row go; the last one takes its place. What is not finite must not stay behind: 0 times NaN is NaN."""
        if self.rows[slot].error is not None:
            for reader in self.readers:
                reader.wipe(slot)
        self.swap(slot, len(self.rows) - 1)
        self.rows.pop()
        self.forget(len(self.rows), 0)

    def arrange(self) -> range:
        """Bring the rows into the order running, parked; return where the parked ones are."""
        first, last = 0, len(self.rows) - 1
        while True:
            while first <= last and self.rows[first].call is None:
                first += 1
            while first <= last and self.rows[last].call is not None:
                last -= 1
            if first > last:
                return range(first, len(self.rows))
            self.swap(first, last)

    def swap(self, first: int, second: int) -> None:
        """Exchange two rows."""
        if first != second:
            self.rows[first], self.rows[second] = self.rows[second], self.rows[first]
            self.hidden[[first, second]] = self.hidden[[second, first]]
            self.context.swap(first, second)
            for reader in self.readers:
                reader.swap(first, second)
            for companion in self.companions:
                companion.swap(first, second)

    # -- what is read of them ------------------------------------------------------------------------------------

    def read(self, rows: range) -> tuple[Float[Tensor, "rows seq dim"], list[int]]:
        """Let the policy read what is new in these rows; keep each row's last hidden state for its next decision."""
        hidden, counts = self.policy_reader.read(rows, self.context.lengths[rows.start : rows.stop])
        alike = len(set(counts)) == 1
        last = hidden[:, -1] if alike else hidden[range(len(rows)), [count - 1 for count in counts]]
        self.hidden[rows.start : rows.stop] = last
        return hidden, counts

    def hidden_of(self, slots: list[int]) -> Float[Tensor, "rows dim"]:
        """The last hidden states of some rows; those of all rows are not gathered."""
        return self.hidden[: len(slots)] if slots[-1] == len(slots) - 1 else self.hidden[slots]

    def forget(self, slot: int, length: int) -> None:
        """Shorten a row's context to `length` positions."""
        self.context.truncate(slot, length)
        for reader in self.readers:
            reader.rewind(slot, length)
        for companion in self.companions:
            companion.forget(slot, length)

    def share_prompts(self, parked: range) -> None:
        """Let the synthesizer, too, read a prompt once for all rows that start from it."""
        reader = self.synthesis_reader
        for slot in parked:
            row = self.rows[slot]
            length = len(row.request.prompt_ids)
            if reader.read_to[slot]:
                continue
            others = [place for place, one in enumerate(self.rows) if one is not row and one.has_prompt_of(row)]
            if readers := [place for place in others if reader.read_to[place] >= length]:
                reader.share(readers[0], slot, length)
            elif any(place in parked for place in others):
                reader.read(range(slot, slot + 1), [length])
