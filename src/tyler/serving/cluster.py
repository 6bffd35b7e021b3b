"""The server on Ray Serve, for several machines: the same FastAPI application in each of its replicas.

    serve run tyler.serving.cluster:app model=runs/mine max_replicas=4 gpus=1

Ray starts replicas as load asks for them, restarts those that fail, and spreads requests over them; a request has all
its `n` samples in one.
"""

from __future__ import annotations

import os
import socket
from dataclasses import fields, replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter
from ray import serve

from tyler.evaluation.options import memory_of, router_of
from tyler.serving.settings import ServerSettings, keys_in


class Arguments(BaseModel):
    """What `serve run tyler.serving.cluster:app KEY=VALUE` takes; the rest are the settings of the server itself."""

    model_config = ConfigDict(extra="allow")

    model: str
    method: str | None = None
    router: str | None = None
    dtype: str = "auto"
    memory: str | None = None
    """Of each replica, as 4GB or 512MiB."""
    api_key_file: Path | None = None
    min_replicas: Annotated[int, Field(ge=0)] = 1
    max_replicas: Annotated[int, Field(ge=1)] = 1
    cpus: Annotated[float, Field(gt=0)] = 1.0
    """Of each replica."""
    gpus: Annotated[float, Field(ge=0)] = 0.0

    def server_settings(self) -> ServerSettings:
        """The settings of each replica. Raises ValueError for a key that is neither here nor there."""
        given = dict(self.__pydantic_extra__ or {})
        allowed = sorted({field.name for field in fields(ServerSettings)} - {"host", "port", "memory", "api_keys"})
        if unknown := sorted(given.keys() - set(allowed)):
            raise ValueError(
                f"{unknown[0]} is not a setting; allowed: {', '.join((*Arguments.model_fields, *allowed))}"
            )
        for name in given.keys() & {"hosts", "origins", "aliases"}:
            given[name] = tuple(filter(None, str(given[name]).split(",")))
        keys = {} if self.api_key_file is None else keys_in(self.api_key_file)
        own = {"name": Path(self.model).name, "memory": memory_of(self.memory), "api_keys": keys}
        return TypeAdapter(ServerSettings).validate_python(own | given)


def app(arguments: Arguments) -> serve.Application:
    """The application by its arguments, for `serve run` and Ray's config files.

    A replica is added while more requests run than its rows decode at once; beyond its queue the server says 429.
    """
    settings = arguments.server_settings()
    load: dict[str, Any] = {
        "location": arguments.model,
        "method": arguments.method,
        "name": settings.name,
        "dtype": arguments.dtype,
        "router": router_of(arguments.router),
        "budget": settings.budget,
        "max_new_tokens": settings.max_new_tokens,
        "slots": settings.slots,
    }

    def build() -> Any:
        """In a replica: load the model there."""
        from tyler.reasoners import registry
        from tyler.serving.app import create_app

        loaded = registry.load(**load)
        log = settings.log and of_process(settings.log)
        return create_app(loaded.reasoner, replace(settings, log=log), loaded.weights)  # type: ignore[arg-type]

    class Server:
        """A replica, which Ray starts again where its engine cannot be revived."""

        def check_health(self) -> None:
            lost = self.app.state.service.lost  # type: ignore[attr-defined]
            if lost is not None:
                raise RuntimeError(lost)

    deployment: Any = serve.deployment(  # Ray types it as the decorator that it is without a class
        serve.ingress(build)(Server),
        name="tyler",
        autoscaling_config={
            "min_replicas": arguments.min_replicas,
            "max_replicas": arguments.max_replicas,
            "target_ongoing_requests": settings.slots,
        },
        ray_actor_options={"num_cpus": arguments.cpus, "num_gpus": arguments.gpus},
        max_ongoing_requests=settings.slots + settings.max_queue,
        graceful_shutdown_timeout_s=settings.drain_seconds,
        health_check_period_s=2.0,
    )
    return deployment.bind()


def of_process(path: Path) -> Path:
    """The audit log of one replica, with its machine and its process in its name."""
    return path.with_name(f"{path.stem}-{socket.gethostname()}-{os.getpid()}{path.suffix}")
