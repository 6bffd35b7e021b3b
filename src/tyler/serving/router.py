"""One address before several replicas: by the hash of its prompt, a request goes to the same one each time.

Prompts are shared inside one engine, and the `n` samples of a request stay together. A replica that is full or gone
passes its prompts on, and only its own: every prompt has an order of all replicas (highest random weight, Thaler and
Ravishankar 1998). Answers pass through as they come. A client that goes is gone for its replica too.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from urllib.parse import quote

import aiohttp
from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send
from yarl import URL

from tyler.serving import page
from tyler.serving.errors import ApiError, ClientGone
from tyler.serving.event_stream import cancelled, data, until_disconnect
from tyler.serving.guard import Guard
from tyler.serving.replicas import Replica
from tyler.serving.settings import ServerSettings

CONNECT_SECONDS = 5.0
POLLED_SECONDS = 5.0
KEPT_SECONDS = 2.0
"""How long a connection to a replica waits for its next request: less than the replica's own 5, or a request could be
sent into one that is being closed."""
PROMPTS = ("messages", "prompt", "input", "prompt_ids", "origin")
"""Where a body has its prompt."""
OWN_HEADERS = frozenset(
    {"host", "authorization", "origin", "connection", "content-length", "transfer-encoding", "date"}
)
"""What belongs to one of the two connections, and is not passed on."""


class Failed(Exception):
    """A replica that did not answer, or not to the end."""


class RouterMetrics:
    """What the router counts itself."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        labels = ("route", "status")
        self.requests = Counter(
            "tyler_router_requests", "Requests by what they were answered", labels, registry=registry
        )
        self.failed = Counter("tyler_router_failures", "Requests whose replica failed", registry=registry)
        self.ready = Gauge("tyler_replicas_ready", "Replicas that take requests", registry=registry)
        self.restarts = Gauge("tyler_replicas_restarted", "Replicas that were started again", registry=registry)


class Router:
    """Passes requests on to replicas. `open` counts those on their way, `draining` says that no more are taken."""

    def __init__(self, replicas: Sequence[Replica], settings: ServerSettings, key: str) -> None:
        self.replicas, self.settings, self.metrics = replicas, settings, RouterMetrics()
        self.open, self.draining = 0, False
        self._key = key
        self._session: aiohttp.ClientSession | None = None

    @property
    def session(self) -> aiohttp.ClientSession:
        assert self._session is not None, "nobody asks before the start"
        return self._session

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[None]:
        """While this lasts, replicas can be asked, and are looked after."""
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS)
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=KEPT_SECONDS)
        async with aiohttp.ClientSession(timeout=timeout, connector=connector, auto_decompress=False) as self._session:
            caring = [asyncio.create_task(one.look_after(self.is_ready)) for one in self.replicas]
            try:
                yield
            finally:
                await cancelled(*caring)

    async def is_ready(self, replica: Replica) -> bool:
        """Whether a replica says so."""
        try:
            async with asyncio.timeout(POLLED_SECONDS), self.session.get(f"{replica.url}/health/ready") as answer:
                return answer.status == 200
        except (aiohttp.ClientError, OSError, TimeoutError):
            return False

    @property
    def ready(self) -> bool:
        """Whether new requests are welcome."""
        return not self.draining and any(one.ready for one in self.replicas)

    # -- requests ------------------------------------------------------------------------------------------------

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, whose body the guard has read."""
        request = Request(scope, receive)
        body = await request.body()
        if self.draining:
            raise ApiError(503, "the server is shutting down", code="shutting_down", headers={"Retry-After": "5"})
        self.open += 1
        work = asyncio.create_task(self._pass_on(request, body, send))
        listening = asyncio.create_task(until_disconnect(receive))
        try:
            await asyncio.wait({work, listening}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                raise ClientGone
            work.result()
        finally:
            self.open -= 1
            await cancelled(work, listening)

    async def _pass_on(self, request: Request, body: bytes, send: Send) -> None:
        """To the first replica in the prompt's order that takes it."""
        order = [one for one in ordered(self.replicas, prompt_of(body)) if one.ready]
        for last, replica in enumerate(order, start=1 - len(order)):
            try:
                if await self._asked(replica, request, body, send, may_refuse=bool(last)):
                    return
            except aiohttp.ClientConnectorError:  # it never got the request: another may have it
                replica.ready = False
            except (aiohttp.ClientError, OSError) as error:
                replica.ready = False
                self.metrics.failed.inc()
                message = f"the replica that had this request failed ({type(error).__name__}); send it again"
                raise ApiError(502, message, code="replica_failed", headers={"Retry-After": "1"}) from error
        raise ApiError(
            503, "no replica is ready; try again in a moment", code="not_ready", headers={"Retry-After": "2"}
        )

    async def _asked(self, replica: Replica, request: Request, body: bytes, send: Send, *, may_refuse: bool) -> bool:
        """Pass a replica's answer on; False where it is full and another may be asked."""
        headers = {name: value for name, value in request.headers.items() if name not in OWN_HEADERS}
        headers["x-request-id"] = request.state.request_id
        if not page.is_open(request.url.path):  # who asks for the page's files has shown no key
            headers["Authorization"] = f"Bearer {self._key}"
        target = target_of(replica, request.scope)
        async with self.session.request(request.method, target, data=body or None, headers=headers) as answer:
            if answer.status == 429 and may_refuse:
                return False
            await send(started(answer))
            try:
                async for part in answer.content.iter_any():
                    await send({"type": "http.response.body", "body": part, "more_body": True})
            except aiohttp.ClientError:
                replica.ready = False
                self.metrics.failed.inc()
                if not answer.content_type.startswith("text/event-stream"):
                    raise Failed from None  # the connection breaks, for the answer is not whole
                error = ApiError(502, "the replica that gave this answer failed; ask again", code="replica_failed")
                await send({"type": "http.response.body", "body": data(error.body()), "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
            return True

    # -- how it fares --------------------------------------------------------------------------------------------

    async def exposed(self) -> bytes:
        """The metrics of all replicas, each line with its replica's number, and the router's own.

        They are not added up: a counter of a replica that was started again begins at 0, which Prometheus understands
        of a counter and not of a sum.
        """
        self.metrics.ready.set(sum(one.ready for one in self.replicas))
        self.metrics.restarts.set(sum(one.restarts for one in self.replicas))
        texts = await asyncio.gather(*(self._metrics_of(one) for one in self.replicas))
        return merged(texts).encode() + generate_latest(self.metrics.registry)

    async def _metrics_of(self, replica: Replica) -> str:
        with suppress(aiohttp.ClientError, OSError, TimeoutError):
            headers = {"Authorization": f"Bearer {self._key}"}
            async with (
                asyncio.timeout(POLLED_SECONDS),
                self.session.get(f"{replica.url}/metrics", headers=headers) as answer,
            ):
                return await answer.text()
        return ""


def target_of(replica: Replica, scope: Scope) -> URL:
    """The replica's address of what was asked for, letter by letter: the guard has looked at just this path."""
    path = scope.get("raw_path") or quote(scope["path"]).encode()
    query = scope.get("query_string", b"")
    return URL(
        f"{replica.url}{path.decode('latin-1')}" + (f"?{query.decode('latin-1')}" if query else ""), encoded=True
    )


def started(answer: aiohttp.ClientResponse) -> Message:
    """The head of an answer as it is passed on."""
    kept = [(name.lower(), value) for name, value in answer.headers.items() if name.lower() not in OWN_HEADERS]
    if (length := answer.headers.get("content-length")) is not None:
        kept.append(("content-length", length))
    encoded = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in kept]
    return {"type": "http.response.start", "status": answer.status, "headers": encoded}


def prompt_of(body: bytes) -> bytes:
    """What decides about a request's replica: its prompt, or whatever it holds where it has none."""
    try:
        content = json.loads(body)
    except (ValueError, RecursionError):
        return body
    if not isinstance(content, dict):
        return body
    found = [content[name] for name in PROMPTS if name in content]
    return json.dumps(found, sort_keys=True).encode() if found else body


def ordered(replicas: Sequence[Replica], prompt: bytes) -> list[Replica]:
    """All replicas, in the order in which this prompt prefers them."""
    return sorted(replicas, key=lambda one: hashlib.sha256(b"%d:" % one.number + prompt).digest())


def merged(texts: Sequence[str]) -> str:
    """Several expositions as one, families together, with a label `replica` on every line."""
    comments: dict[str, list[str]] = {}
    lines: dict[str, list[str]] = {}
    for number, text in enumerate(texts):
        family = ""
        for line in text.splitlines():
            if line.startswith("#"):
                family = line.split(" ")[2]
                if line not in comments.setdefault(family, []):
                    comments[family].append(line)
                continue
            name, _, value = line.rpartition(" ")
            bare, brace, labels = name.partition("{")
            labelled = f'{bare}{{replica="{number}"' + (f",{labels}" if brace else "}")
            lines.setdefault(family, []).append(f"{labelled} {value}")
    return "".join("\n".join([*comments[one], *lines.get(one, [])]) + "\n" for one in comments)


def create_app(router: Router) -> Starlette:
    """The router as an ASGI application behind the same guard as a server of one process."""

    async def live(request: Request) -> Response:
        return JSONResponse({"status": "live"})

    async def ready(request: Request) -> Response:
        states = [{"replica": one.number, "ready": one.ready, "restarts": one.restarts} for one in router.replicas]
        status = "ready" if router.ready else "draining" if router.draining else "no replica is ready"
        return JSONResponse({"status": status, "replicas": states}, 200 if router.ready else 503)

    async def metrics(request: Request) -> Response:
        return Response(await router.exposed(), headers={"content-type": "text/plain; version=0.0.4; charset=utf-8"})

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with router.connected():
            yield

    async def refused(request: Request, error: Exception) -> Response:
        assert isinstance(error, ApiError)
        return error.response()

    async def gone(request: Request, error: Exception) -> Response:
        return Response(status_code=499)

    routes = [
        Route("/health/live", live),
        Route("/health/ready", ready),
        Route("/metrics", metrics),
        Route("/{path:path}", Passing(router)),
    ]
    app = Starlette(routes=routes, lifespan=lifespan, exception_handlers={ApiError: refused, ClientGone: gone})
    app.state.service = router
    app.add_middleware(Guard, settings=router.settings, metrics=router.metrics)
    return app


class Passing:
    """The router as the endpoint of a route, for every method."""

    def __init__(self, router: Router) -> None:
        self._router = router

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._router(scope, receive, send)
