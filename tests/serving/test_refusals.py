"""Whatever cannot be done is refused in OpenAI's shape, by name, with what is allowed."""

import json
from typing import Any

import httpx2
import openai
import pytest
from tests import tiny
from tests.serving.served import NAME, Served, said_to, serving

from tyler.model import Tyler
from tyler.serving.guard import answers_to
from tyler.serving.settings import ServerSettings

CHAT = {"model": NAME, "messages": [{"role": "user", "content": "x"}], "max_tokens": 4}
TEXT = {"model": NAME, "prompt": "x", "max_tokens": 4}
RESPONSE = {"model": NAME, "input": "x", "max_output_tokens": 4}
PATHS = {"/v1/chat/completions": CHAT, "/v1/completions": TEXT, "/v1/responses": RESPONSE}


def error_of(answer: httpx2.Response, status: int) -> dict[str, Any]:
    """The error of an answer, which has exactly OpenAI's shape."""
    assert answer.status_code == status, answer.text
    body = answer.json()
    assert set(body) == {"error"} and set(body["error"]) == {"message", "type", "param", "code"}
    assert answer.headers["x-request-id"]
    return dict(body["error"])


@pytest.mark.parametrize("path", PATHS)
def test_a_field_that_is_not_supported_is_named(path: str, served: Served) -> None:
    error = error_of(served.post(path, PATHS[path] | {"depth": 0.1}), 400)
    assert error["param"] == "depth" and "depth is not supported" in error["message"]
    assert (error["type"], error["code"]) == ("invalid_request_error", "unsupported_field")
    nested = error_of(served.post(path, PATHS[path] | {"tyler": {"depth": 3}}), 400)
    assert nested["param"] == "tyler.depth"
    for name in ("top-p", "Temperature", "str"):  # which look like the names of types
        assert error_of(served.post(path, PATHS[path] | {name: 1}), 400)["param"] == name


UNIQUE = {"type": "json_schema", "json_schema": {"schema": {"type": "array", "uniqueItems": True}}}
REFUSED = [
    (CHAT, {"tools": [{"type": "function"}]}, "tools", "not supported by this server"),
    (CHAT, {"temperature": -1}, "temperature", "greater than or equal to 0"),
    (CHAT, {"temperature": "hot"}, "temperature", "valid number"),
    (CHAT, {"temperature": 1e-300}, "temperature", "a finite number from 1e-06"),
    (CHAT, {"top_p": 0}, "top_p", "greater than 0"),
    (CHAT, {"n": 3}, "n", "greedy answers are all the same"),
    (CHAT, {"top_p": 0.9}, "top_p", "has no effect without temperature"),
    (CHAT, {"top_k": 5}, "top_k", "has no effect without temperature"),
    (CHAT, {"seed": 5}, "seed", "has no effect without temperature"),
    (CHAT, {"parallel_tool_calls": True}, "parallel_tool_calls", "not supported by this server; omit it"),
    (CHAT, {"messages": [{"role": "user", "content": "x", "name": "bob"}]}, "messages.0.name", "server; omit it"),
    (CHAT, {"metadata": {"a": "x" * 513}}, "metadata.a", "at most 512 characters"),
    (CHAT, {"user": "x" * 257}, "user", "at most 256 characters"),
    (TEXT, {"prompt": [[1]] * 513}, "prompt", "at most 512 items"),
    (RESPONSE, {"reasoning": {"summary": "concise"}}, "reasoning.summary", "not supported by this server; omit it"),
    (CHAT, {"n": 0}, "n", "greater than or equal to 1"),
    (CHAT, {"n": 9}, "n", "up to 8 answers"),
    (CHAT, {"max_tokens": 65}, "max_tokens", "up to 64"),
    (CHAT, {"stop": ["a", ""]}, "stop.1", "at least 1 character"),
    (CHAT, {"stop": "x" * 257}, "stop", "at most 256 characters"),
    (CHAT, {"stop": ["a", "x" * 257]}, "stop.1", "at most 256 characters"),
    (CHAT, {"seed": -1}, "seed", "greater than or equal to 0"),
    (CHAT, {"logit_bias": {"x": 1}}, "logit_bias.x", "pattern"),
    (CHAT, {"logit_bias": {"999999": 1}}, "logit_bias", "names token 999999"),
    (CHAT, {"logit_bias": {str(at): 1 for at in range(1025)}}, "logit_bias", "at most 1024"),
    (CHAT, {"presence_penalty": 3}, "presence_penalty", "less than or equal to 2"),
    (CHAT, {"repetition_penalty": 0}, "repetition_penalty", "greater than 0"),
    (CHAT, {"stop_token_ids": [999999]}, "stop_token_ids", "999999"),
    (CHAT, {"min_p": 0.1}, "min_p", "has no effect without temperature"),
    (CHAT, {"response_format": {"type": "json_schema"}}, "response_format", "needs a schema"),
    (CHAT, {"response_format": {"type": "regex", "pattern": "("}}, "response_format", "regex"),
    (CHAT, {"response_format": {"type": "xml"}}, "response_format.type", "'json_schema'"),
    (CHAT, {"response_format": {"type": "text", "schema": {}}}, "response_format", "one schema is for"),
    (CHAT, {"response_format": UNIQUE | {"schema": {}}}, "response_format", "one schema is for"),
    (CHAT, {"response_format": {"type": "json_object"}, "ignore_eos": True}, "ignore_eos", "exclude each other"),
    (CHAT, {"response_format": UNIQUE}, "response_format", "uniqueItems"),
    (CHAT, {"messages": []}, "messages", "at least 1 item"),
    (CHAT, {"messages": [{"role": "tool", "content": "x"}]}, "messages.0.role", "'user'"),
    (CHAT, {"messages": [{"role": "user", "content": " "}]}, "messages.0", "the message is empty"),
    (CHAT, {"messages": [{"role": "assistant", "content": "x"}]}, "messages.0", "the last message must be the user's"),
    (CHAT, {"tyler": {"budget": -1}}, "tyler.budget", "greater than or equal to 0"),
    (CHAT, {"tyler": {"router": "sideways"}}, "tyler.router", "choose from learned, never, boundaries"),
    (CHAT, {"tyler": {"budget": 1}, "reasoning_effort": "low"}, "tyler.budget", "send one"),
    (CHAT, {"reasoning_effort": "vast"}, "reasoning_effort", "'medium'"),
    (TEXT, {"prompt": [[]]}, "prompt.0", "at least 1 item"),
    (TEXT, {"prompt": [10**6]}, "prompt", "the prompt has tokens from 1000000"),
    (TEXT, {"prompt": []}, "prompt", "at least 1 item"),
    (TEXT, {"max_tokens": 0}, "max_tokens", "greater than or equal to 1"),
    (TEXT, {"prompt": ["x"] * 200}, "prompt", "200 answers in one request; this server takes up to 136"),
    (TEXT, {"prompt": ["x"] * 20, "n": 8, "temperature": 1}, "prompt", "160 answers in one request"),
    (TEXT, {"suffix": "x"}, "suffix", "not supported"),
    (RESPONSE, {"previous_response_id": "resp_1"}, "previous_response_id", "not supported"),
    (RESPONSE, {"store": True}, "store", "not supported"),
    (RESPONSE, {"max_output_tokens": 65}, "max_output_tokens", "max_output_tokens=65; this server allows up to 64"),
    (RESPONSE, {"input": [{"type": "message", "content": "x"}]}, "input.0.role", "this field is missing; send it"),
]


@pytest.mark.parametrize("base, change, param, message", REFUSED)
def test_a_value_that_is_not_allowed_is_named_with_what_is(
    base: dict, change: dict, param: str | None, message: str, served: Served
) -> None:
    path = next(path for path, body in PATHS.items() if body is base)
    error = error_of(served.post(path, base | change), 400)
    assert error["param"] == param, error
    assert message in error["message"]


HALF = "\ud800"


@pytest.mark.parametrize(
    "base, change",
    [
        (CHAT, {"messages": [{"role": "user", "content": HALF}]}),
        (TEXT, {"prompt": ["x", HALF], "echo": True}),
        (RESPONSE, {"metadata": {HALF: "a"}}),
    ],
)
def test_half_a_character_is_refused_wherever_it_stands(base: dict, change: dict, served: Served) -> None:
    path = next(path for path, body in PATHS.items() if body is base)
    with httpx2.Client(base_url=served.url) as client:
        content = json.dumps(base | change)  # in ASCII, as an escape
        answer = client.post(path, content=content, headers={"content-type": "application/json"})
    assert "half a character" in error_of(answer, 400)["message"]


def test_a_completion_that_does_not_say_is_no_longer_than_the_server_allows(model: Tyler) -> None:
    with serving(model, max_new_tokens=4) as short:
        asked = {name: value for name, value in TEXT.items() if name != "max_tokens"}
        found = short.post("/v1/completions", asked | {"tyler": {"budget": 0}}).json()
        assert found["usage"]["completion_tokens"] <= 4


@pytest.mark.parametrize(
    "wrong, words", [({"port": -1}, "port"), ({"port": 65536}, "port"), ({"api_keys": {"a": "schlüssel"}}, "not ASCII")]
)
def test_settings_that_no_server_can_have_are_refused_at_the_start(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        ServerSettings(**wrong)


def test_values_that_ask_for_nothing_are_taken_since_clients_send_them(served: Served) -> None:
    nothing = {"presence_penalty": 0, "frequency_penalty": 0.0, "logit_bias": {}, "tools": [], "tool_choice": "auto"}
    more = {"response_format": {"type": "text"}, "user": "me", "metadata": {"a": "b"}, "n": None, "stop": None}
    assert served.post("/v1/chat/completions", CHAT | nothing | more | {"store": False}).status_code == 200


def test_another_model_and_another_path_are_not_found(served: Served) -> None:
    for path, body in PATHS.items():
        error = error_of(served.post(path, body | {"model": "gpt-9"}), 404)
        assert error["code"] == "model_not_found" and "there is 'tiny'" in error["message"]
    assert "there is no '/v1/embeddings'" in error_of(served.post("/v1/embeddings", {}), 404)["message"]
    assert "GET is not allowed" in error_of(served.get("/v1/responses"), 405)["message"]


def test_a_prompt_that_is_too_long_says_how_long_it_may_be(served: Served) -> None:
    long = "x " * tiny.MAX_POSITIONS
    answer = served.post("/v1/chat/completions", CHAT | {"messages": [{"role": "user", "content": long}]})
    error = error_of(answer, 400)
    assert error["code"] == "context_length_exceeded" and f"context of {tiny.MAX_POSITIONS}" in error["message"]
    with pytest.raises(openai.BadRequestError, match="shorten the prompt"):
        served.openai.completions.create(model=NAME, prompt=long)


NO_JSON = (b"\xff\xfe", "", "{", '{"model": NaN}', '{"model": "\\ud800"}', '{"a": 1e999}', '{"a": ' + "9" * 5000 + "}")


@pytest.mark.parametrize("text", [*NO_JSON, '{"model": "tiny",}', "[1, 2]", "[]", '"x"', "[" * 100_000])
def test_a_body_that_is_no_request_is_refused(text: str | bytes, served: Served) -> None:
    with httpx2.Client(base_url=served.url) as client:
        headers = {"content-type": "application/json"}
        answer = client.post("/v1/chat/completions", content=text, headers=headers)
        error_of(answer, 400)
        error_of(client.post("/v1/chat/completions", content=b"a=1", headers={"content-type": "text/plain"}), 400)


# ------------------------------------------------------------------------------------------------ who, how much


def test_who_never_finishes_a_request_is_not_waited_for(model: Tyler, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tyler.serving.guard.BODY_SECONDS", 0.3)
    monkeypatch.setattr("tyler.serving.server.IDLE_SECONDS", 0.6)
    with serving(model) as hasty:
        head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        answer = said_to(hasty, f"{head}Content-Length: 100\r\n\r\n{{")
        assert b"408" in answer.splitlines()[0] and b"within 0.3 seconds" in answer
        assert said_to(hasty, head) == b"" and said_to(hasty, "") == b""
        assert hasty.post("/v1/completions", TEXT).status_code == 200


def test_a_key_guards_everything_but_health(model: Tyler) -> None:
    with serving(model, api_keys={"someone": "secret-key"}) as locked:
        for path in ("/v1/models", "/metrics", "/openapi.json"):
            assert error_of(locked.get(path), 401)["code"] == "invalid_api_key"
            wrong = locked.get(path, headers={"Authorization": "Bearer secret-kez"})
            assert error_of(wrong, 401)["type"] == "authentication_error"
            assert locked.get(path, headers={"Authorization": "Bearer secret-key"}).status_code == 200
        assert locked.get("/health/live").status_code == locked.get("/health/ready").status_code == 200
        error_of(locked.post("/v1/completions", TEXT), 401)
        assert locked.openai.completions.create(**TEXT).choices


def test_another_host_or_page_is_refused_unless_it_is_allowed(served: Served, model: Tyler) -> None:
    assert "--allow-host" in error_of(served.get("/v1/models", headers={"Host": "evil.example"}), 403)["message"]
    for host in ("localhost:1234", "127.0.0.1", "[::1]:80"):
        assert served.get("/v1/models", headers={"Host": host}).status_code == 200
    page = {"Origin": "https://evil.example"}
    for origin in (page, {"Origin": "http://["}):
        assert "--allow-origin" in error_of(served.get("/v1/models", headers=origin), 403)["message"]
    own = served.get("/v1/models", headers={"Origin": served.url})
    assert own.status_code == 200 and "access-control-allow-origin" not in own.headers
    with serving(model, origins=("*",)) as open_to_all:
        assert open_to_all.get("/v1/models", headers=page).headers["access-control-allow-origin"] == "*"
    with serving(model, hosts=("tyler.example",), origins=("https://page.example",)) as open_one:
        assert open_one.get("/v1/models", headers={"Host": "tyler.example"}).status_code == 200
        allowed = open_one.get("/v1/models", headers={"Origin": "https://page.example"})
        assert allowed.headers["access-control-allow-origin"] == "https://page.example"
        asked = {"Origin": "https://page.example", "Access-Control-Request-Method": "POST"}
        asked |= {"Access-Control-Request-Headers": "authorization, x-stainless-os"}
        with httpx2.Client(base_url=open_one.url) as client:
            preflight = client.options("/v1/chat/completions", headers=asked)
        assert preflight.headers["access-control-allow-headers"] == "authorization, x-stainless-os"
        error_of(open_one.get("/v1/models", headers=page), 403)


@pytest.mark.parametrize(
    "own", [{}, {"hosts": ("tyler.example",)}, {"hosts": ("*",)}, {"api_keys": {"someone": "secret-key"}}]
)
def test_a_server_that_is_open_to_a_network_answers_to_no_domain_that_it_was_not_given(own: dict[str, Any]) -> None:
    settings = ServerSettings(host="0.0.0.0", **own)
    for host in ("localhost", "127.0.0.1", "::1"):
        assert answers_to(settings, host)
    given = "hosts" in own and "*" not in own["hosts"]
    for host in ("10.0.0.7", "fe80::1", "tyler", ""):
        assert answers_to(settings, host) is not given
    assert answers_to(settings, "evil.example") is bool(own and not given)
    assert answers_to(settings, "tyler.example") is bool(own)


def test_a_request_keeps_the_id_it_came_with(served: Served) -> None:
    assert served.get("/v1/models", headers={"x-request-id": "mine-1"}).headers["x-request-id"] == "mine-1"
    other = served.get("/v1/models", headers={"x-request-id": "no spaces, please"}).headers["x-request-id"]
    assert other.startswith("req-")


def test_the_description_of_the_api_names_every_endpoint(served: Served) -> None:
    described = served.get("/openapi.json").json()
    assert set(PATHS) <= set(described["paths"])
    assert '"422"' not in json.dumps(described), "which is never sent"
    assert json.dumps(described).count('"additionalProperties": false') >= 8
