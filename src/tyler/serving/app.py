"""The server as an ASGI application, for uvicorn or whatever else runs one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache, partial
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import JSONResponse, Response

import tyler
from tyler.reasoners.reasoner import Servable
from tyler.serving import completions, errors, messages, page, page_api, tokens
from tyler.serving.bodies import KINDS
from tyler.serving.chat import Chat, ChatRequest
from tyler.serving.event_stream import Rendering, generating
from tyler.serving.guard import Guard
from tyler.serving.messages import Message, MessagesRequest
from tyler.serving.responses import Output, ResponsesRequest
from tyler.serving.schema import Body
from tyler.serving.service import Service
from tyler.serving.settings import ServerSettings

CONVERSATIONS: tuple[tuple[str, type[Body], type[Rendering[Any]]], ...] = (
    ("/v1/chat/completions", ChatRequest, Chat),
    ("/v1/responses", ResponsesRequest, Output),
    ("/v1/messages", MessagesRequest, Message),
)
"""Endpoints that answer conversations: what each takes, and how it tells the answers."""


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
    for path, kind, rendering in CONVERSATIONS:
        app.include_router(generating(service, path, kind, rendering))
    for endpoint in (completions, messages, tokens, page_api):
        app.include_router(endpoint.routes(service))
    app.include_router(page.routes())
    add_status(app, service)
    app.openapi = cache(partial(described, app))  # type: ignore[method-assign]
    app.add_middleware(Guard, settings=settings, metrics=service.metrics)
    app.add_middleware(
        CORSMiddleware,
        allow_origins=settings.origins,
        allow_methods=("GET", "HEAD", "POST"),
        allow_headers=("*",),
        expose_headers=("x-request-id", "retry-after"),
    )
    return app


def add_status(app: FastAPI, service: Service) -> None:
    """What is served, and how it fares."""

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [model_of(service, name) for name in service.settings.names]}

    @app.get("/v1/models/{name:path}")
    async def model(name: str) -> dict[str, Any]:
        service.check_model(name)
        return model_of(service, name)

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


def model_of(service: Service, name: str) -> dict[str, Any]:
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


# -- the description of the API ---------------------------------------------------------------------------------------


class Detail(BaseModel):
    """What went wrong."""

    message: str
    type: str
    param: str | None
    code: str | None


class Error(BaseModel):
    """Every answer that is none, but at Anthropic's endpoints."""

    error: Detail


REFUSALS = {
    "400": "A field is wrong, unknown, or not supported; `param` names it",
    "401": "The API key is missing or wrong",
    "403": "The host or the page's origin is not allowed",
    "404": "The model is not served here",
    "408": "The body did not come in time",
    "413": "The body is too large",
    "429": "Too many answers or bodies wait; see Retry-After",
    "500": "The engine failed",
    "503": "The server is shutting down",
}


def described(app: FastAPI) -> dict[str, Any]:
    """The description of all endpoints."""
    found: dict[str, Any] = get_openapi(title=app.title, version=app.version, routes=app.routes)
    kinds = [(kind, "validation") for kind in (Error, *KINDS.values())]
    _, schemas = models_json_schema(kinds, ref_template="#/components/schemas/{model}")  # type: ignore[arg-type]
    found["components"] = {"schemas": schemas["$defs"]}
    content = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    for operation in (operation for methods in found["paths"].values() for operation in methods.values()):
        operation["responses"].pop("422", None)
        sent = REFUSALS if "requestBody" in operation else ("401", "403")
        operation["responses"] |= {one: {"description": REFUSALS[one], "content": content} for one in sent}
    return found
