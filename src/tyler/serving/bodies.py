"""From the bytes of a request to its fields: what is malformed costs next to nothing and delays no other request."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import Iterator
from functools import partial
from typing import Any, TypeVar

from fastapi import Request
from pydantic import ValidationError

from tyler.serving.errors import ApiError, of_validation, shortened
from tyler.serving.schema import Body
from tyler.serving.settings import UnknownFields

Kind = TypeVar("Kind", bound=Body)

LARGE = 64 * 2**10
"""Bytes from which on a body is parsed in another thread, one at a time: the event loop goes on."""
MOST_STRINGS, MOST_CONTAINERS, MOST_VALUES = 2**15, 2**13, 2**19
"""Of a body: a value takes up to a hundred times its bytes once it is parsed."""
STRING = re.compile(rb'"[^"]*"')
SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
ONE_AT_A_TIME = asyncio.Lock()

logger = logging.getLogger(__name__)


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
    ignored: list[str] = []
    try:
        fields = kind.model_validate(loaded(body), context={"unknown": unknown, "ignored": ignored})
    except ValidationError as error:
        raise of_validation(error) from None
    if ignored:
        logger.info("ignored fields of a request: %s", ", ".join(map(shortened, ignored[:20])))
    return fields


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


def loaded(body: bytes) -> Any:
    """The JSON of a body. Raises ApiError for what is not JSON, or holds half a character."""
    try:
        text = body.decode()
        content = json.loads(text, parse_constant=refuse_constant)
    except (ValueError, RecursionError) as error:
        detail = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise ApiError(400, f"the body is not valid JSON: {detail}", code="invalid_json") from None
    if not isinstance(content, dict):
        raise ApiError(400, f"the body is a {type(content).__name__}; send an object", code="invalid_json")
    if SURROGATE.search(text):
        for one in texts_in(content):
            check_whole_characters(one)
    return content


def refuse_constant(name: str) -> None:
    """Raise ValueError: NaN and Infinity are not JSON."""
    raise ValueError(f"{name} is not a number of JSON")


def check_whole_characters(text: str) -> None:
    """Raise ApiError for half a surrogate pair, which JSON can say and no text can hold."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        half = error.object[error.start]
        message = f"a text holds {half!r}, which is half a character; send whole ones"
        raise ApiError(400, message, code="invalid_value") from None


def texts_in(content: Any) -> Iterator[str]:
    """Every text of parsed JSON, keys included."""
    waiting = [content]
    while waiting:
        value = waiting.pop()
        if isinstance(value, str):
            yield value
        elif isinstance(value, dict):
            waiting += [*value, *value.values()]
        elif isinstance(value, list):
            waiting += value
