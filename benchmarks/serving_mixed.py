"""A server among clients of every kind: good, malformed, huge and slow ones, and anyone who looks after it.

    OMP_NUM_THREADS=1 python benchmarks/serving_mixed.py [--quick] [--model mini-tyler] [--minutes 10] [--json out.json]

CLIENTS at once, each of a kind drawn anew for every request. Good ones must get the answer that they get alone, or a
429 or 503; malformed and huge ones a refusal; slow ones are cut off. Meanwhile `/health/live` is asked ten times a
second. The aim is a 99th percentile below 0.5 s.
"""

import asyncio
import json
import os
import random
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from http.client import HTTPConnection
from multiprocessing import Pipe, Process
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from harness import Figure, Report, options, read
from serving_load import CHAT, CLIENTS, Outcomes, Question, Running, connection, one, questions, server
from tyler import Tyler

PROBE_SECONDS = 0.1
PATHS = (CHAT, "/v1/completions", "/v1/responses", "/v1/messages", "/tokenize", "/api/answers")
KINDS = {"good": 8, "malformed": 4, "huge": 2, "slow": 2, "leaving": 2}
"""How often each kind of client comes, against the others."""
HUGE = (
    b'{"model": "m", "prompt": [' + b'"a",1,' * 600_000 + b'"a"]}',
    b'{"model": "m", "prompt": [' + b"[1]," * 900_000 + b"[1]]}",
    b'{"model": "m", "messages": ' + b"[" * 1_000_000 + b"]" * 1_000_000 + b"}",
    b'{"model": "m", "messages": [{"role": "user", "content": "' + b"x" * 4_000_000 + b'"}]}',
    b'{"model": "m", "user": "' + b"x" * 6_000_000 + b'"}',
    b"{" + b",".join(b'"f%d": 1' % at for at in range(200_000)) + b"}",
)


@dataclass
class Seen:
    """What came of it all: outcomes by kind of client, and how long liveness took."""

    good: Outcomes = field(default_factory=Outcomes)
    others: Counter[str] = field(default_factory=Counter)
    live: list[float] = field(default_factory=list)
    dead: int = 0


def malformed(model: str, luck: random.Random) -> bytes:
    """A body that is nearly a request."""
    body: dict[str, Any] = {"model": model, "messages": [{"role": "user", "content": "1 + 1"}], "max_tokens": 4}
    odd: Any = (None, -1, 1e300, [], {}, "x" * 300, [[1]], {"type": "json_schema"}, {"a": {"b": [0] * 50}}, "\ud800")
    for _ in range(luck.randint(1, 3)):
        fields = (*body, "n", "stop", "logit_bias", "response_format", "tyler", "temperature", luck.choice("abc") * 9)
        body[luck.choice(fields)] = luck.choice(odd)
    text = json.dumps(body).encode()
    if luck.random() < 0.3:
        at = luck.randrange(len(text))
        return text[:at] + bytes([luck.randrange(256)]) + text[at + luck.randint(0, 3) :]
    return text


async def sent(running: Running, path: str, content: bytes, pause: float = 0.0) -> str:
    """The status of a body as it is; slowly where there is a pause before each kilobyte."""
    head = f"POST {path} HTTP/1.1\r\nHost: {running.host}\r\nConnection: close\r\nContent-Type: application/json\r\n"
    async with connection(running) as (reader, writer):
        writer.write(f"{head}Content-Length: {len(content)}\r\n\r\n".encode())
        step = 1024 if pause else len(content)
        for first in range(0, len(content), step):
            writer.write(content[first : first + step])
            await writer.drain()
            await asyncio.sleep(pause)
        return (await reader.read(64)).partition(b" ")[2][:3].decode() or "cut off"


async def odd(running: Running, kind: str, luck: random.Random, seen: Seen) -> None:
    """A client that is not good: what it was told, by its kind."""
    content = luck.choice(HUGE) if kind == "huge" else malformed(running.model, luck)
    try:
        async with asyncio.timeout(60.0):
            pause = luck.uniform(0.5, 5.0) if kind == "slow" else 0.0
            status = await sent(running, luck.choice(PATHS), content * (8 if kind == "slow" else 1), pause)
    except (OSError, EOFError, TimeoutError) as error:
        status = type(error).__name__
    seen.others[f"{kind}: {status}"] += 1


def watched(host: str, port: int, end: Connection) -> None:
    """In a process of its own: ask for liveness until something is sent; then send the seconds, and how many failed."""
    live, dead = list[float](), 0
    while not end.poll(PROBE_SECONDS):
        started = time.perf_counter()
        try:
            client = HTTPConnection(host, port, timeout=60)
            client.request("GET", "/health/live")
            dead += client.getresponse().status != 200
            client.close()
        except OSError:
            dead += 1
        live.append(time.perf_counter() - started)
    end.send((live, dead))


async def mixed(running: Running, pool: Sequence[Question], seconds: float) -> Seen:
    """All kinds of clients at once for so long."""
    seen, luck, until = Seen(), random.Random(0), time.monotonic() + seconds
    here, there = Pipe()
    watching = Process(target=watched, args=(running.host, running.port, there))
    watching.start()

    async def client() -> None:
        while time.monotonic() < until:
            (kind,) = luck.choices(list(KINDS), list(KINDS.values()))
            if kind in ("good", "leaving"):
                patience = 120.0 if kind == "good" else luck.uniform(0.0, 1.0)
                await one(running, luck.choice(pool), luck.random() < 0.5, patience, seen.good)
            else:
                await odd(running, kind, luck, seen)

    await asyncio.gather(*(client() for _ in range(CLIENTS)))
    here.send("enough")
    seen.live, seen.dead = here.recv()
    watching.join()
    return seen


def figures(seen: Seen, growth: int, seconds: float) -> list[Figure]:
    """What the report says; raises AssertionError where a good client was told something wrong, or a 5xx came."""
    counts, of = seen.good.counts, f"{seconds:.0f} s, {CLIENTS} clients"
    wrong = sum(counts[name] for name in counts if name not in ("same", "went", "429", "503"))
    failed = sum(count for name, count in seen.others.items() if ": 5" in name and ": 503" not in name)
    assert not wrong and not failed, (counts, seen.others)
    late = statistics.quantiles(seen.live, n=100)[-1]
    return [
        Figure("good answers, as alone", of, counts["same"], "answers"),
        Figure("wrong answers, lost connections, 5xx", of, wrong + failed, "", "0"),
        *(Figure(f"told {name}", of, count, "clients") for name, count in sorted(seen.others.items())),
        Figure("/health/live, 99%", f"{len(seen.live)} times", 1000 * late, "ms", "below 500"),
        Figure("/health/live, longest", f"{len(seen.live)} times", 1000 * max(seen.live), "ms"),
        Figure("/health/live, not 200", f"{len(seen.live)} times", seen.dead, "", "0"),
        Figure("growth of resident memory", of, growth / 2**20, "MiB"),
    ]


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--model", default="mini-tyler", help="a Tyler, in float32")
    parser.add_argument("--minutes", type=float, default=10.0, help="how long; 10 by default, half a one with --quick")
    arguments = read(parser)
    seconds = 30.0 if arguments.quick else 60 * arguments.minutes
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    pool = questions(Tyler.from_pretrained(arguments.model, dtype="float32", device="cpu"), 24)
    report = Report("serving_mixed", arguments)
    with tempfile.TemporaryDirectory() as folder:
        limits = ("--slots", "32", "--max-queue", "128", "--log-level", "warning")
        with server(arguments.model, Path(folder) / "audit.jsonl", *limits) as running:
            asyncio.run(mixed(running, pool, seconds / 10))  # until memory is what it stays
            before = running.memory
            seen = asyncio.run(mixed(running, pool, seconds))
            report.add(figures(seen, running.memory - before, seconds))
    report.publish(arguments.json)


if __name__ == "__main__":
    main()
