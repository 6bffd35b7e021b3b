"""Several processes behind one address: a prompt keeps its replica, and one that dies takes only its clients along."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import unquote

import httpx2
import psutil
import pytest

from tyler.cli.main import main
from tyler.engine.routing import AtBoundaries
from tyler.model import Tyler
from tyler.serving import fleet
from tyler.serving.replicas import Replica, plans
from tyler.serving.router import KEPT_SECONDS, Router, create_app, merged, ordered, prompt_of, target_of
from tyler.serving.server import Server, listen
from tyler.serving.settings import ServerSettings

NAME, KEY = "mini-tyler", "between-the-processes"
LOAD = {"location": NAME, "name": NAME, "max_new_tokens": 400, "slots": 8}
LONG = {"temperature": 3.0, "seed": 1, "max_tokens": 400, "stream": True, "tyler": {"router": "never"}}


@dataclass
class Fleet:
    """A router with its replicas, in a thread of the test's process."""

    url: str
    router: Router
    server: Server
    thread: threading.Thread
    logs: Path

    def ask(self, text: str, **changes: Any) -> httpx2.Response:
        with httpx2.Client(base_url=self.url, timeout=60) as client:
            return client.post("/v1/chat/completions", json=body(text, **changes))

    def get(self, path: str) -> httpx2.Response:
        with httpx2.Client(base_url=self.url, timeout=60) as client:
            return client.get(path)

    def of(self, text: str) -> Replica:
        """The replica that a question belongs to."""
        return ordered(self.router.replicas, prompt_of(json.dumps(body(text)).encode()))[0]

    def question_of(self, replica: Replica) -> str:
        """A question that belongs to this one."""
        return next(text for text in (f"{number} + 1" for number in range(1000)) if self.of(text) is replica)

    def until_all_are_ready(self) -> None:
        until = time.monotonic() + 120
        while not all(one.ready for one in self.router.replicas):
            assert time.monotonic() < until and self.thread.is_alive(), "the replicas do not get ready"
            time.sleep(0.05)

    def finished(self, replica: Replica) -> float:
        """Answers that a replica has finished in its present life."""
        own = f'tyler_request_success_total{{replica="{replica.number}"'
        lines = self.get("/metrics").text.splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(own))


def body(text: str, **changes: Any) -> dict[str, Any]:
    return {"model": NAME, "messages": [{"role": "user", "content": text}], "max_tokens": 20, **changes}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    logs = tmp_path_factory.mktemp("logs")
    settings = ServerSettings(port=0, name=NAME, max_new_tokens=400, slots=8, log=logs / "audit.jsonl")
    replicas = [Replica(number, plan, 1) for number, plan in enumerate(plans(LOAD, settings, 2, KEY, devices=0))]
    try:
        asyncio.run(fleet.begin(replicas))
        listening, router = listen(settings), Router(replicas, settings, KEY)
        server = Server(create_app(router), settings)
        thread = threading.Thread(target=server.run, args=([listening],))
        thread.start()
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        found = Fleet(url, router, server, thread, logs)
        found.until_all_are_ready()
        yield found
        server.should_exit = True
        thread.join(timeout=30)
    finally:
        fleet.end(replicas)


@pytest.fixture(scope="module")
def model() -> Tyler:
    return Tyler.from_pretrained(NAME)


def text_of(lines: list[str]) -> str:
    events = [line.removeprefix("data: ") for line in lines if line.startswith("data: {")]
    return "".join(json.loads(event)["choices"][0]["delta"].get("content", "") for event in events)


def test_replicas_go_over_the_gpus_in_turn_unless_a_device_is_named() -> None:
    def placed(load: dict[str, Any], devices: int) -> list[str | None]:
        return [plan.load["device"] for plan in plans(load, ServerSettings(), 3, KEY, devices)]

    assert placed(LOAD, 2) == ["cuda:0", "cuda:1", "cuda:0"]
    assert placed(LOAD, 0) == [None] * 3
    assert placed({**LOAD, "device": None}, 2) == ["cuda:0", "cuda:1", "cuda:0"]
    assert placed({**LOAD, "device": "cpu"}, 2) == ["cpu"] * 3


# ------------------------------------------------------------------------------------------------ passing on


def test_answers_are_the_models_own_whole_and_streamed(running: Fleet, model: Tyler) -> None:
    for text in ("1 + 1", "Tom has 12 apples and buys 7 more."):
        expected = model.solve(text, max_new_tokens=20, router=AtBoundaries(), budget=2)
        options = {"tyler": {"router": "boundaries", "budget": 2}}
        whole = running.ask(text, **options)
        assert whole.json()["choices"][0]["message"]["content"] == expected.text
        streamed = running.ask(text, stream=True, **options)
        assert streamed.text.endswith("data: [DONE]\n\n") and text_of(streamed.text.splitlines()) == expected.text
        assert streamed.headers["content-type"].startswith("text/event-stream")


def test_a_question_and_its_samples_stay_with_one_replica(running: Fleet) -> None:
    first, second = running.router.replicas
    text = running.question_of(first)
    before = running.finished(first), running.finished(second)
    for changes in ({"n": 3, "temperature": 1.0}, {}, {"stream": True}):
        assert running.ask(text, **changes).status_code == 200
    assert (running.finished(first) - before[0], running.finished(second) - before[1]) == (5, 0)
    assert running.ask(running.question_of(second)).status_code == 200
    assert running.finished(second) == before[1] + 1


def test_refusals_pass_and_the_guard_is_the_servers_own(running: Fleet) -> None:
    refused = running.ask("1 + 1", min_p=0.1)
    assert refused.status_code == 400 and refused.json()["error"]["param"] == "min_p"
    with httpx2.Client(base_url=running.url, timeout=60) as client:
        assert client.get("/v1/models", headers={"x-request-id": "mine"}).headers["x-request-id"] == "mine"
        assert client.get("/v1/models", headers={"Host": "evil.example"}).status_code == 403
        assert client.get("/v1/models", headers={"Origin": running.url}).status_code == 200
        assert client.get("/v1/nowhere").status_code == 404
        replica = running.router.replicas[0].url
        assert httpx2.get(f"{replica}/v1/models", timeout=60).status_code == 401, (
            "nobody asks a replica past the router"
        )


def test_a_client_that_goes_is_gone_for_its_replica(running: Fleet) -> None:
    def value(name: str) -> float:
        lines = running.get("/metrics").text.splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"tyler_{name}{{"))

    before = value("request_aborted_total")
    with httpx2.Client(base_url=running.url, timeout=60) as client:
        with client.stream("POST", "/v1/chat/completions", json=body("1 + 1", **LONG, n=4)) as answer:
            next(answer.iter_lines())
    until = time.monotonic() + 20
    while value("num_requests_running") or running.router.open:
        assert time.monotonic() < until
        time.sleep(0.05)
    assert value("request_aborted_total") > before


# ------------------------------------------------------------------------------------------------ a replica that dies


def test_a_replica_that_is_killed_takes_its_own_clients_along_and_comes_back(running: Fleet, model: Tyler) -> None:
    running.until_all_are_ready()
    doomed, other = running.router.replicas
    text, safe = running.question_of(doomed), running.question_of(other)
    told: dict[str, str] = {}

    def ask(key: str, question: str) -> None:
        told[key] = running.ask(question, **LONG).text

    with httpx2.Client(base_url=running.url, timeout=60) as client:
        begun = client.build_request("POST", "/v1/chat/completions", json=body(text, **LONG, n=8))
        answer = client.send(begun, stream=True)
        lines = answer.iter_lines()
        next(lines)
        asking = threading.Thread(target=ask, args=("safe", safe))
        asking.start()
        assert doomed.pid is not None
        os.kill(doomed.pid, signal.SIGKILL)
        rest = [line for line in lines if line]
        asking.join(timeout=60)
    assert json.loads(rest[-1].removeprefix("data: "))["error"]["code"] == "replica_failed", rest[-1]
    assert told["safe"].endswith("data: [DONE]\n\n") and '"error"' not in told["safe"]
    passed_on = running.ask(text)
    assert passed_on.json()["choices"][0]["message"]["content"] == model.solve(text, max_new_tokens=20).text
    assert running.get("/health/ready").status_code == 200
    running.until_all_are_ready()
    assert doomed.restarts == 1 and running.ask(text).status_code == 200
    assert running.finished(doomed) == 1, "its prompts are its own again"


# ------------------------------------------------------------------------------------------------ the end


def test_at_the_end_answers_in_flight_finish_and_no_process_is_left(running: Fleet) -> None:
    """The last test of this file: it stops the router as SIGTERM does."""
    pids = [one.pid for one in running.router.replicas]
    with httpx2.Client(base_url=running.url, timeout=60) as client:
        begun = client.build_request("POST", "/v1/chat/completions", json=body("1 + 1", **LONG))
        answer = client.send(begun, stream=True)
        lines = answer.iter_lines()
        next(lines)
        running.server.handle_exit(signal.SIGTERM, None)
        assert running.ask("2 + 2").status_code == 503
        assert running.get("/health/ready").json()["status"] == "draining"
        assert [line for line in lines if line][-1] == "data: [DONE]"
    running.thread.join(timeout=30)
    assert not running.thread.is_alive()
    fleet.end(running.router.replicas)
    assert not [pid for pid in pids if pid and psutil.pid_exists(pid)]
    logs = sorted(running.logs.iterdir())
    outcomes = {json.loads(line)["outcome"] for path in logs for line in path.read_text().splitlines()}
    assert [path.name for path in logs] == ["audit-0.jsonl", "audit-1.jsonl"] and "finished" in outcomes


# ------------------------------------------------------------------------------------------------ parts


def test_only_the_prompts_of_a_replica_that_left_move() -> None:
    replicas: Any = [SimpleNamespace(number=number) for number in range(4)]
    prompts = [f"question {number}".encode() for number in range(400)]
    before = [ordered(replicas, prompt)[0].number for prompt in prompts]
    after = [ordered(replicas[:3], prompt)[0].number for prompt in prompts]
    assert all(old == new for old, new in zip(before, after, strict=True) if old != 3)
    assert all(60 < before.count(number) < 140 for number in range(4)), "and they are spread"


@pytest.mark.parametrize("path", ["/page/../v1/models", "/page/%2e%2e/v1/models", "/page/..%2fmetrics", "/page/x/../y"])
def test_no_spelling_of_a_path_gets_past_the_key(path: str) -> None:
    settings = ServerSettings(name=NAME, api_key="secret")
    told: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        told.append(message)

    scope = {"type": "http", "method": "GET", "path": unquote(path), "raw_path": path.encode(), "query_string": b"a=b"}
    scope |= {"headers": [(b"host", b"127.0.0.1")], "client": None, "scheme": "http", "root_path": "", "state": {}}
    asyncio.run(create_app(Router([], settings, KEY))(scope, receive, send))
    assert told[0]["status"] == 401
    replica = SimpleNamespace(url="http://127.0.0.1:5")
    assert str(target_of(replica, scope)) == f"http://127.0.0.1:5{path}?a=b", "passed on letter by letter"


def test_a_connection_to_a_replica_is_left_before_the_replica_closes_it() -> None:
    settings = ServerSettings()
    replica = Server(create_app(Router([], settings, KEY)), settings)
    assert replica.config.timeout_keep_alive > KEPT_SECONDS


def test_a_prompt_is_what_is_asked_and_not_how() -> None:
    first = json.dumps({"messages": [{"role": "user", "content": "x"}], "temperature": 1}).encode()
    second = json.dumps({"n": 4, "messages": [{"content": "x", "role": "user"}]}).encode()
    assert prompt_of(first) == prompt_of(second) != prompt_of(json.dumps({"prompt": "x"}).encode())
    for odd in (b"", b"{", b"[" * 10**5, b"[1]", b"\xff"):
        assert prompt_of(odd) == odd


def test_metrics_of_several_replicas_are_one_valid_text() -> None:
    one = '# HELP a_total A\n# TYPE a_total counter\na_total{x="1"} 2.0\n# HELP b B\n# TYPE b gauge\nb 1.0\n'
    assert merged([one, one, ""]) == (
        '# HELP a_total A\n# TYPE a_total counter\na_total{replica="0",x="1"} 2.0\na_total{replica="1",x="1"} 2.0\n'
        '# HELP b B\n# TYPE b gauge\nb{replica="0"} 1.0\nb{replica="1"} 1.0\n'
    )


def test_a_model_that_cannot_be_loaded_is_refused_in_the_replicas_words(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "/nowhere/at-all", "--replicas", "2", "--port", "0"]) == 2
    said = capsys.readouterr().err
    assert "a replica could not be started" in said and "/nowhere/at-all" in said
    assert main(["serve", "mini", "--replicas", "0"]) == 2
    assert "it must be 1 or more" in capsys.readouterr().err
