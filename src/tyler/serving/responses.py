"""`POST /v1/responses`: each invocation is a reasoning item in the output, at its place. Nothing is stored."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field

from tyler.engine.request import TokenEvent
from tyler.serving import schema
from tyler.serving.event_stream import Event, Rendering
from tyler.serving.generation import Failed, Finished, Invocation, Piece, Started, Text, mark
from tyler.serving.schema import Count, Effort, Generating, Name, Strict, TextOptions, Turn, Wanted
from tyler.serving.scoring import entries_of


class InputMessage(Turn):
    """A turn as an item of a response's input."""

    type: Literal["message"] = "message"
    id: Name | None = None
    status: Name | None = None


class ReasoningItem(Strict):
    """An item of an earlier answer, which is not read."""

    type: Literal["reasoning"]
    id: Name | None = None
    status: Name | None = None
    summary: Annotated[list[Any], Field(max_length=schema.MOST_PARTS)] | None = None
    tyler: Annotated[dict[Name, Any], Field(max_length=16)] | None = None


Items = Annotated[
    list[InputMessage | ReasoningItem], Field(min_length=1, max_length=schema.MOST_MESSAGES, fail_fast=True)
]


class Reasoning(Strict):
    """How much a response may reason."""

    effort: Effort | None = None


class ResponsesRequest(Generating):
    """Nothing is stored, so every request brings its whole conversation."""

    input: schema.Text | Items
    instructions: schema.Text | None = None
    max_output_tokens: Count | None = None
    reasoning: Reasoning = Reasoning()
    include: Annotated[list[Literal["message.output_text.logprobs"]], Field(max_length=1)] | None = None
    text: TextOptions = TextOptions()
    top_logprobs: schema.Alternatives | None = None

    @property
    def wanted(self) -> Wanted:
        before = [] if self.instructions is None else [("system", self.instructions, "instructions")]
        if isinstance(self.input, str):
            asked = schema.Conversation.of([*before, ("user", self.input, "input")])
        else:
            asked = schema.conversation_of(self.input, *before, field="input")
        return Wanted(
            [asked],
            length=self.max_output_tokens,
            length_field="max_output_tokens",
            effort=self.reasoning.effort,
            effort_field="reasoning.effort",
            format=self.text.format,
            alternatives=self.top_logprobs or 0,
        )


@dataclass
class Output(Rendering[ResponsesRequest]):
    """A response as it grows: its items in the order in which they began, and the events that tell of them."""

    def __post_init__(self) -> None:
        self._items: list[dict[str, Any]] = []
        self._part: dict[str, Any] = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        id = f"msg_{self.generation.id}"
        self._message = {"id": id, "type": "message", "role": "assistant", "content": [self._part]}
        self._where: dict[str, Any] = {}
        """The place of the message's text among the items, once it has begun."""
        self._told = 0

    def add(self, piece: Piece) -> Iterator[Event]:
        match piece:
            case Started():
                for kind in ("created", "in_progress"):
                    yield self._event(kind, response=self._response("in_progress"))
            case Text(text=text, tokens=tokens):
                yield from self._write(text, tokens)
            case Invocation(record=record):
                yield from self._reason(record)
            case Finished():
                yield from self._finish()
                yield self._event(self._status, response=self._response(self._status))
            case Failed(error=error):
                yield self._event("failed", response=self._response("failed", error.message))

    def whole(self) -> dict[str, Any]:
        return self._response(self._status)

    @property
    def _status(self) -> str:
        """Of the finished answer."""
        return "incomplete" if self.generation.answers[0].finish_reason == "length" else "completed"

    def _event(self, kind: str, **content: Any) -> Event:
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
        if not self._where:
            at, self._message["status"] = len(self._items), "in_progress"
            self._where = {"item_id": self._message["id"], "output_index": at, "content_index": 0}
            self._items.append(self._message)
            yield self._event("output_item.added", output_index=at, item=self._message | {"content": []})
            yield self._event("content_part.added", **self._where, part=self._part)
        asked = bool(self.body.include) or self.body.top_logprobs is not None
        logprobs = entries_of(self.service.tokenizer, tokens) if asked else []
        self._part["text"] += text
        self._part["logprobs"] += logprobs
        yield self._event("output_text.delta", **self._where, delta=text, logprobs=logprobs)

    def _finish(self) -> Iterator[Event]:
        if not self._where:
            yield from self._write("", [])
        self._message["status"] = self._status
        text, logprobs = self._part["text"], self._part["logprobs"]
        yield self._event("output_text.done", **self._where, text=text, logprobs=logprobs)
        yield self._event("content_part.done", **self._where, part=self._part)
        yield self._event("output_item.done", output_index=self._where["output_index"], item=self._message)

    def _response(self, status: str, error: str | None = None) -> dict[str, Any]:
        """The whole object, in any state."""
        body, generation, (answer,) = self.body, self.generation, self.generation.answers
        done = status in ("completed", "incomplete")
        format = body.text.format
        return {
            "id": f"resp_{generation.id}",
            "object": "response",
            "created_at": int(generation.started),
            "status": status,
            "error": None if error is None else {"code": "server_error", "message": error},
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "model": self.service.settings.name,
            "output": list(self._items),
            "parallel_tool_calls": False,
            "previous_response_id": None,
            "reasoning": {"effort": body.reasoning.effort, "summary": "auto"},
            "store": False,
            "temperature": answer.request.sampling.temperature,
            "text": {"format": format.model_dump(by_alias=True, exclude_none=True) if format else {"type": "text"}},
            "tool_choice": "none",
            "tools": [],
            "top_p": answer.request.sampling.top_p,
            "truncation": "disabled",
            "usage": generation.usage("input", "output") if done else None,
            "user": body.user,
            "metadata": body.metadata or {},
            "tyler": answer.details() if done else None,
        }
