"""`POST /v1/responses`: each invocation is a reasoning item in the output, at its place. Nothing is stored."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from tyler.engine.request import InvocationEvent, TokenEvent
from tyler.engine.shared_engine import DecodingError
from tyler.serving.answers import mark
from tyler.serving.errors import ApiError, engine_failed
from tyler.serving.event_stream import EventStream, named, unless_disconnected
from tyler.serving.schema import InputItem, ResponsesRequest, text_of
from tyler.serving.service import Exchange, Service
from tyler.tasks.prompts import Message


def routes(service: Service) -> APIRouter:
    """The endpoint."""
    router = APIRouter()

    @router.post("/v1/responses", response_model=None)
    async def responses(body: ResponsesRequest, http: Request) -> Response:
        exchange = await begin(service, body, http)
        if body.stream:
            return EventStream(streamed(service, body, exchange), exchange.close, service.settings)
        try:
            return JSONResponse(await unless_disconnected(http, whole(service, body, exchange)))
        finally:
            await exchange.close()

    return router


async def begin(service: Service, body: ResponsesRequest, http: Request) -> Exchange:
    """Ask the engine. Raises ApiError for what cannot be asked."""
    effort = None if body.reasoning is None else body.reasoning.effort
    settings = service.answer_settings(body, max_new_tokens=body.max_output_tokens, effort=effort)
    turns = conversation(body)
    service.check_characters(turn["content"] for turn in turns)
    requests = await service.requests(lambda: service.servable.request(turns, settings), 1)
    return await service.exchange(http, body, requests)


def conversation(body: ResponsesRequest) -> list[Message]:
    """The instructions and the input as the prompt takes them."""
    turns = [] if body.instructions is None else [Message(role="system", content=body.instructions)]
    if isinstance(body.input, str):
        return [*turns, Message(role="user", content=body.input)]
    return turns + [message for item in body.input for message in message_of(item)]


def message_of(item: InputItem) -> list[Message]:
    """An item's turn; a reasoning item has none."""
    if item.type == "reasoning":
        return []
    if item.role is None:
        raise ApiError(400, "an item of the input has no role", param="input")
    return [Message(role="system" if item.role == "developer" else item.role, content=text_of(item.content))]


# -- the object ------------------------------------------------------------------------------------------------------


class Output:
    """The items of a response in the order in which they began, as the answer grows."""

    def __init__(self, exchange: Exchange, shown: bool) -> None:
        self.items: list[dict[str, Any]] = []
        self._exchange, self._shown = exchange, shown
        self._message: dict[str, Any] | None = None

    def add_reasoning(self, record: dict[str, Any]) -> int | None:
        """Add an invocation's item and return its place; None where invocations are hidden."""
        if not self._shown:
            return None
        place = len(self.items)
        summary = [{"type": "summary_text", "text": mark(record)}]
        item = {"id": f"rs_{self._exchange.id}_{place}", "type": "reasoning", "summary": summary, "tyler": record}
        self.items.append(item | {"status": "completed"})
        return place

    @property
    def has_message(self) -> bool:
        return self._message is not None

    def open_message(self) -> tuple[int, bool]:
        """The place of the message, which is added with its first text, and whether it is new."""
        if self._message is not None:
            return self.items.index(self._message), False
        part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        self._message = {
            "id": f"msg_{self._exchange.id}",
            "type": "message",
            "role": "assistant",
            "status": "in_progress",
            "content": [part],
        }
        self.items.append(self._message)
        return len(self.items) - 1, True

    def write(self, text: str) -> None:
        """Add to the message's text."""
        assert self._message is not None, "the message has been opened"
        self._message["content"][0]["text"] += text

    def finish(self, text: str) -> int:
        """Complete the message, whose text is known by now; its place."""
        place, _ = self.open_message()
        self.items[place]["content"][0]["text"] = text
        self.items[place]["status"] = "completed"
        return place


def response(
    body: ResponsesRequest, exchange: Exchange, status: str, items: list[dict[str, Any]], error: str | None = None
) -> dict[str, Any]:
    """The whole object, in any state."""
    answer = exchange.answers[0]
    done = status in ("completed", "incomplete")
    return {
        "id": f"resp_{exchange.id}",
        "object": "response",
        "created_at": exchange.created,
        "status": status,
        "error": None if error is None else {"code": "server_error", "message": error},
        "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "model": exchange.model,
        "output": items,
        "parallel_tool_calls": False,
        "previous_response_id": None,
        "reasoning": {"effort": None if body.reasoning is None else body.reasoning.effort, "summary": None},
        "store": False,
        "temperature": answer.request.sampling.temperature,
        "text": {"format": {"type": "text"}},
        "tool_choice": "none",
        "tools": [],
        "top_p": answer.request.sampling.top_p,
        "truncation": "disabled",
        "usage": exchange.usage.of_response() if done else None,
        "user": body.user,
        "metadata": body.metadata or {},
        "tyler": answer.details() if done else None,
    }


def ended(exchange: Exchange) -> str:
    """The status of a finished answer."""
    return "incomplete" if exchange.answers[0].finish_reason == "length" else "completed"


async def whole(service: Service, body: ResponsesRequest, exchange: Exchange) -> dict[str, Any]:
    """The complete response, its items in the order in which a stream tells of them."""
    await exchange.finished()
    output = exchange_output(service, exchange)
    return response(body, exchange, ended(exchange), output.items)


def exchange_output(service: Service, exchange: Exchange) -> Output:
    """The items of a finished answer."""
    answer, output = exchange.answers[0], Output(exchange, service.settings.invocations != "hidden")
    for record in answer.invocations:
        if record["offset"]:
            output.open_message()
        output.add_reasoning(record)
    output.finish(answer.text)
    return output


# -- a stream --------------------------------------------------------------------------------------------------------


class Numbered:
    """Events in the form of the API, each with its number."""

    def __init__(self) -> None:
        self._count = 0

    def __call__(self, kind: str, content: dict[str, Any]) -> bytes:
        event = named(kind, {"type": kind, "sequence_number": self._count} | content)
        self._count += 1
        return event


async def streamed(service: Service, body: ResponsesRequest, exchange: Exchange) -> AsyncGenerator[bytes, None]:
    """The response as it grows."""
    tell, output = Numbered(), Output(exchange, service.settings.invocations != "hidden")
    for kind in ("created", "in_progress"):
        yield tell(f"response.{kind}", {"response": response(body, exchange, "in_progress", [])})
    seen = 0
    try:
        async for batch in exchange.events():
            for event in batch:
                if isinstance(event, TokenEvent) and event.text:
                    for one in text_events(tell, output, event.text):
                        yield one
                elif isinstance(event, InvocationEvent):
                    record, seen = exchange.answers[0].invocations[seen], seen + 1
                    for one in reasoning_events(tell, output, record):
                        yield one
    except DecodingError as error:
        reason = engine_failed(str(error)).message
        yield tell("response.failed", {"response": response(body, exchange, "failed", output.items, reason)})
        return
    for one in closing_events(tell, output, exchange.answers[0].text):
        yield one
    status = ended(exchange)
    yield tell(f"response.{status}", {"response": response(body, exchange, status, output.items)})


def reasoning_events(tell: Numbered, output: Output, record: dict[str, Any]) -> Iterator[bytes]:
    """An invocation: a reasoning item that begins and ends at once."""
    place = output.add_reasoning(record)
    if place is None:
        return
    item = output.items[place]
    where = {"item_id": item["id"], "output_index": place, "summary_index": 0}
    text, part = mark(record), {"type": "summary_text", "text": mark(record)}
    yield tell(
        "response.output_item.added",
        {"output_index": place, "item": item | {"summary": [], "status": "in_progress"}},
    )
    yield tell("response.reasoning_summary_part.added", where | {"part": part | {"text": ""}})
    yield tell("response.reasoning_summary_text.delta", where | {"delta": text})
    yield tell("response.reasoning_summary_text.done", where | {"text": text})
    yield tell("response.reasoning_summary_part.done", where | {"part": part})
    yield tell("response.output_item.done", {"output_index": place, "item": item})


def text_events(tell: Numbered, output: Output, text: str) -> Iterator[bytes]:
    """Text of the message, which begins with its first."""
    place, new = output.open_message()
    item = output.items[place]
    where = {"item_id": item["id"], "output_index": place, "content_index": 0}
    if new:
        yield tell("response.output_item.added", {"output_index": place, "item": item | {"content": []}})
        yield tell("response.content_part.added", where | {"part": item["content"][0]})
    output.write(text)
    yield tell("response.output_text.delta", where | {"delta": text, "logprobs": []})


def closing_events(tell: Numbered, output: Output, text: str) -> Iterator[bytes]:
    """The end of the message."""
    if not output.has_message:
        yield from text_events(tell, output, "")
    place = output.finish(text)
    item = output.items[place]
    where = {"item_id": item["id"], "output_index": place, "content_index": 0}
    yield tell("response.output_text.done", where | {"text": text, "logprobs": []})
    yield tell("response.content_part.done", where | {"part": item["content"][0]})
    yield tell("response.output_item.done", {"output_index": place, "item": item})
