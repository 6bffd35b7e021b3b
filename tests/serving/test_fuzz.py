"""Whatever JSON comes, the answer is one that is documented: no request makes the server fail."""

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.serving.served import NAME, Served
from tests.serving.test_refusals import PATHS

from tyler.serving.completions import ChatRequest, CompletionRequest
from tyler.serving.messages import MessagesRequest
from tyler.serving.responses import ResponsesRequest

BODIES = (ChatRequest, CompletionRequest, ResponsesRequest, MessagesRequest)
FIELDS = sorted({name for body in BODIES for name in body.model_fields} - {"model"})
MESSAGE = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 4}
ASKED = PATHS | {"/v1/messages": MESSAGE}

anything = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 10**6) | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(FIELDS) | st.text(), inner, max_size=3),
    max_leaves=8,
)
FORMATS: tuple[dict[str, Any], ...] = (
    {"type": "json_object"},
    {"format": {"type": "json_object"}},
    {"type": "regex", "pattern": "[a-z]+"},
    {"type": "json_schema", "json_schema": {"schema": {"type": "array", "items": {"type": "integer"}}}},
)
OPTIONS: tuple[dict[str, Any], ...] = ({"budget": 1}, {"router": "boundaries"}, {"include_usage": True}, {"5": 3})
plausible = st.sampled_from([0, 1, 2, 8, 0.5, True, "x", ["x"], [1, 2], [[1]], *OPTIONS, *FORMATS])


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    path=st.sampled_from(sorted(ASKED)),
    change=st.dictionaries(st.sampled_from(FIELDS), anything | plausible, max_size=3),
)
def test_no_request_makes_the_server_fail(path: str, change: dict[str, Any], served: Served) -> None:
    answer = served.post(path, ASKED[path] | change | {"model": NAME})
    assert answer.status_code in (200, 400), (answer.status_code, answer.text)
    if answer.status_code == 400:
        assert answer.json()["error"]["message"]
    else:
        assert '"error": {' not in answer.text and "engine_failed" not in answer.text


def nested(depth: int) -> dict[str, Any]:
    """A schema of objects in objects."""
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    return schema


def alternatives(depth: int) -> dict[str, Any]:
    """A schema whose alternatives multiply."""
    inner = alternatives(depth - 1) if depth else {"minLength": 1}
    return {"anyOf": [{"type": "null"}, {"allOf": [inner, inner]}]}


SCHEMAS = {
    "deep": nested(200),
    "wide": {"type": "object", "properties": {f"field{at}": {"type": "string"} for at in range(1000)}},
    "long strings": {"type": "string", "minLength": 10**6, "maxLength": 2 * 10**6},
    "many items": {"type": "array", "minItems": 10**6, "items": {"type": "string", "pattern": "(a|b|ab)*c"}},
    "enumerated": {"enum": [f"value{at}" for at in range(3000)]},
    "itself": {"$ref": "#"},
    "nested alternatives": alternatives(6),
    "products": {"allOf": [{"anyOf": [{"minLength": a}, {"maxLength": b}]} for a in range(9) for b in range(9)]},
}


PATTERNS = ("(a{1,1000}){1,1000}", "(a|aa)+$", "[a-z]{5000}", "(.*a){40}")
HOSTILE = {name: {"type": "json_schema", "json_schema": {"schema": schema}} for name, schema in SCHEMAS.items()}
HOSTILE |= {pattern: {"type": "regex", "pattern": pattern} for pattern in PATTERNS}


@pytest.mark.parametrize("format", HOSTILE.values(), ids=HOSTILE)
def test_a_format_that_is_made_to_cost_holds_nobody_up(format: dict[str, Any], served: Served) -> None:
    body = {"model": NAME, "messages": MESSAGE["messages"], "max_tokens": 8, "response_format": format}
    answer = served.post("/v1/chat/completions", body)
    assert answer.status_code in (200, 400), answer.text
    assert served.get("/health/live").status_code == 200
