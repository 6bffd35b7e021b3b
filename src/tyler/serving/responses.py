"""`POST /v1/responses`: each invocation is a reasoning item in the output, at its place. Nothing is stored."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Sequence
from functools import partial
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from tyler.engine.request import TokenEvent
from tyler.serving.bodies import read
from tyler.serving.conversation import Conversation
from tyler.serving.errors import ApiError
from tyler.serving.event_stream import answered, named
from tyler.serving.generation import Failed, Finished, Generation, Invocation, Piece, Text, mark
from tyler.serving.openapi import takes
from tyler.serving.schema import ResponsesRequest, text_of
from tyler.serving.scoring import entries_of
from tyler.serving.service import Limits, Service

Event = tuple[str, dict[str, Any]]
"""A kind of event, without "response.", and its content."""


def routes(service: Service) -> APIRouter:
    """The endpoint."""
    router = APIRouter()

    @router.post("/v1/responses", **takes(ResponsesRequest))
    async def responses(http: Request) -> Response:
        body = await read(ResponsesRequest, http, service.settings.unknown_fields)
        generation = await begin(service, body, http)
        output = Output(service, body, generation)
        stream = partial(streamed, output, generation) if body.stream else None
        return await answered(http, service.settings, generation, partial(whole, output, generation), stream)

    return router


async def begin(service: Service, body: ResponsesRequest, http: Request) -> Generation:
    """Queue the answer. Raises ApiError for what is not allowed."""
    effort = None if body.reasoning is None else body.reasoning.effort
    limits = Limits(body.max_output_tokens, "max_output_tokens", effort, "reasoning.effort")
    settings = service.answer_settings(body, limits)
    return await service.generate(http, body, await service.requests(conversation(body), settings))


def conversation(body: ResponsesRequest) -> Conversation:
    """The instructions and the input as the prompt takes them; reasoning items are not read."""
    turns = [] if body.instructions is None else [("system", body.instructions, "instructions")]
    if isinstance(body.input, str):
        return Conversation.of([*turns, ("user", body.input, "input")])
    for index, item in enumerate(body.input):
        if item.type == "reasoning":
            continue
        if item.role is None:
            raise ApiError(400, "an item of the input has no role", param=f"input.{index}")
        turns.append((item.role, text_of(item.content), f"input.{index}"))
    if not turns:
        raise ApiError(400, "the input has no message; send one of the user's", param="input")
    return Conversation.of(turns)


class Output:
    """A response as it grows: its items in the order in which they began, and the events that tell of them."""

    def __init__(self, service: Service, body: ResponsesRequest, generation: Generation) -> None:
        self.items: list[dict[str, Any]] = []
        self.style = service.settings.invocations
        self._model, self._body, self._generation = service.settings.name, body, generation
        self._tokenizer = service.tokenizer
        self._message: dict[str, Any] | None = None

    def add(self, piece: Piece) -> Iterator[Event]:
        """Take a piece of the answer; the events that tell of it."""
        match piece:
            case Text(text=text) if piece.tokens:
                yield from self._write(text, self._told(piece.tokens))
            case Invocation(record=record):
                yield from self._reason(record)
            case Finished():
                yield from self._finish()
                yield self.status, {"response": self.response(self.status)}
            case Failed(message=message):
                yield "failed", {"response": self.response("failed", message)}

    @property
    def status(self) -> str:
        """Of the finished answer."""
        return "incomplete" if self._generation.answers[0].finish_reason == "length" else "completed"

    def _reason(self, record: dict[str, Any]) -> Iterator[Event]:
        """An invocation: a reasoning item that begins and ends at once."""
        at, text = len(self.items), mark(record)
        part = {"type": "summary_text", "text": text}
        item = {"id": f"rs_{self._generation.id}_{at}", "type": "reasoning", "summary": [part], "tyler": record}
        self.items.append(item | {"status": "completed"})
        where = {"item_id": item["id"], "output_index": at, "summary_index": 0}
        begun = item | {"summary": [], "status": "in_progress"}
        yield "output_item.added", {"output_index": at, "item": begun}
        yield "reasoning_summary_part.added", where | {"part": part | {"text": ""}}
        yield "reasoning_summary_text.delta", where | {"delta": text}
        yield "reasoning_summary_text.done", where | {"text": text}
        yield "reasoning_summary_part.done", where | {"part": part}
        yield "output_item.done", {"output_index": at, "item": self.items[at]}

    def _told(self, tokens: Sequence[TokenEvent]) -> list[dict[str, Any]]:
        """log p of tokens, where it is asked for."""
        return entries_of(self._tokenizer, tokens) if self._body.logprobs else []

    def _write(self, text: str, logprobs: list[dict[str, Any]]) -> Iterator[Event]:
        """Text of the message, which begins with its first."""
        new = self._message is None
        message = self._open_message()
        where = self._where(message)
        if new:
            added = {"output_index": where["output_index"], "item": message | {"content": []}}
            yield "output_item.added", added
            yield "content_part.added", where | {"part": message["content"][0]}
        message["content"][0]["text"] += text
        message["content"][0]["logprobs"] += logprobs
        yield "output_text.delta", where | {"delta": text, "logprobs": logprobs}

    def _open_message(self) -> dict[str, Any]:
        if self._message is None:
            part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
            self._message = {
                "id": f"msg_{self._generation.id}",
                "type": "message",
                "role": "assistant",
                "status": "in_progress",
                "content": [part],
            }
            self.items.append(self._message)
        return self._message

    def _where(self, message: dict[str, Any]) -> dict[str, Any]:
        return {"item_id": message["id"], "output_index": self.items.index(message), "content_index": 0}

    def _finish(self) -> Iterator[Event]:
        """The end of the message."""
        if self._message is None:
            yield from self._write("", [])
        message = self._open_message()
        message["content"][0]["text"] = text = self._generation.answers[0].text
        message["status"] = self.status
        where = self._where(message)
        yield "output_text.done", where | {"text": text, "logprobs": message["content"][0]["logprobs"]}
        yield "content_part.done", where | {"part": message["content"][0]}
        yield "output_item.done", {"output_index": where["output_index"], "item": message}

    def response(self, status: str, error: str | None = None) -> dict[str, Any]:
        """The whole object, in any state."""
        body, generation = self._body, self._generation
        answer = generation.answers[0]
        done = status in ("completed", "incomplete")
        return {
            "id": f"resp_{generation.id}",
            "object": "response",
            "created_at": generation.created,
            "status": status,
            "error": None if error is None else {"code": "server_error", "message": error},
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "model": self._model,
            "output": list(self.items),
            "parallel_tool_calls": False,
            "previous_response_id": None,
            "reasoning": {"effort": None if body.reasoning is None else body.reasoning.effort, "summary": "auto"},
            "store": False,
            "temperature": answer.request.sampling.temperature,
            "text": {"format": {"type": "text"} if body.format is None else body.format.told()},
            "tool_choice": "none",
            "tools": [],
            "top_p": answer.request.sampling.top_p,
            "truncation": "disabled",
            "usage": self.usage() if done else None,
            "user": body.user,
            "metadata": body.metadata or {},
            "tyler": answer.details() if done else None,
        }

    def usage(self) -> dict[str, Any]:
        """As responses say it."""
        usage = self._generation.usage
        return {
            "input_tokens": usage.prompt,
            "input_tokens_details": {"cached_tokens": usage.cached, "cache_write_tokens": 0},
            "output_tokens": usage.generated,
            "output_tokens_details": {"reasoning_tokens": usage.latents},
            "total_tokens": usage.prompt + usage.generated,
        }


async def whole(output: Output, generation: Generation) -> dict[str, Any]:
    """The complete response, its items in the order in which a stream tells of them."""
    for piece in await generation.gathered(output.style):
        for _ in output.add(piece):
            pass
    return output.response(output.status)


async def streamed(output: Output, generation: Generation) -> AsyncGenerator[bytes, None]:
    """The response as it grows, each event with its number."""
    number = 0
    begun = {"response": output.response("in_progress")}
    events: list[Event] = [("created", begun), ("in_progress", begun)]
    async for pieces in generation.pieces(output.style):
        events += [event for piece in pieces for event in output.add(piece)]
        for kind, content in events:
            yield named(f"response.{kind}", {"type": f"response.{kind}", "sequence_number": number} | content)
            number += 1
        events = []
