"""The server as an application of Ray Serve, on a cluster of this machine alone. It needs the extra `cluster`."""

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import psutil
import pytest
from tests.serving.served import solved

from tyler.model import Tyler

ray = pytest.importorskip("ray", reason="Ray is not installed (extra cluster)")
from ray import serve  # noqa: E402

from tyler.serving.cluster import app  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")  # Ray's own
CHAT = {"model": "mini-tyler", "messages": [{"role": "user", "content": "1 + 1"}], "max_tokens": 20}
LIMITS = {"slots": 5, "max_queue": 4, "max_new_tokens": 400, "memory": "8MB", "budget": 1}


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("logs") / "audit.jsonl"


@pytest.fixture(scope="module")
def client(log: Path, unused_port: int) -> Iterator[httpx2.Client]:
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        serve.start(http_options={"host": "127.0.0.1", "port": unused_port})
        serve.run(app({"model": "mini-tyler", "log": str(log), **LIMITS}))
        with httpx2.Client(base_url=f"http://127.0.0.1:{unused_port}", timeout=300) as client:
            yield client
    finally:
        serve.shutdown()
        ray.shutdown()


def until(holds: Callable[[], bool], why: str, seconds: float = 90.0) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, why
        time.sleep(0.1)


def metric(client: httpx2.Client, name: str) -> float:
    lines = client.get("/metrics").text.splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"tyler_{name} "))


def test_a_replica_answers_as_the_model_does_whole_and_streamed(client: httpx2.Client, log: Path) -> None:
    expected = solved(Tyler.from_pretrained("mini-tyler"), "1 + 1", 20, budget=1).text
    whole = client.post("/v1/chat/completions", json=CHAT).json()["choices"][0]
    assert whole["message"]["content"] == expected and whole["tyler"]["budget"] == 1
    with client.stream("POST", "/v1/chat/completions", json=CHAT | {"stream": True}) as stream:
        events = [line[6:] for line in stream.iter_lines() if line.startswith("data: ")]
    assert events[-1] == "[DONE]"
    assert "".join(json.loads(one)["choices"][0]["delta"].get("content", "") for one in events[:-1]) == expected
    until(lambda: any('"budget": 1' in one.read_text() for one in log.parent.glob("audit-*.jsonl")), "no log line")


def test_a_client_that_leaves_frees_its_row(client: httpx2.Client) -> None:
    before = metric(client, "request_aborted_total")
    long = {"stream": True, "temperature": 3.0, "seed": 1, "max_tokens": 400, "tyler": {"router": "never"}}
    with client.stream("POST", "/v1/chat/completions", json=CHAT | long) as stream:
        next(stream.iter_lines())
    until(lambda: metric(client, "request_aborted_total") == before + 1, "its row is still taken", 30)


def test_a_replica_that_dies_is_started_again(client: httpx2.Client) -> None:
    replicas = [one for one in psutil.Process().children(recursive=True) if "ServeReplica" in " ".join(one.cmdline())]
    assert len(replicas) == 1, replicas
    os.kill(replicas[0].pid, signal.SIGKILL)

    def answers() -> bool:
        try:
            return client.post("/v1/chat/completions", json=CHAT, timeout=5).status_code == 200
        except httpx2.HTTPError:
            return False

    until(answers, "no replica came back")


@pytest.mark.parametrize("wrong", [{"replica": 3}, {"slots": 0}, {"memory": "much"}])
def test_a_setting_that_does_not_exist_or_is_invalid_is_refused_by_name(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        app({"model": "mini", **wrong})
