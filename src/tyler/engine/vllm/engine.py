"""Answers on vLLM: each is a chain of vLLM's own requests, and decoding between two calls is vLLM's alone.

The policy's request goes on until it chooses an operator or a rule finds a boundary. A call is a request of the
synthesizer, [x_t; Q_k], whose last hidden states become rows of a table inside the model. Then the policy goes on with
x_t and the ids of those rows. By prefix caching each request reads what is new since the last one of its reader.
"""

import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from operator import methodcaller
from typing import Any

import torch
from vllm.inputs import TokensPrompt
from vllm.outputs import RequestOutput
from vllm.sampling_params import RequestOutputKind, SamplingParams
from vllm.v1.engine.llm_engine import LLMEngine
from vllm.v1.executor import Executor

from tyler.engine.base import BaseEngine
from tyler.engine.request import Event
from tyler.engine.request_state import RequestState, logit_state
from tyler.engine.sampling import Choice
from tyler.engine.shared_engine import DecodingError, writes
from tyler.engine.vllm.decisions import TURN, Turn
from tyler.engine.vllm.ids import Rows
from tyler.engine.vllm.settings import engine_args
from tyler.modeling.additions import added_by, of_policy, of_synthesizer
from tyler.modeling.backbone import Backbone
from tyler.modeling.operators import Operator
from tyler.modeling.policy import Policy
from tyler.modeling.synthesis import Heads, SynthesisModel

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # the engine is in this process; workers may be in others
os.environ["VLLM_USE_V2_MODEL_RUNNER"] = "0"  # its logits processors know the batch before the pass; the other's do not


class Answer(RequestState):
    """A request between and in its requests to vLLM. Its `ids` are x_t as the policy reads it."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.taken = 0  # numbers of its random stream
        self.sent: str | None = None  # its request in flight
        self.calling: list[int] = []  # places of the call in flight; empty while the policy decides
        self.began = 0.0  # when that call did
        self.lends = False  # its latents' rows are lent to older answers

    @property
    def done(self) -> bool:
        """Whether nothing is left to read: what was held back is read even of an answer that is full."""
        return bool(self.finish_reason) and not (self.held and self.finish_reason == "length")

    @property
    def at_call(self) -> bool:
        """Whether all tokens before its next call are in the context: some may be held back for an earlier one."""
        return self.call is not None and self.call.position <= len(self.visible)


class VllmEngine(BaseEngine):
    """Decodes requests on vLLM; up to `slots` answers at once, `memory` bytes of KV, vLLM's own `arguments`.

    Greedy answers in float32 are those of the native engine, action by action; a seed gives the same draws. Raises
    ValueError for what vLLM cannot do, and DecodingError once vLLM or one of its workers has failed.
    """

    row_type = Answer
    refused = ("sampler", "soft_prompt", "top_logprobs", "branch")

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
        self._added = added_by(policy, synthesizer)
        given = {"max_num_seqs": slots, "kv_cache_memory_bytes": memory, **(arguments or {})}
        args, self.ids, positions = engine_args(backbone, operators, self._added, given)
        super().__init__(backbone, operators, policy, synthesizer, heads, positions)
        config = args.create_engine_config()
        self._llm = LLMEngine(config, Executor.get_class(config), log_stats=False, multiprocess_mode=False)
        self.slots, self._sleeps = config.scheduler_config.max_num_seqs, config.model_config.enable_sleep_mode
        self.rows = Rows(self.ids)
        self.running: list[Answer] = []
        self._in_flight: dict[str, Answer] = {}
        self._sent, self._version = 0, 0
        self._failure: str | None = None
        self._written: list[int] | None = None  # how often the synthesizer's weights had been when they were sent
        self._load_weights()

    def fits(self, slots: int, memory: int | None, positions: int) -> bool:
        """More answers than it has rows wait; its memory is what it was started with."""
        return self._failure is None

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
        batch, started, served = list(self._in_flight.values()), time.perf_counter(), list[Answer]()
        for output in self._guarded(self._llm.step) if batch else ():
            if (answer := self._in_flight.get(output.request_id)) is None:
                continue
            if output.finished:
                answer.sent = None
                del self._in_flight[output.request_id]
            if not answer.calling:
                self._receive(answer, output)
            elif output.finished:
                served.append(answer)
        if served:
            self._serve(served)
        for answer in batch:
            answer.engine_seconds += (time.perf_counter() - started) / len(batch)
        events = [event for answer in self.running if answer.streamed for event in answer.emit()]
        return events + self._retire()

    def _admit(self) -> None:
        """Fill free rows of the batch from the queue."""
        while self.waiting and len(self.running) < self.slots and not self.waiting[0].finish_reason:
            answer = self.waiting.popleft()
            assert isinstance(answer, Answer)
            answer.started = time.perf_counter()
            self.running.append(answer)

    def _proceed(self) -> None:
        """Start the next request of every answer that has none, the oldest first, as far as there are rows."""
        idle = [answer for answer in self.running if answer.sent is None and not answer.done]
        for answer in idle:
            self._park_scheduled(answer)
            while not (answer.done or self._start(answer)):
                if self._in_flight or any(other.done for other in self.running):
                    return  # rows come back
                self._lend_rows(idle)

    def _start(self, answer: Answer) -> bool:
        """Start the next request of an answer; False where there are too few free rows."""
        operator = self._names.index(answer.call.operator) if answer.call is not None and answer.at_call else None
        wanted = 0 if operator is None else self.ids.num_latents[operator]
        if wanted + answer.lends * len(self.ids.places(answer.ids)) > len(self.rows.free):
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
        request, call, visible = answer.request, answer.call, answer.visible.tokens
        forced = answer.held if call is None else answer.held[: call.position - len(visible)]
        ends_early = call is not None or bool(answer.finish_reason)
        count = len(forced) if ends_early else request.max_new_tokens - self.counted(answer)
        state = logit_state(request, (), self.backbone)
        turn = Turn(request.sampling, answer.allowed, answer.taken, tuple(forced), state, tuple(visible))
        self._send(
            answer,
            answer.ids,
            turn,
            max_tokens=count,
            stop_token_ids=[*answer.end_ids, *range(self.vocab_size, self.ids.num_actions)],
            logprob_token_ids=self.ids.report[: None if answer.reports else 1],
        )

    def _synthesize(self, answer: Answer, operator: int) -> None:
        """Let the synthesizer read [x_t; Q_k]; its hidden states become rows of the table."""
        answer.calling, answer.began = self.rows.take(self.ids.num_latents[operator]), time.perf_counter()
        self._send(answer, self.ids.call(answer.ids, operator, answer.calling), Turn(is_call=True), max_tokens=1)

    def _send(self, answer: Answer, ids: Sequence[int], turn: Turn, **settings: Any) -> None:
        settings |= {"temperature": 0.0, "ignore_eos": True, "detokenize": False, "extra_args": {TURN: turn}}
        params = SamplingParams(output_kind=RequestOutputKind.DELTA, **settings)
        self._sent += 1
        answer.sent = str(self._sent)
        prompt = TokensPrompt(prompt_token_ids=list(ids), cache_salt=f"{self._version}.{self.rows.epoch}")
        self._guarded(self._llm.add_request, answer.sent, prompt, params)
        self._in_flight[answer.sent] = answer

    # -- what came of it -----------------------------------------------------------------------------------------

    def _serve(self, served: Sequence[Answer]) -> None:
        """x_{t+1} = [x_t; z_t] of every call that was answered: the ids of its rows."""
        (read, *_) = self._apply("read_rows", [self.ids.row_of(one) for row in served for one in row.calling])
        for answer, latents in zip(served, read.split([len(answer.calling) for answer in served]), strict=True):
            seconds = time.perf_counter() - answer.began
            answer.invoke(latents.clone())
            answer.is_lost(latents.float().sum().item(), "the latents of a call")
            answer.synthesis_seconds += seconds
            answer.ids += self.ids.latents(answer.calling)
            answer.calling = []
            answer.call_seconds.append(seconds)
            self.finish_if_full(answer, self.max_positions)

    def _receive(self, answer: Answer, output: RequestOutput) -> None:
        """Carry out the actions that the policy has chosen in a step."""
        completion = output.outputs[0]
        for action, reported in zip(completion.token_ids, completion.logprobs or (), strict=True):
            logprob, *operators = (reported[column].logprob for column in self.ids.report if column in reported)
            probs = answer.reported([math.exp(one) for one in operators])
            self._act(answer, Choice(action, logprob=logprob, operator_probs=probs))
            self._park_scheduled(answer)
        if answer.finish_reason or answer.call is not None:
            self._withdraw(answer)

    def _act(self, answer: Answer, choice: Choice) -> None:
        if answer.logit_state is not None and not math.isfinite(choice.logprob):
            answer.logit_state.adjust(torch.zeros(self.vocab_size))  # fails as that of its row, where a grammar did
        if answer.held:
            if not answer.is_lost(choice.logprob, "the logits of tokens after a call"):
                answer.show(replace(choice, action=answer.held.pop(0)))
                answer.ids.append(choice.action)
            return
        answer.taken += 1
        if answer.act(choice, self._names):
            answer.ids.append(choice.action)
        self.finish_if_full(answer, self.max_positions)

    def _park_scheduled(self, answer: Answer) -> None:
        """Park the answer where its fixed schedule places an operator, and hold back the tokens behind that place."""
        while answer.call is None and not answer.finish_reason and (call := answer.schedule.due()) is not None:
            if answer.may_call:
                answer.call, answer.called = call, Choice(self.vocab_size + self._names.index(call.operator))
                self.finish_if_full(answer, self.max_positions)
        if answer.at_call:
            answer.hold_back()

    def _retire(self) -> list[Event]:
        """Take finished answers out, with their requests and their rows."""
        done = [answer for answer in self.running if answer.done]
        for answer in done:
            self.running.remove(answer)
            self._withdraw(answer)
            self.rows.give_back([*answer.calling, *([] if answer.lends else self.ids.places(answer.ids))])
        return [row.finished() for row in (*self.take_aborted(), *done)]

    def _withdraw(self, answer: Answer) -> None:
        if answer.sent is not None:
            del self._in_flight[answer.sent]
            self._guarded(self._llm.abort_request, [answer.sent])
            answer.sent = None

    # -- the table of latents ------------------------------------------------------------------------------------

    def _lend_rows(self, idle: Sequence[Answer]) -> None:
        """Give up the rows of the youngest answer that has some, so that an older one can call."""
        answer = next(answer for answer in reversed(idle) if answer.latents and not answer.lends)
        answer.lends = True
        self.rows.give_back(self.ids.places(answer.ids))

    def _take_back(self, answer: Answer) -> None:
        """Put its latents into other rows; they have other ids, and the same bits."""
        places = self.rows.take(len(self.ids.places(answer.ids)))
        again = iter(self.ids.latents(places))
        answer.ids = [next(again) if one >= self.ids.first_latent else one for one in answer.ids]
        self._apply("write_rows", list(map(self.ids.row_of, places)), torch.cat(answer.latents))
        answer.lends = False

    # -- weights and memory --------------------------------------------------------------------------------------

    def refresh(self) -> bool:
        """Bring the weights in vLLM's workers up to date, and drop what was computed with the old ones.

        False where an adapter has come that the workers have no room for. Raises RuntimeError while answers are
        decoded: they would be a mixture.
        """
        if self.busy:
            raise RuntimeError("the model's weights changed while answers are decoded; finish or abort them first")
        if added_by(self.policy, self.synthesizer) != self._added:
            return False
        self._wake()
        self._load_weights()
        return True

    def release(self) -> bool:
        """Lend the device memory of weights and caches to others, where the engine has `enable_sleep_mode`.

        What is written to eta, psi, phi and the heads meanwhile, even past torch's counters, is there when it goes on.
        """
        if self._sleeps and not self._guarded(self._llm.is_sleeping):
            self._guarded(self._llm.sleep)
        self._written = None
        return True

    def _wake(self) -> None:
        if self._sleeps and self._guarded(self._llm.is_sleeping):
            self._guarded(self._llm.wake_up)
        if self._written is None and not self.running:
            self._load_weights()

    def _load_weights(self) -> None:
        """Send eta and psi, phi and the heads too where they were written since, and drop what older ones computed."""
        written = writes(list(self.synthesizer.parameters()))
        if written != self._written:
            self._apply("take_weights", of_synthesizer(self.synthesizer, self.operators))
            self._written = written
        self._apply("take_weights", of_policy(self.policy))
        self._version += 1
        self._guarded(self._llm.reset_prefix_cache)

    def close(self) -> None:
        self._drop_answers()
        self._failure = self._failure or "it was closed"
        self._llm.engine_core.shutdown()

    def _apply(self, method: str, *arguments: Any) -> list[Any]:
        """What a method of the model returns in each worker."""
        return self._guarded(self._llm.apply_model, methodcaller(method, *arguments))

    def _guarded(self, work: Callable[..., Any], *arguments: Any) -> Any:
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
        for held in (self.waiting, self.running, self._in_flight):
            held.clear()
