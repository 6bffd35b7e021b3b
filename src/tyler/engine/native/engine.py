"""The decoding engine: admit, serve, decide, read; many requests at once, each as if it were alone.

Every row is one request. A step serves the operator calls that are due, lets each running row choose an action in V',
and reads what was appended. A row that chose an operator is parked until its call is served, together with others.
The rows and what has been read of them are the batch (`batch.py`), who may join them is its own question
(`scheduler.py`). A call feeds the synthesizer only what is new since the row's last call, plus the queries.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from tyler.engine.branch import Branch, check_branch
from tyler.engine.checks import check_sizes
from tyler.engine.fair_lock import SoleUser
from tyler.engine.native.batch import Batch
from tyler.engine.native.decisions import LmHead, decide, logits_of, note_alternatives
from tyler.engine.native.fused_decoder import has_fixed_angles
from tyler.engine.native.scheduler import Scheduler
from tyler.engine.protocol import Load
from tyler.engine.request import Event, FinishEvent, InvocationEvent, PromptTooLong, Request, checked
from tyler.engine.request_state import RequestState
from tyler.engine.routing import Call
from tyler.engine.soft_sampling import Sampler
from tyler.engine.timings import Timings
from tyler.engine.trajectory import Invocation, Trajectory
from tyler.engine.weight_watch import Adaptable, WeightWatch
from tyler.modeling.backbone import Backbone
from tyler.modeling.operators import Operator
from tyler.modeling.policy import Policy
from tyler.modeling.synthesis import Heads, SynthesisModel


def patience(rows: int) -> int:
    """How many steps an operator call waits for others by default: none for up to 8 rows, and 16 above."""
    return 0 if rows <= 8 else 16


def longest_action(heads: Heads) -> int:
    """Positions that one action may take: a token has one, a call as many as its operator has latents."""
    return max((head.num_latents for head in heads.values()), default=1)


def longest_prompt(backbone: Backbone, heads: Heads) -> int:
    """Tokens that a prompt may have, so that any one action still fits the model's context."""
    return backbone.max_positions - longest_action(heads)


class Engine:
    """Decodes requests with continuous batching over `slots` rows.

    `coalesce` is how many steps an operator call may wait, so that the calls of several rows are served in one pass;
    None chooses by how many rows there are (`patience`). `memory` bounds the bytes of context and caches: a request
    that does not fit beside the others waits, and a row that grows too long for all of them makes the youngest wait
    until there is room again. Results do not depend on any of the three.
    """

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
        coalesce: int | None = None,
        memory: int | None = None,
    ) -> None:
        check_sizes(slots, coalesce, memory)
        if not has_fixed_angles(backbone.decoder):  # angles follow the longest row: each is read by itself
            slots = 1
        self.backbone, self.operators, self.policy = backbone, tuple(operators), policy
        self.synthesizer = synthesizer
        self.heads: Heads = synthesizer.mapping() if heads is None else heads
        self.coalesce = coalesce
        self.timings = Timings()
        self._action_ids = {op.name: backbone.vocab_size + k for k, op in enumerate(self.operators)}
        self._longest_action = longest_action(self.heads)
        # Looked up once: transformers looks each of these up again, and a step asks for them often.
        self._vocab_size, self._eos_ids = backbone.vocab_size, backbone.eos_ids
        self._max_positions, self._device = backbone.max_positions, backbone.device
        self.lm_head = LmHead(policy)
        self.batch = Batch(backbone, policy, synthesizer.decoder, slots=slots, memory=memory)
        self.scheduler = Scheduler(self.batch, self._longest_action)
        self.rows, self.waiting, self.context = self.batch.rows, self.scheduler.waiting, self.batch.context
        self._aborted: list[RequestState] = []  # while they waited
        self._submitted = 0
        self._sole_user = SoleUser()

    def add_request(self, request: Request) -> int:
        """Queue a request and return its index. Raises ValueError for one that `prepare` refuses."""
        row = self.prepare(request)
        self.waiting.append(row)
        return row.index

    def prepare(self, request: Request, *, streamed: bool = True, coalesce: int | None = None) -> RequestState:
        """What a request starts as; `waiting` takes it whenever it is to begin.

        `streamed` says whether tokens are reported as they come, or only the end. `coalesce` is how long its own calls
        may wait, where it is not the engine's. Raises PromptTooLong (a ValueError) when the prompt does not fit the
        model's context, and ValueError for tokens that the model does not have and when the answer never fits `memory`.
        """
        if len(request.prompt_ids) > (limit := longest_prompt(self.backbone, self.heads)):
            raise PromptTooLong(
                f"the prompt has {len(request.prompt_ids)} tokens, but this model's context of "
                f"{self._max_positions} positions leaves room for {limit}; shorten the prompt"
            )
        if not 0 <= min(request.prompt_ids) <= max(request.prompt_ids) < self._vocab_size:
            raise ValueError(
                f"the prompt has tokens from {min(request.prompt_ids)} to {max(request.prompt_ids)}, and the model's "
                f"are from 0 to {self._vocab_size - 1}; encode it with the model's own tokenizer"
            )
        self.scheduler.check(request)
        schedule = request.router.start(self.operators, request.sampling.stream(purpose=1))
        offered = tuple(request.router.learned and operator.name in self.heads for operator in self.operators)
        index, self._submitted = self._submitted, self._submitted + 1
        branch = None
        if request.branch is not None:
            learned = request.router.learned
            check_branch(request.branch, self._vocab_size, offered, learned, self._eos_ids, request.budget)
            branch = Branch(request.branch, self._vocab_size, request.router.learned)
        return RequestState(index, request, schedule, offered, self.backbone, streamed, coalesce, branch)

    def stream(self, requests: Sequence[Request]) -> Iterator[Event]:
        """Decode the requests, yielding tokens, invocations and finished trajectories as they happen."""
        return self._decoded([self.prepare(request) for request in requests])

    def as_completed(self, requests: Sequence[Request]) -> Iterator[FinishEvent]:
        """Decode the requests, yielding each as it is done. No token is turned into text on the way."""
        events = self._decoded([self.prepare(request, streamed=False) for request in requests])
        return (event for event in events if isinstance(event, FinishEvent))

    def _decoded(self, rows: Sequence[RequestState]) -> Iterator[Event]:
        """Decode until nothing is left. Where that fails, or nobody listens any more, these rows go."""
        self.waiting += rows
        try:
            while self.waiting or self.rows:
                yield from checked(self.step())
        finally:
            left = [row for row in (*self.waiting, *self.rows) if row in rows]
            for row in left:
                self.abort(row.index)
            while any(row in self.waiting or row in self.rows for row in left):
                self.step()

    def run(self, requests: Sequence[Request]) -> list[Trajectory]:
        """Decode the requests; trajectories in their order."""
        first = self._submitted
        finished = {event.index: event.trajectory for event in self.as_completed(requests)}
        return [finished[first + offset] for offset in range(len(requests))]

    @torch.inference_mode(False)  # buffers outlive the caller's inference mode
    @torch.no_grad()
    def step(self) -> list[Event]:
        """Admit waiting requests, serve operator calls that are due, let every running row act once.

        Raises RuntimeError while another thread takes a step.
        """
        with self._sole_user:
            events: list[Event] = []
            for row, served in self._act_once():
                (row.told_later if row.streamed else events).append(served)
            events += [event for row in self.rows if row.streamed for event in row.emit()]
            events += self._retire()
            self._read_running()
            return events

    def abort(self, index: int) -> None:
        """End a waiting or running request; the next step tells of its end, with the reason "abort".

        Raises ValueError for an index that is neither waiting nor running.
        """
        for row in (*self.waiting, *self.rows):
            if row.index == index:
                row.finish_reason, row.call = "abort", None
                if row in self.waiting:
                    self.waiting.remove(row)
                    self.waiting.appendleft(row)
                return
        raise ValueError(f"request {index} is neither waiting nor running; nothing was aborted")

    def forget(self, index: int) -> None:
        """Drop what is remembered of a finished request; here nothing is."""

    @property
    def busy(self) -> bool:
        """Whether any request waits or is decoded."""
        return bool(self.waiting or self.rows)

    def load(self) -> Load:
        """What it is doing, as seen in passing."""
        running, lengths = len(self.rows), self.context.lengths[: len(self.rows)]
        held = self.context.positions_for(lengths) * self.batch.position_bytes if running else 0
        return Load(running, len(self.waiting), held, self.batch.memory or 0)

    def fits(self, slots: int, memory: int | None) -> bool:
        """Whether it has so many rows and this bound."""
        return self.batch.memory == memory and self.batch.slots >= slots

    def release(self) -> bool:
        """Its memory goes with it."""
        return False

    def close(self) -> None:
        """Nothing outlives it."""

    def watch(self) -> WeightWatch:
        """The weights it decodes with, as they are now."""
        return WeightWatch(self.backbone.model, self.adapted)

    @property
    def adapted(self) -> list[Adaptable]:
        """The modules whose LoRAs it decodes with."""
        return [self.policy, self.synthesizer]

    @torch.inference_mode(False)
    def refresh(self) -> bool:
        """Fold the adapters' present weights in; False where they are other modules now, and need a new engine."""
        readers = self.batch.readers  # of the adapted modules, as far as they have been needed
        return all([reader.refresh(one.decoder()) for one, reader in zip(self.adapted, readers, strict=False)])

    def _act_once(self) -> list[tuple[RequestState, InvocationEvent]]:
        """A step up to the point where every running row has acted; the calls that were served, with their rows."""
        self._admit()
        served = self._serve()
        self._decide()
        return served

    def _admit(self) -> None:
        """Fill free rows from the queue, as far as there is memory, and read their prompts."""
        self._aborted += self.scheduler.withdrawn()  # first: whoever makes room goes to the head of the queue
        self.scheduler.preempt_youngest()
        if joining := self.scheduler.admit():
            for row in joining:
                row.start()
            with self.timings.clock("prefill", joining):
                self.batch.join(joining)
                self._wait_for_device()

    # -- serve ---------------------------------------------------------------------------------------------------

    def _serve(self) -> list[tuple[RequestState, InvocationEvent]]:
        """z_t = O_k(x_t) and x_{t+1} = [x_t; z_t] for the parked rows, once their calls are due."""
        self._park_scheduled()
        parked = self.batch.arrange()
        if not parked or not self._due(parked):
            return []
        self.batch.prepare_calls()
        with self.timings.clock("decode", self.rows):
            self._wait_for_device()  # for what is still being read, which is no part of the calls
        served = self.rows[parked.start : parked.stop]
        before = served[0].synthesis_seconds
        with self.timings.clock("synthesis", served):
            held = [self._hold_back(slot) for slot in parked]
            latents = self._synthesize(parked)
            for slot, block, tokens in zip(parked, latents, held, strict=True):
                self._append_latents(slot, block)
                self._append_held(slot, tokens)
            hidden, counts = self.batch.read(parked)
            self._score_held(parked, held, hidden, counts)
            self._wait_for_device()
        self._park_scheduled()
        share = served[0].synthesis_seconds - before
        return [(row, InvocationEvent(row.index, row.invocations[-1], share, row.reported)) for row in served]

    def _park_scheduled(self) -> None:
        """Park the rows in which a fixed schedule places an operator at or before the present position."""
        for slot, row in enumerate(self.rows):
            while row.call is None and not row.finish_reason and (call := row.schedule.due()) is not None:
                if row.may_call and call.operator in self.heads and not row.leaves_out_call():
                    row.park(call, logprob=0.0)
                    self._finish_if_full(slot)

    def _due(self, parked: range) -> bool:
        """Calls are served when no other row can act, or when one has waited long enough."""
        usual = patience(len(self.rows)) if self.coalesce is None else self.coalesce
        late = False
        for row in (self.rows[slot] for slot in parked):
            row.waited += 1
            late |= row.waited > (usual if row.coalesce is None else row.coalesce)
        return late or len(parked) == len(self.rows)

    def _hold_back(self, slot: int) -> list[int]:
        """Take the tokens after the call's position out of the context: a structure's opening token waits."""
        held, start = self.rows[slot].hold_back()
        if held:
            self.batch.forget(slot, start)
        return held

    def _synthesize(self, parked: range) -> list[Float[Tensor, "latents dim"]]:
        """Stage Q_k after x_t, read both with the synthesizer, project the query positions, forget the queries."""
        self.batch.share_prompts(parked)
        heads = [self.heads[self.rows[slot].call.operator] for slot in parked]  # type: ignore[union-attr]
        for slot, head in zip(parked, heads, strict=True):
            self.context.stage(slot, head.queries)
        ends = [self.context.lengths[slot] + head.num_latents for slot, head in zip(parked, heads, strict=True)]
        hidden, counts = self.batch.synthesis_reader.read(parked, ends)
        latents = []
        for row, (slot, head) in enumerate(zip(parked, heads, strict=True)):
            latents.append(head(hidden[row, counts[row] - head.num_latents : counts[row]]))
            self.batch.synthesis_reader.rewind(slot, self.context.lengths[slot])
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
            self.context.append(slot, self.backbone.embed(torch.tensor([token], device=self._device)))
        self._finish_if_full(slot)

    def _score_held(
        self, parked: range, held: list[list[int]], hidden: Float[Tensor, "rows seq dim"], counts: list[int]
    ) -> None:
        """Record log p of the held tokens where they now stand, after the latents."""
        for index, (slot, tokens) in enumerate(zip(parked, held, strict=True)):
            row = self.rows[slot]
            if tokens:
                before = hidden[index, counts[index] - len(tokens) - 1 : counts[index] - 1]
                logits = logits_of(self.lm_head, before, [row] * len(tokens))
                chosen = logits.log_softmax(dim=-1)[range(len(tokens)), tokens].tolist()
                row.logprobs[-len(tokens) :] = chosen
                for place, one in enumerate(logits, len(row.tops) - len(tokens)):
                    note_alternatives(one[None], [row], self._vocab_size)
                    row.tops[place] = row.top
                row.is_lost(sum(chosen), "the logits of tokens after a call")
            if row.finish_reason == "length" and not hidden[index, counts[index] - 1].isfinite().all():
                row.is_lost(math.nan, "the hidden states after a call")  # no decision follows that would notice

    # -- decide --------------------------------------------------------------------------------------------------

    def _decide(self) -> None:
        """a_t ~ p(. | x_t) for every running row: a token joins the context, an operator parks the row."""
        running = [slot for slot, row in enumerate(self.rows) if row.call is None and not row.finish_reason]
        if not running:
            return
        with self.timings.clock("choice", [self.rows[slot] for slot in running]):
            by_sampler: dict[Sampler | None, list[int]] = {}
            for slot in running:
                by_sampler.setdefault(self.rows[slot].request.sampler, []).append(slot)
            for sampler, slots in by_sampler.items():
                if sampler is None:
                    self._decide_plainly(slots)
                else:
                    self._decide_by(sampler, slots)
            for slot in running:
                self._finish_if_full(slot)

    def _decide_plainly(self, running: list[int]) -> None:
        """An action in V', greedy or sampled; a token is read as itself."""
        rows = [self.rows[slot] for slot in running]
        logits = logits_of(self.lm_head, self.batch.hidden_of(running), rows)
        appended: list[tuple[int, int]] = []
        for slot, action, logprob in zip(running, *decide(logits, rows, self._vocab_size), strict=True):
            self._act(slot, action, logprob, appended)
        if appended:
            slots, tokens = zip(*appended, strict=True)
            self.context.append_each(list(slots), self.backbone.embed(torch.tensor(tokens, device=self._device)))

    def _decide_by(self, sampler: Sampler, running: list[int]) -> None:
        """A token to record and a vector to read, as the sampler says."""
        rows = [self.rows[slot] for slot in running]
        logits = self.lm_head.token_logits(self.batch.hidden_of(running))
        choices = sampler.choose(logits, [row.sampler_state for row in rows], [row.uniforms.take() for row in rows])
        for slot, row, choice in zip(running, rows, choices.each(), strict=True):
            ends = choice.token in self._eos_ids
            row.is_soft.append(choice.soft and not ends)
            self._act(slot, choice.token, choice.logprob, [])
            if choice.ended and not row.finish_reason:
                row.finish_reason = "stop"
        read = [place for place, row in enumerate(rows) if row.finish_reason != "eos"]
        if read:
            self.context.append_each([running[place] for place in read], choices.embeds[read])

    def _act(self, slot: int, action: int, logprob: float, appended: list[tuple[int, int]]) -> None:
        """Carry out one action of one row; numbers that are not finite end it, whatever they would have chosen."""
        row = self.rows[slot]
        if row.is_lost(logprob, f"the logits of step {len(row.actions) + 1}"):
            return
        if action >= self._vocab_size:
            row.park(Call(len(row.visible), self.operators[action - self._vocab_size].name), logprob)
        elif row.ends(action):
            row.actions.append(action)
            row.logprobs.append(logprob)
            row.finish_reason = "eos"
        else:
            row.show(action, logprob, self.context.lengths[slot])
            row.schedule.observe(row.visible)
            row.find_stop()
            appended.append((slot, action))

    def _finish_if_full(self, slot: int) -> None:
        row = self.rows[slot]
        out_of_actions = self._counted(row) >= row.request.max_new_tokens
        waits = 0 if row.call is None else self.heads[row.call.operator].num_latents
        out_of_tokens = row.exceeds(waits)
        out_of_room = self.context.lengths[slot] + self._longest_action > self._max_positions
        if (out_of_actions or out_of_tokens or out_of_room) and not row.finish_reason:
            row.finish_reason, row.call = "length", None
            limits = ((out_of_actions, "max_new_tokens"), (out_of_tokens, "max_generated"), (out_of_room, "context"))
            row.limited_by = next(name for reached, name in limits if reached)

    def _counted(self, row: RequestState) -> int:
        """How much of `max_new_tokens` a row has used: it counts actions."""
        return len(row.actions)

    # -- retire and read -----------------------------------------------------------------------------------------

    def _retire(self) -> list[FinishEvent]:
        """Give finished rows' places to the last ones."""
        ended, self._aborted = self._aborted, []
        finished = [row.finished(self._vocab_size) for row in ended]
        for slot in reversed(range(len(self.rows))):
            row = self.rows[slot]
            if row.finish_reason:
                self.batch.leave(slot)
                finished.append(row.finished(self._vocab_size))
        return finished

    def _read_running(self) -> None:
        running = range(len(self.rows) - len(self.batch.arrange()))
        if any(self.batch.policy_reader.read_to[slot] < self.context.lengths[slot] for slot in running):
            with self.timings.clock("decode", self.rows[: len(running)]):
                self.batch.read(running)

    def _wait_for_device(self) -> None:
        """Let the clock of a part stop when the device is done with it."""
        if self._device.type == "cuda":
            torch.cuda.current_stream(self._device).synchronize()
        elif self._device.type == "mps":
            torch.mps.synchronize()
