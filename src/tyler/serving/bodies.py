"""From the bytes of a request to its fields: what is malformed costs next to nothing and delays no other request."""

from __future__ import annotations

import asyncio
import re
from functools import partial
from typing import Any, TypeVar

from fastapi import Request
from pydantic import ValidationError
from pydantic_core import from_json

from tyler.serving.errors import ApiError, of_validation, shortened
from tyler.serving.schema import Body
from tyler.serving.settings import UnknownFields

Kind = TypeVar("Kind", bound=Body)

LARGE = 64 * 2**10
"""Bytes from which on a body is parsed in another thread, one at a time: the event loop goes on."""
MOST_STRINGS, MOST_CONTAINERS, MOST_VALUES = 2**15, 2**13, 2**19
"""Of a body: a value takes up to a hundred times its bytes once it is parsed."""
STRING = re.compile(rb'"[^"]*"')
ONE_AT_A_TIME = asyncio.Lock()
KINDS: dict[str, type[Body]] = {}
"""Every body that an endpoint takes, by its name in the description of the API."""


def takes(kind: type[Body]) -> dict[str, Any]:
    """What a POST route says of its body, which it reads itself: parsing is bounded and may leave the event loop."""
    KINDS[kind.__name__] = kind
    content = {"application/json": {"schema": {"$ref": f"#/components/schemas/{kind.__name__}"}}}
    return {"response_model": None, "openapi_extra": {"requestBody": {"required": True, "content": content}}}


async def read(kind: type[Kind], http: Request, unknown: UnknownFields) -> Kind:
    """The request's body. Raises ApiError for what it is not, naming the field."""
    content_type = http.headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type != "application/json" and not content_type.endswith("+json"):
        given = shortened(content_type)
        raise ApiError(400, f"the content type is {given!r}; send application/json", code="invalid_json")
    body = await http.body()
    work = partial(parse, kind, body, unknown)
    if len(body) < LARGE:
        return work()
    async with ONE_AT_A_TIME:
        return await asyncio.to_thread(work)


def parse(kind: type[Kind], body: bytes, unknown: UnknownFields) -> Kind:
    """The fields of a body. Raises ApiError for what is wrong with it."""
    check_shape(body)
    try:
        content = from_json(body, allow_inf_nan=False)
    except ValueError as error:
        half = "; a text holds half a character" if "hex escape" in str(error) else ""
        raise ApiError(400, f"the body is not valid JSON: {error}{half}", code="invalid_json") from None
    try:
        return kind.model_validate(content, extra="forbid" if unknown == "refuse" else "ignore")
    except ValidationError as error:
        raise of_validation(error) from None


def check_shape(body: bytes) -> None:
    """Raise ApiError for a body of more values than any request has, before any of them is made."""
    containers, quotes, commas = body.count(b"[") + body.count(b"{"), body.count(b'"'), body.count(b",")
    if containers <= MOST_CONTAINERS and quotes <= MOST_STRINGS and commas <= MOST_VALUES:
        return
    body = body.replace(b"\\\\", b"").replace(b'\\"', b"")  # quotes within texts begin none
    body, strings = STRING.subn(b"", body, count=MOST_STRINGS + 1)  # brackets and commas within texts do not count
    containers, values = body.count(b"[") + body.count(b"{"), body.count(b",")
    for name, count, most in (
        ("texts", strings, MOST_STRINGS),
        ("lists and objects", containers, MOST_CONTAINERS),
        ("values", values, MOST_VALUES),
    ):
        if count > most:
            raise ApiError(400, f"the body has more than {most} {name}; send fewer", code="too_complex")
