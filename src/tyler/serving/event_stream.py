"""Answers as server-sent events, and clients that go away."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from fastapi import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from tyler.serving.errors import ClientGone
from tyler.serving.generation import Generation
from tyler.serving.settings import ServerSettings

Found = TypeVar("Found")

PING = b": ping\n\n"
"""A comment, which clients skip: it keeps proxies from closing a quiet stream, and finds out who has gone."""

DONE = b"data: [DONE]\n\n"
"""The end of a chat's or completion's stream."""


def data(content: dict[str, Any]) -> bytes:
    """One unnamed event: the only kind that chat clients read."""
    return b"data: " + json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"


def named(event: str, content: dict[str, Any]) -> bytes:
    """One event with a name, as responses have them."""
    return b"event: " + event.encode() + b"\n" + data(content)


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


async def answered(
    http: Request,
    settings: ServerSettings,
    generation: Generation,
    whole: Callable[[], Coroutine[Any, Any, dict[str, Any]]],
    streamed: Callable[[], AsyncGenerator[bytes, None]] | None,
) -> Response:
    """A generation as one object, or as a stream where `streamed` is given; it is closed in any case."""
    if streamed is not None:
        return EventStream(streamed(), generation.close, settings)
    try:
        return JSONResponse(await unless_disconnected(http, whole()))
    finally:
        await generation.close()


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
