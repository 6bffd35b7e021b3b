"""`POST /v1/messages`, Anthropic's: each invocation is a thinking block between the blocks of text, at its place."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from fastapi import Request
from starlette.responses import JSONResponse, Response

from tyler.serving import schema
from tyler.serving.event_stream import Event, Rendering
from tyler.serving.generation import Failed, Finished, Invocation, Piece, Started, Text, mark
from tyler.serving.schema import Content, Count, Generating, StopStrings, Strict, TextOptions, Turns, Wanted, text_of
from tyler.serving.service import Service

ENDS = {"eos": "end_turn", "stop": "stop_sequence", "length": "max_tokens"}


class Thinking(Strict):
    """Whether the model may think, and in how many latents."""

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: Count | None = None


class MessagesCount(Strict):
    """`POST /v1/messages/count_tokens`."""

    model: schema.Name
    messages: Turns
    system: Content | None = None
    thinking: Thinking = Thinking(type="adaptive")

    @property
    def conversation(self) -> schema.Conversation:
        system = [] if self.system is None else [("system", text_of(self.system), "system")]
        return schema.conversation_of(self.messages, *system)


class MessagesRequest(MessagesCount, Generating):
    """`POST /v1/messages`."""

    max_tokens: Count
    stop_sequences: StopStrings | None = None
    output_config: TextOptions = TextOptions()

    @property
    def wanted(self) -> Wanted:
        return Wanted(
            [self.conversation],
            length=self.max_tokens,
            latents=0 if self.thinking.type == "disabled" else self.thinking.budget_tokens,
            stops=tuple(self.stop_sequences or ()),
            format=self.output_config.format,
        )


async def count_tokens(service: Service, http: Request, body: MessagesCount) -> Response:
    """How many tokens the prompt has."""
    service.check_model(body.model)
    return JSONResponse({"input_tokens": len(await service.prompt_ids(body.conversation))})


@dataclass
class Message(Rendering[MessagesRequest]):
    """A message as it grows: blocks of text and thinking, and the events that tell of them."""

    _blocks: list[dict[str, Any]] = field(default_factory=list)

    def add(self, piece: Piece) -> Iterator[Event]:
        match piece:
            case Started():
                yield named("message_start", message=self._message())
            case Text(text=text) if text:
                if not self._blocks or self._blocks[-1]["type"] != "text":
                    yield from self._open({"type": "text", "text": ""})
                self._blocks[-1]["text"] += text
                yield self._delta(type="text_delta", text=text)
            case Invocation(record=record):
                yield from self._open({"type": "thinking", "thinking": "", "signature": ""})
                self._blocks[-1] |= {"thinking": mark(record), "tyler": record}
                yield self._delta(type="thinking_delta", thinking=mark(record))
                yield self._delta(type="signature_delta", signature="")
            case Finished():
                yield from self._close()
                details = self.generation.answers[0].details()
                yield named("message_delta", delta=self._ended(), usage=self._usage(), tyler=details)
                yield named("message_stop")
            case Failed(error=error):
                yield "error", error.body("/v1/messages")

    def _open(self, block: dict[str, Any]) -> Iterator[Event]:
        yield from self._close()
        self._blocks.append(block)
        yield named("content_block_start", index=len(self._blocks) - 1, content_block=dict(block))

    def _close(self) -> Iterator[Event]:
        if self._blocks:
            yield named("content_block_stop", index=len(self._blocks) - 1)

    def _delta(self, **delta: Any) -> Event:
        return named("content_block_delta", index=len(self._blocks) - 1, delta=delta)

    def _ended(self) -> dict[str, Any]:
        """Why the answer ended, and the stop string that ended it, where only one can have."""
        found = ENDS[self.generation.answers[0].done.finish_reason]
        stops = self.body.stop_sequences if found == "stop_sequence" else None
        return {"stop_reason": found, "stop_sequence": stops[0] if stops and len(stops) == 1 else None}

    def _usage(self) -> dict[str, Any]:
        """As messages say it; latents are output tokens."""
        usage, cached = self.generation.usage("input", "output"), self.generation.cached
        return {
            "input_tokens": usage["input_tokens"] - cached,
            "output_tokens": usage["output_tokens"],
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": cached,
        }

    def _message(self) -> dict[str, Any]:
        """The message before its first block."""
        return {
            "id": f"msg_{self.generation.id}",
            "type": "message",
            "role": "assistant",
            "model": self.service.settings.name,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": self._usage(),
        }

    def whole(self) -> dict[str, Any]:
        details = self.generation.answers[0].details()
        return self._message() | self._ended() | {"content": self._blocks, "tyler": details}


def named(kind: str, **content: Any) -> Event:
    """An event whose content says its name too."""
    return kind, {"type": kind, **content}
