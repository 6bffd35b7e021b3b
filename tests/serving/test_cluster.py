"""The server as an application of Ray Serve, in Ray's local testing mode. It needs the extra `cluster`."""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tyler.model import Tyler

pytest.importorskip("ray.serve", reason="Ray Serve is not installed (extra cluster)")
from ray import serve

from tyler.serving.cluster import Arguments, app
from tyler.serving.service import Service

CHAT = "/v1/chat/completions"
SLOTS = 5
"""As no other test has it: the service is found by them."""
pytestmark = pytest.mark.filterwarnings("ignore")  # Ray's own


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("logs") / "audit.jsonl"


@pytest.fixture(scope="module")
def handle(log: Path) -> Iterator[Any]:
    limits = {"slots": SLOTS, "max_queue": 4, "max_new_tokens": 400, "memory": "8MB", "budget": 1}
    yield serve.run(app(Arguments(model="mini-tyler", log=log, **limits)), _local_testing_mode=True)


def body(**changes: Any) -> bytes:
    asked = {"model": "mini-tyler", "messages": [{"role": "user", "content": "1 + 1"}], "max_tokens": 20}
    return json.dumps(asked | changes).encode()


def answered(handle: Any, path: str = CHAT, **changes: Any) -> bytes:
    return b"".join(handle.options(stream=True).answer.remote(path, body(**changes)))


def test_a_deployment_answers_as_the_model_does_whole_and_streamed(handle: Any) -> None:
    expected = Tyler.from_pretrained("mini-tyler").solve("1 + 1", max_new_tokens=20, budget=1).text
    assert json.loads(answered(handle))["choices"][0]["message"]["content"] == expected
    parts = list(handle.options(stream=True).answer.remote(CHAT, body(stream=True)))
    events = [line[6:] for line in b"".join(parts).decode().splitlines() if line.startswith("data: ")]
    assert len(parts) > 2 and events[-1] == "[DONE]"
    assert "".join(json.loads(one)["choices"][0]["delta"].get("content", "") for one in events[:-1]) == expected


def test_samples_of_a_request_come_together_and_a_refusal_says_why(handle: Any) -> None:
    assert len(json.loads(answered(handle, n=3, temperature=1.0))["choices"]) == 3
    with pytest.raises(ValueError, match="min_p is not supported"):
        answered(handle, min_p=0.1)
    with pytest.raises(ValueError, match="there is no '/v1/nowhere'"):
        answered(handle, "/v1/nowhere")


def service_in(found: list[Any]) -> Service:
    """The service behind the handle."""
    services = [one for one in found if isinstance(one, Service) and one.settings.slots == SLOTS]
    (service,) = [one for one in services if one.settings.name == "mini-tyler"]
    return service


def test_what_a_server_can_be_told_a_deployment_can_too(handle: Any, log: Path) -> None:
    settings = service_in(gc.get_objects()).settings
    assert settings.memory == 8_000_000
    told = json.loads(answered(handle))["choices"][0]["tyler"]
    assert told["budget"] == 1
    assert settings.log is not None and settings.log.name.startswith("audit-") and settings.log.parent == log.parent
    until = time.monotonic() + 30
    while f'"budget": {told["budget"]}' not in settings.log.read_text():
        assert time.monotonic() < until, "no line of the audit log"
        time.sleep(0.02)
    with pytest.raises(ValueError, match="--memory"):
        app(Arguments(model="mini-tyler", memory="much"))


def test_who_stops_listening_frees_the_row(handle: Any) -> None:
    service = service_in(gc.get_objects())
    long = {"stream": True, "temperature": 3.0, "seed": 1, "max_tokens": 400, "tyler": {"router": "never"}}
    stream = handle.options(stream=True).answer.remote(CHAT, body(**long))
    next(iter(stream))
    assert service.open == 1
    stream.cancel()
    until = time.monotonic() + 30
    while service.open:
        assert time.monotonic() < until, "its row is still taken"
        time.sleep(0.02)


def test_an_argument_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="replica"):
        Arguments(model="mini", replica=3)  # type: ignore[call-arg]
