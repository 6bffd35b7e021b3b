"""Servers behind a balancer, by the recipes of the docs: nginx, and LiteLLM's router."""

import json
import os
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import httpx2
import pytest
import yaml
from tests.serving.served import NAME, Served, serving
from tests.serving.test_clients import SAID, SAMPLED, expected

from tyler.model import Tyler

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # its prices come from the network otherwise
LONG = SAMPLED | {"max_tokens": 64, "stream": True, "temperature": 3.0}


@pytest.fixture(scope="module")
def pair(model: Tyler) -> Iterator[tuple[Served, Served]]:
    with serving(model, max_queue=0, slots=1) as first, serving(model, max_queue=0, slots=1) as second:
        yield first, second


@pytest.fixture(scope="module")
def nginx(pair: tuple[Served, Served], root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of nginx under the recipe, but for the ports and where it keeps its files."""
    if shutil.which("nginx") is None:
        pytest.skip("nginx is not installed")
    folder, recipe = tmp_path_factory.mktemp("nginx"), (root / "docs/recipes/nginx.conf").read_text()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    for shown, actual in ((8001, urlsplit(pair[0].url).port), (8002, urlsplit(pair[1].url).port), (8000, port)):
        assert f"127.0.0.1:{shown}" in recipe
        recipe = recipe.replace(f"127.0.0.1:{shown}", f"127.0.0.1:{actual}")
    kept = "".join(f"{kind}_temp_path {folder};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
    recipe = re.sub("worker_processes auto;", f"worker_processes 1; daemon off; pid {folder}/pid;", recipe)
    (folder / "nginx.conf").write_text(recipe.replace("http {", f"http {{ access_log off; {kept}", 1))
    process = subprocess.Popen(["nginx", "-p", folder, "-e", "stderr", "-c", folder / "nginx.conf"])
    try:
        url, end = f"http://127.0.0.1:{port}", time.monotonic() + 120
        while not listens(port):
            assert process.poll() is None and time.monotonic() < end, "nginx does not start"
            time.sleep(0.02)
        yield url
    finally:
        process.terminate()
        process.wait(timeout=300)


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_nginx_passes_answers_on_whole_and_as_they_come(nginx: str, model: Tyler) -> None:
    with httpx2.Client(base_url=nginx, timeout=300) as client:
        whole = client.post("/v1/chat/completions", json=SAMPLED)
        assert whole.json()["choices"][0]["message"]["content"] == expected(model).text
        with client.stream("POST", "/v1/chat/completions", json=SAMPLED | {"stream": True}) as stream:
            events = [line[6:] for line in stream.iter_lines() if line.startswith("data: ")]
    assert events[-1] == "[DONE]" and len(events) > 3
    found = "".join(json.loads(one)["choices"][0]["delta"].get("content", "") for one in events[:-1])
    assert found == expected(model).text


@contextmanager
def full(*servers: Served) -> Iterator[None]:
    """Within it these servers have no room for another answer."""
    for one in servers:
        one.service.dispatcher.open += 1
    try:
        yield
    finally:
        for one in servers:
            one.service.dispatcher.open -= 1


def test_nginx_takes_a_request_from_a_full_server_to_the_other(nginx: str, pair: tuple[Served, Served]) -> None:
    with httpx2.Client(base_url=nginx, timeout=300) as client:
        for one in pair:
            with full(one):
                assert all(client.post("/v1/chat/completions", json=SAMPLED).status_code == 200 for _ in range(3))
        with full(*pair):
            refused = client.post("/v1/chat/completions", json=SAMPLED)
        assert refused.status_code == 429 and refused.headers["retry-after"] == "1"


def test_a_client_that_leaves_nginx_is_gone_for_its_server(nginx: str, pair: tuple[Served, Served]) -> None:
    before = sum(one.metric("request_aborted_total") for one in pair)
    with httpx2.Client(base_url=nginx, timeout=300) as client:
        with client.stream("POST", "/v1/chat/completions", json=LONG) as stream:
            next(stream.iter_lines())
    for one in pair:
        one.wait_until_idle()
    assert sum(one.metric("request_aborted_total") for one in pair) in (before, before + 1)  # short answers may end


def test_several_servers_stand_behind_litellms_router(model: Tyler, root: Path) -> None:
    litellm = pytest.importorskip("litellm", reason="litellm is not installed (extra clients)")
    recipe = (root / "docs/recipes/litellm.yaml").read_text()
    with serving(model) as first, serving(model) as second:
        for shown, one in ((8001, first), (8002, second)):
            recipe = recipe.replace(f"http://127.0.0.1:{shown}", one.url)
        settings = yaml.safe_load(recipe.replace("openai/mini-tyler", f"openai/{NAME}"))
        router = litellm.Router(model_list=settings["model_list"], **settings["router_settings"])

        def ask(_: int) -> str:
            found = router.completion(model="tyler", messages=SAID, max_tokens=24, temperature=1.0, seed=6)
            return str(found.choices[0].message.content)

        with ThreadPoolExecutor(8) as clients:  # the least busy server is always the first where one asks alone
            assert set(clients.map(ask, range(32))) == {expected(model).text}
        assert all(one.metric("e2e_request_latency_seconds_count") > 0 for one in (first, second))
