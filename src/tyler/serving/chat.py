"""`POST /v1/chat/completions`: invocations appear as reasoning, where they happen, so that clients show them."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from functools import partial
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from tyler.engine.request import Event, FinishEvent, InvocationEvent, TokenEvent
from tyler.engine.shared_engine import DecodingError
from tyler.serving.answers import Answer, mark
from tyler.serving.errors import ApiError, engine_failed
from tyler.serving.event_stream import DONE, EventStream, data, unless_disconnected
from tyler.serving.schema import ChatMessage, ChatRequest, text_of
from tyler.serving.scoring import Scored, byte_level, name_of, score_answer, token_bytes, token_text
from tyler.serving.service import Exchange, Service
from tyler.tasks.prompts import Message


def routes(service: Service) -> APIRouter:
    """The endpoint."""
    router = APIRouter()

    @router.post("/v1/chat/completions", response_model=None)
    async def chat_completions(body: ChatRequest, http: Request) -> Response:
        exchange = await begin(service, body, http)
        if body.stream:
            return EventStream(streamed(service, body, exchange), exchange.close, service.settings)
        try:
            return JSONResponse(await unless_disconnected(http, whole(service, body, exchange)))
        finally:
            await exchange.close()

    return router


async def begin(service: Service, body: ChatRequest, http: Request) -> Exchange:
    """Ask the engine. Raises ApiError for what cannot be asked."""
    if body.max_tokens is not None and body.max_completion_tokens is not None:
        raise ApiError(400, "max_tokens and max_completion_tokens say the same; send one", param="max_tokens")
    if body.stream and body.logprobs:
        raise ApiError(400, "logprobs are not streamed; ask without stream", param="logprobs")
    if body.top_logprobs is not None and not body.logprobs:
        raise ApiError(400, "top_logprobs needs logprobs=true", param="top_logprobs")
    if body.stream_options is not None and not body.stream:
        raise ApiError(400, "stream_options needs stream=true", param="stream_options")
    settings = service.answer_settings(
        body,
        max_new_tokens=body.max_completion_tokens or body.max_tokens,
        seed=body.seed,
        stop=body.stops,
        effort=body.reasoning_effort,
    )
    turns = conversation(body.messages)
    service.check_characters(turn["content"] for turn in turns)
    requests = await service.requests(lambda: service.servable.request(turns, settings), body.n or 1)
    return await service.exchange(http, body, requests)


def conversation(messages: list[ChatMessage]) -> list[Message]:
    """The messages as the prompt takes them."""
    names = {"developer": "system"}
    return [Message(role=names.get(one.role, one.role), content=text_of(one.content)) for one in messages]


# -- one answer ------------------------------------------------------------------------------------------------------


async def whole(service: Service, body: ChatRequest, exchange: Exchange) -> dict[str, Any]:
    """The complete answer."""
    answers = await exchange.finished()
    choices = [choice(service, index, answer) for index, answer in enumerate(answers)]
    if body.logprobs:
        for one, answer in zip(choices, answers, strict=True):
            one["logprobs"] = await logprobs(service, answer, body.top_logprobs or 0)
    return envelope(exchange, "chat.completion") | {"choices": choices, "usage": exchange.usage.of_chat()}


def envelope(exchange: Exchange, kind: str) -> dict[str, Any]:
    """What every object about an answer begins with."""
    return {"id": f"chatcmpl-{exchange.id}", "object": kind, "created": exchange.created, "model": exchange.model}


def choice(service: Service, index: int, answer: Answer) -> dict[str, Any]:
    """One answer with its text, its reasoning for people, and its invocations for programs."""
    message: dict[str, Any] = {"role": "assistant", "content": answer.text, "refusal": None}
    if answer.invocations and service.settings.invocations != "hidden":
        message["reasoning_content"] = "\n".join(map(mark, answer.invocations))
    return {
        "index": index,
        "message": message,
        "logprobs": None,
        "finish_reason": answer.finish_reason,
        "tyler": answer.details(),
    }


async def logprobs(service: Service, answer: Answer, top: int) -> dict[str, Any]:
    """log p of the answer's tokens, and of the most probable ones at their places."""
    work = partial(score_answer, trajectory=answer.done, top=top)
    try:
        scored = await service.dispatcher.between_steps(work)
    except ValueError as error:
        raise ApiError(400, str(error), param="top_logprobs") from error
    ends = service.servable.model.backbone.eos_ids
    shown = [one for one in scored if one.token is not None and one.token not in ends]
    return {"content": [token_logprobs(service, one) for one in shown], "refusal": None}


def token_logprobs(service: Service, scored: Scored) -> dict[str, Any]:
    """One token as chats have it."""

    tokenizer = service.tokenizer

    def entry(text: str, encoded: bytes, logprob: float | None) -> dict[str, Any]:
        return {"token": text, "logprob": logprob, "bytes": list(encoded)}

    others = [entry(token_text(tokenizer, id), token_bytes(tokenizer, id), logprob) for id, logprob in scored.top]
    own = None if scored.token is None else byte_level(tokenizer, scored.token)
    encoded = scored.text.encode() if own is None else own
    return entry(name_of(tokenizer, scored), encoded, scored.logprob) | {"top_logprobs": others}


# -- a stream --------------------------------------------------------------------------------------------------------


async def streamed(service: Service, body: ChatRequest, exchange: Exchange) -> AsyncGenerator[bytes, None]:
    """The answer as it comes, then its usage where asked for."""
    start = envelope(exchange, "chat.completion.chunk")
    start |= {"usage": None} if body.includes_usage else {}
    for index in range(len(exchange.answers)):
        yield data(start | {"choices": [part(index, {"role": "assistant", "content": ""})]})
    style = service.settings.invocations
    try:
        async for batch in exchange.events():
            for index, answer in enumerate(exchange.answers):
                mine = [event for event in batch if event.index == index]
                for one in parts(index, answer, mine, style):
                    yield data(start | {"choices": [one]})
    except DecodingError as error:
        yield data(engine_failed(str(error)).body())
        return
    if body.includes_usage:
        yield data(start | {"choices": [], "usage": exchange.usage.of_chat()})
    yield DONE


def part(index: int, delta: dict[str, Any], finish_reason: str | None = None) -> dict[str, Any]:
    """A choice of a chunk. Nothing structured goes into `delta`: clients add up whatever they find there."""
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish_reason}


def parts(index: int, answer: Answer, events: list[Event], style: str) -> list[dict[str, Any]]:
    """What some events of one answer come to: tokens that arrived together are one part."""
    found: list[dict[str, Any]] = []
    text, seen = "", len(answer.invocations) - sum(isinstance(event, InvocationEvent) for event in events)
    for event in events:
        if isinstance(event, TokenEvent) and style != "first":
            text += event.text
        elif isinstance(event, InvocationEvent):
            found += [part(index, {"content": text})] if text else []
            text, record, seen = "", answer.invocations[seen], seen + 1
            delta = {} if style == "hidden" else {"reasoning_content": mark(record) + "\n"}
            found.append(part(index, delta) | {"tyler": {"invocations": [record]}})
        elif isinstance(event, FinishEvent):
            text = answer.text if style == "first" else text
            found += [part(index, {"content": text})] if text else []
            text = ""
            found.append(part(index, {}, answer.finish_reason) | {"tyler": answer.details()})
    return [*found, part(index, {"content": text})] if text else found
