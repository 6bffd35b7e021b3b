"""`POST /v1/chat/completions`: invocations appear as reasoning, where they happen, so that clients show them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from functools import partial
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from tyler.engine.request import TokenEvent
from tyler.serving.bodies import read
from tyler.serving.conversation import Conversation
from tyler.serving.errors import ApiError
from tyler.serving.event_stream import DONE, answered, data
from tyler.serving.generation import Answer, Failed, Finished, Generation, Invocation, Piece, Started, Text, mark
from tyler.serving.openapi import takes
from tyler.serving.schema import ChatMessage, ChatRequest, text_of
from tyler.serving.scoring import entries_of
from tyler.serving.service import Limits, Service


def routes(service: Service) -> APIRouter:
    """The endpoint."""
    router = APIRouter()

    @router.post("/v1/chat/completions", **takes(ChatRequest))
    async def chat_completions(http: Request) -> Response:
        body = await read(ChatRequest, http, service.settings.unknown_fields)
        generation = await begin(service, body, http)
        stream = partial(streamed, service, body, generation) if body.stream else None
        return await answered(http, service.settings, generation, partial(whole, service, body, generation), stream)

    return router


async def begin(service: Service, body: ChatRequest, http: Request) -> Generation:
    """Queue the answers. Raises ApiError for fields that do not go together."""
    if body.max_tokens is not None and body.max_completion_tokens is not None:
        raise ApiError(400, "max_tokens and max_completion_tokens say the same; send one", param="max_tokens")
    if body.top_logprobs is not None and not body.logprobs:
        raise ApiError(400, "top_logprobs needs logprobs=true", param="top_logprobs")
    if body.stream_options is not None and not body.stream:
        raise ApiError(400, "stream_options needs stream=true", param="stream_options")
    length_field = "max_tokens" if body.max_completion_tokens is None else "max_completion_tokens"
    limits = Limits(body.max_completion_tokens or body.max_tokens, length_field, effort=body.reasoning_effort)
    n = body.n or 1
    settings = service.answer_settings(body, limits, n=n, seed=body.seed)
    return await service.generate(http, body, await service.requests(conversation(body.messages), settings, n))


def conversation(messages: list[ChatMessage]) -> Conversation:
    """The messages as the prompt takes them."""
    return Conversation.of((one.role, text_of(one.content), f"messages.{at}") for at, one in enumerate(messages))


# -- one answer ------------------------------------------------------------------------------------------------------


async def whole(service: Service, body: ChatRequest, generation: Generation) -> dict[str, Any]:
    """The complete answer."""
    answers = await generation.finished()
    choices = [choice(service, index, answer) for index, answer in enumerate(answers)]
    if body.logprobs:
        for one, answer in zip(choices, answers, strict=True):
            one["logprobs"] = logprobs(service, answer.tokens)
    usage = generation.usage.of_chat()
    return envelope(service, generation, "chat.completion") | {"choices": choices, "usage": usage}


def envelope(service: Service, generation: Generation, kind: str) -> dict[str, Any]:
    """What every object about an answer begins with."""
    model, id = service.settings.name, f"chatcmpl-{generation.id}"
    return {"id": id, "object": kind, "created": generation.created, "model": model}


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


def logprobs(service: Service, tokens: Sequence[TokenEvent]) -> dict[str, Any]:
    """log p of tokens, and of the most probable ones at their places."""
    return {"content": entries_of(service.tokenizer, tokens), "refusal": None}


# -- a stream --------------------------------------------------------------------------------------------------------


async def streamed(service: Service, body: ChatRequest, generation: Generation) -> AsyncGenerator[bytes, None]:
    """The answer as it is decoded, then its usage if requested."""
    start = envelope(service, generation, "chat.completion.chunk")
    start |= {"usage": None} if body.includes_usage else {}
    async for pieces in generation.pieces(service.settings.invocations):
        for piece in pieces:
            if isinstance(piece, Failed):
                yield data(ApiError(500, piece.message, code="engine_failed").body())
                return
            shown = part(generation.answers[piece.index], piece)
            if body.logprobs and isinstance(piece, Text):
                shown["logprobs"] = logprobs(service, piece.tokens)
            yield data(start | {"choices": [shown]})
    if body.includes_usage:
        yield data(start | {"choices": [], "usage": generation.usage.of_chat()})
    yield DONE


def part(answer: Answer, piece: Piece) -> dict[str, Any]:
    """A choice of a chunk. Nothing structured goes into `delta`: clients add up whatever they find there."""
    assert not isinstance(piece, Failed)
    shown: dict[str, Any] = {"index": piece.index, "delta": {}, "logprobs": None, "finish_reason": None}
    match piece:
        case Started():
            shown["delta"] = {"role": "assistant", "content": ""}
        case Text(text=text):
            shown["delta"] = {"content": text}
        case Invocation(record=record):
            shown |= {"delta": {"reasoning_content": mark(record) + "\n"}, "tyler": {"invocations": [record]}}
        case Finished():
            shown |= {"finish_reason": answer.finish_reason, "tyler": answer.details()}
    return shown
