"""The server on Ray Serve, for several machines: the same FastAPI application in each of its replicas.

    serve run tyler.serving.cluster:app model=runs/mine max_replicas=4 gpus=1

Ray starts replicas as load asks for them, restarts those that fail, and spreads requests over them; a request has all
its `n` samples in one.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from ray import serve

from tyler.evaluation.options import memory_of, router_of
from tyler.serving.settings import ServerSettings, keys_in

Names = Annotated[tuple[str, ...], BeforeValidator(lambda text: tuple(filter(None, str(text).split(","))))]


class Arguments(ServerSettings):
    """What `serve run tyler.serving.cluster:app KEY=VALUE` takes: the server's settings, and these."""

    model: str
    method: str | None = None
    router: str | None = None
    dtype: str = "auto"
    memory: Annotated[int | None, BeforeValidator(memory_of)] = None
    """Of each replica, as 4GB or 512MiB."""
    aliases: Names = ()
    hosts: Names = ()
    origins: Names = ()
    api_key_file: Path | None = None
    min_replicas: NonNegativeInt = 1
    max_replicas: PositiveInt = 1
    cpus: PositiveFloat = 1.0
    """Of each replica."""
    gpus: NonNegativeFloat = 0.0


def app(arguments: Arguments) -> serve.Application:
    """The application by its arguments, for `serve run` and Ray's config files.

    A replica is added while more requests run than its rows decode at once; beyond its queue the server says 429.
    """
    given, file = arguments, arguments.api_key_file
    name = given.name if "name" in given.model_fields_set else Path(given.model).name
    settings = given.model_copy(update={"name": name, "api_keys": {} if file is None else keys_in(file)})
    router = router_of(given.router)

    def build() -> Any:
        """In a replica: load the model there."""
        from tyler.reasoners import registry
        from tyler.serving.app import create_app

        same = ("method", "dtype", "budget", "max_new_tokens", "slots")
        load: dict[str, Any] = {key: getattr(settings, key) for key in same}
        loaded = registry.load(settings.model, name=name, router=router, **load)
        log, process = settings.log, f"-{socket.gethostname()}-{os.getpid()}"  # a log for each replica
        own = settings.model_copy(update={"log": log and log.with_stem(log.stem + process)})
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
            "min_replicas": given.min_replicas,
            "max_replicas": given.max_replicas,
            "target_ongoing_requests": settings.slots,
        },
        ray_actor_options={"num_cpus": given.cpus, "num_gpus": given.gpus},
        max_ongoing_requests=settings.slots + settings.max_queue,
        graceful_shutdown_timeout_s=settings.drain_seconds,
        health_check_period_s=2.0,
    )
    return deployment.bind()
