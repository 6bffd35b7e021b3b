"""A server process: sockets, signals and the end."""

import asyncio
import gc
import socket
import sys
from types import FrameType
from typing import Any, cast

import uvicorn
from starlette.applications import Starlette
from uvicorn.protocols.http.h11_impl import H11Protocol

from tyler.reasoners.reasoner import Servable
from tyler.reasoners.registry import Loaded
from tyler.serving.app import create_app
from tyler.serving.guard import is_local
from tyler.serving.service import Service
from tyler.serving.settings import ServerSettings

MOST_HEAD = 64 * 2**10
"""Bytes of a request's headers."""
IDLE_SECONDS, READ_SECONDS = 30.0, 60.0
"""How long a client has for its headers, and to read what it was sent."""


class Server(uvicorn.Server):
    """Ends at a signal, once the answers in flight are finished, and where its engine is lost."""

    def __init__(self, app: Starlette, settings: ServerSettings) -> None:
        limits: dict[str, Any] = {
            "h11_max_incomplete_event_size": MOST_HEAD,
            "timeout_keep_alive": IDLE_SECONDS,
            "timeout_graceful_shutdown": settings.drain_seconds,
        }
        quiet: dict[str, Any] = {"log_config": None, "access_log": False, "server_header": False}
        super().__init__(uvicorn.Config(app, http=ImpatientProtocol, ws="none", **limits, **quiet))
        self._service = cast(Service, app.state.service)

    async def on_tick(self, counter: int) -> bool:
        """Called ten times a second; True ends the server."""
        return await super().on_tick(counter) or self._service.dispatcher.lost is not None

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """A signal came: take nothing new and finish what is in flight; at the second one, end at once."""
        self.force_exit, self.should_exit = self.should_exit, True


class ImpatientProtocol(H11Protocol):
    """A connection that must say what it wants: at its start, and again after each answer.

    uvicorn's `timeout_keep_alive` begins with the connection, and ends with the headers of a request, not with their
    first byte.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)

    def data_received(self, data: bytes) -> None:
        self.conn.receive_data(data)
        self.handle_events()


def run(loaded: Loaded, settings: ServerSettings, listening: socket.socket) -> None:
    """Serve a loaded model until a signal ends it. Raises SystemExit where the engine cannot be revived."""
    app = create_app(cast(Servable, loaded.reasoner), settings, loaded.weights)
    gc.collect()
    gc.freeze()  # walking what has been loaded would hold up every answer
    announce(settings, listening)
    Server(app, settings).run([listening])
    if (lost := cast(Service, app.state.service).dispatcher.lost) is not None:
        sys.exit(f"tyler: {lost}; this process ends so that its supervisor starts it again")


def announce(settings: ServerSettings, listening: socket.socket) -> None:
    """Say where a server listens, and whether it is open to others."""
    if not settings.api_keys and not is_local(settings.host):
        print(f"tyler: {settings.host} is open to the network without an API key (--api-key-file)", file=sys.stderr)
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    address = f"http://{host}:{listening.getsockname()[1]}"
    print(f"serving {settings.name} at {address}/v1, its page at {address}/, Ctrl-C ends it", flush=True)


def listen(settings: ServerSettings) -> socket.socket:
    """A socket at the address. Raises OSError where it cannot be had."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    both = settings.host == "::" and socket.has_dualstack_ipv6()  # every address, of the older kind too
    try:
        address = (settings.host, settings.port)
        listening = socket.create_server(address, family=family, backlog=2048, dualstack_ipv6=both)
    except OSError as error:
        why = str(error.strerror).partition(" (while")[0]  # Python adds the address
        raise OSError(f"cannot listen at {settings.host}:{settings.port}: {why}; choose another --port") from error
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux cuts off who reads nothing of what is still to be sent
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(1000 * READ_SECONDS))
    return listening
