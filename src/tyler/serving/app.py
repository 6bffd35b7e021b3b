"""The server as an ASGI application, for uvicorn or whatever else runs one."""

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import FastAPI, Request
from fastapi.routing import APIRoute
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import JSONResponse, Response

import tyler
from tyler.reasoners.reasoner import Servable
from tyler.serving import completions, errors, messages, page, responses
from tyler.serving.event_stream import Handler
from tyler.serving.guard import Guard
from tyler.serving.schema import Strict, read
from tyler.serving.service import Service
from tyler.serving.settings import ServerSettings

ENDPOINTS: dict[str, tuple[type[Strict], Handler]] = {
    "/v1/chat/completions": (completions.ChatRequest, completions.Chat.answer),
    "/v1/completions": (completions.CompletionRequest, completions.Completion.answer),
    "/v1/responses": (responses.ResponsesRequest, responses.Output.answer),
    "/v1/messages": (messages.MessagesRequest, messages.Message.answer),
    "/v1/messages/count_tokens": (messages.MessagesCount, messages.count_tokens),
    "/tokenize": (completions.TokenizeRequest, completions.tokenize),
    "/detokenize": (completions.DetokenizeRequest, completions.detokenize),
    "/api/answers": (page.PageQuestion, page.answer),
    "/api/lens": (page.LensQuestion, page.look),
}
"""What is posted: the body that each path takes, and what answers it."""


def create_app(servable: Servable, settings: ServerSettings, weights: str) -> FastAPI:
    """A reasoner behind OpenAI's endpoints; `weights` is the hash that the audit log names it by."""
    service = Service(servable, settings, weights)
    about: dict[str, Any] = {"title": "Tyler", "version": tyler.__version__, "responses": REFUSALS}
    app = FastAPI(**about, lifespan=service.serving, docs_url=None, redoc_url=None)  # these load scripts from elsewhere
    app.state.service = service  # for those who run it
    app.add_exception_handler(HTTPException, errors.not_here)
    for path, (kind, handler) in ENDPOINTS.items():
        add_endpoint(app, service, path, kind, handler)
    add_status(app, service)
    app.add_middleware(Guard, settings=settings, metrics=service.metrics)
    app.add_middleware(
        CORSMiddleware,
        allow_origins=settings.origins,
        allow_methods=("GET", "HEAD", "POST"),
        allow_headers=("*",),
        expose_headers=("x-request-id", "retry-after"),
    )
    return app


def add_endpoint(app: FastAPI, service: Service, path: str, kind: type[Strict], handler: Handler) -> None:
    """A route that reads its body itself: parsing is bounded and may leave the event loop."""

    class Reading(APIRoute):
        def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
            async def answer(http: Request) -> Response:
                return await handler(service, http, await read(kind, http, service.settings.unknown_fields))

            return answer

    def endpoint(body: kind) -> None: ...  # type: ignore[valid-type]  # the description of the API is made from it

    app.router.add_api_route(path, endpoint, methods=["POST"], name=kind.__name__, route_class_override=Reading)


def add_status(app: FastAPI, service: Service) -> None:
    """What is served, and how it fares; the page's files."""

    @app.get("/", include_in_schema=False)
    @app.get("/page/{name}", include_in_schema=False)
    async def file(name: str = "index.html") -> Response:
        return page.sent(name)

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [model_of(service, name) for name in service.settings.names]}

    @app.get("/v1/models/{name:path}")
    async def model(name: str) -> dict[str, Any]:
        service.check_model(name)
        return model_of(service, name)

    @app.get("/api/model")
    async def page_model() -> dict[str, Any]:
        return page.described(service)

    @app.get("/version")
    async def version() -> dict[str, str]:
        return {"version": tyler.__version__}

    @app.get("/health/live", response_model=None)
    async def live() -> JSONResponse:
        lost = service.dispatcher.lost
        return JSONResponse({"status": lost or "live"}, 200 if lost is None else 503)

    @app.get("/health", response_model=None)
    @app.get("/health/ready", response_model=None)
    async def ready() -> JSONResponse:
        is_ready = service.dispatcher.ready
        return JSONResponse({"status": "ready" if is_ready else "the engine failed"}, 200 if is_ready else 503)

    @app.get("/metrics", response_model=None)
    async def metrics() -> Response:
        return Response(generate_latest(service.metrics.registry), headers={"content-type": CONTENT_TYPE_LATEST})


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


class Detail(BaseModel):
    """What went wrong."""

    message: str
    type: str
    param: str | None
    code: str | None


class Error(BaseModel):
    """The body of every error, except at Anthropic's endpoints."""

    error: Detail


REFUSALS: dict[int | str, dict[str, Any]] = {
    "4XX": {"model": Error, "description": "Refused; `param` names a field that is wrong, unknown or not supported"},
    "5XX": {"model": Error, "description": "The engine failed; the same request may be sent again"},
}
