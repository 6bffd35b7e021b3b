"""Before the end and at it: clients that go, queues that are full, engines that fail, servers that are stopped."""

import json
import re
import signal
import subprocess
import sys
import threading
import time
from itertools import pairwise
from pathlib import Path
from subprocess import PIPE

import httpx2
import pytest
import torch
from tests import tiny
from tests.processes import Started
from tests.serving.served import NAME, Served, serving, solved

from tyler.engine.native.engine import Engine
from tyler.engine.request import Event
from tyler.engine.routing import Never
from tyler.engine.sampling import Sampling
from tyler.engine.shared_engine import Turn
from tyler.model import Tyler

LONG = {"model": NAME, "messages": [{"role": "user", "content": "x"}], "max_tokens": 180, "tyler": {"router": "never"}}
SHORT = LONG | {"max_tokens": 2}


@pytest.fixture(scope="module")
def endless(model: Tyler) -> dict:
    """A request whose answer takes its whole length."""
    for seed in range(50):
        answer = solved(model, "x", router=Never(), max_new_tokens=180, sampling=Sampling(1.0, seed=seed))
        if len(answer.actions) == 180:
            return LONG | {"temperature": 1.0, "seed": seed}
    raise AssertionError("every answer ends by itself")


@pytest.fixture()
def slow(endless: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps that take long enough for a client to go while they last."""
    step = Engine.step

    def slower(self: Engine) -> list[Event]:
        time.sleep(0.02)
        return step(self)

    monkeypatch.setattr(Engine, "step", slower)


def start(served: Served, body: dict) -> tuple[httpx2.Client, httpx2.Response]:
    """A stream that has begun."""
    client = httpx2.Client(base_url=served.url, timeout=300)
    answer = client.send(client.build_request("POST", "/v1/chat/completions", json=body), stream=True)
    assert answer.status_code == 200, answer.read()
    return client, answer


# ------------------------------------------------------------------------------------------------ clients that go


def test_a_client_that_goes_frees_its_row_streaming_or_not(slow: None, endless: dict, model: Tyler) -> None:
    with serving(model, max_new_tokens=200) as served:
        engine = model.shared_engine
        client, answer = start(served, endless | {"stream": True})
        assert served.service.dispatcher.open == 1
        answer.close()
        client.close()
        served.wait_until_idle()
        with httpx2.Client(base_url=served.url, timeout=0.4) as hasty, pytest.raises(httpx2.ReadTimeout):
            hasty.post("/v1/chat/completions", json=endless | {"n": 2})
        served.wait_until_idle()
        assert engine.load().running == 0 and served.metric("request_aborted_total") == 3
        assert served.post("/v1/chat/completions", SHORT).status_code == 200


def test_a_quiet_stream_is_kept_alive_by_comments_that_clients_skip(
    endless: dict, model: Tyler, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = Engine.step
    monkeypatch.setattr(Engine, "step", lambda self: time.sleep(0.2) or step(self))
    body = endless | {"max_tokens": 3, "stream": True}
    monkeypatch.setattr("tyler.serving.generation.PING_SECONDS", 0.05)
    with serving(model) as served:
        lines = served.post("/v1/chat/completions", body).text.split("\n\n")
        assert lines.count(": ping") >= 3 and lines[-2] == "data: [DONE]"
        extra = {"extra_body": {"tyler": body.pop("tyler")}}
        chunks = list(served.openai.chat.completions.create(**body, **extra))
        assert [chunk.choices[0].finish_reason for chunk in chunks][-1] == "length"


def test_what_reads_beside_the_engine_lets_answers_go_on_between_its_passes(
    slow: None, endless: dict, model: Tyler, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps, step = list[Engine](), Engine.step
    monkeypatch.setattr(Engine, "step", lambda self: steps.append(self) or step(self))

    def work(turn: Turn) -> list[tuple[int, int]]:
        seen = []
        for _ in range(3):
            with turn():
                before = len(steps)
                time.sleep(0.2)
                seen.append((before, len(steps)))
        return seen

    with serving(model, max_new_tokens=200) as served:
        client, answer = start(served, endless | {"stream": True})
        seen = served.soon(served.service.dispatcher.beside_steps(work)).result(timeout=300)
        answer.close()
        client.close()
    assert all(before == after for before, after in seen), "a step was taken within a pass"
    assert all(later[0] > earlier[1] for earlier, later in pairwise(seen)), "answers waited"


def test_what_nobody_waits_for_ends_before_its_next_pass(model: Tyler) -> None:
    began, ended = threading.Event(), threading.Event()

    def work(turn: Turn) -> None:
        try:
            for _ in range(1000):
                with turn():
                    began.set()
                    time.sleep(0.01)
        finally:
            ended.set()

    with serving(model) as served:
        waiting = served.soon(served.service.dispatcher.beside_steps(work))
        assert began.wait(300)
        waiting.cancel()
        assert ended.wait(300)

        def fails(turn: Turn) -> None:
            raise RuntimeError("no room")

        with pytest.raises(RuntimeError, match="no room"):
            served.soon(served.service.dispatcher.beside_steps(fails)).result(timeout=300)
        assert served.get("/health/ready").status_code == 200


def test_a_full_queue_says_when_to_come_back(slow: None, endless: dict, model: Tyler) -> None:
    with serving(model, max_new_tokens=200, slots=1, max_queue=1) as served:
        client, answer = start(served, endless | {"stream": True})
        waiting = threading.Thread(target=served.post, args=("/v1/chat/completions", SHORT))
        waiting.start()
        while served.service.dispatcher.open < 2:
            time.sleep(0.005)
        refused = served.post("/v1/chat/completions", SHORT)
        assert refused.status_code == 429 and refused.headers["retry-after"] == "1"
        assert refused.json()["error"]["type"] == "rate_limit_error"
        assert served.metric("num_requests_running") == served.metric("num_requests_waiting") == 1
        answer.close()
        client.close()
        waiting.join(timeout=300)
        assert not waiting.is_alive()
        assert served.post("/v1/chat/completions", SHORT).status_code == 200


def test_an_answer_whose_logits_are_not_finite_is_an_error_and_the_next_one_is_none() -> None:
    model = tiny.build("qwen3", tiny.SEEDS["qwen3"])
    with torch.no_grad():
        model.policy.psi.fill_(float("nan"))
    with serving(model) as served:
        lost = served.post("/v1/chat/completions", SHORT | {"tyler": {"router": "learned"}})
        assert lost.status_code == 500 and lost.json()["error"]["code"] == "engine_failed"
        assert "the logits of step 1 are not finite" in lost.json()["error"]["message"]
        assert served.post("/v1/chat/completions", SHORT).status_code == 200
        assert served.metric("request_failed_total") == 1
        served.wait_until_idle()


# ------------------------------------------------------------------------------------------------ engines that fail


def breaking(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """While the event is set, no engine can take a step."""
    broken, step = threading.Event(), Engine.step

    def breaks(self: Engine) -> list[Event]:
        if broken.is_set():
            raise RuntimeError("the device is gone")
        time.sleep(0.01)
        return step(self)

    monkeypatch.setattr(Engine, "step", breaks)
    return broken


def test_a_failing_engine_fails_its_requests_and_readiness_until_it_works_again(
    endless: dict, model: Tyler, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = breaking(monkeypatch)
    with serving(model, max_new_tokens=200) as served:
        client, answer = start(served, endless | {"stream": True})
        answers: list[httpx2.Response] = []
        asking = threading.Thread(target=lambda: answers.append(served.post("/v1/chat/completions", endless)))
        asking.start()
        while served.service.dispatcher.open < 2:
            time.sleep(0.005)
        time.sleep(0.1)
        broken.set()
        events = [line for line in answer.iter_lines() if line.startswith("data: ")]
        assert json.loads(events[-1].removeprefix("data: "))["error"]["code"] == "engine_failed"
        client.close()
        asking.join(timeout=300)
        (failed,) = answers
        assert failed.status_code == 500 and failed.json()["error"]["code"] == "engine_failed"
        assert "the device is gone" in failed.json()["error"]["message"]
        assert served.get("/health/ready").status_code == 503 and served.get("/health/live").status_code == 200
        assert served.post("/v1/chat/completions", SHORT).status_code == 500
        broken.clear()
        until = time.monotonic() + 120
        while served.get("/health/ready").status_code != 200:
            assert time.monotonic() < until, "a new engine is tried before long"
            time.sleep(0.05)
        assert served.post("/v1/chat/completions", SHORT).status_code == 200
        assert served.metric("request_failed_total") == 3


# ------------------------------------------------------------------------------------------------ the end


def test_sigterm_lets_answers_in_flight_finish(tmp_path: Path) -> None:
    """A process of its own: no new connections, the old answer complete, exit status 0."""
    log = tmp_path / "audit.jsonl"
    process = Started(["serve", "mini", "--port", "0", "--log", str(log)], tmp_path / "said.txt")
    try:
        url = process.until(lambda: re.search(r"http://[\d.:]+\d", process.output))
        body = {"model": "mini", "messages": [{"role": "user", "content": "1 + 1"}], "stream": True, "max_tokens": 900}
        body |= {"temperature": 3.0, "seed": 1}
        with httpx2.Client(base_url=url[0], timeout=300) as client:
            while client.get("/health/ready").status_code != 200:
                time.sleep(0.05)
            answer = client.send(client.build_request("POST", "/v1/chat/completions", json=body), stream=True)
            lines = answer.iter_lines()
            next(lines)
            process.send(signal.SIGTERM)
            with pytest.raises(httpx2.TransportError):
                while True:
                    httpx2.get(f"{url[0]}/health/ready", timeout=300)
            rest = [line for line in lines if line]
            assert rest[-1] == "data: [DONE]"
            assert json.loads(rest[-2].removeprefix("data: "))["choices"][0]["finish_reason"] in ("length", "stop")
        assert process.wait(300) == 0, process.output
    finally:
        process.kill()
    (record,) = map(json.loads, log.read_text().splitlines())
    assert record["outcome"] == "finished"


ENDS = """
import sys
from tyler.cli.main import main
from tyler.engine.native.engine import Engine
from tyler.serving import dispatcher, server

def announce(settings, listening):
    def breaks(self):
        raise RuntimeError("the device is gone")
    Engine.step = breaks
    print(listening.getsockname()[1], flush=True)

server.announce, dispatcher.PROBE_SECONDS = announce, 0.05
sys.argv = ["tyler", "serve", "mini-tyler", "--port", "0", "--max-probes", "3"]
main()
"""


def test_a_server_whose_engine_cannot_be_revived_ends_with_status_1() -> None:
    """So that systemd, Kubernetes or Ray start it again."""
    process = subprocess.Popen([sys.executable, "-c", ENDS], stdout=PIPE, stderr=PIPE, text=True)
    assert process.stdout is not None
    port = int(process.stdout.readline())
    body = {"model": "mini-tyler", "messages": [{"role": "user", "content": "x"}], "max_tokens": 4}
    with httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=300) as client:
        assert client.post("/v1/chat/completions", json=body).status_code == 500
    _, said = process.communicate(timeout=120)
    assert process.returncode == 1
    assert "the engine failed 3 probes in a row" in said
    (line,) = [line for line in said.splitlines() if '"POST /v1/chat/completions" 500' in line]
    assert re.match(r"[\d-]+ [\d:,]+ INFO 127.0.0.1 - ", line), "a request is logged once, with its time"
    assert "its supervisor starts it again" in said
