"""What is malformed costs next to nothing: no body takes over 0.2 s, or 64 MB."""

import json
import os
import random
import sys
import threading
import tracemalloc
from collections.abc import Iterator
from multiprocessing import get_context
from typing import Any

import pytest
from pydantic import ValidationError
from tests.serving.served import NAME, Served, serving

from tyler.model import Tyler
from tyler.serving import schema
from tyler.serving.completions import ChatRequest, CompletionRequest
from tyler.serving.errors import ApiError, of_validation
from tyler.serving.messages import MessagesRequest
from tyler.serving.responses import ResponsesRequest
from tyler.serving.schema import Strict, parse

LIMIT = 4 * 2**20
FIELDS = {ChatRequest: "messages", CompletionRequest: "prompt", ResponsesRequest: "input", MessagesRequest: "system"}
UNITS = [
    '"a",1', "[1]", "[]", "{}", '""', "1", "-9", "1.5", "null", "[[]]", '{"a":1}', '{"role":"user","content":"x"}',
    '{"type":"text","text":"x"}',
    '"\\u00e9"', '"\\\\"', '"\\""', '{"role":"user","content":[{"type":"text","text":1}]}',
    "12345", '"ab"', "[1,2]", '{"type":"message"}', "true", '[["a"],1]', '{"":[]}',
]  # fmt: skip


def bodies(count: int) -> Iterator[tuple[type[Strict], bytes]]:
    """Bodies up to the limit: one part again and again, at some field, some of them broken off."""
    luck = random.Random(0)
    for _ in range(count):
        kind = luck.choice(list(FIELDS))
        unit = ",".join(luck.choices(UNITS, k=luck.choice([1, 1, 2, 5])))
        size = luck.choice([LIMIT, LIMIT // 4, LIMIT // 16, LIMIT // 64])
        field = luck.choice([FIELDS[kind], "stop", "metadata", "tyler", "user", "unknown"])
        opening = luck.choice([f'{{"model":"m","{field}":[', '{"a":1,', "[", f'{{"{field}":'])
        text = opening + ",".join([unit] * ((size - 100) // (len(unit) + 1)))
        yield kind, (text + luck.choice(["]}", "", "}"])).encode()


def parsed(kind: type[Strict], body: bytes) -> None:
    """Parse a body; it may be refused."""
    try:
        parse(kind, body, "refuse")
    except ApiError as error:
        assert error.status == 400 and len(error.message) < 2000


def cost(kind: type[Strict], body: bytes) -> tuple[float, int]:
    """CPU seconds and resident bytes of parsing, in a process that has parsed nothing before."""
    process = os.fork()
    if not process:
        parsed(kind, body)
        os._exit(0)
    _, status, usage = os.wait4(process, 0)
    assert status == 0, body[:80]
    return usage.ru_utime + usage.ru_stime, 1024 * usage.ru_maxrss


def costly(count: int) -> list[tuple[float, float, bytes]]:
    """Of so many bodies those that take over 0.2 s, in every of several tries, or 64 MB: seconds, MB, and beginning."""
    _, usual = cost(ChatRequest, b"{")
    found = []
    for kind, body in bodies(count):
        seconds, peak = cost(kind, body)
        if seconds > 0.2:
            seconds = min(cost(kind, body)[0] for _ in range(5))
        if seconds > 0.2 or peak - usual > 64e6:
            found.append((seconds, (peak - usual) / 1e6, body[:80]))
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux counts memory in kilobytes")
@pytest.mark.parametrize("count", [60, pytest.param(500, marks=pytest.mark.slow)])
def test_no_body_takes_over_a_fifth_of_a_second_or_64_mb(count: int) -> None:
    with get_context("spawn").Pool(1) as pool:  # one thread, so that it may fork
        assert not pool.apply(costly, (count,))


@pytest.mark.parametrize("unit", ["1.5", '"x"', "[[1]]", '{"x":[1]}'])
@pytest.mark.parametrize("field", ["model", "prompt", "stop"])
def test_an_error_costs_the_same_however_large_the_value_is(field: str, unit: str) -> None:
    body = {"model": "m", field: [json.loads(unit)] * 10**5}
    with pytest.raises(ValidationError) as wrong:
        CompletionRequest.model_validate(body)
    tracemalloc.start()
    error = of_validation(wrong.value)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(error.message) < 300 and peak < 2**16


def test_a_large_text_full_of_brackets_and_quotes_is_a_text() -> None:
    text = '[{"x\\": [1, 2]}, "' * 100_000
    body = json.dumps({"model": "m", "prompt": text[: 10**6]}).encode()
    assert parse(CompletionRequest, body, "refuse").prompt == text[: 10**6]


def test_unknown_fields_can_be_ignored(model: Tyler) -> None:
    body = {"model": NAME, "messages": [{"role": "user", "content": "x", "mood": 1}], "max_tokens": 2, "depth": 3}
    with serving(model, unknown_fields="ignore") as lenient:
        assert lenient.post("/v1/chat/completions", body).status_code == 200
        refused = lenient.post("/v1/chat/completions", body | {"temperature": "hot"})
        assert refused.status_code == 400, "a known field is still honoured or refused"


def test_a_large_body_does_not_hold_up_the_event_loop(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    threads = list[int]()

    def parse_noted(*given: Any) -> Strict:
        threads.append(threading.get_ident())
        return parse(*given)

    monkeypatch.setattr(schema, "parse", parse_noted)
    for prompt in (["a", 1], ["a", 1] * 400_000):
        assert served.post("/v1/completions", {"model": NAME, "prompt": prompt}).status_code == 400
    assert threads[0] != threads[1], "the first is the event loop's"
