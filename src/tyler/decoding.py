"""The decoding engine: admit, serve, decide, read; many requests at once, each as if it were alone.

Every row is one request. A step serves the operator calls that are due, lets each running row choose an action in V',
and reads what was appended. A row that chose an operator is parked until its call is served, together with others.
The policy and the synthesizer are two readers of one context (`context.py`): a call feeds the synthesizer only what is
new since the row's last call, plus the queries. Rows are kept in the order running, parked, so that every pass runs
over neighbouring rows.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from tyler.backbone import Backbone
from tyler.choosing import Chooser
from tyler.context import Context, Reader
from tyler.operators import Operator
from tyler.policy import Policy
from tyler.request import Event, FinishEvent, InvocationEvent, Request, Row
from tyler.routing import Call
from tyler.sampling import choose, masked_logits
from tyler.synthesis import Heads, SynthesisModel
from tyler.trajectory import Invocation, Trajectory


@dataclass
class Timings:
    """Seconds the engine spent on each part."""

    prefill: float = 0.0
    decode: float = 0.0
    synthesis: float = 0.0
    choice: float = 0.0

    @property
    def total(self) -> float:
        return self.prefill + self.decode + self.synthesis + self.choice

    @contextmanager
    def clock(self, part: str) -> Iterator[None]:
        started = time.perf_counter()
        yield
        setattr(self, part, getattr(self, part) + time.perf_counter() - started)


class Engine:
    """Decodes requests with continuous batching over `slots` rows.

    `coalesce` is how many steps an operator call may wait, so that the calls of several rows are served in one pass;
    None chooses 0 for up to 8 slots and 16 above. Results do not depend on `slots` or `coalesce`.
    """

    def __init__(
        self,
        backbone: Backbone,
        operators: Sequence[Operator],
        policy: Policy,
        synthesizer: SynthesisModel,
        heads: Heads | None = None,
        *,
        slots: int = 8,
        coalesce: int | None = None,
    ) -> None:
        if slots < 1:
            raise ValueError(f"slots={slots}; at least 1 is needed")
        self.backbone, self.operators, self.policy = backbone, tuple(operators), policy
        self.heads: Heads = synthesizer.mapping() if heads is None else heads
        self.slots = slots
        self.coalesce = (0 if slots <= 8 else 16) if coalesce is None else coalesce
        self.timings = Timings()
        self.context = Context(slots, backbone.dim, backbone.dtype, backbone.device)
        self.policy_reader = Reader(policy.decoder(), self.context)
        self.synthesis_reader = Reader(synthesizer.decoder(), self.context)
        self.hidden = torch.zeros(slots, backbone.dim, dtype=backbone.dtype, device=backbone.device)
        self.rows: list[Row] = []
        self.waiting: deque[Row] = deque()
        self._action_ids = {op.name: backbone.vocab_size + k for k, op in enumerate(self.operators)}
        self._longest_action = max((self.heads[name].num_latents for name in self.heads), default=1)
        self._submitted = 0

    def submit(self, request: Request) -> int:
        """Queue a request and return its index. Raises ValueError when the prompt does not fit the model's context."""
        limit = self.backbone.max_positions - self._longest_action
        if len(request.prompt_ids) > limit:
            raise ValueError(
                f"the prompt has {len(request.prompt_ids)} tokens, but this model's context of "
                f"{self.backbone.max_positions} positions leaves room for {limit}; shorten the prompt"
            )
        schedule = request.router.start(self.operators, request.sampling.stream(purpose=1))
        offered = tuple(request.router.learned and operator.name in self.heads for operator in self.operators)
        index, self._submitted = self._submitted, self._submitted + 1
        self.waiting.append(Row(index, request, schedule, offered, self.backbone.tokenizer))
        return index

    def stream(self, requests: Sequence[Request]) -> Iterator[Event]:
        """Decode the requests, yielding tokens, invocations and finished trajectories as they happen."""
        for request in requests:
            self.submit(request)
        while self.waiting or self.rows:
            yield from self.step()

    def run(self, requests: Sequence[Request]) -> list[Trajectory]:
        """Decode the requests; trajectories in their order."""
        first = self._submitted
        finished = {event.index: event.trajectory for event in self.stream(requests) if isinstance(event, FinishEvent)}
        return [finished[first + offset] for offset in range(len(requests))]

    @torch.no_grad()
    def step(self) -> list[Event]:
        """Admit waiting requests, serve operator calls that are due, let every running row act once."""
        self._admit()
        events = self._serve()
        self._decide()
        events += self._retire()
        self._read_running()
        return events

    # -- admit ---------------------------------------------------------------------------------------------------

    def _admit(self) -> None:
        """Fill free rows from the queue and read their prompts."""
        first = len(self.rows)
        while self.waiting and len(self.rows) < self.slots:
            row = self.waiting.popleft()
            slot = len(self.rows)
            self.rows.append(row)
            self._forget(slot, 0)
            self.context.append(slot, self._embed_prompt(row.request))
            row.started = time.perf_counter()
        if len(self.rows) > first:
            with self.timings.clock("prefill"):
                self._read(range(first, len(self.rows)))

    def _embed_prompt(self, request: Request) -> Float[Tensor, "seq dim"]:
        embeds = self.backbone.embed(torch.tensor(request.prompt_ids, device=self.backbone.device))
        if request.soft_prompt is not None:
            embeds[list(request.soft_prompt.positions)] = request.soft_prompt.embeds.to(embeds)
        return embeds

    # -- serve ---------------------------------------------------------------------------------------------------

    def _serve(self) -> list[Event]:
        """z_t = O_k(x_t) and x_{t+1} = [x_t; z_t] for the parked rows, once their calls are due."""
        self._park_scheduled()
        parked = self._arrange()
        if not parked or not self._due(parked):
            return []
        started = time.perf_counter()
        held = [self._hold_back(slot) for slot in parked]
        latents = self._synthesize(parked)
        for slot, block, tokens in zip(parked, latents, held, strict=True):
            self._append_latents(slot, block)
            self._append_held(slot, tokens)
        hidden, counts = self._read(parked)
        self._score_held(parked, held, hidden, counts)
        elapsed = time.perf_counter() - started
        self.timings.synthesis += elapsed
        for slot in parked:
            self.rows[slot].synthesis_seconds += elapsed / len(parked)
        self._park_scheduled()
        return [InvocationEvent(self.rows[slot].index, self.rows[slot].invocations[-1]) for slot in parked]

    def _park_scheduled(self) -> None:
        """Park the rows in which a fixed schedule places an operator at or before the present position."""
        for row in self.rows:
            while row.call is None and (call := row.schedule.due()) is not None:
                if row.may_call and call.operator in self.heads:
                    row.park(call, logprob=0.0)

    def _due(self, parked: range) -> bool:
        """Calls are served when nobody else can act, or when one has waited long enough."""
        for slot in parked:
            self.rows[slot].waited += 1
        return len(parked) == len(self.rows) or max(self.rows[slot].waited for slot in parked) > self.coalesce

    def _hold_back(self, slot: int) -> list[int]:
        """Take the tokens behind the call's position out of the context: a structure's opening token waits."""
        held, start = self.rows[slot].hold_back()
        if held:
            self._forget(slot, start)
        return held

    def _synthesize(self, parked: range) -> list[Float[Tensor, "latents dim"]]:
        """Stage Q_k behind x_t, read both with the synthesizer, project the query positions, forget the queries."""
        heads = [self.heads[self.rows[slot].call.operator] for slot in parked]  # type: ignore[union-attr]
        for slot, head in zip(parked, heads, strict=True):
            self.context.stage(slot, head.queries)
        ends = [self.context.lengths[slot] + head.num_latents for slot, head in zip(parked, heads, strict=True)]
        hidden, counts = self.synthesis_reader.read(parked, ends)
        latents = []
        for row, (slot, head) in enumerate(zip(parked, heads, strict=True)):
            latents.append(head(hidden[row, counts[row] - head.num_latents : counts[row]]))
            self.synthesis_reader.rewind(slot, self.context.lengths[slot])
        return latents

    def _append_latents(self, slot: int, latents: Float[Tensor, "latents dim"]) -> None:
        row = self.rows[slot]
        assert row.call is not None
        name = row.call.operator
        offset = len(row.visible.text)
        row.invocations.append(Invocation(name, len(row.visible), len(latents), len(row.actions), offset))
        row.latents.append(latents)
        row.actions.append(self._action_ids[name])
        row.logprobs.append(row.call_logprob)
        row.call = None
        self.context.append(slot, latents)

    def _append_held(self, slot: int, tokens: list[int]) -> None:
        for token in tokens:
            self.rows[slot].show(token, 0.0, self.context.lengths[slot])
            self.context.append(slot, self.backbone.embed(torch.tensor([token], device=self.backbone.device)))
        self._finish_if_full(slot)

    def _score_held(
        self, parked: range, held: list[list[int]], hidden: Float[Tensor, "rows seq dim"], counts: list[int]
    ) -> None:
        """Record log p of the held tokens where they now stand, behind the latents."""
        for index, (slot, tokens) in enumerate(zip(parked, held, strict=True)):
            if tokens:
                before = hidden[index, counts[index] - len(tokens) - 1 : counts[index] - 1]
                logits = self._masked(before, [self.rows[slot]] * len(tokens))
                chosen = logits.log_softmax(dim=-1)[range(len(tokens)), tokens]
                self.rows[slot].logprobs[-len(tokens) :] = chosen.tolist()

    # -- decide --------------------------------------------------------------------------------------------------

    def _decide(self) -> None:
        """a_t ~ p(. | x_t) for every running row: a token joins the context, an operator parks the row."""
        running = [slot for slot, row in enumerate(self.rows) if row.call is None and not row.finish_reason]
        if not running:
            return
        with self.timings.clock("choice"):
            by_chooser: dict[Chooser | None, list[int]] = {}
            for slot in running:
                by_chooser.setdefault(self.rows[slot].request.chooser, []).append(slot)
            for chooser, slots in by_chooser.items():
                if chooser is None:
                    self._decide_plainly(slots)
                else:
                    self._decide_by(chooser, slots)
            for slot in running:
                self._finish_if_full(slot)

    def _decide_plainly(self, running: list[int]) -> None:
        """An action in V', greedy or sampled; a token is read as itself."""
        rows = [self.rows[slot] for slot in running]
        logits = self._masked(self.hidden[running], rows)
        chosen, logprobs = choose(logits, [row.request.sampling for row in rows], [row.random.random() for row in rows])
        appended: list[tuple[int, int]] = []
        for slot, action, logprob in zip(running, chosen.tolist(), logprobs.tolist(), strict=True):
            self._act(slot, action, logprob, appended)
        if appended:
            slots, tokens = zip(*appended, strict=True)
            self.context.append_each(
                list(slots), self.backbone.embed(torch.tensor(tokens, device=self.backbone.device))
            )

    def _decide_by(self, chooser: Chooser, running: list[int]) -> None:
        """A token to record and a vector to read, as the chooser says."""
        rows = [self.rows[slot] for slot in running]
        logits = self.policy.logits(self.hidden[running])[:, : self.backbone.vocab_size]
        choices = chooser.choose(logits, [row.choosing for row in rows], [row.random.random() for row in rows])
        for slot, row, choice in zip(running, rows, choices.each(), strict=True):
            ends = choice.token in self.backbone.eos_ids
            row.is_soft.append(choice.soft and not ends)
            self._act(slot, choice.token, choice.logprob, [])
            if choice.ended and not row.finish_reason:
                row.finish_reason = "stop"
        read = [place for place, row in enumerate(rows) if row.finish_reason != "eos"]
        if read:
            self.context.append_each([running[place] for place in read], choices.embeds[read])

    def _act(self, slot: int, action: int, logprob: float, appended: list[tuple[int, int]]) -> None:
        """Carry out one action of one row."""
        row = self.rows[slot]
        if action >= self.backbone.vocab_size:
            row.park(Call(len(row.visible), self.operators[action - self.backbone.vocab_size].name), logprob)
        elif action in self.backbone.eos_ids:
            row.actions.append(action)
            row.logprobs.append(logprob)
            row.finish_reason = "eos"
        else:
            row.show(action, logprob, self.context.lengths[slot])
            row.schedule.observe(row.visible)
            row.find_stop()
            appended.append((slot, action))

    def _masked(self, hidden: Float[Tensor, "rows dim"], rows: list[Row]) -> Float[Tensor, "rows actions"]:
        """Logits over V' at each row's temperature; operators only where the row's policy may invoke them."""
        device = hidden.device
        allowed = torch.tensor([row.allowed for row in rows], dtype=torch.bool, device=device)
        temperature = torch.tensor([row.request.sampling.scale for row in rows], device=device)
        return masked_logits(self.policy.logits(hidden), allowed.view(len(rows), len(self.operators)), temperature)

    def _finish_if_full(self, slot: int) -> None:
        row = self.rows[slot]
        out_of_actions = self._counted(row) >= row.request.max_new_tokens
        out_of_room = self.context.lengths[slot] + self._longest_action > self.backbone.max_positions
        if (out_of_actions or out_of_room) and not row.finish_reason:
            row.finish_reason, row.call = "length", None

    def _counted(self, row: Row) -> int:
        """How much of `max_new_tokens` a row has used: it counts actions."""
        return len(row.actions)

    # -- retire and read -----------------------------------------------------------------------------------------

    def _retire(self) -> list[Event]:
        """Emit what is certain and give finished rows' places to the last ones."""
        events: list[Event] = [event for row in self.rows for event in row.emit()]
        for slot in reversed(range(len(self.rows))):
            row = self.rows[slot]
            if row.finish_reason:
                self._swap(slot, len(self.rows) - 1)
                self.rows.pop()
                events.append(FinishEvent(row.index, row.trajectory(self.backbone.vocab_size)))
        return events

    def _read_running(self) -> None:
        running = range(len(self.rows) - len(self._arrange()))
        if running:
            with self.timings.clock("decode"):
                self._read(running)

    def _read(self, rows: range) -> tuple[Float[Tensor, "rows seq dim"], list[int]]:
        """Let the policy read what is new in these rows; keep each row's last hidden state for its next decision."""
        hidden, counts = self.policy_reader.read(rows, self.context.lengths[rows.start : rows.stop])
        self.hidden[rows.start : rows.stop] = hidden[range(len(rows)), [count - 1 for count in counts]]
        return hidden, counts

    def _arrange(self) -> range:
        """Bring the rows into the order running, parked; return where the parked ones are."""
        first, last = 0, len(self.rows) - 1
        while True:
            while first <= last and self.rows[first].call is None:
                first += 1
            while first <= last and self.rows[last].call is not None:
                last -= 1
            if first > last:
                return range(first, len(self.rows))
            self._swap(first, last)

    def _swap(self, first: int, second: int) -> None:
        if first != second:
            self.rows[first], self.rows[second] = self.rows[second], self.rows[first]
            self.hidden[[first, second]] = self.hidden[[second, first]]
            for part in (self.context, self.policy_reader, self.synthesis_reader):
                part.swap(first, second)

    def _forget(self, slot: int, length: int) -> None:
        """Shorten a row's context to `length` positions."""
        self.context.truncate(slot, length)
        self.policy_reader.rewind(slot, length)
        self.synthesis_reader.rewind(slot, length)
