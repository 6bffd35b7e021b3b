"""Whatever JSON comes, the answer is one that is documented: no request makes the server fail."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.serving.served import NAME, Served
from tests.serving.test_refusals import PATHS

from tyler.serving.schema import ChatRequest, CompletionRequest, ResponsesRequest

FIELDS = sorted(
    {*ChatRequest.model_fields, *CompletionRequest.model_fields, *ResponsesRequest.model_fields} - {"model"}
)

anything = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 10**6) | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(FIELDS) | st.text(), inner, max_size=3),
    max_leaves=8,
)
plausible = st.sampled_from(
    [0, 1, 2, 8, 0.5, True, "x", ["x"], [1, 2], [[1]], {"budget": 1}, {"router": "boundaries"}, {"include_usage": True}]
)


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    path=st.sampled_from(sorted(PATHS)),
    change=st.dictionaries(st.sampled_from(FIELDS), anything | plausible, max_size=3),
)
def test_no_request_makes_the_server_fail(path: str, change: dict[str, Any], served: Served) -> None:
    answer = served.post(path, PATHS[path] | change | {"model": NAME})
    assert answer.status_code in (200, 400), (answer.status_code, answer.text)
    if answer.status_code == 400:
        assert answer.json()["error"]["message"]
    else:
        assert '"error": {' not in answer.text and "engine_failed" not in answer.text
