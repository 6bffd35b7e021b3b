"""`POST /v1/messages`, Anthropic's: each invocation is a thinking block between the blocks of text, at its place."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request
from pydantic import Field
from starlette.responses import JSONResponse, Response

from tyler.reasoners.reasoner import AnswerSettings
from tyler.serving import schema
from tyler.serving.bodies import read, takes
from tyler.serving.conversation import Conversation
from tyler.serving.errors import ApiError
from tyler.serving.event_stream import Event, Rendering
from tyler.serving.generation import Answer, Failed, Finished, Generation, Invocation, Piece, Text, mark
from tyler.serving.schema import Body, Content, Count, Format, Generating, Limits, Name, StopStrings, Strict, text_of
from tyler.serving.service import Service


class ThinkingBlock(Strict):
    """Thinking of an earlier answer, which is not read: latents belong to the answer in which they were made."""

    type: Literal["thinking"]
    thinking: schema.Text
    signature: schema.Text | None = None


class Turn(Strict):
    """One turn of a conversation."""

    role: Literal["user", "assistant"]
    content: (
        schema.Text
        | Annotated[list[schema.TextPart | ThinkingBlock], Field(max_length=schema.MOST_PARTS, fail_fast=True)]
    )


class Thinking(Strict):
    """Whether the model may think, and in how many latents."""

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: Count | None = None


class OutputConfig(Strict):
    """What the text of a message is."""

    format: Format | None = None


class AnthropicMetadata(Strict):
    """Who asks."""

    user_id: Name | None = None


class ToolChoice(Strict):
    """Whether tools are used: there are none."""

    type: Literal["none", "auto"]


class MessagesCount(Body):
    """`POST /v1/messages/count_tokens`."""

    model: Name
    messages: Annotated[list[Turn], Field(min_length=1, max_length=schema.MOST_MESSAGES, fail_fast=True)]
    system: Content | None = None
    thinking: Thinking | None = None
    tool_choice: ToolChoice | None = None

    @property
    def conversation(self) -> Conversation:
        """The messages as the prompt takes them."""
        system = [] if self.system is None else [("system", text_of(self.system), "system")]
        return schema.conversation_of(self.messages, *system)


class MessagesRequest(MessagesCount, Generating):
    """`POST /v1/messages`."""

    max_tokens: Count
    stop_sequences: StopStrings | None = None
    metadata: AnthropicMetadata | None = None  # type: ignore[assignment]
    service_tier: Literal["auto", "standard_only"] | None = None
    output_config: OutputConfig | None = None

    @property
    def limits(self) -> Limits:
        if self.thinking is None or self.thinking.type == "adaptive":
            return Limits(self.max_tokens)
        latents = 0 if self.thinking.type == "disabled" else self.thinking.budget_tokens
        if latents is None:
            message = "thinking needs budget_tokens: the most latents"
            raise ApiError(400, message, param="thinking.budget_tokens")
        return Limits(self.max_tokens, latents=latents)

    @property
    def stops(self) -> tuple[str, ...]:
        return tuple(self.stop_sequences or ())

    @property
    def format(self) -> Format | None:
        return None if self.output_config is None else self.output_config.format


def routes(service: Service) -> APIRouter:
    """The endpoint that only counts."""
    router = APIRouter()

    @router.post("/v1/messages/count_tokens", **takes(MessagesCount))
    async def count_tokens(http: Request) -> Response:
        body = await read(MessagesCount, http, service.settings.unknown_fields)
        service.check_model(body.model)
        (request,) = await service.requests(body.conversation, AnswerSettings(max_new_tokens=1))
        return JSONResponse({"input_tokens": len(request.prompt_ids)})

    return router


class Message(Rendering[MessagesRequest]):
    """A message as it grows: blocks of text and thinking, and the events that tell of them."""

    def __init__(self, service: Service, body: MessagesRequest, generation: Generation) -> None:
        super().__init__(service, body, generation)
        self._blocks: list[dict[str, Any]] = []

    @property
    def _answer(self) -> Answer:
        return self.generation.answers[0]

    def begun(self) -> Iterator[Event]:
        yield named({"type": "message_start", "message": self._message()})

    def add(self, piece: Piece) -> Iterator[Event]:
        match piece:
            case Text(text=text) if text:
                if not self._blocks or self._blocks[-1]["type"] != "text":
                    yield from self._open({"type": "text", "text": ""})
                self._blocks[-1]["text"] += text
                yield self._delta({"type": "text_delta", "text": text})
            case Invocation(record=record):
                yield from self._open({"type": "thinking", "thinking": "", "signature": ""})
                self._blocks[-1] |= {"thinking": mark(record), "tyler": record}
                yield self._delta({"type": "thinking_delta", "thinking": mark(record)})
                yield self._delta({"type": "signature_delta", "signature": ""})
            case Finished():
                yield from self._close()
                details = self._answer.details()
                yield named({"type": "message_delta", "delta": self._ended(), "usage": self._usage(), "tyler": details})
                yield named({"type": "message_stop"})
            case Failed(error=error):
                yield named(error.body("/v1/messages"))

    def _open(self, block: dict[str, Any]) -> Iterator[Event]:
        yield from self._close()
        self._blocks.append(block)
        yield named({"type": "content_block_start", "index": len(self._blocks) - 1, "content_block": dict(block)})

    def _close(self) -> Iterator[Event]:
        if self._blocks:
            yield named({"type": "content_block_stop", "index": len(self._blocks) - 1})

    def _delta(self, delta: dict[str, Any]) -> Event:
        return named({"type": "content_block_delta", "index": len(self._blocks) - 1, "delta": delta})

    def _ended(self) -> dict[str, Any]:
        """Why the answer ended, and the stop string that ended it, where only one can have."""
        found = {"eos": "end_turn", "stop": "stop_sequence", "length": "max_tokens"}[self._answer.done.finish_reason]
        stops = self._answer.request.stop if found == "stop_sequence" else ()
        return {"stop_reason": found, "stop_sequence": stops[0] if len(stops) == 1 else None}

    def _usage(self) -> dict[str, Any]:
        """As messages say it; latents are output tokens."""
        usage = self.generation.usage
        return {
            "input_tokens": usage.prompt - usage.cached,
            "output_tokens": usage.generated,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": usage.cached,
        }

    def _message(self) -> dict[str, Any]:
        """The message before its first block."""
        return {
            "id": f"msg_{self.generation.id}",
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": self._usage(),
        }

    def whole(self, pieces: Sequence[Piece]) -> dict[str, Any]:
        for piece in pieces:
            for _ in self.add(piece):
                pass
        return self._message() | self._ended() | {"content": self._blocks, "tyler": self._answer.details()}


def named(content: dict[str, Any]) -> Event:
    """An event, called as its content is."""
    return content["type"], content
