"""`POST /v1/messages`, Anthropic's: each invocation is a thinking block between the blocks of text, at its place."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from functools import partial
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from tyler.reasoners.reasoner import AnswerSettings
from tyler.serving.bodies import read
from tyler.serving.conversation import Conversation
from tyler.serving.errors import ApiError
from tyler.serving.event_stream import answered, named
from tyler.serving.generation import Answer, Failed, Finished, Generation, Invocation, Piece, Text, mark
from tyler.serving.openapi import takes
from tyler.serving.schema import MessagesCount, MessagesRequest, Thinking, text_of
from tyler.serving.service import Limits, Service


def routes(service: Service) -> APIRouter:
    """The endpoints."""
    router = APIRouter()

    @router.post("/v1/messages", **takes(MessagesRequest))
    async def messages(http: Request) -> Response:
        body = await read(MessagesRequest, http, service.settings.unknown_fields)
        settings = service.answer_settings(body, limits(service, body))
        requests = await service.requests(conversation(body), settings)
        generation = await service.generate(http, body, requests)
        message = Message(service, generation)
        stream = partial(streamed, message, generation) if body.stream else None
        return await answered(http, service.settings, generation, partial(whole, message, generation), stream)

    @router.post("/v1/messages/count_tokens", **takes(MessagesCount))
    async def count_tokens(http: Request) -> Response:
        body = await read(MessagesCount, http, service.settings.unknown_fields)
        service.check_model(body.model)
        (request,) = await service.requests(conversation(body), AnswerSettings(max_new_tokens=1))
        return JSONResponse({"input_tokens": len(request.prompt_ids)})

    return router


def limits(service: Service, body: MessagesRequest) -> Limits:
    """How long the answer may be, and how many calls its thinking pays for. Raises ApiError where that is not said."""
    found = Limits(body.max_tokens, "max_tokens", budget_field="thinking")
    thinking = body.thinking
    if thinking is None or thinking.type == "adaptive":
        return found
    return Limits(body.max_tokens, "max_tokens", budget=calls_of(service, thinking), budget_field="thinking")


def calls_of(service: Service, thinking: Thinking) -> int:
    """The operator calls whose latents fit in a thinking budget."""
    if thinking.type == "disabled":
        return 0
    if thinking.budget_tokens is None:
        raise ApiError(400, "thinking needs budget_tokens: the most latents", param="thinking.budget_tokens")
    operators = getattr(service.servable.model, "operators", ())
    return thinking.budget_tokens // max((operator.num_latents for operator in operators), default=1)


def conversation(body: MessagesCount) -> Conversation:
    """The messages as the prompt takes them."""
    turns = [] if body.system is None else [("system", text_of(body.system), "system")]
    turns += [(one.role, text_of(one.content), f"messages.{index}") for index, one in enumerate(body.messages)]
    return Conversation.of(turns)


class Message:
    """A message as it grows: blocks of text and thinking, and the events that tell of them."""

    def __init__(self, service: Service, generation: Generation) -> None:
        self.blocks: list[dict[str, Any]] = []
        self.style = service.settings.invocations
        self._model, self._generation = service.settings.name, generation

    @property
    def _answer(self) -> Answer:
        return self._generation.answers[0]

    def add(self, piece: Piece) -> Iterator[dict[str, Any]]:
        """Take a piece of the answer; the events that tell of it."""
        match piece:
            case Text(text=text) if text:
                if not self.blocks or self.blocks[-1]["type"] != "text":
                    yield from self._open({"type": "text", "text": ""})
                self.blocks[-1]["text"] += text
                yield self._delta({"type": "text_delta", "text": text})
            case Invocation(record=record):
                yield from self._open({"type": "thinking", "thinking": "", "signature": ""})
                self.blocks[-1] |= {"thinking": mark(record), "tyler": record}
                yield self._delta({"type": "thinking_delta", "thinking": mark(record)})
                yield self._delta({"type": "signature_delta", "signature": ""})
            case Finished():
                yield from self._close()
                delta = {"stop_reason": self.stop_reason, "stop_sequence": self.stop_sequence}
                yield {"type": "message_delta", "delta": delta, "usage": self.usage(), "tyler": self._answer.details()}
                yield {"type": "message_stop"}
            case Failed(message=message):
                yield ApiError(500, message).body("/v1/messages")

    def _open(self, block: dict[str, Any]) -> Iterator[dict[str, Any]]:
        yield from self._close()
        self.blocks.append(block)
        yield {"type": "content_block_start", "index": len(self.blocks) - 1, "content_block": dict(block)}

    def _close(self) -> Iterator[dict[str, Any]]:
        if self.blocks:
            yield {"type": "content_block_stop", "index": len(self.blocks) - 1}

    def _delta(self, delta: dict[str, Any]) -> dict[str, Any]:
        return {"type": "content_block_delta", "index": len(self.blocks) - 1, "delta": delta}

    @property
    def stop_reason(self) -> str:
        return {"eos": "end_turn", "stop": "stop_sequence", "length": "max_tokens"}[self._answer.done.finish_reason]

    @property
    def stop_sequence(self) -> str | None:
        """The stop string that ended the answer, where only one can have."""
        stops = tuple(self._answer.request.stop)
        return stops[0] if self.stop_reason == "stop_sequence" and len(stops) == 1 else None

    def usage(self) -> dict[str, Any]:
        """As messages say it; latents are output tokens."""
        usage = self._generation.usage
        return {
            "input_tokens": usage.prompt - usage.cached,
            "output_tokens": usage.generated,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": usage.cached,
        }

    def begun(self) -> dict[str, Any]:
        """The message before its first block."""
        return {
            "id": f"msg_{self._generation.id}",
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": self.usage(),
        }


async def whole(message: Message, generation: Generation) -> dict[str, Any]:
    """The complete message."""
    for piece in await generation.gathered(message.style):
        for _ in message.add(piece):
            pass
    ended = {"stop_reason": message.stop_reason, "stop_sequence": message.stop_sequence}
    details = generation.answers[0].details()
    return message.begun() | ended | {"content": message.blocks, "usage": message.usage(), "tyler": details}


async def streamed(message: Message, generation: Generation) -> AsyncGenerator[bytes, None]:
    """The message as it grows."""
    yield named("message_start", {"type": "message_start", "message": message.begun()})
    async for pieces in generation.pieces(message.style):
        for event in (event for piece in pieces for event in message.add(piece)):
            yield named(event["type"], event)
