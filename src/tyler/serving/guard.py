"""Who may ask, how much, and how slowly: the middleware in front of everything. Plain ASGI.

A request passes when its Host is one of the server's names (against DNS rebinding), its Origin is the server's own page
or one that was allowed, it carries the key where there is one, and its whole body came in time and is not too large.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import ipaddress
import logging
import re
import secrets
import time
from urllib.parse import SplitResult, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tyler.serving import page
from tyler.serving.errors import ApiError, ClientGone
from tyler.serving.metrics import Metrics
from tyler.serving.settings import ServerSettings

OPEN = ("/health", "/health/live", "/health/ready")
"""What needs no key and no name, besides the page's files: those who look after servers ask it, by any address."""

QUIET = (*OPEN, "/metrics")
"""What is asked so often that the access log has it under DEBUG."""

BODIES = 16
"""Bodies of the largest size that may be on their way at once; beyond that they are refused with 429."""

REQUEST_ID = re.compile(r"[\w.:-]{1,128}", re.ASCII)
NO_ANSWER = 499
"""The status of a request whose client went away before it was answered."""
LOCAL = frozenset({"localhost", "127.0.0.1", "::1"})

logger = logging.getLogger(__name__)
access = logging.getLogger("tyler.access")


class Guard:
    """Lets through what is allowed, names every request, and counts the answers by route."""

    def __init__(self, app: ASGIApp, settings: ServerSettings, metrics: Metrics) -> None:
        self._app, self._settings, self._metrics = app, settings, metrics
        self._keys = {name: digest(key.strip()) for name, key in settings.api_keys.items()}
        self._arriving = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        given = headers.get("x-request-id", "")
        id = given if REQUEST_ID.fullmatch(given) else f"req-{secrets.token_hex(12)}"
        scope.setdefault("state", {})["request_id"] = id
        answered, started = Answered(send, id), time.perf_counter()
        try:
            await self._answer(scope, headers, receive, answered)
        finally:
            route = answered.route
            self._metrics.requests.labels(route, str(answered.status)).inc()
            client, key = (scope["client"] or ["-"])[0], scope["state"].get("key", "-")
            line = f'{client} {key} "{scope["method"]} {route}" {answered.status} {time.perf_counter() - started:.3f}s'
            access.log(logging.DEBUG if scope["path"] in QUIET else logging.INFO, "%s %s", line, id)

    async def _answer(self, scope: Scope, headers: Headers, receive: Receive, send: Answered) -> None:
        path = scope["path"]
        try:
            if path not in OPEN:
                self._check_origin(headers)
            if path not in OPEN and not page.is_open(path) and self._keys:
                scope["state"]["key"] = self._key_of(headers)
            receive = await self._with_body(headers, receive)
        except ApiError as error:
            await error.response(path)(scope, receive, send)
            return
        # HEAD is GET for the application; the server omits the answer's body.
        inner = {**scope, "method": "GET"} if scope["method"] == "HEAD" else scope
        try:
            await self._app(inner, receive, send)
        except Exception as error:
            if isinstance(error.__cause__, ClientGone):
                return  # in the middle of a stream, whose client has gone
            id = scope["state"]["request_id"]
            logger.exception("request %s failed: %s: %s", id, type(error).__name__, error)
            if send.status == NO_ANSWER:
                await ApiError(500, f"the server failed: {type(error).__name__}").response(path)(scope, receive, send)
        finally:
            send.route = getattr(inner.get("route"), "path", "other")

    # -- who -----------------------------------------------------------------------------------------------------

    def _check_origin(self, headers: Headers) -> None:
        host = headers.get("host", "")
        if not answers_to(self._settings, parts_of(f"//{host}").hostname or ""):
            raise ApiError(403, f"the host {host[:100]!r} is not allowed; start the server with --allow-host")
        origin = headers.get("origin")
        if origin is None or origin in self._settings.origins or parts_of(origin).netloc == host:
            return
        raise ApiError(403, f"pages of {origin[:100]!r} are not allowed; start the server with --allow-origin")

    def _key_of(self, headers: Headers) -> str:
        """The name of the key that came along. Raises ApiError where none of the server's did."""
        scheme, _, key = headers.get("authorization", "").partition(" ")
        given = digest((headers.get("x-api-key", "") if scheme.lower() != "bearer" else key).strip())
        # Digests of one length, all of them compared, in a time that does not tell how much of a key was right.
        right = [name for name, own in self._keys.items() if hmac.compare_digest(given, own)]
        if not right:
            message = "the API key is missing or wrong; send it as `Authorization: Bearer KEY` or `x-api-key: KEY`"
            raise ApiError(401, message, code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"})
        return right[0]

    # -- how much ------------------------------------------------------------------------------------------------

    async def _with_body(self, headers: Headers, receive: Receive) -> Receive:
        """A `receive` that gives the whole body at once, and then what the client does."""
        length = headers.get("content-length", "0")
        if not length.isdecimal() or int(length) > self._settings.max_body:
            raise self._too_large()
        try:
            async with asyncio.timeout(self._settings.body_seconds):
                body = await self._read(receive)
        except TimeoutError:
            message = f"the body did not come within {self._settings.body_seconds:g} seconds"
            raise ApiError(408, message, headers={"Connection": "close"}) from None
        first: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def replayed() -> Message:
            return first.pop() if first else await receive()

        return replayed

    async def _read(self, receive: Receive) -> bytes:
        parts, size = list[bytes](), 0
        try:
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ApiError(400, "the client went away before its body had come")
                parts.append(message.get("body", b""))
                size, self._arriving = size + len(parts[-1]), self._arriving + len(parts[-1])
                if size > self._settings.max_body:
                    raise self._too_large()
                if self._arriving > BODIES * self._settings.max_body:
                    raise self._too_many()
                if not message.get("more_body", False):
                    return b"".join(parts)
        finally:
            self._arriving -= size

    def _too_many(self) -> ApiError:
        headers = {"Retry-After": "1", "Connection": "close"}
        return ApiError(429, "too many large bodies come at once; try again in a moment", headers=headers)

    def _too_large(self) -> ApiError:
        most = self._settings.max_body
        return ApiError(413, f"the body is larger than {most} bytes", code="too_large", headers={"Connection": "close"})


class Answered:
    """A `send` that adds the request's id to the answer and remembers its status."""

    def __init__(self, send: Send, id: str) -> None:
        self._send, self._id, self.status, self.route = send, id, NO_ANSWER, "other"

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            MutableHeaders(raw=message["headers"])["x-request-id"] = self._id
        await self._send(message)


def digest(key: str) -> bytes:
    """What keys are compared by."""
    return hashlib.sha256(key.encode()).digest()


def answers_to(settings: ServerSettings, name: str) -> bool:
    """Whether a request for the host `name` is meant for this server, and not for a domain that was pointed at it.

    Where nothing is given and the server is open to a network, any name will do if clients must send a key, which a
    page of that domain does not know; else addresses and names without a dot, as a container's: no domain is one.
    """
    if "*" in settings.hosts:
        return True
    if settings.hosts or is_local(settings.host):
        return name in {host.lower() for host in (*settings.hosts, settings.host)} | LOCAL
    return bool(settings.api_keys) or "." not in name or is_address(name)


def is_local(host: str) -> bool:
    """Whether only this machine can reach an address."""
    return ipaddress.ip_address(host).is_loopback if is_address(host) else host.lower() in LOCAL


def is_address(host: str) -> bool:
    """Whether a host is an IP address, and no name."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def parts_of(address: str) -> SplitResult:
    """The parts of an address; all of them empty where it cannot be read."""
    try:
        return urlsplit(address)
    except ValueError:
        return urlsplit("")
