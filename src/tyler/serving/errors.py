"""Errors in the shape that OpenAI's clients expect, each saying what is allowed."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException

from tyler.engine.shared_engine import DecodingError

TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}


BRANCH = re.compile(r"body|str|int|float|bool|\w+\[.*\]|[A-Z]\w*|[a-z-]+-.*")
"""Parts of a place that are no fields: where pydantic says which of several types it tried."""


LONGEST_NAME = 100
"""Characters of a field's name that an error repeats."""


class ClientGone(Exception):
    """Nobody is left to answer."""


class ApiError(Exception):
    """An answer that is an error: status, one sentence, the field it is about, and a word that programs can test."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code
        self.headers = dict(headers or {})

    def body(self) -> dict[str, Any]:
        """{"error": {"message", "type", "param", "code"}}."""
        kind = TYPES.get(self.status, "server_error" if self.status >= 500 else "invalid_request_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    def response(self) -> JSONResponse:
        """The whole answer."""
        return JSONResponse(self.body(), self.status, self.headers)

    def encoded(self) -> bytes:
        """The body as bytes, for those who answer without FastAPI."""
        return json.dumps(self.body()).encode()


def unsupported(param: str, message: str) -> ApiError:
    """A 400 about one field."""
    return ApiError(400, message, param=param, code="unsupported_value")


def engine_failed(reason: str) -> ApiError:
    """The engine lost an answer."""
    return ApiError(500, f"{reason[:500]}; the same request may be sent again", code="engine_failed")


def of_validation(error: RequestValidationError) -> ApiError:
    """The first thing that is wrong with a body, by name."""
    wrong = max(error.errors(), key=lambda one: len(one["loc"]))  # of several types, the one that came closest
    *before, last = map(str, wrong["loc"])
    named = [part for part in before if not BRANCH.fullmatch(part)]
    if wrong["type"] == "extra_forbidden" or not BRANCH.fullmatch(last):  # a client's own field may look like a type
        named.append(last)
    place = shortened(".".join(named))
    if wrong["type"] == "json_invalid":
        detail = wrong.get("ctx", {}).get("error", "")
        return ApiError(400, f"the body is not valid JSON: {detail}", code="invalid_json")
    if wrong["type"] == "extra_forbidden":
        return ApiError(400, f"{place} is not supported by this server", param=place, code="unsupported_field")
    reason = wrong["msg"].removeprefix("Value error, ")
    given = repr(wrong.get("input"))
    shown = f": {given}" if place and wrong["type"] != "missing" and len(given) < 100 else ""
    return ApiError(400, f"{place or 'body'}{shown}: {reason}", param=place or None, code="invalid_value")


def shortened(name: str) -> str:
    """A name that a client made up, as far as it is worth repeating."""
    return name if len(name) <= LONGEST_NAME else f"{name[:LONGEST_NAME]}…"


def install(app: FastAPI) -> None:
    """Answer every error of the app in this shape."""

    @app.exception_handler(ApiError)
    async def known(request: Request, error: ApiError) -> JSONResponse:
        return error.response()

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        return of_validation(error).response()

    @app.exception_handler(DecodingError)
    async def lost(request: Request, error: DecodingError) -> JSONResponse:
        return engine_failed(str(error)).response()

    @app.exception_handler(ClientGone)
    async def gone(request: Request, error: ClientGone) -> Response:
        return Response(status_code=499)  # for the log and the metrics: nobody reads it

    @app.exception_handler(HTTPException)
    async def plain(request: Request, error: HTTPException) -> JSONResponse:
        path = request.scope["path"]
        messages = {404: f"there is no {path!r} here", 405: f"{request.method} is not allowed at {path!r}"}
        message = messages.get(error.status_code, str(error.detail))
        return ApiError(error.status_code, message, headers=error.headers).response()
