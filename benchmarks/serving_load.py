"""A server under load: its speed beside the engine's own, what clients are told, and what it keeps.

    OMP_NUM_THREADS=1 python benchmarks/serving_load.py [--quick] [--model mini-tyler] [--json out.json]

The server is a process of its own. Speed: CLIENTS at once ask the same questions, whole and as streams, beside an
engine in this process with as many rows; the clients' own work is part of the server's time, and not of its CPU time,
which says more on a machine that others use. Load: clients with mixed budgets and lengths, streams and whole answers, a
third of whom go away at a random moment; every finished answer is held against the same question alone.
"""

import asyncio
import json
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil

from harness import Contest, Figure, Report, compete, options, read
from tyler import Tyler

CHAT = "/v1/chat/completions"
CLIENTS = 64
DOCUMENTED = {200, 429, 503}
"""What a well-formed request may be answered under load."""


@dataclass(frozen=True)
class Question:
    """A request, and its answer when it is asked alone."""

    text: str
    budget: int | None
    longest: int
    expected: str = ""

    def body(self, model: str, stream: bool) -> dict[str, Any]:
        messages = [{"role": "user", "content": self.text}]
        content = {"model": model, "messages": messages, "max_tokens": self.longest, "stream": stream}
        return content | ({} if self.budget is None else {"tyler": {"budget": self.budget}})


def questions(model: Tyler, count: int, longest: int = 120) -> list[Question]:
    """Questions of several lengths and budgets, with their answers alone."""
    asked = []
    for index in range(count):
        eggs, budget = 5 + index, (None, 0, 1, 3)[index % 4]
        text = f"Tom has {eggs} eggs and buys {index % 7 + 2} more. " * (index % 3 + 1) + "How many eggs are there?"
        most = longest // (1 + index % 5)
        request = replace(model.request(text, budget=budget, max_new_tokens=most), max_generated=most)
        (answer,) = model.shared_engine.run([request])  # a server's limit counts latents too
        asked.append(Question(text, budget, most, answer.text))
    return asked


@dataclass
class Running:
    """A server process."""

    process: subprocess.Popen[str]
    host: str
    port: int
    model: str

    @property
    def memory(self) -> int:
        """Resident bytes."""
        return psutil.Process(self.process.pid).memory_info().rss

    @property
    def cpu_seconds(self) -> float:
        """What its threads have computed so far, in user and system time."""
        times = psutil.Process(self.process.pid).cpu_times()
        return times.user + times.system


@contextmanager
def server(model: str, log: Path, *arguments: str) -> Iterator[Running]:
    """A server on loopback, killed in the end."""
    command = [sys.executable, "-m", "tyler", "serve", model, "--port", "0", "--log", str(log), *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        found = re.search(r"http://([\d.]+):(\d+)", process.stdout.readline())
        assert found, "the server does not say where it listens"
        running = Running(process, found[1], int(found[2]), Path(model).name)
        until = time.monotonic() + 60
        while asyncio.run(status_of(running)) != 200:
            assert time.monotonic() < until and process.poll() is None, "the server does not get ready"
            time.sleep(0.05)
        yield running
    finally:
        process.kill()
        process.communicate()


async def status_of(running: Running) -> int:
    """Of readiness; 0 where no server listens."""
    try:
        return (await asked(running, "GET", "/health/ready"))[0]
    except OSError:
        return 0


@asynccontextmanager
async def connection(running: Running) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection(running.host, running.port)
    try:
        yield reader, writer
    finally:
        writer.close()


async def asked(running: Running, method: str, path: str, body: Any = None) -> tuple[int, float, str]:
    """Status, seconds until the first content, and the content; a bare client that costs as little as can be."""
    content = b"" if body is None else json.dumps(body).encode()
    head = (
        f"{method} {path} HTTP/1.1\r\nHost: {running.host}\r\nConnection: close\r\nContent-Length: {len(content)}\r\n"
    )
    async with connection(running) as (reader, writer):
        started = time.perf_counter()
        writer.write(f"{head}Content-Type: application/json\r\n\r\n".encode() + content)
        header = (await reader.readuntil(b"\r\n\r\n")).decode()
        parts, first = [], 0.0
        while part := await reader.read(65536):
            parts.append(part)
            if not first and (b'"content":"' in part.replace(b'"content":""', b"") or b"stream" not in header.encode()):
                first = time.perf_counter() - started
    return int(header.split()[1]), first, b"".join(parts).decode(errors="replace")


def text_of(content: str, stream: bool) -> str:
    """The text of a whole answer, or of a stream, which must have ended properly."""
    if not stream:
        return str(json.loads(content)["choices"][0]["message"]["content"])
    events = [line.removeprefix("data: ") for line in content.splitlines() if line.startswith("data: ")]
    if events and events[-1].startswith('{"error"'):
        raise ToldError(events[-1])
    if events[-1:] != ["[DONE]"]:
        raise ValueError(f"the stream ends with {events[-1:]}")
    return "".join(json.loads(event)["choices"][0]["delta"].get("content", "") for event in events[:-1])


class ToldError(ValueError):
    """A stream that ends with an error event."""


@dataclass
class Outcomes:
    """What clients were told: same, other, went, a status, error, lost; and the seconds until their first token."""

    counts: Counter[str] = field(default_factory=Counter)
    first: list[float] = field(default_factory=list)


async def one(running: Running, question: Question, stream: bool, patience: float, outcomes: Outcomes) -> None:
    """A client, who goes after `patience` seconds."""
    try:
        async with asyncio.timeout(patience):
            status, first, content = await asked(running, "POST", CHAT, question.body(running.model, stream))
        if status != 200:
            outcomes.counts[str(status)] += 1
            return
        outcomes.counts["same" if text_of(content, stream) == question.expected else "other"] += 1
        outcomes.first.append(first)
    except TimeoutError:
        outcomes.counts["went"] += 1
    except ToldError:
        outcomes.counts["error"] += 1
    except (OSError, ValueError, LookupError, EOFError):
        outcomes.counts["lost"] += 1


async def crowd(running: Running, pool: Sequence[Question], requests: int, seed: int) -> Outcomes:
    """CLIENTS at once until so many requests were made; a third of them goes at a random moment."""
    outcomes, luck, left = Outcomes(), random.Random(seed), iter(range(requests))

    async def client() -> None:
        for number in left:
            patience = luck.uniform(0.0, 1.0) if luck.random() < 1 / 3 else 120.0
            await one(running, pool[number % len(pool)], luck.random() < 0.5, patience, outcomes)

    await asyncio.gather(*(client() for _ in range(CLIENTS)))
    return outcomes


def speed(model: Tyler, running: Running, pool: Sequence[Question], rounds: int) -> tuple[list[Any], list[Figure]]:
    """The engine alone, whole answers and streams on the same questions, and the time until a stream's first token."""
    batch = [pool[index % len(pool)] for index in range(CLIENTS)]
    requests = [
        replace(model.request(one.text, budget=one.budget, max_new_tokens=one.longest), max_generated=one.longest)
        for one in batch
    ]
    tokens = sum(len(one.actions) for one in model.shared_engine.run(requests, slots=CLIENTS))
    first: list[float] = []
    spent: dict[str, list[float]] = {"engine": [], "whole answers": [], "streams": []}

    def engine() -> None:
        before = time.process_time()
        model.shared_engine.run(requests, slots=CLIENTS)
        spent["engine"].append(time.process_time() - before)

    def served(stream: bool) -> None:
        outcomes, before = Outcomes(), running.cpu_seconds

        async def everybody() -> None:
            await asyncio.gather(*(one(running, each, stream, 300.0, outcomes) for each in batch))

        asyncio.run(everybody())
        assert outcomes.counts == {"same": CLIENTS}, outcomes.counts
        spent["streams" if stream else "whole answers"].append(running.cpu_seconds - before)
        if stream:
            first.extend(outcomes.first)

    ways = {"engine": engine, "whole answers": lambda: served(False), "streams": lambda: served(True)}
    timings = compete([Contest(f"{CLIENTS} clients", ways, tokens, "actions")], rounds)
    cpu = {way: statistics.median(seconds[1:]) for way, seconds in spent.items()}  # the first round warms up
    late = statistics.quantiles(first, n=20)[-1]
    return timings, [
        Figure("CPU time, engine", f"{CLIENTS} answers", cpu["engine"], "s"),
        Figure("CPU time, whole answers", "of the engine's", cpu["whole answers"] / cpu["engine"], ""),
        Figure("CPU time, streams", "of the engine's", cpu["streams"] / cpu["engine"], ""),
        Figure("time to first token, median", f"{CLIENTS} streams", 1000 * statistics.median(first), "ms"),
        Figure("time to first token, 95%", f"{CLIENTS} streams", 1000 * late, "ms"),
    ]


def endured(running: Running, pool: Sequence[Question], requests: int) -> list[Figure]:
    """Clients that come and go: what they were told, and whether memory grows over the last three quarters."""
    asyncio.run(crowd(running, pool, requests // 4, seed=1))
    before = running.memory
    outcomes = asyncio.run(crowd(running, pool, requests - requests // 4, seed=2))
    growth = (running.memory - before) / 2**20
    fine = {"same", "went", *map(str, DOCUMENTED)}
    odd = {name: count for name, count in outcomes.counts.items() if name not in fine}
    assert not odd and running.process.poll() is None, outcomes.counts
    of = f"{requests} requests"
    return [
        Figure("finished, as alone", of, outcomes.counts["same"], "answers"),
        Figure("went away", of, outcomes.counts["went"], "clients"),
        Figure("other answers or errors", of, sum(odd.values()), "", "0"),
        Figure("growth of resident memory", of, growth, "MiB", "about 0"),
    ]


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--model", default="mini-tyler", help="a Tyler, in float32")
    parser.add_argument("--requests", type=int, default=2000, help="of the load, by default 2000")
    arguments = read(parser)
    requests = 300 if arguments.quick else arguments.requests
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    model = Tyler.from_pretrained(arguments.model, dtype="float32", device="cpu")
    model.shared_engine.keeps_prefixes = True  # as a server's engine does
    pool = questions(model, 24)
    report = Report("serving_load", arguments)
    limits = ("--slots", str(CLIENTS), "--max-queue", "256")
    with (
        tempfile.TemporaryDirectory() as folder,
        server(arguments.model, Path(folder) / "audit.jsonl", *limits) as running,
    ):
        timings, figures = speed(model, running, pool, arguments.rounds)
        report.add([*timings, *figures])
        report.add(endured(running, pool, requests))
    report.publish(arguments.json)


if __name__ == "__main__":
    main()
