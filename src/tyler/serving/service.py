"""From the fields of a request to its answers: validation, limits, seeds and records, once for all endpoints."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from fastapi import Request as HttpRequest

from tyler.engine.logits import LogitSettings
from tyler.engine.request import PromptTooLong, Request
from tyler.engine.routing import Router, router_named
from tyler.engine.sampling import Sampling, seed_of
from tyler.reasoners.reasoner import AnswerSettings, Servable
from tyler.serving.audit_log import AuditLog
from tyler.serving.conversation import ChatTemplate, Conversation
from tyler.serving.dispatcher import Dispatcher
from tyler.serving.errors import ApiError, unsupported
from tyler.serving.generation import Generation
from tyler.serving.grammar import TextGrammar, Vocabulary, words_of
from tyler.serving.metrics import Metrics
from tyler.serving.schema import EFFORTS, Format, Generating, Limits
from tyler.serving.settings import ServerSettings
from tyler.serving.tracing import Traces

JOINED = 4
"""Characters that a tokenizer's normalization may make one of, at most."""

LONGEST_SCHEMA = 2**16
"""Characters of a JSON Schema."""

Question = Conversation | list[int]
"""What is answered, or token ids that are continued."""


class Service:
    """A model, its engine's thread, and the record of what it answered."""

    def __init__(self, servable: Servable, settings: ServerSettings, weights: str) -> None:
        self.servable, self.settings, self.weights = servable, settings, weights
        self.created, self.metrics, self.draining = int(time.time()), Metrics(), False
        self.tokenizer = servable.model.backbone.tokenizer
        self.template = ChatTemplate(self.tokenizer, thinking=servable.model.prompt.thinking)
        longest_token = max(map(len, self.tokenizer.get_vocab()))
        self._most_characters = JOINED * longest_token * servable.model.backbone.max_positions
        self.usual = servable.request("1 + 1", AnswerSettings(max_new_tokens=1))
        self.dispatcher = Dispatcher(
            servable.model.shared_engine,
            self.metrics,
            self.usual,
            slots=settings.slots,
            memory=settings.memory,
            max_probes=settings.max_probes,
        )
        self._vocabulary = vocabulary_of(servable)
        self._has_operators = has_operators(servable)
        operators = getattr(servable.model, "operators", ())
        self._longest_call = max((operator.num_latents for operator in operators), default=1)
        self._log: AuditLog | None = None
        self._traces = None if settings.otlp is None else Traces.to(settings.otlp, settings.name)
        self.open = 0
        """HTTP requests that were taken and are not answered."""

    def start(self) -> None:
        """Begin to serve, in the running event loop."""
        settings = self.settings
        if settings.log is not None:
            self._log = AuditLog(settings.log, self.metrics, max_bytes=settings.log_bytes, files=settings.log_files)
        self.dispatcher.start()

    async def close(self) -> None:
        """Stop after the present step, with the log written and the traces sent."""
        await self.dispatcher.close()
        for sink in (self._log, self._traces):
            if sink is not None:
                await asyncio.to_thread(sink.close)

    @property
    def ready(self) -> bool:
        """Whether new requests are welcome."""
        return self.dispatcher.ready and not self.draining

    @property
    def lost(self) -> str | None:
        """Why this process cannot answer any more and must be started again."""
        return self.dispatcher.lost

    # -- what is allowed -----------------------------------------------------------------------------------------

    def check_model(self, name: str) -> None:
        """Raise ApiError for a model that is not the one served."""
        if name not in self.settings.names:
            message = f"model {name!r} is not served here; there is {' or '.join(map(repr, self.settings.names))}"
            raise ApiError(404, message, param="model", code="model_not_found")

    def check_characters(self, texts: Iterable[str]) -> None:
        """Raise ApiError for texts that no context holds: what becomes tokens takes a hundred times its size."""
        characters = sum(map(len, texts))
        if characters > self._most_characters:
            context = f"this model's context of {self.servable.model.backbone.max_positions} positions"
            message = f"the prompt has {characters} characters, too many for {context}; shorten the prompt"
            raise ApiError(400, message, code="context_length_exceeded")

    def check_room(self, answers: int) -> None:
        """Raise ApiError for so many answers when they cannot be taken now, or never."""
        open, most = self.dispatcher.open, self.settings.slots + self.settings.max_queue
        if self.draining:
            raise ApiError(503, "the server is shutting down", code="shutting_down", headers={"Retry-After": "5"})
        if answers > most:
            raise ApiError(400, f"{answers} answers in one request; this server takes up to {most}", param="prompt")
        if open + answers > most:
            message = f"{open} answers are being decoded or wait, and {most} may; try again in a moment"
            raise ApiError(429, message, code="queue_full", headers={"Retry-After": "1"})

    def check_ids(self, ids: Sequence[int], field: str) -> None:
        """Raise ApiError for ids that are not tokens."""
        known = self.servable.model.backbone.vocab_size
        if (largest := max(ids, default=0)) >= known:
            raise ApiError(400, f"token id {largest} is out of range; ids go to {known - 1}", param=field)

    def answer_settings(self, body: Generating) -> AnswerSettings:
        """How the answers are decoded. Raises ApiError for what is not allowed, naming the field."""
        self.check_model(body.model)
        most, limits = self.settings.max_new_tokens, body.limits
        if limits.length is not None and limits.length > most:
            message = f"{limits.length_field}={limits.length}; this server allows up to {most}"
            raise ApiError(400, message, param=limits.length_field)
        if body.answers > self.settings.slots:
            message = f"n={body.answers}; this server gives up to {self.settings.slots} answers"
            raise ApiError(400, message, param="n")
        length = limits.length or min(limits.usual or most, most)
        return AnswerSettings(
            sampling=self._sampling(body),
            max_new_tokens=length,
            stop=body.stops,
            budget=self._budget(body, limits),
            router=self._router(body),
            max_generated=length,
            stop_token_ids=tuple(body.stop_token_ids or ()),
            logits=self._logits(body),
            top_logprobs=body.alternatives,
        )

    def _logits(self, body: Generating) -> LogitSettings:
        """What is changed about the choice of tokens. Raises ApiError for fields that do not go together."""
        names = ("min_p", "presence_penalty", "frequency_penalty", "repetition_penalty", "ignore_eos")
        given = {name: value for name in names if (value := getattr(body, name)) is not None}
        biases = {int(token): bias for token, bias in (body.logit_bias or {}).items()}
        try:
            return LogitSettings(**given, logit_bias=biases, grammar=self._grammar(body.format))
        except ValueError as error:
            raise ApiError(400, str(error), param="ignore_eos", code="invalid_value") from error

    def _grammar(self, format: Format | None) -> TextGrammar | None:
        """What the text has to be. Raises ApiError for a schema that is too large, and where there are no grammars."""
        if format is None or format.type == "text":
            return None
        if isinstance(self._vocabulary, str):
            raise unsupported("response_format", self._vocabulary)
        if format.type == "regex":
            return TextGrammar(self._vocabulary, "regex", format.pattern or "")
        try:
            grammar = TextGrammar.of_schema(self._vocabulary, format.schema_of or {"type": "object"})
        except ValueError as error:
            raise unsupported("response_format", str(error)) from error
        if len(grammar.source) > LONGEST_SCHEMA:
            message = f"the schema has {len(grammar.source)} characters; this server takes up to {LONGEST_SCHEMA}"
            raise ApiError(400, message, param="response_format", code="too_large")
        return grammar

    def _sampling(self, body: Generating) -> Sampling:
        """How tokens are drawn: greedily without a temperature. Raises ApiError for fields that then say nothing."""
        temperature, seed = body.temperature or 0.0, body.seed
        if body.temperature is None:
            quiet: dict[str, object] = {"top_p": 1.0, "top_k": 0, "min_p": 0.0}
            quiet |= {} if body.tyler.router is not None else {"seed": None}
            for name, off in quiet.items():
                if (value := getattr(body, name)) not in (None, off):
                    message = f"{name}={value} says nothing without temperature, since answers are then greedy"
                    raise unsupported(name, f"{message}; send both")
        if body.answers > 1 and not temperature:
            message = f"n={body.answers}: greedy answers are all the same; send a temperature above 0, or n=1"
            raise unsupported("n", message)
        if seed is None:
            seed = secrets.randbits(48) if temperature else 0
        try:
            return Sampling(temperature, top_k=body.top_k or 0, top_p=body.top_p or 1.0, seed=seed)
        except ValueError as error:
            raise ApiError(400, str(error), param=str(error).partition("=")[0], code="invalid_value") from error

    def _router(self, body: Generating) -> Router | None:
        """Who routes. Raises ApiError for a name that does not exist, and for methods without operators."""
        if body.tyler.router is None:
            return None
        self._check_operators("tyler.router")
        try:
            return router_named(body.tyler.router)
        except ValueError as error:
            raise ApiError(400, str(error).removeprefix("--"), param="tyler.router") from error

    def _budget(self, body: Generating, limits: Limits) -> int | None:
        """The most operator calls. Raises ApiError for two fields that say it, and for more than the server allows."""
        most, effort, latents = self.settings.budget, limits.effort, limits.latents
        asked = {
            "tyler.budget": body.tyler.budget,
            limits.effort_field: None if effort is None else EFFORTS[effort],
            limits.latents_field: None if latents is None else latents // self._longest_call,
        }
        given = {name: value for name, value in asked.items() if value is not None}
        if len(given) > 1:
            first = next(iter(given))
            raise ApiError(400, f"{' and '.join(given)} both say how much; send one", param=first)
        if not given:
            return most if self._has_operators else None
        ((field, value),) = given.items()
        if effort == "none" and not self._has_operators:
            return None
        self._check_operators(field)
        if most is not None and value > most:
            if effort is None:
                raise ApiError(400, f"{field}={value}; this server allows up to {most}", param=field)
            return most
        return value

    def _check_operators(self, field: str) -> None:
        """Raise ApiError for a field about operators if the model has no operators."""
        if not self._has_operators:
            raise unsupported(field, f"{self.servable.name} has no operators; omit {field}")

    # -- from questions to answers -------------------------------------------------------------------------------

    async def begin(self, http: HttpRequest, body: Generating, questions: Sequence[Question]) -> Generation:
        """Queue the answers to each question. Raises ApiError for what is not allowed, and when there is no room."""
        settings, n = self.answer_settings(body), body.answers
        self.check_room(len(questions) * max(n, 1))
        if not n:
            return await self.generate(http, body, [], [ids for ids in questions if isinstance(ids, list)])
        requests = [one for question in questions for one in await self.requests(question, settings, n)]
        return await self.generate(http, body, requests, [one.prompt_ids for one in requests[::n]])

    async def requests(self, question: Question, settings: AnswerSettings, n: int = 1) -> list[Request]:
        """One request, `n` times under seeds of their own; the first is the one that was asked.

        It is made in another thread: a long prompt takes a while to become tokens. Raises ApiError for what cannot be
        in the prompt.
        """
        self.check_room(n)  # before the work of making it
        if isinstance(question, Conversation):
            self.check_characters(turn["content"] for turn in question.turns)
        try:
            first = await asyncio.to_thread(self._request, question, settings)
        except ValueError as error:
            raise refused(error) from error
        others = [seed_of(first.sampling.seed, number) for number in range(1, n)]
        return [first, *(replace(first, sampling=replace(first.sampling, seed=seed)) for seed in others)]

    def _request(self, question: Question, settings: AnswerSettings) -> Request:
        begun = list[int]()
        if isinstance(question, Conversation):
            self.template.check(question)
            request = self.servable.request(question.question, settings)
            if question.begun is not None:
                begun = self.template.ids_of_beginning(question.begun)
                request = replace(request, prompt_ids=[*request.prompt_ids, *begun])
        else:
            request = self.servable.continuation(question, settings)
        if not isinstance(grammar := request.logits.grammar, TextGrammar):
            return request
        grammar = replace(grammar, begun=tuple(begun))
        grammar.start()  # here, since it takes a while: the engine finds it made
        return replace(request, logits=replace(request.logits, grammar=grammar))

    async def generate(
        self, http: HttpRequest, body: Generating, requests: Sequence[Request], prompts: Sequence[Sequence[int]] = ()
    ) -> Generation:
        """Queue requests, by default of one prompt; without any, prompts are only scored, and take room as answers do.

        Raises ApiError when they cannot be taken now, or never.
        """
        self.check_room(len(requests or prompts))
        try:
            answering = await self.dispatcher.ask(requests) if requests else self.dispatcher.hold(len(prompts))
        except PromptTooLong as error:
            raise ApiError(400, str(error), code="context_length_exceeded") from error
        except ValueError as error:
            raise refused(error) from error
        self.open += 1

        def closed(outcome: str, generation: Generation) -> None:
            self.open -= 1
            self._record(http, body, outcome, generation)

        return Generation(secrets.token_hex(12), answering, prompts or [requests[0].prompt_ids], closed)

    def _record(self, http: HttpRequest, body: Generating, outcome: str, generation: Generation) -> None:
        """Write a request's line of the audit log and its trace, where there are such."""
        state, path, ended = http.scope["state"], http.scope["path"], time.time()
        id, started, prompts, answers = generation.id, generation.started, generation.prompts, generation.answers
        if self._traces is not None:
            details = {"http.route": path, "gen_ai.request.model": self.settings.name, "tyler.outcome": outcome}
            details |= {"tyler.request_id": state["request_id"], "gen_ai.response.id": id}
            self._traces.record(f"POST {path}", http.headers, started, ended, details, answers)
        if self._log is None:
            return
        record: dict[str, Any] = {
            "time": round(started, 3),
            "id": id,
            "request_id": state["request_id"],
            "key": state.get("key"),
            "path": path,
            "model": self.settings.name,
            "method": self.servable.name,
            "weights": self.weights,
            "user": body.user,
            "metadata": None if body.metadata is None else dict(body.metadata),
            "outcome": outcome,
            "prompt_tokens": sum(map(len, prompts)),
            "elapsed_seconds": round(ended - started, 6),
            "answers": [answer.logged(with_text=self.settings.log_text) for answer in answers],
        }
        if self.settings.log_text:
            record["prompt_ids"] = [list(ids) for ids in prompts]
            record["prompts"] = [self.tokenizer.decode(list(ids)) for ids in prompts]
        self._log.add(record)


def refused(error: ValueError) -> ApiError:
    """What the engine or a grammar refuses, by the field that it names."""
    fields = {"logit_bias": "logit_bias", "stop_token_ids": "stop_token_ids", "json_schema": "response_format"}
    fields |= {"regex": "response_format", "top_logprobs": "top_logprobs"}
    param = next((field for word, field in fields.items() if word in str(error)), None)
    return ApiError(400, str(error), param=param, code="invalid_value")


def settings_of(decoding: dict[str, Any], servable: Servable) -> AnswerSettings:
    """The settings that a line of the audit log holds under "decoding": with the prompt they give the same answer."""
    source, grammar = decoding["grammar"], None
    if source is not None:
        grammar = TextGrammar(Vocabulary.of(servable.model.backbone), **source)
    return AnswerSettings(
        sampling=Sampling(**decoding["sampling"]),
        max_new_tokens=decoding["max_new_tokens"],
        stop=tuple(decoding["stop"]),
        budget=decoding["budget"],
        router=router_named(decoding["router"]),
        max_generated=decoding["max_generated"],
        stop_token_ids=tuple(decoding["stop_token_ids"]),
        logits=LogitSettings(**decoding["logits"], grammar=grammar),
    )


def vocabulary_of(servable: Servable) -> Vocabulary | str:
    """The tokens of grammars, read once, since that takes a second; or why there can be no grammar."""
    try:
        vocabulary = Vocabulary.of(servable.model.backbone)
    except ValueError as error:
        return str(error)
    words_of(vocabulary)
    return vocabulary


def has_operators(servable: Servable) -> bool:
    """Whether a request may say something about operators."""
    try:
        servable.request("1 + 1", AnswerSettings(max_new_tokens=1, budget=0))
    except ValueError:
        return False
    return True
