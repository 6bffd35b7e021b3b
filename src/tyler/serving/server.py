"""A server process: sockets, signals and the end."""

from __future__ import annotations

import asyncio
import gc
import logging
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from types import FrameType
from typing import cast

import uvicorn
from starlette.applications import Starlette
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from tyler.reasoners.reasoner import Servable
from tyler.reasoners.registry import Loaded
from tyler.serving.app import create_app
from tyler.serving.errors import ApiError
from tyler.serving.guard import is_local
from tyler.serving.service import Service
from tyler.serving.settings import ServerSettings

CLOSING_SECONDS = 5
"""How long the last bytes of answers may take, once the answers themselves are done or given up."""
MOST_HEAD = 64 * 2**10
"""Bytes of a request that may come without its line, its headers or a part of its body being complete."""


class EngineLost(RuntimeError):
    """The engine could not be revived: the process must be started again."""


class Server(uvicorn.Server):
    """Drains at the first SIGTERM or SIGINT: not ready, answers in flight finish, then it exits."""

    def __init__(self, app: Starlette, settings: ServerSettings) -> None:
        config = uvicorn.Config(
            app,
            http=protocol(settings.idle_seconds),
            ws="none",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=CLOSING_SECONDS,
        )
        super().__init__(config)
        self._service, self._settings = cast(Service, app.state.service), settings
        self._loop: asyncio.AbstractEventLoop | None = None
        self._draining: asyncio.Task[None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and say where."""
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)

    async def on_tick(self, counter: int) -> bool:
        """Called ten times a second; True ends the server: at a signal, and where its engine is lost."""
        return await super().on_tick(counter) or self._service.lost is not None

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """A signal came."""
        if self._service.draining or self._loop is None:
            super().handle_exit(sig, frame)
            return
        self._service.draining = True
        self._loop.call_soon_threadsafe(self._begin_to_drain)

    def _begin_to_drain(self) -> None:
        self._draining = asyncio.get_running_loop().create_task(self._drain())

    async def _drain(self) -> None:
        """Wait for the answers in flight, but not for ever."""
        until = time.monotonic() + self._settings.drain_seconds
        while self._service.open and time.monotonic() < until:
            await asyncio.sleep(0.02)
        self.should_exit = True


class ImpatientProtocol(HttpToolsProtocol):
    """A connection that must say what it wants: at its start, and again after each answer.

    It is closed when the headers of the next request do not come within `idle_seconds`, or are longer than MOST_HEAD:
    the parser would gather them without end, and copy them all with each part that comes.
    """

    idle_seconds: float

    _unread = 0
    """Bytes that are not yet part of a request's complete headers or of its body."""

    def data_received(self, data: bytes) -> None:
        self._unread += len(data)
        super().data_received(data)
        if self._unread > MOST_HEAD:
            self._refuse(ApiError(431, f"the request's headers are longer than {MOST_HEAD} bytes", code="too_large"))

    def on_headers_complete(self) -> None:
        self._unread = 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._unread = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._unread = 0
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        self._refuse(ApiError(400, "this is not HTTP as the server understands it", code="invalid_http"))

    def _refuse(self, error: ApiError) -> None:
        """Answer with an error, unless another answer is on its way, and close the connection."""
        if self.transport.is_closing():
            return
        answering = self.cycle is not None and self.cycle.response_started and not self.cycle.response_complete
        if not answering and not self.pipeline:
            self.transport.write(as_http(error))
        self.transport.close()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_request()

    def on_response_complete(self) -> None:
        self._impatience.cancel()
        self._await_request()  # before a request that has come already begins
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._impatience.cancel()
        super().connection_lost(exc)

    def _await_request(self) -> None:
        self._answered = self.cycle
        self._impatience = self.loop.call_later(self.idle_seconds, self._close_if_silent)

    def _close_if_silent(self) -> None:
        if self.cycle is self._answered:  # no request since
            self.transport.close()


def protocol(idle_seconds: float) -> type[ImpatientProtocol]:
    """The protocol of a server; uvicorn takes a class."""
    return type("Protocol", (ImpatientProtocol,), {"idle_seconds": idle_seconds})


def as_http(error: ApiError) -> bytes:
    """An error as a whole answer, for where no application is asked."""
    body = error.encoded()
    head = f"HTTP/1.1 {error.status} {HTTPStatus(error.status).phrase}\r\nconnection: close\r\n"
    return f"{head}content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body


def run(loaded: Loaded, settings: ServerSettings, listening: socket.socket) -> None:
    """Serve a loaded model until a signal ends it.

    Raises EngineLost where the engine cannot be revived: a supervisor starts the process again.
    """
    app = create_app(cast(Servable, loaded.reasoner), settings, loaded.weights)
    server = Server(app, settings)
    forget_what_stays()
    announce(settings, listening)
    server.run([listening])
    if (lost := cast(Service, app.state.service).lost) is not None:
        raise EngineLost(f"{lost}; this process ends so that its supervisor starts it again")


@contextmanager
def logging_to_stderr(level: str) -> Iterator[None]:
    """Within it, what happens is said on stderr, from this level on."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    loggers = {"tyler": level.upper(), "uvicorn.error": "WARNING"}
    for name, least in loggers.items():
        logging.getLogger(name).addHandler(handler)
        logging.getLogger(name).setLevel(least)
    try:
        yield
    finally:
        for name in loggers:
            logging.getLogger(name).removeHandler(handler)
            logging.getLogger(name).setLevel(logging.NOTSET)


def forget_what_stays() -> None:
    """Take what has been loaded out of the garbage collector's sight: walking it would hold up every answer."""
    gc.collect()
    gc.freeze()


def announce(settings: ServerSettings, listening: socket.socket) -> None:
    """Say where a server listens, and whether it is open to others."""
    if not settings.api_keys and not is_local(settings.host):
        print(f"tyler: {settings.host} is open to the network without an API key (--api-key-file)", file=sys.stderr)
    port = listening.getsockname()[1]
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    address = f"http://{host}:{port}"
    print(f"serving {settings.name} at {address}/v1, its page at {address}/, Ctrl-C ends it", flush=True)


def listen(settings: ServerSettings) -> socket.socket:
    """A socket at the address. Raises OSError where it cannot be had.

    Linux cuts off its connections to who reads nothing of what is still to be sent.
    """
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    both = settings.host == "::" and socket.has_dualstack_ipv6()  # every address, of the older kind too
    try:
        address = (settings.host, settings.port)
        listening = socket.create_server(address, family=family, backlog=2048, dualstack_ipv6=both)
    except OSError as error:
        raise OSError(f"cannot listen at {settings.host}:{settings.port}: {error}; choose another --port") from error
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(1000 * settings.read_seconds))
    return listening
