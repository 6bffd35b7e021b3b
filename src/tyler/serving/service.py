"""From the fields of a request to its answers: validation, limits, seeds and records, once for all endpoints."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fastapi import Request as HttpRequest

from tyler.engine.logits import LogitSettings
from tyler.engine.request import PromptTooLong, Request
from tyler.engine.routing import router_named
from tyler.engine.sampling import Sampling, seed_of
from tyler.engine.trajectory import Trajectory
from tyler.reasoners.reasoner import AnswerSettings, Servable
from tyler.serving.audit_log import AuditLog
from tyler.serving.dispatcher import Dispatcher
from tyler.serving.errors import ApiError
from tyler.serving.generation import Generation
from tyler.serving.grammar import TextGrammar, words_of
from tyler.serving.metrics import Metrics
from tyler.serving.schema import EFFORTS, Conversation, Format, Generating, Question, Wanted
from tyler.serving.settings import ServerSettings
from tyler.tasks.prompts import ids_of_beginning

if TYPE_CHECKING:
    from llguidance import LLTokenizer

    from tyler.serving.tracing import Traces

JOINED = 4
"""Characters that a tokenizer's normalization may make one of, at most."""
FIELDS = {
    **dict.fromkeys(("json_schema", "regex", "structured answers"), "response_format"),
    **{name: name for name in ("logit_bias", "stop_token_ids", "top_logprobs", "ignore_eos", "temperature")},
    "the prompt has tokens": "prompt",
    "router ": "tyler.router",
}
"""What errors of engine and grammars speak of, and the field that it comes from."""


class Service:
    """A model, its engine's thread, and the record of what it answered."""

    def __init__(self, servable: Servable, settings: ServerSettings, weights: str) -> None:
        self.servable, self.settings, self.weights = servable, settings, weights
        self.created, self.metrics = int(time.time()), Metrics(servable.model.shared_engine)
        model = servable.model
        self.tokenizer = model.backbone.tokenizer
        self._most_characters = JOINED * max(map(len, self.tokenizer.get_vocab())) * model.backbone.max_positions
        self.usual = servable.request("1 + 1", AnswerSettings(max_new_tokens=1))
        self.dispatcher = Dispatcher(model.shared_engine, self.usual, settings)
        self._words: LLTokenizer | None = None
        with suppress(ValueError):
            self._words = words_of(model.backbone)
        self._has_operators = False
        with suppress(ValueError):
            self._has_operators = bool(servable.request("1 + 1", AnswerSettings(max_new_tokens=1, budget=0)))
        operators = getattr(model, "operators", ())
        self._longest_call = max((operator.num_latents for operator in operators), default=1)
        self._log: AuditLog | None = None
        self._traces: Traces | None = None
        if settings.otlp is not None:
            from tyler.serving.tracing import Traces

            self._traces = Traces.to(settings.otlp, settings.name)
        self._open = set[ExitStack]()
        self.controls = list[Trajectory]()
        """Answers to the page's examples, once its lens has asked for them."""

    @asynccontextmanager
    async def serving(self, app: object) -> AsyncIterator[None]:
        """Within it requests are answered; then what is unfinished is aborted, the log written, and traces are sent."""
        settings = self.settings
        if settings.log is not None:
            self._log = AuditLog(settings.log, self.metrics, max_bytes=settings.log_bytes, files=settings.log_files)
        yield
        for opened in list(self._open):
            opened.close()
        self.dispatcher.close()
        for close in [sink.close for sink in (self._log, self._traces) if sink is not None]:
            await asyncio.to_thread(close)

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
        if answers > most:
            raise ApiError(400, f"{answers} answers in one request; this server takes up to {most}", param="prompt")
        if open + answers > most:
            message = f"{open} answers are being decoded or wait, and {most} may; try again in a moment"
            raise ApiError(429, message, code="queue_full", headers={"Retry-After": "1"})

    def answer_settings(self, body: Generating, wanted: Wanted) -> AnswerSettings:
        """How the answers are decoded. Raises ApiError or ValueError for what is not allowed, naming the field."""
        self.check_model(body.model)
        most, field = self.settings.max_new_tokens, wanted.length_field
        if wanted.length is not None and wanted.length > most:
            raise ApiError(400, f"{field}={wanted.length}; this server allows up to {most}", param=field)
        if wanted.answers > self.settings.slots:
            message = f"n={wanted.answers}; this server gives up to {self.settings.slots} answers"
            raise ApiError(400, message, param="n")
        if body.tyler.router is not None:
            self._check_operators("tyler.router")
        length = wanted.length or min(wanted.usual or most, most)
        return AnswerSettings(
            sampling=self._sampling(body, wanted.answers),
            max_new_tokens=length,
            stop=wanted.stops,
            budget=self._budget(body, wanted),
            router=None if body.tyler.router is None else router_named(body.tyler.router),
            max_generated=length,
            stop_token_ids=tuple(body.stop_token_ids or ()),
            logits=self._logits(body, wanted.format),
            top_logprobs=wanted.alternatives,
        )

    def _logits(self, body: Generating, format: Format | None) -> LogitSettings:
        """What is changed about the choice of tokens. Raises ValueError for fields that do not go together."""
        names = ("min_p", "presence_penalty", "frequency_penalty", "repetition_penalty", "ignore_eos")
        given = {name: value for name in names if (value := getattr(body, name)) is not None}
        biases = {int(token): bias for token, bias in (body.logit_bias or {}).items()}
        return LogitSettings(**given, logit_bias=biases, grammar=self._grammar(format))

    def _grammar(self, format: Format | None) -> TextGrammar | None:
        """What the text has to be. Raises ValueError for too large a schema, and where there are no grammars."""
        if format is None or format.type == "text":
            return None
        words = self._words or words_of(self.servable.model.backbone)  # which says what is missing
        if format.type == "regex":
            return TextGrammar(words, "regex", format.pattern or "")
        return TextGrammar.of_schema(words, {"type": "object"} if format.schema_of is None else format.schema_of)

    def _sampling(self, body: Generating, answers: int) -> Sampling:
        """How tokens are drawn: greedily without a temperature. Raises ApiError for fields that then have no effect."""
        temperature, seed = body.temperature or 0.0, body.seed
        if body.temperature is None:
            quiet = {"top_p": 1.0, "top_k": 0, "min_p": 0.0, "seed": None if body.tyler.router is None else seed}
            for name, off in quiet.items():
                if (value := getattr(body, name)) not in (None, off):
                    message = f"{name}={value} has no effect without temperature, since answers are then greedy"
                    raise ApiError(400, f"{message}; send both", param=name, code="unsupported_value")
        if answers > 1 and not temperature:
            message = f"n={answers}: greedy answers are all the same; send a temperature above 0, or n=1"
            raise ApiError(400, message, param="n", code="unsupported_value")
        if seed is None:
            seed = secrets.randbits(48) if temperature else 0
        return Sampling(temperature, top_k=body.top_k or 0, top_p=body.top_p or 1.0, seed=seed)

    def _budget(self, body: Generating, wanted: Wanted) -> int | None:
        """The most operator calls. Raises ApiError for two fields that say it, and for more than the server allows."""
        most, latents = self.settings.budget, wanted.latents
        asked = {
            "tyler.budget": body.tyler.budget,
            wanted.effort_field: EFFORTS.get(wanted.effort or ""),
            "thinking": None if latents is None else latents // self._longest_call,
        }
        given = {name: value for name, value in asked.items() if value is not None}
        if len(given) > 1:
            raise ApiError(400, f"{' and '.join(given)} both say how much; send one", param=next(iter(given)))
        if not any(given.values()) and not self._has_operators:
            return None
        field, value = next(iter(given.items()), ("", most))
        self._check_operators(field)
        if most is not None and value is not None and value > most:
            raise ApiError(400, f"{field}={value}; this server allows up to {most}", param=field)
        return value

    def _check_operators(self, field: str) -> None:
        """Raise ApiError for a field about operators if the model has no operators."""
        if not self._has_operators:
            message = f"{self.servable.name} has no operators; omit {field}"
            raise ApiError(400, message, param=field, code="unsupported_value")

    # -- from questions to answers -------------------------------------------------------------------------------

    async def begin(self, http: HttpRequest, body: Generating, **changes: Any) -> Generation:
        """Queue the answers, with `changes` to their requests. Raises ApiError for what is not allowed, or has no room.

        They end with `http` at the latest. The first answer to a question is the one that it gets alone; others have
        seeds of their own.
        """
        wanted, requests = body.wanted, list[Request]()
        with refusing():
            settings, n = self.answer_settings(body, wanted), wanted.answers
        self.check_room(len(wanted.questions) * n)  # before the work of making them
        for question in wanted.questions:
            first = replace(await self.request(question, settings), **changes)
            seeds = [first.sampling.seed, *(seed_of(first.sampling.seed, number) for number in range(1, n))]
            requests += [replace(first, sampling=replace(first.sampling, seed=seed)) for seed in seeds]
        self.check_room(len(requests))
        generation = Generation(self.dispatcher, requests, self.metrics, n)
        with refusing():
            await generation.begin()
        http.state.opened.callback(self._end, http, body, generation)
        self._open.add(http.state.opened)
        return generation

    async def request(self, question: Question, settings: AnswerSettings) -> Request:
        """What the engine is asked for. Raises ApiError for what cannot be in the prompt."""
        if isinstance(question, Conversation):
            self.check_characters([*(turn["content"] for turn in question.question), question.begun or ""])
        elif isinstance(question, str):
            self.check_characters([question])
        with refusing():
            return await asyncio.to_thread(self._request, question, settings)  # a long prompt takes a while

    async def prompt_ids(self, conversation: Conversation) -> list[int]:
        """What a conversation is to the model. Raises ApiError as `request`."""
        return list((await self.request(conversation, AnswerSettings(max_new_tokens=1))).prompt_ids)

    def _request(self, question: Question, settings: AnswerSettings) -> Request:
        begun = list[int]()
        if isinstance(question, Conversation):
            question.check(self.tokenizer, self.servable.model.prompt.thinking)
            request = self.servable.request(question.question, settings)
            if question.begun is not None:
                begun = ids_of_beginning(self.tokenizer, question.begun)
                request = replace(request, prompt_ids=[*request.prompt_ids, *begun])
        else:
            ids = self._ids_of(question) if isinstance(question, str) else question
            request = self.servable.continuation(ids, settings)
        if not isinstance(grammar := request.logits.grammar, TextGrammar):
            return request
        grammar = replace(grammar, begun=tuple(begun))
        grammar.start()  # here, since it takes a while: the engine finds it made
        return replace(request, logits=replace(request.logits, grammar=grammar))

    def _ids_of(self, text: str) -> list[int]:
        """A text's token ids, with the tokenizer's own first token unless the text begins with it."""
        first = self.tokenizer.bos_token
        own = first is None or not text.startswith(first)
        return list(self.tokenizer.encode(text, add_special_tokens=own, verbose=False))

    def _end(self, http: HttpRequest, body: Generating, generation: Generation) -> None:
        """Abort what is unfinished; write the request's line of the audit log and its trace, where there are such."""
        generation.close()
        self._open.remove(http.state.opened)
        state, path, prompts = http.scope["state"], http.scope["path"], generation.prompts
        if self._traces is not None:
            details = {"gen_ai.request.model": self.settings.name, "tyler.request_id": state["request_id"]}
            self._traces.record(path, http.headers, generation, details)
        if self._log is None:
            return
        record: dict[str, Any] = {
            "time": round(generation.started, 3),
            "id": generation.id,
            "request_id": state["request_id"],
            "key": state.get("key"),
            "path": path,
            "model": self.settings.name,
            "method": self.servable.name,
            "weights": self.weights,
            "user": body.user,
            "metadata": body.metadata,
            "outcome": generation.outcome,
            "prompt_tokens": sum(map(len, prompts)),
            "elapsed_seconds": round(time.time() - generation.started, 6),
            "answers": [answer.logged(with_text=self.settings.log_text) for answer in generation.answers],
        }
        if self.settings.log_text:
            record["prompt_ids"] = prompts
            record["prompts"] = [self.tokenizer.decode(list(ids)) for ids in prompts]
        self._log.add(record)


@contextmanager
def refusing() -> Iterator[None]:
    """Within it, what the engine or a grammar refuses is a 400 by the field that it names."""
    try:
        yield
    except PromptTooLong as error:
        raise ApiError(400, str(error), code="context_length_exceeded") from error
    except ValueError as error:
        param = next((field for word, field in FIELDS.items() if word in str(error)), None)
        raise ApiError(400, str(error), param=param, code="invalid_value") from error


def settings_of(decoding: dict[str, Any], servable: Servable) -> AnswerSettings:
    """The settings that a line of the audit log holds under "decoding": with the prompt they give the same answer."""
    given = dict(decoding)
    source, logits, sampling = given.pop("grammar"), given.pop("logits"), Sampling(**given.pop("sampling"))
    if source is not None:
        source = TextGrammar(words_of(servable.model.backbone), **source | {"begun": tuple(source["begun"])})
    given |= {"router": router_named(given["router"]), "stop": tuple(given["stop"])}
    return AnswerSettings(sampling, logits=LogitSettings(**logits, grammar=source), **given)
