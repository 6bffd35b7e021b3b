"""The server as an ASGI application, for uvicorn or whatever else runs one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import JSONResponse, Response

import tyler
from tyler.reasoners.reasoner import Servable
from tyler.serving import chat, completions, errors, messages, openapi, page, page_api, responses, tokens
from tyler.serving.guard import Guard
from tyler.serving.service import Service
from tyler.serving.settings import ServerSettings


def create_app(servable: Servable, settings: ServerSettings, weights: str) -> FastAPI:
    """A reasoner behind OpenAI's endpoints; `weights` is the hash that the audit log names it by.

    `app.state.service` is what stands behind it, from the start of its lifespan to the end.
    """
    service = Service(servable, settings, weights)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        service.start()
        yield
        await service.close()

    app = FastAPI(
        title="Tyler",
        version=tyler.__version__,
        lifespan=lifespan,
        docs_url=None,  # they load scripts from elsewhere
        redoc_url=None,
    )
    app.state.service = service
    errors.install(app)
    for endpoint in (chat, completions, responses, messages, tokens, page_api):
        app.include_router(endpoint.routes(service))
    app.include_router(page.routes())
    add_status(app, service)
    openapi.describe(app)
    app.add_middleware(Guard, settings=settings, metrics=service.metrics)
    return app


def add_status(app: FastAPI, service: Service) -> None:
    """What is served, and how it fares."""

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [described(service, name) for name in service.settings.names]}

    @app.get("/v1/models/{name:path}")
    async def model(name: str) -> dict[str, Any]:
        service.check_model(name)
        return described(service, name)

    @app.get("/version")
    async def version() -> dict[str, str]:
        return {"version": tyler.__version__}

    @app.get("/health/live", response_model=None)
    async def live() -> JSONResponse:
        if service.lost is None:
            return JSONResponse({"status": "live"})
        return JSONResponse({"status": service.lost}, 503)

    @app.get("/health", response_model=None)
    @app.get("/health/ready", response_model=None)
    async def ready() -> JSONResponse:
        if service.ready:
            return JSONResponse({"status": "ready"})
        return JSONResponse({"status": "draining" if service.draining else "the engine failed"}, 503)

    @app.get("/metrics", response_model=None)
    async def metrics() -> Response:
        text = service.metrics.expose(service.servable.model.shared_engine)
        return Response(text, headers={"content-type": CONTENT_TYPE_LATEST})


def described(service: Service, name: str) -> dict[str, Any]:
    """The model as a list of models has it, under one of its names."""
    backbone, prompt = service.servable.model.backbone, service.servable.model.prompt
    about = {"method": service.servable.name, "backbone": backbone.id, "weights": service.weights}
    return {
        "id": name,
        "object": "model",
        "created": service.created,
        "owned_by": "tyler",
        "max_model_len": backbone.max_positions,
        "tyler": {**about, "instruction": prompt.instruction},
    }
