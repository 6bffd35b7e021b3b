"""Schemathesis reads our description of the API, and finds no request that makes the server fail.

It needs the extra `clients`: pip install -e '.[dev,clients]'
"""

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from tests.serving.served import Served, serving

from tyler.model import Tyler

schemathesis = pytest.importorskip("schemathesis", reason="schemathesis is not installed (extra clients)")
from schemathesis.checks import not_a_server_error  # noqa: E402

EXAMPLES = 30
ASKED = [
    "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/v1/messages/count_tokens",
    "/tokenize", "/detokenize", "/api/answers", "/api/lens",
]  # fmt: skip


@pytest.fixture(scope="module")
def small(model: Tyler):
    """A server whose answers are short, whatever is asked for."""
    with serving(model, max_new_tokens=8) as running:
        yield running


@pytest.mark.parametrize("mode", ["positive", "negative"])
@pytest.mark.parametrize("path", ASKED)
def test_no_request_of_the_description_makes_the_server_fail(path: str, mode: str, small: Served) -> None:
    schema = schemathesis.openapi.from_url(f"{small.url}/openapi.json")
    strategy = schema[path]["POST"].as_strategy(generation_mode=schemathesis.GenerationMode(mode))
    found: set[int] = set()

    @settings(
        max_examples=EXAMPLES,
        derandomize=True,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=strategy)
    def check(case) -> None:
        if isinstance(case.body, dict) and mode == "positive":
            case.body["model"] = small.service.settings.name
        response = case.call(timeout=300)
        case.validate_response(response, checks=[not_a_server_error])
        found.add(response.status_code)

    check()
    assert found <= {200, 400, 404, 413, 422} and found, found
    small.wait_until_idle()
    assert small.get("/health/ready").status_code == 200


def test_the_other_endpoints_answer_whatever_is_in_their_path(small: Served) -> None:
    schema = schemathesis.openapi.from_url(f"{small.url}/openapi.json")
    for path in ("/api/model", "/v1/models", "/v1/models/{name}", "/version", "/health", "/health/live", "/metrics"):

        @settings(
            max_examples=15, derandomize=True, deadline=None, database=None, suppress_health_check=list(HealthCheck)
        )
        @given(case=schema[path]["GET"].as_strategy())
        def check(case) -> None:
            case.validate_response(case.call(timeout=300), checks=[not_a_server_error])

        check()
