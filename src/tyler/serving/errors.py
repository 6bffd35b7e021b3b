"""Errors in the shapes that OpenAI's and Anthropic's clients expect, each saying what is allowed."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from reprlib import Repr
from typing import Any

from fastapi import Request
from fastapi.responses import JSONResponse
from pydantic import ValidationError

from tyler.engine.request_state import GRAMMAR_FAILED
from tyler.engine.shared_engine import DecodingError

TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}
ANTHROPIC = "/v1/messages"
"""Paths that begin so have errors in Anthropic's shape."""
BRANCH = re.compile(r"str|int|float|bool|\w+\[.*\]|[A-Z]\w*|[a-z-]+-.*|\[key\]")
"""Parts of a location that are not fields: where pydantic says which of several types it tried."""
LONGEST_NAME = 100
"""Characters of a field's name, or of a value, that an error repeats."""
BEGINNING = Repr()  # at a cost that does not depend on a value's size
BEGINNING.maxlevel, BEGINNING.maxlist, BEGINNING.maxdict, BEGINNING.maxstring = 2, 6, 4, LONGEST_NAME


@dataclass(eq=False)
class ApiError(Exception):
    """An answer that is an error: status, one sentence, the field it is about, and a word that programs can test."""

    status: int
    message: str
    param: str | None = None
    code: str | None = None
    headers: Mapping[str, str] | None = None

    def body(self, path: str = "/") -> dict[str, Any]:
        """{"error": {"message", "type", "param", "code"}}, or Anthropic's {"type": "error", "error": {...}}."""
        kind = TYPES.get(self.status, "server_error" if self.status >= 500 else "invalid_request_error")
        if path.startswith(ANTHROPIC):
            kind = {413: "request_too_large", 503: "overloaded_error"}.get(self.status, kind)
            kind = "api_error" if kind == "server_error" else kind
            return {"type": "error", "error": {"type": kind, "message": self.message}}
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    def response(self, path: str = "/") -> JSONResponse:
        return JSONResponse(self.body(path), self.status, self.headers)


def answer_to(error: Exception) -> ApiError:
    """What a client is told of an exception: of the engine's that an answer is lost, or that its grammar, which the
    client sent, grew too complex in the middle of it."""
    if isinstance(error, ApiError):
        return error
    if not isinstance(error, DecodingError):
        return ApiError(500, f"the server failed: {type(error).__name__}")
    reason = str(error)[:500]
    if GRAMMAR_FAILED in reason:
        return ApiError(400, reason, param="response_format", code="too_complex")
    return ApiError(500, f"{reason}; the same request may be sent again", code="engine_failed")


def of_validation(error: ValidationError) -> ApiError:
    """The first thing that is wrong with a body, by name."""
    # Of several types that a field may have, the one that came closest.
    wrong = max(error.errors(include_url=False), key=lambda one: (not one["type"].endswith("_type"), len(one["loc"])))
    parts = [str(part) for part in wrong["loc"]]
    named = [part for part in parts[:-1] if not BRANCH.fullmatch(part)]
    unknown = wrong["type"] == "extra_forbidden"  # a client's own field may look like a type
    named += [part for part in parts[-1:] if unknown or not BRANCH.fullmatch(part) or not named]
    param = shortened(".".join(named))
    if unknown:
        message = f"{param} is not supported by this server; omit it"
        return ApiError(400, message, param=param, code="unsupported_field")
    missing = wrong["type"] == "missing"
    reason = wrong["msg"].removeprefix("Value error, ")
    if missing:
        reason = "this field is missing" + ("; GET /v1/models lists its values" if param == "model" else "; send it")
    given = BEGINNING.repr(wrong.get("input")) if param and not missing else ""
    value = f": {given}" if 0 < len(given) <= LONGEST_NAME else ""
    return ApiError(400, f"{param or 'body'}{value}: {reason}", param=param or None, code="invalid_value")


def shortened(name: str) -> str:
    """A name that a client made up, as far as it is worth repeating."""
    return name if len(name) <= LONGEST_NAME else f"{name[:LONGEST_NAME]}…"


async def not_here(request: Request, error: Any) -> JSONResponse:
    """What Starlette refuses: a path that does not exist, or a method that it does not have."""
    path = request.scope["path"]
    messages = {404: f"there is no {path!r} here", 405: f"{request.method} is not allowed at {path!r}"}
    message = messages.get(error.status_code, str(error.detail))
    return ApiError(error.status_code, message, headers=error.headers).response(path)
