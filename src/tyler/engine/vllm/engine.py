"""Answers on vLLM: each is a chain of vLLM's own requests, and decoding between two calls is vLLM's alone.

The policy's request goes on until it chooses an operator or a rule finds a boundary. A call is a request of the
synthesizer, [x_t; Q_k], whose last hidden states become rows of a table inside the model. Then the policy goes on with
x_t and the ids of those rows. By prefix caching each request reads what is new since the last one of its reader.
"""

from __future__ import annotations

import math
import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from vllm.inputs import TokensPrompt
from vllm.outputs import RequestOutput
from vllm.sampling_params import RequestOutputKind, SamplingParams
from vllm.v1.engine.llm_engine import LLMEngine
from vllm.v1.executor import Executor

from tyler.engine.protocol import Load
from tyler.engine.request import Event, FinishEvent, InvocationEvent, PromptTooLong, Request, checked
from tyler.engine.request_state import RequestState
from tyler.engine.routing import Call
from tyler.engine.sampling import Sampling
from tyler.engine.shared_engine import DecodingError
from tyler.engine.trajectory import Invocation, Trajectory
from tyler.engine.vllm.decisions import TURN, Turn
from tyler.engine.vllm.ids import Rows
from tyler.engine.vllm.settings import engine_args
from tyler.engine.vllm.weights import (
    load,
    policy_weights,
    read_rows,
    synthesizer_weights,
    targets_of,
    write_rows,
)
from tyler.engine.weight_watch import WeightWatch, writes
from tyler.modeling.backbone import Backbone
from tyler.modeling.operators import Operator
from tyler.modeling.policy import Policy
from tyler.modeling.synthesis import Heads, SynthesisModel

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
Found = TypeVar("Found")

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # the engine is in this process; workers may be in others
os.environ["VLLM_USE_V2_MODEL_RUNNER"] = "0"  # its logits processors know the batch before the pass; the other's do not


@dataclass
class Answer:
    """An answer between and in its requests to vLLM. `ids` is x_t as the policy reads it."""

    row: RequestState
    ids: list[int]
    blocks: list[tuple[int, list[int]]] = field(default_factory=list)  # of each call: where in ids, and its places
    held: list[int] = field(default_factory=list)  # tokens behind a call's place, to be read after its latents
    taken: int = 0  # numbers of its random stream
    request: str | None = None  # in flight
    places: list[int] = field(default_factory=list)  # of the call in flight; empty while the policy decides
    began: float = 0.0  # when that call did
    full: str | None = None  # the limit that ends it once `held` is read
    saved: Tensor | None = None  # its latents, while their rows are lent to older answers

    @property
    def all_places(self) -> list[int]:
        return [place for _, places in self.blocks for place in places]


class VllmEngine:
    """Decodes requests on vLLM; up to `slots` answers at once, `memory` bytes of KV, vLLM's own `arguments`.

    Greedy answers in float32 are those of the native engine, action by action; a seed gives the same draws. Raises
    ValueError for what vLLM cannot do, and DecodingError once vLLM or one of its workers has failed.
    """

    def __init__(
        self,
        backbone: Backbone,
        operators: Sequence[Operator],
        policy: Policy,
        synthesizer: SynthesisModel,
        heads: Heads | None = None,
        *,
        slots: int = 64,
        memory: int | None = None,
        arguments: Mapping[str, Any] | None = None,
    ) -> None:
        if heads is not None and dict(heads) != dict(synthesizer.mapping()):
            raise ValueError("a model under an intervention (with_heads) runs on the native engine alone")
        self.backbone, self.operators = backbone, tuple(operators)
        self.policy, self.synthesizer = policy, synthesizer
        self._adapters = targets_of(policy.lora, synthesizer.lora)
        args, self.ids, self._max_positions = engine_args(
            backbone, self.operators, self._adapters, slots, memory, arguments or {}
        )
        config = args.create_engine_config()
        self._llm = LLMEngine(config, Executor.get_class(config), log_stats=False, multiprocess_mode=False)
        self.slots = config.scheduler_config.max_num_seqs
        self.rows = Rows(self.ids)
        self.waiting: deque[RequestState] = deque()
        self.running: list[Answer] = []
        self._in_flight: dict[str, Answer] = {}
        self._submitted, self._sent, self._version = 0, 0, 0
        self._failure: str | None = None
        self._eos_ids = backbone.eos_ids
        self._longest_action = max((operator.num_latents for operator in self.operators), default=1)
        self._asleep, self._stale, self._written = False, False, list[int]()
        self._load_weights()

    # -- requests ------------------------------------------------------------------------------------------------

    def add_request(self, request: Request) -> int:
        """Queue a request and return its index. Raises ValueError for one that `prepare` refuses."""
        row = self.prepare(request)
        self.waiting.append(row)
        return row.index

    def prepare(self, request: Request, *, streamed: bool = True, coalesce: int | None = None) -> RequestState:
        """What a request starts as; `waiting` takes it whenever it is to begin.

        Raises PromptTooLong (a ValueError) when the prompt does not fit the model's context, and ValueError for tokens
        that the model does not have and for what runs on the native engine alone.
        """
        check_supported(request)
        if len(request.prompt_ids) > (limit := self._max_positions - self._longest_action):
            raise PromptTooLong(
                f"the prompt has {len(request.prompt_ids)} tokens, but this model's context of "
                f"{self._max_positions} positions leaves room for {limit}; shorten the prompt"
            )
        if not 0 <= min(request.prompt_ids) <= max(request.prompt_ids) < self.ids.vocab_size:
            raise ValueError(
                f"the prompt has tokens from {min(request.prompt_ids)} to {max(request.prompt_ids)}, and the model's "
                f"are from 0 to {self.ids.vocab_size - 1}; encode it with the model's own tokenizer"
            )
        schedule = request.router.start(self.operators, request.sampling.stream(purpose=1))
        offered = (request.router.learned,) * len(self.operators)
        index, self._submitted = self._submitted, self._submitted + 1
        return RequestState(index, request, schedule, offered, self.backbone, streamed, coalesce, None)

    def stream(self, requests: Sequence[Request]) -> Iterator[Event]:
        """Decode the requests, yielding tokens, invocations and finished trajectories as they happen."""
        return self._decoded([self.prepare(request) for request in requests])

    def as_completed(self, requests: Sequence[Request]) -> Iterator[FinishEvent]:
        """Decode the requests, yielding each as it is done. No token is turned into text on the way."""
        events = self._decoded([self.prepare(request, streamed=False) for request in requests])
        return (event for event in events if isinstance(event, FinishEvent))

    def run(self, requests: Sequence[Request]) -> list[Trajectory]:
        """Decode the requests; trajectories in their order."""
        first = self._submitted
        finished = {event.index: event.trajectory for event in self.as_completed(requests)}
        return [finished[first + offset] for offset in range(len(requests))]

    def _decoded(self, rows: Sequence[RequestState]) -> Iterator[Event]:
        """Decode until nothing is left. Where that fails, or nobody listens any more, these rows go."""
        self.waiting += rows
        try:
            while self.busy:
                yield from checked(self.step())
        finally:
            for index in {row.index for row in self._unfinished()} & {row.index for row in rows}:
                self.abort(index)
            if self._failure is None:
                self._retire()

    @property
    def busy(self) -> bool:
        """Whether any answer waits or is decoded."""
        return bool(self.waiting or self.running)

    def fits(self, slots: int, memory: int | None) -> bool:
        """More answers than it has rows wait; its memory is what it was started with."""
        return self._failure is None

    def load(self) -> Load:
        """What it is doing, as seen in passing."""
        return Load(len(self.running), len(self.waiting))

    def forget(self, index: int) -> None:
        """Nothing is remembered of a finished request."""

    def abort(self, index: int) -> None:
        """End a waiting or running request; the next step tells of its end, with the reason "abort".

        Raises ValueError for an index that is neither waiting nor running.
        """
        for row in self._unfinished():
            if row.index == index:
                row.finish_reason, row.call = "abort", None
                return
        raise ValueError(f"request {index} is neither waiting nor running; nothing was aborted")

    def _unfinished(self) -> list[RequestState]:
        return [*self.waiting, *(answer.row for answer in self.running)]

    # -- a step --------------------------------------------------------------------------------------------------

    @torch.inference_mode(False)
    @torch.no_grad()
    def step(self) -> list[Event]:
        """Start what comes next in every answer, and let vLLM take one step.

        Raises DecodingError once vLLM or one of its workers has failed; then every answer is lost.
        """
        self._wake()
        self._admit()
        self._proceed()
        served, started = list[tuple[RequestState, InvocationEvent]](), time.perf_counter()
        batch = list(self._in_flight.values())
        for output in self._guarded(self._llm.step) if batch else ():
            if (answer := self._in_flight.get(output.request_id)) is not None:
                served += self._receive(answer, output)
        self._charge(batch, time.perf_counter() - started)
        events: list[Event] = []
        for row, event in served:
            (row.told_later if row.streamed else events).append(event)
        events += [event for answer in self.running if answer.row.streamed for event in answer.row.emit()]
        return events + self._retire()

    def _admit(self) -> None:
        """Fill free rows of the batch from the queue."""
        while self.waiting and len(self.running) < self.slots and not self.waiting[0].finish_reason:
            row = self.waiting.popleft()
            row.start()
            self.running.append(Answer(row, list(row.request.prompt_ids)))

    def _proceed(self) -> None:
        """Start the next request of every answer that has none, the oldest first, as far as there are rows."""
        idle = [a for a in self.running if a.request is None and not a.row.finish_reason]
        for answer in idle:
            self._park_scheduled(answer)
        while idle and not self._start_each(idle) and not self._in_flight:
            self._lend_rows(idle)

    def _start_each(self, answers: Sequence[Answer]) -> bool:
        """Start requests until one lacks rows of the table; whether any was started."""
        for answer in answers:
            if answer.request is None and not self._start(answer):
                break
        return any(answer.request is not None for answer in answers)

    def _start(self, answer: Answer) -> bool:
        """Start the next request of an answer; False where there are too few free rows."""
        call = answer.row.call
        operator = self._operator(call) if call is not None and self._is_at(answer, call) else None
        wanted = 0 if operator is None else self.ids.num_latents[operator]
        lent = 0 if answer.saved is None else len(answer.saved)
        if wanted + lent > self.rows.free:
            return False
        if answer.saved is not None:
            self._restore(answer, answer.saved)
        if operator is None:
            self._decode(answer)
        else:
            self._synthesize(answer, operator)
        return True

    def _decode(self, answer: Answer) -> None:
        """Let the policy go on: first with the tokens that were held back, up to the next call if there is one."""
        row = answer.row
        ends_early = row.call is not None or answer.full is not None
        forced = answer.held if row.call is None else answer.held[: row.call.position - len(row.visible)]
        count = len(forced) if ends_early else row.request.max_new_tokens - len(row.actions)
        turn = Turn(row.request.sampling, row.allowed, answer.taken, tuple(forced))
        first, *others = self.ids.report
        params = SamplingParams(
            temperature=0.0,
            max_tokens=count,
            ignore_eos=True,
            stop_token_ids=[*self._eos_ids, *range(self.ids.vocab_size, self.ids.num_actions)],
            logprob_token_ids=[first, *(others if row.reports else ())],
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
            extra_args={TURN: turn},
        )
        self._send(answer, answer.ids, params)

    def _synthesize(self, answer: Answer, operator: int) -> None:
        """Let the synthesizer read [x_t; Q_k]; its hidden states become rows of the table."""
        answer.places, answer.began = self.rows.take(self.ids.num_latents[operator]), time.perf_counter()
        params = SamplingParams(
            temperature=0.0, max_tokens=1, ignore_eos=True, detokenize=False, extra_args={TURN: Turn(is_call=True)}
        )
        self._send(answer, self.ids.call(answer.ids, operator, answer.places), params)

    def _send(self, answer: Answer, ids: Sequence[int], params: SamplingParams) -> None:
        self._sent += 1
        answer.request = str(self._sent)
        prompt = TokensPrompt(prompt_token_ids=list(ids), cache_salt=f"{self._version}.{self.rows.epoch}")
        self._guarded(self._llm.add_request, answer.request, prompt, params)
        self._in_flight[answer.request] = answer

    # -- what came of it -----------------------------------------------------------------------------------------

    def _receive(self, answer: Answer, output: RequestOutput) -> list[tuple[RequestState, InvocationEvent]]:
        """Carry out what one request of vLLM has done in a step; the call that was served, if it was one."""
        row, served = answer.row, list[tuple[RequestState, InvocationEvent]]()
        if output.finished:
            self._forget_request(answer)
        if answer.places:
            return [(row, self._append_latents(answer))] if output.finished else served
        completion = output.outputs[0]
        for action, reported in zip(completion.token_ids, completion.logprobs or (), strict=True):
            logprob, *operators = (reported[column].logprob for column in self.ids.report if column in reported)
            row.report([math.exp(one) for one in operators])
            self._act(answer, action, logprob)
            self._park_scheduled(answer)
        if answer.request is not None and (row.finish_reason or row.call is not None):
            self._withdraw(answer)
        return served

    def _act(self, answer: Answer, action: int, logprob: float) -> None:
        """Carry out one action; numbers that are not finite end the answer, whatever they would have chosen."""
        row = answer.row
        if row.is_lost(logprob, f"the logits of step {len(row.actions) + 1}"):
            return
        if answer.held:
            answer.held.pop(0)
            self._show(answer, action, logprob)
        elif action >= self.ids.vocab_size:
            answer.taken += 1
            row.park(Call(len(row.visible), self.operators[action - self.ids.vocab_size].name), logprob)
            return
        elif row.ends(action):
            row.actions.append(action)
            row.logprobs.append(logprob)
            row.finish_reason = "eos"
        else:
            answer.taken += 1
            self._show(answer, action, logprob)
            row.schedule.observe(row.visible)
            row.find_stop()
        self._finish_if_full(answer)

    def _show(self, answer: Answer, token: int, logprob: float) -> None:
        answer.row.show(token, logprob, len(answer.ids))
        answer.ids.append(token)

    def _append_latents(self, answer: Answer) -> InvocationEvent:
        """x_{t+1} = [x_t; z_t]: the ids of the call's rows."""
        row, places, call = answer.row, answer.places, answer.row.call
        assert call is not None
        count, offset, seconds = len(places), len(row.visible.text), time.perf_counter() - answer.began
        row.invocations.append(Invocation(call.operator, len(row.visible), count, len(row.actions), offset))
        row.actions.append(self.ids.vocab_size + self._operator(call))
        row.logprobs.append(row.call_logprob)
        answer.blocks.append((len(answer.ids), places))
        answer.ids += self.ids.latents(places)
        row.call, answer.places = None, []
        self._finish_if_full(answer)
        return InvocationEvent(row.index, row.invocations[-1], seconds, row.reported)

    def _park_scheduled(self, answer: Answer) -> None:
        """Park the answer where its fixed schedule places an operator, and hold back the tokens behind that place."""
        row = answer.row
        if answer.full is None and not row.finish_reason:
            while row.call is None and (call := row.schedule.due()) is not None:
                if row.may_call:
                    row.park(call, logprob=0.0)
        if row.call is not None and self._is_at(answer, row.call):
            held, start = row.hold_back()
            if held:
                answer.held[:0] = held
                del answer.ids[start:]

    def _is_at(self, answer: Answer, call: Call) -> bool:
        """Whether all tokens before a call are in the context: some may have been held back for an earlier one."""
        return call.position <= len(answer.row.visible)

    def _operator(self, call: Call) -> int:
        return [operator.name for operator in self.operators].index(call.operator)

    def _finish_if_full(self, answer: Answer) -> None:
        row, held = answer.row, len(answer.held)
        if row.finish_reason:
            return
        out_of_actions = len(row.actions) + held >= row.request.max_new_tokens
        if out_of_actions or len(answer.ids) + held + self._longest_action > self._max_positions:
            answer.full, row.call = "max_new_tokens" if out_of_actions else "context", None
            if not held:
                row.finish_reason, row.limited_by = "length", answer.full

    def _charge(self, batch: Sequence[Answer], seconds: float) -> None:
        """Split the time of a step evenly over the answers it served."""
        for answer in batch:
            answer.row.engine_seconds += seconds / len(batch)
            if answer.places or answer.row.call is not None:
                answer.row.synthesis_seconds += seconds / len(batch)

    def _retire(self) -> list[Event]:
        """Take finished answers out: their requests, their latents, their rows."""
        done = [answer for answer in self.running if answer.row.finish_reason]
        for answer in done:
            self.running.remove(answer)
            if answer.request is not None:
                self._withdraw(answer)
        self._collect_latents([answer for answer in done if answer.blocks])
        for answer in done:
            self.rows.give_back([*answer.places, *(answer.all_places if answer.saved is None else ())])
        rows = [row for row in self.waiting if row.finish_reason]
        for row in rows:
            self.waiting.remove(row)
        return [row.finished(self.ids.vocab_size) for row in (*rows, *(answer.row for answer in done))]

    def _withdraw(self, answer: Answer) -> None:
        """Abort the request in flight."""
        request = self._forget_request(answer)
        self._guarded(self._llm.abort_request, [request])

    def _forget_request(self, answer: Answer) -> str:
        assert answer.request is not None
        request, answer.request = answer.request, None
        del self._in_flight[request]
        return request

    # -- the table of latents ------------------------------------------------------------------------------------

    def _collect_latents(self, answers: Sequence[Answer]) -> None:
        """Read the latents of finished answers, bit for bit as the policy read them."""
        kept = [answer for answer in answers if answer.saved is None]
        read = self._read([place for answer in kept for place in answer.all_places])
        for answer in answers:
            count = len(answer.all_places)
            own, read = (read[:count], read[count:]) if answer.saved is None else (answer.saved, read)
            answer.row.latents = list(own.split([len(places) for _, places in answer.blocks]))

    def _lend_rows(self, idle: Sequence[Answer]) -> None:
        """Save the latents of the youngest answer that has rows, so that an older one can call."""
        answer = next(a for a in reversed(idle) if a.blocks and a.saved is None)
        answer.saved = self._read(answer.all_places)
        self.rows.give_back(answer.all_places)

    def _restore(self, answer: Answer, latents: Tensor) -> None:
        """Put saved latents into other rows; they have other ids, and the same bits."""
        for place, (start, places) in enumerate(answer.blocks):
            answer.blocks[place] = (start, taken := self.rows.take(len(places)))
            answer.ids[start : start + len(taken)] = self.ids.latents(taken)
        self._apply(partial(write_rows, list(map(self.ids.row_of, answer.all_places)), latents))
        answer.saved = None

    def _read(self, places: Sequence[int]) -> Tensor:
        if not places:
            return torch.empty(0, self.backbone.dim)
        return self._apply(partial(read_rows, list(map(self.ids.row_of, places))))[0]

    # -- weights and memory --------------------------------------------------------------------------------------

    def watch(self) -> WeightWatch:
        """The weights it decodes with, as they are now."""
        return WeightWatch(self.backbone.model, [self.policy, self.synthesizer])

    def refresh(self) -> bool:
        """Bring the weights in vLLM's workers up to date, and drop what was computed with the old ones.

        False where an adapter has come that the workers have no room for. Raises RuntimeError while answers are
        decoded: they would be a mixture.
        """
        if self.busy:
            raise RuntimeError("the model's weights changed while answers are decoded; finish or abort them first")
        if targets_of(self.policy.lora, self.synthesizer.lora) != self._adapters:
            return False
        self._wake()
        self._load_weights()
        return True

    def release(self) -> bool:
        """Lend the device memory of weights and caches to others, where the engine has `enable_sleep_mode`.

        What is written to the weights meanwhile, even past torch's counters, is there when the engine goes on.
        """
        self._stale = True
        if self._llm.vllm_config.model_config.enable_sleep_mode and not self._asleep:
            self._guarded(self._llm.sleep)
            self._asleep = True
        return True

    def _wake(self) -> None:
        if self._asleep:
            self._guarded(self._llm.wake_up)
            self._asleep = False
        if self._stale and not self.running:
            self._written = []
            self._load_weights()

    def close(self) -> None:
        """End vLLM and its workers."""
        if self._failure is None:
            self._drop_answers()
        self._failure = self._failure or "it was closed"
        self._llm.engine_core.shutdown()

    def _load_weights(self) -> None:
        """Send eta and psi, phi and the heads too where they were written since, and drop what older ones computed."""
        written = writes(list(self.synthesizer.parameters()))
        if written != self._written:
            self._apply(partial(load, synthesizer_weights(self.synthesizer, self.operators)))
            self._written = written
        self._apply(partial(load, policy_weights(self.policy)))
        self._stale = False
        self._version += 1
        self._guarded(self._llm.reset_prefix_cache)

    def _apply(self, work: Callable[[nn.Module], Found]) -> list[Found]:
        """What `work` returns for the model of each worker."""
        return self._guarded(self._llm.apply_model, work)

    def _guarded(self, work: Callable[..., Found], *arguments: Any) -> Found:
        """A call of vLLM; whatever it raises ends the engine, with one named error for every caller."""
        if self._failure is not None:
            raise DecodingError(f"vLLM does not run any more: {self._failure}; the next call starts it again")
        try:
            return work(*arguments)
        except Exception as error:
            self._failure = f"{type(error).__name__}: {error}"
            self._drop_answers()
            raise DecodingError(f"vLLM failed: {self._failure}; the next call starts it again") from error

    def _drop_answers(self) -> None:
        for held in (self.waiting, self.running, self._in_flight):
            held.clear()


SERVED = {
    Request: ("prompt_ids", "router", "sampling", "budget", "max_new_tokens", "stop", "operator_probs"),
    Sampling: ("temperature", "top_k", "top_p", "seed"),
}
"""The settings that this engine follows."""


def check_supported(request: Request) -> None:
    """Raise ValueError for a setting that only the native engine follows, by name: none is ignored."""
    for given, served in ((request, SERVED[Request]), (request.sampling, SERVED[Sampling])):
        for one in fields(given):
            usual = one.default if one.default_factory is MISSING else one.default_factory()
            if one.init and one.name not in served and getattr(given, one.name) != usual:
                raise ValueError(f"a request with a {one.name} runs on the native engine alone; use engine 'native'")
