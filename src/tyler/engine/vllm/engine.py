"""Answers on vLLM: each is a chain of vLLM's own requests, and decoding between two calls is vLLM's alone.

The policy's request goes on until it chooses an operator or a rule finds a boundary. A call is a request of the
synthesizer, [x_t; Q_k], whose last hidden states become rows of a table inside the model. Then the policy goes on with
x_t and the ids of those rows. By prefix caching each request reads what is new since the last one of its reader.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
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

from tyler.engine.base import BaseEngine, Load
from tyler.engine.request import Event, InvocationEvent, Request
from tyler.engine.request_state import RequestState, logit_state
from tyler.engine.sampling import Sampling
from tyler.engine.shared_engine import DecodingError
from tyler.engine.vllm import weights
from tyler.engine.vllm.decisions import TURN, Turn
from tyler.engine.vllm.ids import Rows
from tyler.engine.vllm.settings import engine_args
from tyler.engine.weight_watch import WeightWatch, writes
from tyler.modeling.backbone import Backbone
from tyler.modeling.operators import Operator
from tyler.modeling.policy import Policy
from tyler.modeling.synthesis import Heads, SynthesisModel

Found = TypeVar("Found")

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
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
    calling: list[int] = field(default_factory=list)  # places of the call in flight; empty while the policy decides
    began: float = 0.0  # when that call did
    lends: bool = False  # its latents' rows are lent to older answers

    @property
    def places(self) -> list[int]:
        """Of all its latents."""
        return [place for _, places in self.blocks for place in places]

    @property
    def done(self) -> bool:
        """Whether nothing is left to read: what was held back is read even of an answer that is full."""
        return bool(self.row.finish_reason) and not (self.held and self.row.finish_reason == "length")

    @property
    def at_call(self) -> bool:
        """Whether all tokens before its next call are in the context: some may be held back for an earlier one."""
        return self.row.call is not None and self.row.call.position <= len(self.row.visible)


class VllmEngine(BaseEngine):
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
        positions: int | None = None,
        arguments: Mapping[str, Any] | None = None,
    ) -> None:
        if heads is not None and dict(heads) != dict(synthesizer.mapping()):
            raise ValueError("a model under an intervention (with_heads) runs on the native engine alone")
        self.policy, self.synthesizer = policy, synthesizer
        self._added = weights.added_by(policy, synthesizer)
        args, self.ids, positions = engine_args(backbone, tuple(operators), self._added, slots, memory, arguments or {})
        super().__init__(backbone, operators, positions)
        config = args.create_engine_config()
        self._llm = LLMEngine(config, Executor.get_class(config), log_stats=False, multiprocess_mode=False)
        self.slots = config.scheduler_config.max_num_seqs
        self.rows = Rows(self.ids)
        self.answers: list[Answer] = []
        self._in_flight: dict[str, Answer] = {}
        self._sent, self._version = 0, 0
        self._failure: str | None = None
        self._names = [operator.name for operator in self.operators]
        self._asleep = False
        self._written: list[int] | None = None  # how often the synthesizer's weights had been when they were sent
        self._load_weights()

    def prepare(self, request: Request, *, streamed: bool = True) -> RequestState:
        """As `BaseEngine.prepare`; raises ValueError for what runs on the native engine alone, too."""
        check_supported(request)
        return super().prepare(request, streamed=streamed)

    @property
    def running(self) -> Sequence[RequestState]:
        return [answer.row for answer in self.answers]

    def fits(self, slots: int, memory: int | None, positions: int) -> bool:
        """More answers than it has rows wait; its memory is what it was started with."""
        return self._failure is None

    def load(self) -> Load:
        """What it is doing, as seen in passing."""
        return Load(len(self.answers), len(self.waiting))

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
        batch, started = list(self._in_flight.values()), time.perf_counter()
        outputs = self._guarded(self._llm.step) if batch else []
        told = [(self._in_flight[o.request_id], o) for o in outputs if o.request_id in self._in_flight]
        for answer, output in told:
            if output.finished:
                self._forget_request(answer)
        decided = [(answer, output) for answer, output in told if not answer.calling]
        events = self._serve([answer for answer, output in told if answer.calling and output.finished])
        for answer, output in decided:
            self._receive(answer, output)
        share = (time.perf_counter() - started) / max(1, len(batch))
        for answer in batch:
            answer.row.engine_seconds += share
        events += [event for row in self.running if row.streamed for event in row.emit()]
        return events + self._retire()

    def _admit(self) -> None:
        """Fill free rows of the batch from the queue."""
        while self.waiting and len(self.answers) < self.slots and not self.waiting[0].finish_reason:
            row = self.waiting.popleft()
            row.start()
            self.answers.append(Answer(row, list(row.request.prompt_ids)))

    def _proceed(self) -> None:
        """Start the next request of every answer that has none, the oldest first, as far as there are rows."""
        idle = [answer for answer in self.answers if answer.request is None and not answer.done]
        for answer in idle:
            self._park_scheduled(answer)
        for answer in idle:
            while not self._start(answer):
                if self._in_flight:
                    return  # rows come back
                self._lend_rows(idle)

    def _start(self, answer: Answer) -> bool:
        """Start the next request of an answer; False where there are too few free rows."""
        operator = self._operator(answer) if answer.at_call else None
        wanted = 0 if operator is None else self.ids.num_latents[operator]
        if wanted + answer.lends * len(answer.places) > self.rows.free:
            return False
        if answer.lends:
            self._take_back(answer)
        if operator is None:
            self._decode(answer)
        else:
            self._synthesize(answer, operator)
        return True

    def _decode(self, answer: Answer) -> None:
        """Let the policy go on: first with the tokens that were held back, up to the next call if there is one."""
        row = answer.row
        forced = answer.held if row.call is None else answer.held[: row.call.position - len(row.visible)]
        ends_early = row.call is not None or bool(row.finish_reason)
        count = len(forced) if ends_early else row.request.max_new_tokens - self.counted(row)
        state, shown = logit_state(row.request, (), self.backbone), tuple(row.visible.tokens)
        turn = Turn(row.request.sampling, row.allowed, answer.taken, tuple(forced), state, shown)
        first, *others = self.ids.report
        params = SamplingParams(
            temperature=0.0,
            max_tokens=count,
            ignore_eos=True,
            stop_token_ids=[*row.end_ids, *range(self.vocab_size, self.ids.num_actions)],
            logprob_token_ids=[first, *(others if row.reports else ())],
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
            extra_args={TURN: turn},
        )
        self._send(answer, answer.ids, params)

    def _synthesize(self, answer: Answer, operator: int) -> None:
        """Let the synthesizer read [x_t; Q_k]; its hidden states become rows of the table."""
        answer.calling, answer.began = self.rows.take(self.ids.num_latents[operator]), time.perf_counter()
        params = SamplingParams(
            temperature=0.0, max_tokens=1, ignore_eos=True, detokenize=False, extra_args={TURN: Turn(is_call=True)}
        )
        self._send(answer, self.ids.call(answer.ids, operator, answer.calling), params)

    def _send(self, answer: Answer, ids: Sequence[int], params: SamplingParams) -> None:
        self._sent += 1
        answer.request = str(self._sent)
        prompt = TokensPrompt(prompt_token_ids=list(ids), cache_salt=f"{self._version}.{self.rows.epoch}")
        self._guarded(self._llm.add_request, answer.request, prompt, params)
        self._in_flight[answer.request] = answer

    # -- what came of it -----------------------------------------------------------------------------------------

    def _serve(self, served: Sequence[Answer]) -> list[Event]:
        """x_{t+1} = [x_t; z_t] of every call that was answered: the ids of its rows."""
        events: list[Event] = []
        read = self._read([place for answer in served for place in answer.calling])
        for answer, latents in zip(served, read.split([len(answer.calling) for answer in served]), strict=True):
            row, seconds = answer.row, time.perf_counter() - answer.began
            invocation = row.invoke(latents.clone(), self.vocab_size + self._operator(answer))
            row.synthesis_seconds += seconds
            answer.blocks.append((len(answer.ids), answer.calling))
            answer.ids += self.ids.latents(answer.calling)
            answer.calling = []
            self._finish_if_full(answer)
            event = InvocationEvent(row.index, invocation, seconds, row.reported_at(invocation.action))
            (row.told_later if row.streamed else events).append(event)
        return events

    def _receive(self, answer: Answer, output: RequestOutput) -> None:
        """Carry out the actions that the policy has chosen in a step."""
        row, completion = answer.row, output.outputs[0]
        for action, reported in zip(completion.token_ids, completion.logprobs or (), strict=True):
            logprob, *operators = (reported[column].logprob for column in self.ids.report if column in reported)
            row.report([math.exp(one) for one in operators])
            self._act(answer, action, logprob)
            self._park_scheduled(answer)
        if answer.request is not None and (row.finish_reason or row.call is not None):
            self._withdraw(answer)

    def _act(self, answer: Answer, action: int, logprob: float) -> None:
        row = answer.row
        if answer.held:
            if not row.is_lost(logprob, "the logits of tokens after a call"):
                row.show(answer.held.pop(0), logprob, len(answer.ids))
                answer.ids.append(action)
            return
        answer.taken += 1
        if row.act(action, logprob, len(answer.ids), self._names, self.vocab_size):
            answer.ids.append(action)
        self._finish_if_full(answer)

    def _finish_if_full(self, answer: Answer) -> None:
        row, longest = answer.row, self.max_positions - self.longest_action
        latents = 0 if row.call is None else self.ids.num_latents[self._operator(answer)]
        row.finish_if_full(self.counted(row), len(answer.ids), longest, latents=latents, held=len(answer.held))

    def _park_scheduled(self, answer: Answer) -> None:
        """Park the answer where its fixed schedule places an operator, and hold back the tokens behind that place."""
        row = answer.row
        while row.call is None and not row.finish_reason and (call := row.schedule.due()) is not None:
            if row.may_call:
                row.park(call, logprob=0.0)
                self._finish_if_full(answer)
        if answer.at_call:
            held, start = row.hold_back()
            if held:
                answer.held[:0] = held
                del answer.ids[start:]

    def _operator(self, answer: Answer) -> int:
        """The number of the operator that it waits for."""
        assert answer.row.call is not None
        return self._names.index(answer.row.call.operator)

    def _retire(self) -> list[Event]:
        """Take finished answers out, with their requests and their rows."""
        done = [answer for answer in self.answers if answer.done]
        for answer in done:
            self.answers.remove(answer)
            if answer.request is not None:
                self._withdraw(answer)
            self.rows.give_back([*answer.calling, *([] if answer.lends else answer.places)])
        rows = [*self.take_aborted(), *(answer.row for answer in done)]
        return [row.finished(self.vocab_size) for row in rows]

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

    def _read(self, places: Sequence[int]) -> Tensor:
        """Latents of the table, bit for bit as the policy reads them."""
        if not places:
            return torch.empty(0, self.backbone.dim)
        return self._apply(partial(weights.read_rows, list(map(self.ids.row_of, places))))[0]

    def _lend_rows(self, idle: Sequence[Answer]) -> None:
        """Give up the rows of the youngest answer that has some, so that an older one can call."""
        answer = next(answer for answer in reversed(idle) if answer.blocks and not answer.lends)
        answer.lends = True
        self.rows.give_back(answer.places)

    def _take_back(self, answer: Answer) -> None:
        """Put its latents into other rows; they have other ids, and the same bits."""
        for number, (start, places) in enumerate(answer.blocks):
            answer.blocks[number] = (start, taken := self.rows.take(len(places)))
            answer.ids[start : start + len(taken)] = self.ids.latents(taken)
        rows = list(map(self.ids.row_of, answer.places))
        self._apply(partial(weights.write_rows, rows, torch.cat(answer.row.latents)))
        answer.lends = False

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
        if weights.added_by(self.policy, self.synthesizer) != self._added:
            return False
        self._wake()
        self._load_weights()
        return True

    def release(self) -> bool:
        """Lend the device memory of weights and caches to others, where the engine has `enable_sleep_mode`.

        What is written to the weights meanwhile, even past torch's counters, is there when the engine goes on.
        """
        if self._llm.vllm_config.model_config.enable_sleep_mode and not self._asleep:
            self._guarded(self._llm.sleep)
            self._asleep = True
        self._written = None
        return True

    def _wake(self) -> None:
        if self._asleep:
            self._guarded(self._llm.wake_up)
            self._asleep = False
        if self._written is None and not self.answers:
            self._load_weights()

    def _load_weights(self) -> None:
        """Send eta and psi, phi and the heads too where they were written since, and drop what older ones computed."""
        written = writes(list(self.synthesizer.parameters()))
        if written != self._written:
            self._apply(partial(weights.load, weights.of_synthesizer(self.synthesizer, self.operators)))
            self._written = written
        self._apply(partial(weights.load, weights.of_policy(self.policy)))
        self._version += 1
        self._guarded(self._llm.reset_prefix_cache)

    def close(self) -> None:
        """End vLLM and its workers."""
        if self._failure is None:
            self._drop_answers()
        self._failure = self._failure or "it was closed"
        self._llm.engine_core.shutdown()

    def _apply(self, work: Callable[[nn.Module], Found]) -> list[Found]:
        """What `work` returns for the model of each worker."""
        return self._guarded(self._llm.apply_model, work)

    def _guarded(self, work: Callable[..., Found], *arguments: Any) -> Found:
        """A call of vLLM; whatever it raises ends the engine, with one named error for every caller."""
        if self._failure is not None:
            self._drop_answers()
            raise DecodingError(f"vLLM does not run any more: {self._failure}; the next call starts it again")
        try:
            return work(*arguments)
        except Exception as error:
            self._failure = f"{type(error).__name__}: {error}"
            self._drop_answers()
            raise DecodingError(f"vLLM failed: {self._failure}; the next call starts it again") from error

    def _drop_answers(self) -> None:
        for held in (self.waiting, self.answers, self._in_flight):
            held.clear()


SERVED = {
    Request: (
        *("prompt_ids", "router", "sampling", "budget", "max_new_tokens", "max_generated", "stop", "stop_token_ids"),
        *("logits", "operator_probs"),
    ),
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
