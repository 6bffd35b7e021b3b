"""The description of the API: bodies as they are read, and the statuses that are sent."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from tyler.serving.schema import Body

ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}
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
BODIES: dict[str, type[Body]] = {}
"""Every body that an endpoint takes, by its name in the description."""


def takes(kind: type[Body]) -> dict[str, Any]:
    """What a POST route says of its body, which it reads itself: parsing is bounded and may leave the event loop."""
    BODIES[kind.__name__] = kind
    content = {"application/json": {"schema": {"$ref": f"#/components/schemas/{kind.__name__}"}}}
    return {"response_model": None, "openapi_extra": {"requestBody": {"required": True, "content": content}}}


def describe(app: FastAPI) -> None:
    """Have `/openapi.json` say what is so."""

    def description() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = described(app)
        return app.openapi_schema

    app.openapi = description  # type: ignore[method-assign]


def described(app: FastAPI) -> dict[str, Any]:
    """The description of all endpoints."""
    found: dict[str, Any] = get_openapi(title=app.title, version=app.version, routes=app.routes)
    schemas: dict[str, Any] = {"Error": ERROR}
    for name, kind in BODIES.items():
        schema = kind.model_json_schema(ref_template="#/components/schemas/{model}")
        schemas |= schema.pop("$defs", {})
        schemas[name] = schema
    found["components"] = {"schemas": schemas}
    for methods in found["paths"].values():
        for operation in methods.values():
            operation["responses"].pop("422", None)
            refused = REFUSALS if "requestBody" in operation else {key: REFUSALS[key] for key in ("401", "403")}
            for status, meaning in refused.items():
                content = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
                operation["responses"][status] = {"description": meaning, "content": content}
    return found
