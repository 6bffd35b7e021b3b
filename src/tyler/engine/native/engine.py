"""The decoding engine: admit, synthesize, read, decide; many requests at once, each as if it were alone.

A request has a slot for as long as it is answered. A step admits who waits, serves the operator calls of the rows that
are parked, reads everything that the policy has not read of any row in one packed pass, and lets every row that is read
to its end choose an action in V'.
"""

import math
import time
from collections.abc import Sequence
from functools import cached_property
from itertools import takewhile

import torch
from torch import Tensor

from tyler.engine.base import BaseEngine, Load
from tyler.engine.checks import check_sizes
from tyler.engine.native.attention import Span
from tyler.engine.native.cache import Context, Room
from tyler.engine.native.decisions import LmHead, decide
from tyler.engine.native.reader import CHUNK, Feed, Reader
from tyler.engine.native.row import LATENT, Charge, Decision, Row, charged
from tyler.engine.request import Event, Request, check_branch
from tyler.engine.request_state import RequestState
from tyler.engine.sampling import Choice
from tyler.modeling.backbone import Backbone
from tyler.modeling.operators import Operator
from tyler.modeling.policy import Policy
from tyler.modeling.synthesis import Heads, LatentHead, SynthesisModel


class Engine(BaseEngine):
    """Decodes requests with continuous batching over at most `slots` rows.

    `memory` bounds the bytes of context and caches, by default half of what is free: it is divided among the slots, of
    which each holds at least `positions`; where memory is short there are fewer. Results do not depend on these, but
    for an answer that outgrows its slot, whose `limited_by` is "memory".
    """

    row_type = Row

    @torch.inference_mode(False)
    def __init__(
        self,
        backbone: Backbone,
        operators: Sequence[Operator],
        policy: Policy,
        synthesizer: SynthesisModel,
        heads: Heads | None = None,
        *,
        slots: int = 8,
        memory: int | None = None,
        positions: int | None = None,
    ) -> None:
        check_sizes(slots, memory)
        super().__init__(backbone, operators, policy, synthesizer, heads, backbone.max_positions)
        self.asked, self.memory = slots, memory
        self.room = Room.of(backbone, slots, memory, None if positions is None else self._reach(positions))
        # transformers looks these up again, and a step asks for them often
        self._device, self._embedding = backbone.device, backbone.embedding
        self.lm_head = LmHead(policy)
        self.context = Context(self.room, backbone.dim, backbone.dtype, backbone.device)
        self.policy_reader = Reader(policy.decoder, self.context)
        self.readers = [self.policy_reader]
        self.running = self.rows = list[Row]()  # those in slots, in their order
        self._free = list(range(self.room.slots))
        self._kept: dict[int, list[int]] = {}  # what the contexts of free slots held last
        self._unembedded: list[tuple[int, int]] = []  # places of tokens in the context, and the tokens

    @cached_property
    def synthesis_reader(self) -> Reader:
        """The synthesizer's, made with the first operator call: who calls none holds no second set of weights."""
        self.readers.append(Reader(self.synthesizer.decoder, self.context, self._feed))
        return self.readers[-1]

    _feed: Feed | None = None
    """What the synthesizer is fed instead of x_t, for methods that map it."""

    # -- requests ------------------------------------------------------------------------------------------------

    def prepare(self, request: Request, *, streamed: bool = True) -> Row:
        """As `BaseEngine.prepare`; raises ValueError for an answer that no slot has room for, too."""
        check_branch(request, self.vocab_size, self.offered(request), self.backbone.eos_ids)
        row = super().prepare(request, streamed=streamed)
        assert isinstance(row, Row)
        if (needed := self._reach(request.reach)) > self.room.capacity:
            raise ValueError(
                f"a prompt of {len(request.prompt_ids)} tokens with max_new_tokens={request.max_new_tokens} may reach "
                f"{needed:,} positions, and each of {self.room.slots} slots has {self.room.capacity:,}; lower "
                "max_new_tokens or slots, or raise memory"
            )
        return row

    def _reach(self, positions: int) -> int:
        """Positions of a slot in which an answer may reach so many: any one action must fit after them."""
        return min(positions + self.longest_action, self.max_positions)

    # -- a step --------------------------------------------------------------------------------------------------

    @torch.inference_mode(False)  # buffers outlive the caller's inference mode
    @torch.no_grad()
    def step(self) -> list[Event]:
        """Admit waiting requests, serve operator calls, read what is new, let every row that is not parked act."""
        self._embed_new()  # before others take the slots of those that are done
        ended = self._admit()
        self._schedule(self.rows)
        self._synthesize()
        self._choose(*self._read())
        events = [event for row in self.rows if row.streamed for event in row.emit()]
        return events + [row.finished() for row in (*ended, *self._retire())]

    def _admit(self) -> list[RequestState]:
        """Fill free slots from the queue; those that were aborted while they waited."""
        ended = self.take_aborted()
        while self.waiting and self._free:
            row = self.waiting.popleft()
            assert isinstance(row, Row)
            row.started = time.perf_counter()
            row.slot, row.cached_tokens = self._slot_for(row)
            for reader in self.readers:
                reader.forget(row.slot, row.cached_tokens)
            prompt, soft = self.backbone.embed(torch.tensor(row.ids, device=self._device)), row.request.soft_prompt
            if soft is not None:
                prompt[list(soft.positions)] = soft.embeds.to(prompt)
            self.context.write(row.slot, 0, prompt)
            self.rows.append(row)
        self.rows.sort(key=lambda row: row.slot)
        return ended

    def _slot_for(self, row: Row) -> tuple[int, int]:
        """A free slot, and how many of the prompt's tokens are read there: with `keeps_prefixes` the one with most."""
        slot, known = self._free[0], 0
        if self.keeps_prefixes and row.request.soft_prompt is None:
            common = {free: common_prefix(self._kept.get(free, []), row.request.prompt_ids) for free in self._free}
            slot, known = max(common.items(), key=lambda one: one[1])
        self._free.remove(slot)
        return slot, min(known, self.policy_reader.read_to[slot])

    def _schedule(self, rows: Sequence[Row]) -> None:
        """Append what is pending, and park the rows in which a fixed schedule places an operator."""
        for row in rows:
            while row.call is None and not row.finish_reason:
                call = row.schedule.due()
                if call is None and row.pending:
                    self._act(row, Choice(row.repeats(row.pending.popleft())))
                elif call is None:
                    break
                elif row.left_out == len(row.invocations) and call.operator in self.heads and row.may_call:
                    row.left_out = None
                elif row.may_call and call.operator in self.heads:
                    row.call, row.called = call, Choice(self.vocab_size + self._names.index(call.operator))
                    self.finish_if_full(row, self.room.capacity)
                    if not row.finish_reason:  # what comes after its position waits: a structure's opening token
                        row.hold_back()
                        for reader in self.readers:
                            reader.forget(row.slot, row.length)

    # -- synthesize ----------------------------------------------------------------------------------------------

    def _synthesize(self) -> None:
        """z_t = O_k(x_t) and x_{t+1} = [x_t; z_t] for the parked rows.

        Q_k is staged after x_t, both are read with the synthesizer, the query positions are projected and forgotten.
        """
        parked = [row for row in self.rows if row.call is not None]
        if not parked:
            return
        reader, planned = self.synthesis_reader, list[tuple[Row, Span]]()
        self._embed_new()
        for row in parked:
            if self._borrow(reader, row, planned):
                queries = self._head(row).queries
                self.context.write(row.slot, row.length, queries)
                start = min(reader.read_to[row.slot], row.length)
                planned.append((row, Span(row.slot, start, row.length + len(queries))))
        before = [row.synthesis_seconds for row, _ in planned]
        with charged([(row, len(span), len(span)) for row, span in planned]):
            hidden = reader.read([span for _, span in planned])
            for (row, _), states in zip(planned, hidden.split([len(span) for _, span in planned]), strict=True):
                head = self._head(row)
                reader.forget(row.slot, row.length)
                self._append_latents(row, head(states[-head.num_latents :]))
            self._wait_for_device()
        for (row, _), seconds in zip(planned, before, strict=True):
            row.call_seconds.append(row.synthesis_seconds - seconds)
        self._schedule([row for row, _ in planned])

    def _head(self, row: Row) -> LatentHead:
        assert row.call is not None
        return self.heads[row.call.operator]

    def _append_latents(self, row: Row, latents: Tensor) -> None:
        row.invoke(latents)
        self.context.write(row.slot, row.length, latents)
        row.ids += [LATENT] * len(latents)
        for token in row.held:
            row.show(Choice(row.repeats(token)))
            self._place(row, token)
        row.held = []
        self.finish_if_full(row, self.room.capacity)

    # -- read ----------------------------------------------------------------------------------------------------

    def _read(self) -> tuple[Tensor, list[Decision]]:
        """One pass of the policy over what is new; the hidden states at which something is decided, and what.

        At most CHUNK positions are read: the rows with the fewest first, so that a long prompt delays no other row.
        """
        self._embed_new()
        planned, left, read_to = list[tuple[Row, Span]](), CHUNK, self.policy_reader.read_to
        unread = [(row.unread(read_to[row.slot]), row) for row in self.rows if row.is_read]
        for start, row in sorted(unread, key=lambda one: one[1].length - one[0]):
            if left and self._borrow(self.policy_reader, row, planned):
                start = row.unread(read_to[row.slot]) if read_to[row.slot] > start else start  # if it has borrowed
                end = min(row.length, start + left)
                planned.append((row, Span(row.slot, start, end)))
                left -= end - start
        if not planned:
            return torch.empty(0, device=self._device), []
        planned.sort(key=lambda one: one[1].slot)
        with charged([share(row, span) for row, span in planned]):
            hidden = self.policy_reader.read([span for _, span in planned])
            self._wait_for_device()
        places, decisions, first = list[int](), list[Decision](), 0
        for row, span in planned:
            found = row.decided_in(span)
            decisions += found
            places += [first + decision.position - span.start for decision in found]
            first += len(span)
            read_whole = span.end == row.length and row.finish_reason == "length"  # no decision follows that notices
            if read_whole and not hidden[first - 1].isfinite().all():
                row.is_lost(math.nan, "the hidden states after a call")
        return hidden if len(places) == len(hidden) else hidden[places], decisions

    def _borrow(self, reader: Reader, row: Row, planned: Sequence[tuple[Row, Span]]) -> bool:
        """Take over what was read of the same prompt in another slot; False while a pass that is planned reads it.

        So rows that start from one prompt, as those of a group, read it once.
        """
        prompt, soft = row.request.prompt_ids, row.request.soft_prompt
        length = len(prompt)
        if reader.read_to[row.slot] >= length:
            return True
        alike = [one for one in self.rows if one.request.prompt_ids == prompt and one.request.soft_prompt is soft]
        others = [other for other in alike if other is not row]
        for other in others:
            if reader.read_to[other.slot] >= length:
                reader.copy(other.slot, row.slot, length)
                return True
        return not any(other is one for one, _ in planned for other in others)

    def _embed_new(self) -> None:
        """Write the embeddings of tokens that came since the last pass."""
        if self._unembedded:
            places, tokens = torch.tensor(self._unembedded, device=self._device).unbind(1)
            self.context.flat.index_copy_(0, places, self._embedding.index_select(0, tokens))
            self._unembedded = []

    def _wait_for_device(self) -> None:
        """Let the clock of a part stop when the device is done with it."""
        if self._device.type != "cpu" and torch.accelerator.is_available():
            torch.accelerator.synchronize(self._device)

    # -- choose --------------------------------------------------------------------------------------------------

    def _choose(self, hidden: Tensor, decisions: Sequence[Decision]) -> None:
        """a_t ~ p(. | x_t): a token joins the context, an operator parks its row."""
        if not decisions:
            return
        with charged([(decision.row, 1, 0) for decision in decisions]):
            for decision, choice in zip(decisions, decide(self.lm_head, hidden, decisions), strict=True):
                row = decision.row
                if decision.taken is not None:
                    row.choices[decision.place] = choice
                    row.is_lost(choice.logprob, "the logits of tokens after a call")
                elif not row.finish_reason:
                    row.barred = False
                    self._act(row, choice)

    def _act(self, row: Row, choice: Choice) -> None:
        if row.act(choice, self._names):
            if choice.embed is None:
                self._place(row, choice.action)
            else:
                self.context.write(row.slot, row.length, choice.embed[None])
                row.ids.append(LATENT)
        if choice.ended and not row.finish_reason:
            row.finish_reason = "stop"
        self.finish_if_full(row, self.room.capacity)

    def _place(self, row: Row, token: int) -> None:
        """Let a token be the next position of the context."""
        self._unembedded.append((row.slot * self.room.capacity + row.length, token))
        row.ids.append(token)

    def _retire(self) -> list[Row]:
        """Take the slots of finished rows back. What is not finite must not stay behind: 0 times NaN is NaN."""
        done = [row for row in self.rows if row.is_done]
        for row in done:
            self.rows.remove(row)
            self._free.append(row.slot)
            self._kept[row.slot] = row.ids if row.request.soft_prompt is None else []
            for reader in self.readers if row.error is not None else ():
                reader.wipe(row.slot, min(row.length + self.longest_action, self.room.capacity))
        if done and not self.keeps_prefixes:
            self._free.sort()  # rows that are neighbours are one product
        return done

    # -- weights and memory --------------------------------------------------------------------------------------

    def load(self) -> Load:
        held = sum(row.length for row in list(self.rows)) * self.room.position_bytes
        whole = self.room.slots * self.room.capacity * self.room.position_bytes
        return Load(len(self.rows), len(self.waiting), held, whole)

    def fits(self, slots: int, memory: int | None, positions: int) -> bool:
        """Whether it has so many rows of so many positions, or all that this bound allows."""
        return self.memory == memory and self.asked >= slots and self.room.capacity >= self._reach(positions)

    @torch.inference_mode(False)
    def refresh(self) -> bool:
        self._kept = {}
        for one, reader in zip(self.adapted, self.readers, strict=False):  # as far as these have been needed
            reader.refresh(one.decoder)
        return True


def common_prefix(first: Sequence[int], second: Sequence[int]) -> int:
    """How many tokens both begin with."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False)))


def share(row: Row, span: Span) -> Charge:
    """What of a span of a pass is for a row's operator calls: the latents in it."""
    latents = row.ids[span.start : span.end].count(LATENT) if row.request.sampler is None and row.invocations else 0
    return row, len(span), latents
