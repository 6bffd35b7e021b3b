"""A generation in the words of a protocol: as server-sent events while it grows, or as one object at its end."""

import json
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from fastapi import Request
from fastapi.sse import KEEPALIVE_COMMENT, EventSourceResponse, format_sse_event
from starlette.responses import JSONResponse, Response

from tyler.serving.generation import Failed, Generation, Piece
from tyler.serving.schema import Generating
from tyler.serving.service import Service

Asked = TypeVar("Asked", bound=Generating)
Handler = Callable[[Service, Request, Any], Awaitable[Response]]
"""Answers a request whose body has been read."""

Event = tuple[str | None, dict[str, Any]]
"""A name, where the protocol has names, and a content. Clients of chats read unnamed events only."""


def encoded(event: Event) -> bytes:
    """An event as it is sent."""
    name, content = event
    return format_sse_event(event=name, data_str=json.dumps(content, ensure_ascii=False, separators=(",", ":")))


@dataclass
class Rendering(ABC, Generic[Asked]):
    """A generation in the words of one protocol."""

    service: Service
    body: Asked
    generation: Generation

    @classmethod
    async def answer(cls, service: Service, http: Request, body: Asked) -> Response:
        """An endpoint that answers in the words of this protocol."""
        return await cls(service, body, await service.begin(http, body)).response()

    async def response(self) -> Response:
        """A stream, where the request asks for one, or one object."""
        await self.prepare()
        if self.body.stream:
            headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
            return EventSourceResponse(self.streamed(), headers=headers)
        return JSONResponse(await self.at_once())

    async def prepare(self) -> None:
        """Find out what has to be known before anything is told."""

    @abstractmethod
    def add(self, piece: Piece) -> Iterable[Event]:
        """What a piece of the answers is told by."""

    def ended(self) -> Iterable[bytes]:
        """What a stream ends with, where no answer failed."""
        return ()

    @abstractmethod
    def whole(self) -> dict[str, Any]:
        """The one object, once all pieces were added."""

    async def at_once(self) -> dict[str, Any]:
        """The one object, when all is done. Raises ApiError when the engine failed."""
        async for pieces in self.generation.pieces(streams=False):
            for piece in pieces:
                if isinstance(piece, Failed):
                    raise piece.error
                deque(self.add(piece), maxlen=0)
        return self.whole()

    async def streamed(self) -> AsyncGenerator[bytes, None]:
        async for pieces in self.generation.pieces():
            for piece in pieces:
                for event in self.add(piece):
                    yield encoded(event)
                if isinstance(piece, Failed):
                    return
            if not pieces:  # proxies close a quiet stream, and only a write finds out who has gone
                yield KEEPALIVE_COMMENT
        for last in self.ended():
            yield last
