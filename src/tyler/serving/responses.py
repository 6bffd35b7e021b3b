"""`POST /v1/responses`: each invocation is a reasoning item in the output, at its place. Nothing is stored."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field

from tyler.engine.request import TokenEvent
from tyler.serving import schema
from tyler.serving.conversation import Conversation
from tyler.serving.errors import ApiError
from tyler.serving.event_stream import Event, Rendering
from tyler.serving.generation import Failed, Finished, Generation, Invocation, Piece, Text, mark
from tyler.serving.schema import Content, Count, Effort, Format, Generating, Limits, Name, Strict, text_of
from tyler.serving.scoring import entries_of
from tyler.serving.service import Service


class SummaryPart(Strict):
    """A reasoning item's text."""

    type: Literal["summary_text"] = "summary_text"
    text: schema.Text = ""


class InputItem(Strict):
    """One item of a response's input: a turn, or a reasoning item of an earlier answer, which is not read."""

    type: Literal["message", "reasoning"] = "message"
    role: schema.Role | None = None
    content: Content | None = None
    id: Name | None = None
    status: Name | None = None
    summary: Annotated[list[SummaryPart], Field(max_length=schema.MOST_PARTS, fail_fast=True)] | None = None
    tyler: Annotated[dict[Name, Any], Field(max_length=16)] | None = None


class Reasoning(Strict):
    """How much a response may reason. A summary names the operator, whatever length is requested."""

    effort: Effort | None = None
    summary: Literal["auto"] | None = None


class TextOptions(Strict):
    """What the text of a response is."""

    format: Format | None = None
    verbosity: Literal["medium"] | None = None


class ResponsesRequest(Generating):
    """Nothing is stored, so every request brings its whole conversation."""

    input: (
        schema.Text | Annotated[list[InputItem], Field(min_length=1, max_length=schema.MOST_MESSAGES, fail_fast=True)]
    )
    instructions: schema.Text | None = None
    max_output_tokens: Count | None = None
    reasoning: Reasoning | None = None
    stream_options: Strict | None = None
    tool_choice: Literal["none", "auto"] | None = None
    include: Annotated[list[Literal["message.output_text.logprobs"]], Field(max_length=1)] | None = None
    truncation: Literal["disabled"] | None = None
    text: TextOptions | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    service_tier: Literal["auto", "default"] | None = None

    @property
    def format(self) -> Format | None:
        return None if self.text is None else self.text.format

    @property
    def alternatives(self) -> int:
        return self.top_logprobs or 0

    @property
    def logprobs(self) -> bool:
        """Whether log-probabilities are told."""
        return bool(self.include) or self.top_logprobs is not None

    @property
    def effort(self) -> Effort | None:
        """How much the response may reason."""
        return None if self.reasoning is None else self.reasoning.effort

    @property
    def limits(self) -> Limits:
        return Limits(self.max_output_tokens, "max_output_tokens", effort=self.effort, effort_field="reasoning.effort")

    @property
    def conversation(self) -> Conversation:
        """The instructions and the input as the prompt takes them; reasoning items are not read."""
        turns = [] if self.instructions is None else [("system", self.instructions, "instructions")]
        if isinstance(self.input, str):
            return Conversation.of([*turns, ("user", self.input, "input")])
        for index, item in enumerate(self.input):
            if item.type == "reasoning":
                continue
            if item.role is None:
                raise ApiError(400, "an item of the input has no role", param=f"input.{index}")
            turns.append((item.role, text_of(item.content), f"input.{index}"))
        if not turns:
            raise ApiError(400, "the input has no message; send one of the user's", param="input")
        return Conversation.of(turns)


class Output(Rendering[ResponsesRequest]):
    """A response as it grows: its items in the order in which they began, and the events that tell of them."""

    def __init__(self, service: Service, body: ResponsesRequest, generation: Generation) -> None:
        super().__init__(service, body, generation)
        self._items: list[dict[str, Any]] = []
        self._message: dict[str, Any] | None = None
        self._told = 0

    def begun(self) -> Iterator[Event]:
        for kind in ("created", "in_progress"):
            yield self._event(kind, response=self._response("in_progress"))

    def add(self, piece: Piece) -> Iterator[Event]:
        match piece:
            case Text(text=text, tokens=tokens) if tokens:
                yield from self._write(text, tokens)
            case Invocation(record=record):
                yield from self._reason(record)
            case Finished():
                yield from self._finish()
                yield self._event(self._status, response=self._response(self._status))
            case Failed(error=error):
                yield self._event("failed", response=self._response("failed", error.message))

    def whole(self, pieces: Sequence[Piece]) -> dict[str, Any]:
        for piece in pieces:
            for _ in self.add(piece):
                pass
        return self._response(self._status)

    @property
    def _status(self) -> str:
        """Of the finished answer."""
        return "incomplete" if self.generation.answers[0].finish_reason == "length" else "completed"

    def _event(self, kind: str, **content: Any) -> Event:
        """An event with its number."""
        self._told += 1
        name = f"response.{kind}"
        return name, {"type": name, "sequence_number": self._told - 1, **content}

    def _reason(self, record: dict[str, Any]) -> Iterator[Event]:
        """An invocation: a reasoning item that begins and ends at once."""
        at, text = len(self._items), mark(record)
        part = {"type": "summary_text", "text": text}
        item = {"id": f"rs_{self.generation.id}_{at}", "type": "reasoning", "summary": [part], "tyler": record}
        self._items.append(item | {"status": "completed"})
        where = {"item_id": item["id"], "output_index": at, "summary_index": 0}
        begun = item | {"summary": [], "status": "in_progress"}
        yield self._event("output_item.added", output_index=at, item=begun)
        yield self._event("reasoning_summary_part.added", **where, part=part | {"text": ""})
        yield self._event("reasoning_summary_text.delta", **where, delta=text)
        yield self._event("reasoning_summary_text.done", **where, text=text)
        yield self._event("reasoning_summary_part.done", **where, part=part)
        yield self._event("output_item.done", output_index=at, item=self._items[at])

    def _write(self, text: str, tokens: Sequence[TokenEvent]) -> Iterator[Event]:
        """Text of the message, which begins with its first."""
        if self._message is None:
            yield from self._open()
        part, where = self._part()
        logprobs = entries_of(self.service.tokenizer, tokens) if self.body.logprobs else []
        part["text"] += text
        part["logprobs"] += logprobs
        yield self._event("output_text.delta", **where, delta=text, logprobs=logprobs)

    def _open(self) -> Iterator[Event]:
        part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        about = {"id": f"msg_{self.generation.id}", "type": "message", "role": "assistant", "status": "in_progress"}
        self._message = {**about, "content": [part]}
        self._items.append(self._message)
        _, where = self._part()
        added = self._message | {"content": []}
        yield self._event("output_item.added", output_index=where["output_index"], item=added)
        yield self._event("content_part.added", **where, part=part)

    def _part(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """The message's text, and where it stands."""
        message = self._message
        assert message is not None, "called before the message began"
        where = {"item_id": message["id"], "output_index": self._items.index(message), "content_index": 0}
        return message["content"][0], where

    def _finish(self) -> Iterator[Event]:
        """The end of the message."""
        if self._message is None:
            yield from self._write("", [])
        part, where = self._part()
        assert self._message is not None
        part["text"], self._message["status"] = self.generation.answers[0].text, self._status
        yield self._event("output_text.done", **where, text=part["text"], logprobs=part["logprobs"])
        yield self._event("content_part.done", **where, part=part)
        yield self._event("output_item.done", output_index=where["output_index"], item=self._message)

    def _response(self, status: str, error: str | None = None) -> dict[str, Any]:
        """The whole object, in any state."""
        body, generation = self.body, self.generation
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
            "model": self.model,
            "output": list(self._items),
            "parallel_tool_calls": False,
            "previous_response_id": None,
            "reasoning": {"effort": body.effort, "summary": "auto"},
            "store": False,
            "temperature": answer.request.sampling.temperature,
            "text": {"format": {"type": "text"} if body.format is None else body.format.told()},
            "tool_choice": "none",
            "tools": [],
            "top_p": answer.request.sampling.top_p,
            "truncation": "disabled",
            "usage": generation.usage.of_response() if done else None,
            "user": body.user,
            "metadata": body.metadata or {},
            "tyler": answer.details() if done else None,
        }
