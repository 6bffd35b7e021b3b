"""Answers as server-sent events, and clients that go away."""

from __future__ import annotations

import asyncio
import json
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterable, Sequence
from typing import Any, Generic, TypeVar

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from tyler.serving.bodies import read, takes
from tyler.serving.errors import ClientGone
from tyler.serving.generation import Failed, Generation, Piece
from tyler.serving.schema import Body, Generating
from tyler.serving.service import Service
from tyler.serving.settings import ServerSettings

Found = TypeVar("Found")
Asked = TypeVar("Asked", bound=Generating)

PING = b": ping\n\n"
"""A comment, which clients skip: it keeps proxies from closing a quiet stream, and finds out who has gone."""

DONE = b"data: [DONE]\n\n"
"""The end of a chat's or completion's stream."""


Event = tuple[str | None, dict[str, Any]]
"""A name, where the protocol has names, and a content. Clients of chats read unnamed events only."""


def encoded(event: Event) -> bytes:
    """An event as it is sent."""
    name, content = event
    head = b"" if name is None else b"event: " + name.encode() + b"\n"
    return head + b"data: " + json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"


class Rendering(ABC, Generic[Asked]):
    """A generation in the words of one protocol: as events while it grows, and as one object at its end."""

    last = b""
    """What ends a stream, after its last event."""

    def __init__(self, service: Service, body: Asked, generation: Generation) -> None:
        self.service, self.body, self.generation = service, body, generation
        self.model, self.style = service.settings.name, service.settings.invocations

    async def prepare(self) -> None:
        """Find out what has to be known before anything is told."""

    def begun(self) -> Iterable[Event]:
        """What is told before the first piece."""
        return ()

    @abstractmethod
    def add(self, piece: Piece) -> Iterable[Event]:
        """What a piece of the answers is told by."""

    def ended(self) -> Iterable[Event]:
        """What is told after the last piece, where no answer failed."""
        return ()

    @abstractmethod
    def whole(self, pieces: Sequence[Piece]) -> dict[str, Any]:
        """The one object."""

    async def at_once(self) -> dict[str, Any]:
        """The one object, when all is done. Raises DecodingError when the engine failed."""
        await self.prepare()
        return self.whole(await self.generation.finished(self.style))

    async def streamed(self) -> AsyncGenerator[bytes, None]:
        """Everything that a stream sends."""
        await self.prepare()
        for event in self.begun():
            yield encoded(event)
        async for pieces in self.generation.pieces(self.style):
            for piece in pieces:
                for event in self.add(piece):
                    yield encoded(event)
                if isinstance(piece, Failed):
                    return
        for event in self.ended():
            yield encoded(event)
        if self.last:
            yield self.last


async def until_disconnect(receive: Receive) -> None:
    """Return when the client has gone; its body must have been read."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def unless_disconnected(request: Request, work: Coroutine[Any, Any, Found]) -> Found:
    """What the work finds. It is cancelled when the client goes first. Raises ClientGone then."""
    task, listening = asyncio.create_task(work), asyncio.create_task(until_disconnect(request.receive))
    try:
        await asyncio.wait({task, listening}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGone
        return task.result()
    finally:
        await cancelled(task, listening)


async def cancelled(*tasks: asyncio.Task[Any]) -> None:
    """Cancel what is not done, and wait until it has cleaned up."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def answered(http: Request, rendering: Rendering[Any]) -> Response:
    """A generation as a stream, where its request asks for one, or as one object; it is closed in any case."""
    generation = rendering.generation
    if rendering.body.stream:
        return EventStream(rendering.streamed(), generation.close, rendering.service.settings)
    try:
        return JSONResponse(await unless_disconnected(http, rendering.at_once()))
    finally:
        await generation.close()


def generating(
    service: Service, path: str, kind: type[Body], rendering: Callable[[Service, Any, Generation], Rendering[Any]]
) -> APIRouter:
    """An endpoint that answers a conversation."""
    router = APIRouter()

    @router.post(path, **takes(kind))
    async def answer(http: Request) -> Response:
        body: Any = await read(kind, http, service.settings.unknown_fields)
        generation = await service.begin(http, body, [body.conversation])
        return await answered(http, rendering(service, body, generation))

    return router


class EventStream(Response):
    """Sends events as they come, with a ping in quiet times, until they end or the client goes, or does not read.

    `close` is called in any case, once the source has been closed.
    """

    media_type = "text/event-stream"

    def __init__(
        self, source: AsyncGenerator[bytes, None], close: Callable[[], Awaitable[None]], settings: ServerSettings
    ) -> None:
        super().__init__(headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._source, self._close = source, close
        self._ping_seconds, self._read_seconds = settings.ping_seconds, settings.read_seconds
        self._quiet = True

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        tasks = [
            asyncio.create_task(work) for work in (self._stream(send), self._ping(send), until_disconnect(receive))
        ]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                if task.done():
                    task.result()
        except OSError:
            pass  # the client went while it was sent something, or has not read for too long
        finally:
            await cancelled(*tasks)
            await self._source.aclose()
            await self._close()

    async def _stream(self, send: Send) -> None:
        """Everything there is to say, and the end."""
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async for event in self._source:
            self._quiet = False
            await self._send_part(send, event)
        await self._send_part(send, b"", more=False)

    async def _ping(self, send: Send) -> None:
        """A comment whenever nothing was said for a while."""
        while True:
            self._quiet = True
            await asyncio.sleep(self._ping_seconds)
            if self._quiet:
                await self._send_part(send, PING)

    async def _send_part(self, send: Send, part: bytes, *, more: bool = True) -> None:
        """Send some of the body. Raises TimeoutError where the client does not read what it was sent before."""
        async with asyncio.timeout(self._read_seconds):
            await send({"type": "http.response.body", "body": part, "more_body": more})
