"""A server on loopback for tests, in a thread of the test's process."""

import asyncio
import socket
import threading
import time
from collections.abc import Coroutine, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeVar

import httpx2
import torch
from openai import OpenAI

from tyler.engine.trajectory import Trajectory
from tyler.model import Tyler
from tyler.reasoners.reasoner import Servable
from tyler.reasoners.tyler import TylerReasoner
from tyler.serving.app import create_app
from tyler.serving.server import Server, listen
from tyler.serving.service import Service
from tyler.serving.settings import ServerSettings

NAME = "tiny"
Found = TypeVar("Found")


@dataclass
class Served:
    """A running server, and what stands behind it."""

    url: str
    service: Service
    server: Server

    @cached_property
    def openai(self) -> OpenAI:
        return OpenAI(
            base_url=f"{self.url}/v1",
            api_key=next(iter(self.service.settings.api_keys.values()), "none"),
            max_retries=0,
        )

    def post(self, path: str, body: Any, **options: Any) -> httpx2.Response:
        """One request, without a pool that outlives it."""
        with httpx2.Client(base_url=self.url, timeout=300) as client:
            return client.post(path, json=body, **options)

    def get(self, path: str, **options: Any) -> httpx2.Response:
        with httpx2.Client(base_url=self.url, timeout=300) as client:
            return client.get(path, **options)

    def metric(self, name: str) -> float:
        """A metric's value, its labels included in the name."""
        lines = self.get("/metrics").text.splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"tyler_{name} "))

    def soon(self, work: Coroutine[Any, Any, Found]) -> Future[Found]:
        """What the server's event loop makes of it."""
        return asyncio.run_coroutine_threadsafe(work, self.server.servers[0].get_loop())

    def wait_until_idle(self) -> None:
        """Wait for the engine to have no request left."""
        engine = self.service.servable.model.shared_engine
        until = time.monotonic() + 120
        while self.service.dispatcher.open or engine.load().running:
            assert time.monotonic() < until, "a request is still running"
            time.sleep(0.01)


@contextmanager
def connected(served: Served) -> Iterator[socket.socket]:
    """A bare connection to the server."""
    host, port = served.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=300) as connection:
        yield connection


def said_to(served: Served, text: str) -> bytes:
    """All that the server says to bytes that do not come from a client, until it closes the connection."""
    with connected(served) as connection:
        connection.sendall(text.encode())
        answer = b""
        while part := connection.recv(65536):
            answer += part
    return answer


def solved(model: Tyler, question: Any, max_new_tokens: int, **given: Any) -> Trajectory:
    """The model's own answer under a limit as the server has it: of tokens and latents together."""
    request = model.request(question, max_new_tokens=max_new_tokens, **given)
    return model.shared_engine.run([replace(request, max_generated=max_new_tokens)])[0]


@torch.no_grad()
def likelihood(model: Tyler, context: list[int], rest: list[int]) -> tuple[float, bool]:
    """log p of the tokens that follow a context, over the vocabulary alone and without latents, and whether each is the
    likeliest: by one pass over all of them."""
    ids = torch.tensor([[*context, *rest]])
    decoded = model.policy.decoder(inputs_embeds=model.backbone.embed(ids), use_cache=False)
    logprobs = model.policy.token_logits(decoded.last_hidden_state)[0, len(context) - 1 : -1].log_softmax(-1)
    following = ids[0, len(context) :]
    return float(logprobs.gather(1, following[:, None]).sum()), bool((logprobs.argmax(-1) == following).all())


@contextmanager
def serving(model: Tyler | Servable, **changes: Any) -> Iterator[Served]:
    """Serve a model, greedy and with small limits unless `changes` say otherwise."""
    reasoner = TylerReasoner(NAME, model) if isinstance(model, Tyler) else model
    settings = ServerSettings(**{"port": 0, "name": NAME, "max_new_tokens": 64, "slots": 8, **changes})
    app = create_app(reasoner, settings, "0123456789abcdef")
    listening = listen(settings)
    server = Server(app, settings)
    thread = threading.Thread(target=server.run, args=([listening],))
    thread.start()
    until = time.monotonic() + 120
    while not server.started:
        assert time.monotonic() < until and thread.is_alive(), "the server did not start"
        time.sleep(0.01)
    running = Served(f"http://127.0.0.1:{listening.getsockname()[1]}", app.state.service, server)
    try:
        yield running
    finally:
        running.openai.close()
        server.should_exit = True
        thread.join(timeout=300)
        assert not thread.is_alive(), "the server did not stop"
