"""Who may ask, how much, and how slowly: the middleware in front of everything. Plain ASGI.

A request passes when its Host is one of the server's names (against DNS rebinding), its Origin is the server's own page
or one that was allowed, it carries the key where there is one, and its whole body came in time and is not too large.
What answers it is cancelled when its client goes.
"""

import asyncio
import logging
import re
import secrets
import time
from contextlib import ExitStack

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tyler.engine.shared_engine import DecodingError
from tyler.serving.errors import ApiError, answer_to
from tyler.serving.metrics import Metrics
from tyler.serving.settings import ServerSettings

OPEN = ("/health", "/health/live", "/health/ready")
"""What needs no key and no name: those who look after servers ask it, by any address. The page needs no key either."""
QUIET = (*OPEN, "/metrics")
"""What is asked so often that the access log has it under DEBUG."""
BODY_SECONDS = 30.0
"""How long a client has to send a body."""
BODIES = 16
"""Bodies of the largest size that may be on their way at once; beyond that they are refused with 429."""
REQUEST_ID = re.compile(r"[\w.:-]{1,128}", re.ASCII)
HOST = re.compile(r"\[?(.*?)\]?(:\d*)?")
"""The name or the address in a Host."""
NO_ANSWER = 499
"""The status of a request whose client went away before it was answered."""
LOCAL = frozenset({"localhost", "127.0.0.1", "::1"})

logger = logging.getLogger(__name__)
access = logging.getLogger("tyler.access")


class Guard:
    """Lets through what is allowed, names every request, and counts the answers by route.

    What the application puts on a request's `state.opened` is closed when the request ends, however it does.
    """

    def __init__(self, app: ASGIApp, settings: ServerSettings, metrics: Metrics) -> None:
        self._app, self._settings, self._metrics = app, settings, metrics
        self._arriving = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        id, status, started = headers.get("x-request-id", ""), NO_ANSWER, time.perf_counter()
        if not REQUEST_ID.fullmatch(id):
            id = f"req-{secrets.token_hex(12)}"
        scope.setdefault("state", {}).update(request_id=id, opened=ExitStack())
        # HEAD is GET for the application; the server omits the answer's body.
        inner = {**scope, "method": "GET" if scope["method"] == "HEAD" else scope["method"]}

        async def named(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(raw=message["headers"])["x-request-id"] = id
            await send(message)

        try:
            body = await self._admitted(scope, headers, receive)
            await answer(self._app, inner, body, receive, named)
        except Exception as error:
            if not isinstance(error, (ApiError, DecodingError)):
                logger.exception("request %s failed: %s: %s", id, type(error).__name__, error)
            if status == NO_ANSWER:  # nothing was sent yet
                await answer_to(error).response(scope["path"])(scope, receive, named)
        finally:
            scope["state"]["opened"].close()
            route = getattr(inner.get("route"), "path", "other")
            self._metrics.requests.labels(route, str(status)).inc()
            client, key = (scope["client"] or ["-"])[0], scope["state"].get("key", "-")
            line = f'{client} {key} "{scope["method"]} {route}" {status} {time.perf_counter() - started:.3f}s {id}'
            access.log(logging.DEBUG if scope["path"] in QUIET else logging.INFO, line)

    async def _admitted(self, scope: Scope, headers: Headers, receive: Receive) -> bytes:
        """The body of a request that is allowed. Raises ApiError for any other."""
        path = scope["path"]
        if path not in OPEN:
            self._check_origin(headers)
        if self._settings.api_keys and path not in (*OPEN, "/") and not path.startswith("/page/"):
            scope["state"]["key"] = self._key_of(headers)
        length, most = headers.get("content-length", "0"), self._settings.max_body
        if not length.isdecimal() or int(length) > most:
            raise too_large(most)
        try:
            async with asyncio.timeout(BODY_SECONDS):
                return await self._read(receive, most)
        except TimeoutError:
            message = f"the body did not come within {BODY_SECONDS:g} seconds"
            raise ApiError(408, message, headers={"Connection": "close"}) from None

    def _check_origin(self, headers: Headers) -> None:
        host, origin = headers.get("host", ""), headers.get("origin")
        if not answers_to(self._settings, HOST.fullmatch(host.lower())[1]):  # type: ignore[index]
            raise ApiError(403, f"the host {host[:100]!r} is not allowed; start the server with --allow-host")
        if origin is None or {origin, "*"} & {*self._settings.origins} or origin.partition("://")[2] == host:
            return
        raise ApiError(403, f"pages of {origin[:100]!r} are not allowed; start the server with --allow-origin")

    def _key_of(self, headers: Headers) -> str:
        """The name of the key that came along. Raises ApiError where none of the server's did."""
        scheme, _, key = headers.get("authorization", "").partition(" ")
        given = (headers.get("x-api-key", "") if scheme.lower() != "bearer" else key).strip().encode()
        # All of them are compared, each in a time that does not tell how much of it was right.
        right = [name for name, own in self._settings.api_keys.items() if secrets.compare_digest(given, own.encode())]
        if not right:
            message = "the API key is missing or wrong; send it as `Authorization: Bearer KEY` or `x-api-key: KEY`"
            raise ApiError(401, message, code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"})
        return right[0]

    async def _read(self, receive: Receive, most: int) -> bytes:
        body = bytearray()
        try:
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ApiError(400, "the client went away before its body had come")
                part = message.get("body", b"")
                body += part
                self._arriving += len(part)
                if len(body) > most:
                    raise too_large(most)
                if self._arriving > BODIES * most:
                    again = {"Retry-After": "1", "Connection": "close"}
                    raise ApiError(429, "too many large bodies come at once; try again in a moment", headers=again)
                if not message.get("more_body", False):
                    return bytes(body)
        finally:
            self._arriving -= len(body)


def too_large(most: int) -> ApiError:
    """The refusal of a body."""
    return ApiError(413, f"the body is larger than {most} bytes", code="too_large", headers={"Connection": "close"})


async def answer(app: ASGIApp, scope: Scope, body: bytes, receive: Receive, send: Send) -> None:
    """Let the application answer a request whose body has been read; it is cancelled when the client goes."""
    first: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def once() -> Message:
        return first.pop() if first else await asyncio.Future()

    async def gone() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    tasks = asyncio.ensure_future(app(scope, once, send)), asyncio.ensure_future(gone())
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        found, _ = await asyncio.gather(*tasks, return_exceptions=True)
    if isinstance(found, Exception):
        raise found


def answers_to(settings: ServerSettings, name: str) -> bool:
    """Whether a request for the host `name` is meant for this server, and not for a domain that was pointed at it.

    Where nothing is given and the server is open to a network, any name will do if clients must send a key, which a
    page of that domain does not know; else addresses and names without a dot, as a container's: no domain is one.
    """
    if settings.hosts or is_local(settings.host):
        own = {host.lower() for host in (*settings.hosts, settings.host)} | LOCAL
        return name in own or "*" in own
    is_domain = "." in name and not name.rpartition(".")[2].isdigit()
    return bool(settings.api_keys) or not is_domain


def is_local(host: str) -> bool:
    """Whether only this machine can reach an address."""
    return host.lower() in LOCAL or host.startswith("127.")
