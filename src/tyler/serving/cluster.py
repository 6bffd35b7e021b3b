"""The server on Ray Serve, for several machines: the same FastAPI application in each of its replicas.

    serve run tyler.serving.cluster:app model=runs/mine max_replicas=4 gpus=1

Ray starts replicas as load asks for them, restarts those that fail, and spreads requests over them; a request has all
its `n` samples in one.
"""

import os
import socket
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, ConfigDict, TypeAdapter
from ray import serve

from tyler.evaluation.options import memory_of, router_of
from tyler.serving.settings import ServerSettings

Names = Annotated[tuple[str, ...], BeforeValidator(lambda text: tuple(filter(None, str(text).split(","))))]


@dataclass(frozen=True, kw_only=True)
class Arguments(ServerSettings):
    """What `serve run tyler.serving.cluster:app KEY=VALUE` takes: the settings of a server, and these."""

    __pydantic_config__ = ConfigDict(extra="forbid")
    model: str
    method: str | None = None
    router: str | None = None
    dtype: str = "auto"
    memory: Annotated[int | None, BeforeValidator(memory_of)] = None
    """Of each replica, as 4GB or 512MiB."""
    aliases: Names = ()
    hosts: Names = ()
    origins: Names = ()
    min_replicas: int = 1
    max_replicas: int = 1
    cpus: float = 1.0
    """Of each replica."""
    gpus: float = 0.0


def app(arguments: dict[str, Any]) -> serve.Application:
    """The application by its arguments, for `serve run` and Ray's config files.

    A replica is added while more requests run than its rows decode at once; beyond its queue the server says 429.
    Raises ValueError for an argument that there is not, and for an invalid value.
    """
    given = {"name": Path(arguments.get("model", "")).name} | arguments
    settings = TypeAdapter(Arguments).validate_python(given).with_keys()
    router = router_of(settings.router)

    def build() -> Any:
        """In a replica: load the model there."""
        from tyler.reasoners import registry
        from tyler.serving.app import create_app

        load: dict[str, Any] = {key: getattr(settings, key) for key in ("name", "budget", "max_new_tokens", "slots")}
        loaded = registry.load(settings.model, settings.method, dtype=settings.dtype, router=router, **load)
        log, process = settings.log, f"-{socket.gethostname()}-{os.getpid()}"  # a log for each replica
        own = replace(settings, log=log and log.with_stem(log.stem + process))
        return create_app(loaded.reasoner, own, loaded.weights)  # type: ignore[arg-type]

    class Server:
        """A replica, which Ray starts again where its engine cannot be revived."""

        def check_health(self) -> None:
            lost = self.app.state.service.dispatcher.lost  # type: ignore[attr-defined]
            if lost is not None:
                raise RuntimeError(lost)

    deployment: Any = serve.deployment(  # Ray types it as the decorator that it is without a class
        serve.ingress(build)(Server),
        name="tyler",
        autoscaling_config={
            "min_replicas": settings.min_replicas,
            "max_replicas": settings.max_replicas,
            "target_ongoing_requests": settings.slots,
        },
        ray_actor_options={"num_cpus": settings.cpus, "num_gpus": settings.gpus},
        max_ongoing_requests=settings.slots + settings.max_queue,
        graceful_shutdown_timeout_s=settings.drain_seconds,
        health_check_period_s=2.0,
    )
    return deployment.bind()
