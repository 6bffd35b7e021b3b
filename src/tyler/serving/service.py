"""A request from its fields to its answers: what all endpoints share."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from fastapi import Request as HttpRequest

from tyler.engine.request import Event, PromptTooLong, Request
from tyler.engine.routing import router_named
from tyler.engine.sampling import Sampling, seed_of
from tyler.reasoners.reasoner import AnswerSettings, Servable
from tyler.serving.answers import Answer, Usage
from tyler.serving.audit_log import AuditLog
from tyler.serving.dispatcher import Answering, Dispatcher
from tyler.serving.errors import ApiError, unsupported
from tyler.serving.metrics import Metrics
from tyler.serving.schema import EFFORTS, Asked, Effort
from tyler.serving.settings import ServerSettings

JOINED = 4
"""Characters that a tokenizer's normalization may make one of, at most."""
LENGTHS = ("max_tokens", "max_completion_tokens", "max_output_tokens", "max_new_tokens")
"""What the endpoints call the most actions of an answer."""


class Service:
    """A model, its engine's thread, and the record of what it answered."""

    def __init__(self, servable: Servable, settings: ServerSettings, weights: str) -> None:
        self.servable, self.settings, self.weights = servable, settings, weights
        self.created, self.metrics, self.draining = int(time.time()), Metrics(), False
        self.tokenizer = servable.model.backbone.tokenizer
        longest_token = max(map(len, self.tokenizer.get_vocab()))
        self._most_characters = JOINED * longest_token * servable.model.backbone.max_positions
        probe = servable.request("1 + 1", AnswerSettings(max_new_tokens=1))
        self.dispatcher = Dispatcher(
            servable.model.shared_engine, self.metrics, probe, slots=settings.slots, memory=settings.memory
        )
        self._has_operators = has_operators(servable)
        self._log: AuditLog | None = None
        self.open = 0
        """HTTP requests that were taken and are not answered."""

    def start(self) -> None:
        """Begin to serve, in the running event loop."""
        settings = self.settings
        if settings.log is not None:
            self._log = AuditLog(settings.log, self.metrics, max_bytes=settings.log_bytes, files=settings.log_files)
        self.dispatcher.start()

    async def close(self) -> None:
        """Stop after the present step, with the log written."""
        await self.dispatcher.close()
        if self._log is not None:
            await asyncio.to_thread(self._log.close)

    @property
    def ready(self) -> bool:
        """Whether new requests are welcome."""
        return self.dispatcher.ready and not self.draining

    # -- from fields to requests ---------------------------------------------------------------------------------

    def check_model(self, name: str) -> None:
        """Raise ApiError for a model that is not the one served."""
        if name != self.settings.name:
            message = f"model {name!r} is not served here; there is {self.settings.name!r}"
            raise ApiError(404, message, param="model", code="model_not_found")

    def check_characters(self, texts: Iterable[str]) -> None:
        """Raise ApiError for texts that no context holds: what becomes tokens takes a hundred times its size."""
        characters = sum(map(len, texts))
        if characters > self._most_characters:
            context = f"this model's context of {self.servable.model.backbone.max_positions} positions"
            message = f"the prompt has {characters} characters, too many for {context}; shorten the prompt"
            raise ApiError(400, message, code="context_length_exceeded")

    def answer_settings(
        self,
        asked: Asked,
        *,
        max_new_tokens: int | None,
        seed: int | None = None,
        stop: tuple[str, ...] = (),
        effort: Effort | None = None,
    ) -> AnswerSettings:
        """How the answers are decoded. Raises ApiError for what is not allowed, naming the field."""
        self.check_model(asked.model)
        most = self.settings.max_new_tokens
        if max_new_tokens is not None and max_new_tokens > most:
            name = next(name for name in LENGTHS if getattr(asked, name, None) == max_new_tokens)
            raise ApiError(400, f"{name}={max_new_tokens}; this server allows up to {most}", param=name)
        if "" in stop:
            raise ApiError(400, "a stop string is empty; remove it", param="stop")
        temperature = asked.temperature or 0.0
        seed = seed if seed is not None else (secrets.randbits(48) if temperature else 0)
        try:
            sampling = Sampling(temperature, top_p=asked.top_p or 1.0, seed=seed)
        except ValueError as error:
            raise ApiError(400, str(error), param="temperature", code="invalid_value") from error
        try:
            router = None if asked.tyler.router is None else router_named(asked.tyler.router)
        except ValueError as error:
            raise ApiError(400, str(error).removeprefix("--"), param="tyler.router") from error
        effort_name = "reasoning.effort" if hasattr(asked, "reasoning") else "reasoning_effort"
        if effort is not None and asked.tyler.budget is not None:
            raise ApiError(400, f"{effort_name} and tyler.budget both say how much; send one", param="tyler.budget")
        if not self._has_operators:
            effort = None if effort == "none" else effort  # it asks for nothing
            given = {"tyler.budget": asked.tyler.budget, "tyler.router": router, effort_name: effort}
            if refused := [name for name, value in given.items() if value is not None]:
                message = f"{self.servable.name} has no operators; leave {refused[0]} away"
                raise unsupported(refused[0], message)
        return AnswerSettings(
            sampling=sampling,
            max_new_tokens=most if max_new_tokens is None else max_new_tokens,
            stop=stop,
            budget=asked.tyler.budget if effort is None else EFFORTS[effort],
            router=router,
        )

    async def requests(self, make: Callable[[], Request], n: int) -> list[Request]:
        """One request, `n` times under seeds of their own; the first is the one that was asked.

        It is made in another thread: a long prompt takes a while to become tokens.
        """
        if n > self.settings.slots:
            raise ApiError(400, f"n={n}; this server gives up to {self.settings.slots} answers", param="n")
        self.check_room(n)  # before the work of making it
        try:
            first = await asyncio.to_thread(make)
        except ValueError as error:
            raise ApiError(400, str(error), code="invalid_value") from error
        sampling = first.sampling
        others = [replace(sampling, seed=seed_of(sampling.seed, number)) for number in range(1, n)]
        return [first, *(replace(first, sampling=one) for one in others)]

    # -- from requests to answers --------------------------------------------------------------------------------

    async def exchange(
        self, http: HttpRequest, asked: Asked, requests: Sequence[Request], prompts: int = 1
    ) -> Exchange:
        """Queue the requests. Raises ApiError when they cannot be taken now, or never."""
        self.check_room(len(requests))
        try:
            answering = await self.dispatcher.ask(requests)
        except PromptTooLong as error:
            raise ApiError(400, str(error), code="context_length_exceeded") from error
        except ValueError as error:
            raise ApiError(400, str(error), code="invalid_value") from error
        return Exchange(self, http, asked, answering, prompts)

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

    @contextmanager
    def scoring(self, http: HttpRequest, asked: Asked, prompts: Sequence[Sequence[int]]) -> Iterator[str]:
        """While prompts are scored and nothing is decoded: they take room as answers do, and leave a line in the log.

        Gives the request's id. Raises ApiError as `exchange`.
        """
        self.check_room(len(prompts))
        id, started, outcome = secrets.token_hex(12), time.time(), "failed"
        self.open += 1
        self.dispatcher.open += len(prompts)
        try:
            yield id
            outcome = "finished"
        except asyncio.CancelledError:
            outcome = "aborted"
            raise
        finally:
            self.open -= 1
            self.dispatcher.open -= len(prompts)
            self.log(http, asked, id, started, outcome, prompts, [])

    def log(
        self,
        http: HttpRequest,
        asked: Asked,
        id: str,
        started: float,
        outcome: str,
        prompts: Sequence[Sequence[int]],
        answers: Sequence[Answer],
    ) -> None:
        """Write a request's line of the audit log, where there is one."""
        if self._log is None:
            return
        record: dict[str, Any] = {
            "time": round(started, 3),
            "id": id,
            "request_id": http.scope["state"]["request_id"],
            "path": http.scope["path"],
            "model": self.settings.name,
            "weights": self.weights,
            "user": asked.user,
            "outcome": outcome,
            "prompt_tokens": sum(map(len, prompts)),
            "elapsed_seconds": round(time.time() - started, 6),
            "answers": [answer.logged(self.settings.log_text) for answer in answers],
        }
        if self.settings.log_text:
            record["prompts"] = [self.tokenizer.decode(list(ids)) for ids in prompts]
        self._log.add(record)


def has_operators(servable: Servable) -> bool:
    """Whether a request may say something about operators."""
    try:
        servable.request("1 + 1", AnswerSettings(max_new_tokens=1, budget=0))
    except ValueError:
        return False
    return True


class Exchange:
    """One HTTP request and its answers. Whoever opened it closes it: that aborts what is unfinished, and logs it."""

    def __init__(self, service: Service, http: HttpRequest, asked: Asked, answering: Answering, prompts: int) -> None:
        self.id, self.created = secrets.token_hex(12), int(time.time())
        self.model, self.prompts = service.settings.name, prompts
        pairs = zip(answering.requests, answering.watches, strict=True)
        self.answers = [Answer(request, watch) for request, watch in pairs]
        self._service, self._http, self._asked, self._answering = service, http, asked, answering
        self._started, self._closed = time.time(), False
        service.open += 1

    async def events(self) -> AsyncIterator[list[Event]]:
        """What happens, as it happens, already noted in `answers`. Raises DecodingError when the engine failed."""
        async for batch in self._answering.batches():
            for event in batch:
                self.answers[event.index].see(event)
            yield batch

    async def finished(self) -> list[Answer]:
        """All answers, complete."""
        self._answering.streams = False
        async for _ in self.events():
            pass
        return self.answers

    @property
    def usage(self) -> Usage:
        return Usage.of(self.answers, self.prompts)

    async def close(self) -> None:
        """Abort what is unfinished and write the line of the audit log; once."""
        if self._closed:
            return
        self._closed = True
        outcome = "failed" if self._answering.failed else "aborted" if self._answering.unfinished else "finished"
        self._answering.close()
        prompts = [one.request.prompt_ids for one in self.answers[:: max(1, len(self.answers) // self.prompts)]]
        self._service.open -= 1
        self._service.log(self._http, self._asked, self.id, self._started, outcome, prompts, self.answers)
