"""The server on Ray Serve, for several machines: the same FastAPI application, made anew in each of its replicas.

    serve run tyler.serving.cluster:app model=runs/mine replicas=4 gpus=1

A request goes to one replica with all its `n` samples. Answers stream through Ray's proxy, and a client that goes
frees its rows. `Deployment.answer` gives other deployments the same, through a handle with `options(stream=True)`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field
from ray import serve
from starlette.types import Message, Scope

from tyler.evaluation.options import memory_of, router_of
from tyler.serving.settings import InvocationStyle, ServerSettings, log_of


class Arguments(BaseModel):
    """What `serve run tyler.serving.cluster:app KEY=VALUE` takes; settings as those of `tyler serve`."""

    model_config = ConfigDict(extra="forbid")

    model: str
    name: str | None = None
    replicas: int = Field(default=1, ge=1)
    gpus: float = Field(default=0.0, ge=0)
    cpus: float = Field(default=1.0, gt=0)
    method: str | None = None
    router: str | None = None
    budget: int | None = Field(default=None, ge=0)
    memory: str | None = None
    """Of each replica, as 4GB or 512MiB."""
    slots: int = Field(default=32, ge=1)
    max_queue: int = Field(default=128, ge=0)
    max_new_tokens: int = Field(default=2048, ge=1)
    max_body: int = Field(default=4 * 2**20, ge=1)
    invocations: InvocationStyle = "inline"
    log: Path | None = None
    """The audit log of each replica, with its machine and its process in its name."""
    log_text: bool = False
    allow_host: str = ""
    """Names under which the server may be addressed, with commas between them; "*" for any."""
    api_key_file: Path | None = None


class Deployment:
    """A replica: the application, which Ray hands its HTTP requests to, and the same for other deployments."""

    async def answer(self, path: str, body: bytes) -> AsyncIterator[bytes]:
        """The parts of the answer to `POST path`, as they come. Whoever stops listening ends the request.

        Raises ValueError, with the error's JSON, for a request that is refused.
        """
        told: asyncio.Queue[Message] = asyncio.Queue()
        key = self.app.state.service.settings.api_key  # type: ignore[attr-defined]
        task = asyncio.create_task(asked(self.app, path, body, told, key))  # type: ignore[attr-defined]
        task.add_done_callback(lambda _: told.put_nowait({"type": "end"}))
        try:
            refused = False
            while (message := await told.get())["type"] != "end":
                if message["type"] == "http.response.start":
                    refused = message["status"] != 200
                elif refused:
                    raise ValueError(message["body"].decode())
                elif message["body"]:
                    yield message["body"]
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


async def asked(app: Any, path: str, body: bytes, told: asyncio.Queue[Message], key: str | None = None) -> None:
    """One POST request to an ASGI application by hand, with the key where there is one; `told` gets what it sends."""
    first: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Message:
        if first:
            return first.pop()
        return await asyncio.Future()  # whoever asked is there until this task is cancelled

    headers = [(b"host", b"localhost"), (b"content-type", b"application/json")]
    headers.append((b"content-length", str(len(body)).encode()))
    headers += [(b"authorization", f"Bearer {key.strip()}".encode())] if key is not None else []
    scope: Scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": b"",
        "headers": headers,
        "client": None,
        "server": ("localhost", 80),
        "state": {},
    }
    await app(scope, receive, told.put)


def application(
    load: Mapping[str, Any],
    settings: ServerSettings,
    *,
    replicas: int = 1,
    cpus: float = 1.0,
    gpus: float = 0.0,
) -> serve.Application:
    """What `serve.run` takes: `load` are the arguments of `registry.load`, `cpus` and `gpus` those of each replica."""

    def build() -> Any:
        """In a replica: load the model there."""
        from tyler.reasoners import registry
        from tyler.serving.app import create_app

        loaded = registry.load(**load)
        log = settings.log and log_of(settings.log, f"{socket.gethostname()}-{os.getpid()}")
        return create_app(loaded.reasoner, replace(settings, log=log), loaded.weights)  # type: ignore[arg-type]

    deployment: Any = serve.deployment(  # Ray types it as the decorator that it is without a class
        serve.ingress(build)(Deployment),
        name="tyler",
        num_replicas=replicas,
        ray_actor_options={"num_cpus": cpus, "num_gpus": gpus},
        max_ongoing_requests=settings.slots + settings.max_queue,  # beyond it the server itself says 429
        graceful_shutdown_timeout_s=settings.drain_seconds,
    )
    return deployment.bind()


def app(arguments: Arguments) -> serve.Application:
    """The application by its arguments, for `serve run` and Ray's config files."""
    from tyler.serving.server import key_in

    name = arguments.name or Path(arguments.model).name
    settings = ServerSettings(
        host="127.0.0.1",  # Ray's proxy listens; `hosts` says which names are right
        name=name,
        slots=arguments.slots,
        memory=memory_of(arguments.memory),
        max_queue=arguments.max_queue,
        max_new_tokens=arguments.max_new_tokens,
        max_body=arguments.max_body,
        invocations=arguments.invocations,
        log=arguments.log,
        log_text=arguments.log_text,
        hosts=tuple(filter(None, arguments.allow_host.split(","))),
        api_key=None if arguments.api_key_file is None else key_in(arguments.api_key_file),
    )
    load = {
        "location": arguments.model,
        "method": arguments.method,
        "name": name,
        "router": router_of(arguments.router),
        "budget": arguments.budget,
        "max_new_tokens": arguments.max_new_tokens,
        "slots": arguments.slots,
    }
    return application(load, settings, replicas=arguments.replicas, cpus=arguments.cpus, gpus=arguments.gpus)
