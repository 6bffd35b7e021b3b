"""`POST /v1/chat/completions`: invocations appear as reasoning, where they happen, so that clients show them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, Self, TypeVar

from pydantic import model_validator

from tyler.engine.request import TokenEvent
from tyler.serving.errors import ApiError
from tyler.serving.event_stream import Event, Rendering
from tyler.serving.generation import Answer, Failed, Finished, Invocation, Piece, Started, Text, mark
from tyler.serving.schema import Alternatives, Count, Effort, Sampled, Turns, Wanted, conversation_of
from tyler.serving.scoring import entries_of

Choosing = TypeVar("Choosing", bound=Sampled)


class ChatRequest(Sampled):
    """An assistant's turn at the end is the beginning of the answer."""

    messages: Turns
    max_tokens: Count | None = None
    max_completion_tokens: Count | None = None
    reasoning_effort: Effort | None = None
    logprobs: bool = False
    top_logprobs: Alternatives | None = None

    @model_validator(mode="after")
    def _goes_together(self) -> Self:
        if self.max_tokens is not None and self.max_completion_tokens is not None:
            raise ApiError(400, "max_tokens and max_completion_tokens say the same; send one", param="max_tokens")
        if self.top_logprobs is not None and not self.logprobs:
            raise ApiError(400, "top_logprobs needs logprobs=true", param="top_logprobs")
        return self

    @property
    def wanted(self) -> Wanted:
        return self.sampled(
            [conversation_of(self.messages)],
            length=self.max_completion_tokens or self.max_tokens,
            length_field="max_tokens" if self.max_completion_tokens is None else "max_completion_tokens",
            effort=self.reasoning_effort,
            alternatives=self.top_logprobs or 0,
        )


class Choices(Rendering[Choosing]):
    """One object with a choice for each answer, or chunks with some of each: what chats and completions have."""

    last, prefix, kind, chunk_kind = b"data: [DONE]\n\n", "chatcmpl", "chat.completion", "chat.completion.chunk"

    @abstractmethod
    def part(self, answer: Answer, piece: Piece) -> dict[str, Any] | None:
        """A choice of a chunk; None for a piece of which nothing is said."""

    @abstractmethod
    def choice(self, answer: Answer) -> dict[str, Any]:
        """A choice of the one object, but for what all of them have."""

    def add(self, piece: Piece) -> Iterator[Event]:
        if isinstance(piece, Failed):
            yield None, piece.error.body()
        elif (shown := self.part(self.generation.answers[piece.index], piece)) is not None:
            yield None, self._chunk([shown])

    def ended(self) -> Iterator[Event]:
        if self.body.includes_usage:
            yield None, self._chunk([]) | {"usage": self.generation.usage("prompt", "completion")}

    def whole(self) -> dict[str, Any]:
        choices = [
            {"index": answer.index, "finish_reason": answer.finish_reason, "tyler": answer.details()}
            | self.choice(answer)
            for answer in self.generation.answers
        ]
        return self._envelope(self.kind) | {"choices": choices, "usage": self.generation.usage("prompt", "completion")}

    def _chunk(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        """An object of a stream; where usage is asked for, all but the last have none."""
        usage = {"usage": None} if self.body.includes_usage else {}
        return self._envelope(self.chunk_kind) | usage | {"choices": choices}

    def _envelope(self, kind: str) -> dict[str, Any]:
        id, created = f"{self.prefix}-{self.generation.id}", int(self.generation.started)
        return {"id": id, "object": kind, "created": created, "model": self.model}


class Chat(Choices[ChatRequest]):
    """Text as content, and operators as reasoning for people, where they were called."""

    def choice(self, answer: Answer) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": answer.done.text, "refusal": None}
        if answer.invocations:
            message["reasoning_content"] = "\n".join(map(mark, answer.invocations))
        return {"message": message, "logprobs": self._logprobs(answer.tokens)}

    def part(self, answer: Answer, piece: Piece) -> dict[str, Any]:
        shown = part(answer, piece)
        return shown | {"logprobs": self._logprobs(piece.tokens)} if isinstance(piece, Text) else shown

    def _logprobs(self, tokens: Sequence[TokenEvent]) -> dict[str, Any] | None:
        """log p of tokens, and of the most probable ones at their places, where that is asked for."""
        if not self.body.logprobs:
            return None
        return {"content": entries_of(self.service.tokenizer, tokens), "refusal": None}


def part(answer: Answer, piece: Piece) -> dict[str, Any]:
    """A choice of a chunk. Nothing structured goes into `delta`: clients add up whatever they find there."""
    shown: dict[str, Any] = {"index": answer.index, "delta": {}, "logprobs": None, "finish_reason": None}
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
