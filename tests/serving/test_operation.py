"""What those who run a server use: probes, keys, names, files of settings, traces, and a process that ends."""

import json
import logging
import socket
from pathlib import Path

import httpx2
import pytest
from tests import tiny
from tests.serving.served import NAME, Served, serving

from tyler.cli.main import main
from tyler.cli.serve import with_config
from tyler.model import Tyler
from tyler.serving.errors import ApiError
from tyler.serving.schema import Conversation
from tyler.serving.server import listen
from tyler.serving.settings import ServerSettings, keys_in

CHAT = {"model": NAME, "messages": [{"role": "user", "content": "x"}], "max_tokens": 4}
CHATTY = "{% for m in messages %}{% if m.role == 'user' %}U{{ m.content }}{% elif m.role == 'assistant' %}A{{ m.content }}{% endif %}{% endfor %}A"  # noqa: E501
FIRST = "{% if messages[0].role == 'system' %}S{{ messages[0].content }}{% endif %}{% for m in messages if m.role != 'system' %}{{ m.content }}{% endfor %}"  # noqa: E501


def test_probes_ask_by_any_address_and_with_head(model: Tyler) -> None:
    with serving(model, hosts=("tyler.example",)) as served, httpx2.Client(base_url=served.url) as client:
        for path in ("/health", "/health/live", "/health/ready"):
            assert client.get(path, headers={"Host": "10.1.2.3:8000"}).status_code == 200
            asked = client.head(path, headers={"Host": "10.1.2.3:8000"})
            assert (asked.status_code, asked.content) == (200, b"")
        assert client.get("/v1/models", headers={"Host": "10.1.2.3"}).status_code == 403
        assert client.head("/v1/models").status_code == client.head("/").status_code == 200
        assert client.get("/version").json()["version"]


def test_a_model_has_all_its_names(model: Tyler) -> None:
    with serving(model, aliases=("gpt-4o",)) as served:
        assert served.post("/v1/chat/completions", CHAT | {"model": "gpt-4o"}).status_code == 200
        assert [one["id"] for one in served.get("/v1/models").json()["data"]] == [NAME, "gpt-4o"]
        assert "'tiny' or 'gpt-4o'" in served.post("/v1/chat/completions", CHAT | {"model": "x"}).text


def test_keys_have_names_that_are_logged(model: Tyler, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file, log = tmp_path / "keys", tmp_path / "audit.jsonl"
    file.write_text("alice sk-1\nsk-2\n")
    assert keys_in(file) == {"alice": "sk-1", "key-2": "sk-2"}
    with caplog.at_level(logging.INFO, "tyler.access"), serving(model, api_keys=keys_in(file), log=log) as served:
        assert served.post("/v1/chat/completions", CHAT, headers={"Authorization": "Bearer sk-1"}).status_code == 200
        assert served.post("/v1/chat/completions", CHAT, headers={"x-api-key": "sk-2"}).status_code == 200
        assert served.post("/v1/chat/completions", CHAT, headers={"x-api-key": "sk-3"}).status_code == 401
    assert [json.loads(line)["key"] for line in log.read_text().splitlines()] == ["alice", "key-2"]
    lines = [record.getMessage() for record in caplog.records if record.name == "tyler.access"]
    assert any('alice "POST /v1/chat/completions" 200' in line for line in lines) and "sk-" not in " ".join(lines)
    file.write_text("a b c\n")
    with pytest.raises(ValueError, match="line 1"):
        keys_in(file)


def test_texts_become_tokens_and_back(served: Served, model: Tyler) -> None:
    text = served.post("/tokenize", {"model": NAME, "prompt": "one two"}).json()
    assert text["count"] == len(text["tokens"]) and text["max_model_len"] == tiny.MAX_POSITIONS
    assert served.post("/detokenize", {"tokens": text["tokens"]}).json()["prompt"] == "one two"
    chat = served.post("/tokenize", {"messages": CHAT["messages"]}).json()
    assert chat["tokens"] == list(model.request("x").prompt_ids)
    assert served.post("/tokenize", {}).status_code == 400
    assert served.post("/detokenize", {"tokens": [10**6]}).json()["error"]["param"] == "tokens"


# ------------------------------------------------------------------------------------------------- conversations


@pytest.mark.parametrize(
    ("template", "roles", "lost"),
    [
        (CHATTY, ["system", "user"], 0),
        (CHATTY, ["user", "assistant", "system", "user"], 2),
        (FIRST, ["system", "user"], None),
        (FIRST, ["system", "user", "system", "user"], 2),
        (None, ["system", "user"], None),
    ],
)
def test_a_turn_that_the_template_leaves_out_is_refused_by_its_index(
    template: str | None, roles: list[str], lost: int | None
) -> None:
    tokenizer = tiny.tokenizer()
    tokenizer.chat_template = template
    conversation = Conversation.of((role, f"text {at}", f"messages.{at}") for at, role in enumerate(roles))
    if lost is None:
        conversation.check(tokenizer, thinking=False)
        return
    with pytest.raises(ApiError, match="leaves out a system message") as refused:
        conversation.check(tokenizer, thinking=False)
    assert refused.value.param == f"messages.{lost}"


def test_the_beginning_of_an_answer_keeps_its_spaces(served: Served, model: Tyler) -> None:
    begun = [*CHAT["messages"], {"role": "assistant", "content": " So  "}]
    tokens = served.post("/tokenize", {"messages": begun}).json()["tokens"]
    prompt = list(model.request("x").prompt_ids)
    assert tokens[: len(prompt)] == prompt and served.service.tokenizer.decode(tokens[len(prompt) :]) == " So  "
    assert served.post("/v1/chat/completions", CHAT | {"messages": begun}).json()["usage"]["prompt_tokens"] == len(
        tokens
    )


def test_log_probabilities_join_to_the_text_that_a_stop_string_left(served: Served) -> None:
    asked = CHAT | {"temperature": 1.0, "seed": 3, "max_tokens": 40, "logprobs": True, "tyler": {"budget": 0}}
    text = served.post("/v1/chat/completions", asked).json()["choices"][0]["message"]["content"]
    for stop in {text[at : at + 2] for at in range(2, len(text) - 2, 3)}:
        choice = served.post("/v1/chat/completions", asked | {"stop": stop}).json()["choices"][0]
        if choice["finish_reason"] == "stop" and "\ufffd" not in text:
            joined = b"".join(bytes(one["bytes"]) for one in choice["logprobs"]["content"]).decode(errors="ignore")
            assert joined == choice["message"]["content"]


# ---------------------------------------------------------------------------------------------------- the process


def test_an_address_that_is_taken_is_reported_before_anything_is_loaded(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert main(["serve", "/nowhere/at/all", "--port", port]) == 2
    assert f"cannot listen at 127.0.0.1:{port}: Address already in use; choose another" in capsys.readouterr().err


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="no IPv6 here")
def test_every_address_of_both_kinds_is_listened_at() -> None:
    with listen(ServerSettings(host="::", port=0)) as listening:
        socket.create_connection(("127.0.0.1", listening.getsockname()[1]), timeout=5).close()


def test_settings_come_from_a_file_and_flags_go_before_it(tmp_path: Path) -> None:
    file = tmp_path / "serve.yaml"
    file.write_text("model: mini-tyler\nslots: 4\nlog_text: true\nalias: [a, b]\nbudget: null\n")
    found = with_config(["--config", str(file), "--slots", "8"])
    assert found == ["mini-tyler", "--slots", "4", "--log-text", "--alias", "a", "--alias", "b", "--slots", "8"]
    assert with_config([f"--config={file}", "--slots", "8"]) == found
    assert with_config(["mini", "--config", str(file)])[0] == "mini"
    file.write_text("slots: 4")
    assert with_config(["--port", "1", "mini", "--config", str(file)]) == ["--slots", "4", "--port", "1", "mini"]
    file.write_text("slots")
    with pytest.raises(ValueError, match="must map names of flags"):
        with_config(["--config", str(file)])


def test_traces_have_a_span_for_each_request_answer_and_call(model: Tyler) -> None:
    memory = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter", reason="extra otel")
    from tyler.serving.tracing import Traces

    exporter = memory.InMemorySpanExporter()
    with serving(model) as served:
        served.service._traces = traces = Traces(exporter, NAME)
        parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
        body = {**CHAT, "messages": [{"role": "user", "content": tiny.ODD}], "max_tokens": 24}
        body |= {"tyler": {"router": "boundaries"}}
        found = served.post("/v1/chat/completions", body, headers={"traceparent": parent}).json()
        traces._provider.force_flush()
    spans = exporter.get_finished_spans()
    calls = found["choices"][0]["tyler"]["invocations"]
    names = [span.name for span in spans]
    assert sorted(names) == sorted(
        ["POST /v1/chat/completions", "answer", *(f"operator {call['operator']}" for call in calls)]
    )
    assert {f"{span.context.trace_id:032x}" for span in spans} == {"0af7651916cd43dd8448eb211c80319c"}
    (answer,) = [span for span in spans if span.name == "answer"]
    assert answer.attributes["gen_ai.usage.output_tokens"] == found["usage"]["completion_tokens"]
