"""Clients that mean harm, or know no better: none of them takes the server away from the others."""

import json
import resource
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

import httpx2
import psutil
import pytest
from tests.serving.served import NAME, Served, connected, said_to, serving

from tyler.model import Tyler
from tyler.serving import guard, server

TEXT = {"model": NAME, "prompt": "x", "max_tokens": 4}
HEAD = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
JSON = {"content-type": "application/json"}


def closed(connection: socket.socket) -> bool:
    """Whether the server has closed it, with what it said before read."""
    connection.settimeout(0)
    try:
        while connection.recv(65536):
            pass
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True


def dripped(connection: socket.socket, text: str, seconds: float) -> bool:
    """Send a text a byte at a time for so long; whether the server put an end to it."""
    until = time.monotonic() + seconds
    for byte in (text * 100).encode():
        if time.monotonic() > until:
            return False
        if closed(connection):
            return True
        try:
            connection.send(bytes([byte]))
        except OSError:
            return True
        time.sleep(0.02)
    return False


def test_headers_that_drip_are_cut_off_on_the_first_request_and_on_a_later_one(model: Tyler, monkeypatch) -> None:
    body = json.dumps(TEXT)
    monkeypatch.setattr(server, "IDLE_SECONDS", 0.5)
    with serving(model) as served:
        with connected(served) as first:
            assert dripped(first, HEAD, 60)
        with connected(served) as later:
            later.sendall(f"{HEAD}Content-Length: {len(body)}\r\n\r\n{body}".encode())
            assert later.recv(65536).startswith(b"HTTP/1.1 200")
            assert dripped(later, HEAD, 60), "a connection that was polite once is not excepted"
        assert served.post("/v1/completions", TEXT).status_code == 200


def test_a_connection_that_is_used_in_time_stays_open(model: Tyler, monkeypatch) -> None:
    monkeypatch.setattr(server, "IDLE_SECONDS", 1.5)
    with serving(model) as served, httpx2.Client(base_url=served.url) as client:
        for _ in range(4):
            assert client.post("/v1/completions", json=TEXT).status_code == 200
            time.sleep(0.5)


@contextmanager
def many_files(count: int) -> Iterator[None]:
    """Room for so many open files. Skips the test where the system gives none."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < count:
        pytest.skip(f"this system allows {hard} open files, and the test needs {count}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, count), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_thousand_idle_connections_hold_nobody_up_and_are_closed(model: Tyler, monkeypatch) -> None:
    monkeypatch.setattr(server, "IDLE_SECONDS", 2.0)
    with many_files(4096), serving(model) as served, ExitStack() as stack:
        idle = [stack.enter_context(connected(served)) for _ in range(1000)]
        assert served.post("/v1/completions", TEXT).status_code == 200
        until = time.monotonic() + 60
        while not all(map(closed, idle)):
            assert time.monotonic() < until, "who says nothing is not kept"
            time.sleep(0.1)


def test_clients_that_leave_leave_no_connection_and_no_file_behind(model: Tyler) -> None:
    def visit(number: int) -> None:
        """Leave in the middle of a request, while an answer is awaited, or once a stream has begun."""
        body = json.dumps(TEXT | {"max_tokens": 60, "stream": number % 3 == 2})
        request = f"{HEAD}Content-Length: {len(body)}\r\n\r\n{body}".encode()
        with connected(served) as connection:
            connection.sendall(request[:-20] if number % 3 == 0 else request)
            if number % 3 == 2:
                assert connection.recv(100).startswith(b"HTTP/1.1 200")

    def files_after(visits: int) -> int:
        """Open files, once the server has seen that so many clients went."""
        for number in range(visits):
            visit(number)
        until = time.monotonic() + 60
        while served.server.server_state.connections or served.service._open:
            assert time.monotonic() < until, "a client that went is kept"
            time.sleep(0.01)
        return psutil.Process().num_fds()

    with serving(model) as served:
        before = files_after(visits=20)
        assert files_after(visits=200) <= before
        served.wait_until_idle()
        assert served.metric("request_aborted_total") > 0


TOO_LONG = {
    "a header": f"{HEAD}X-Long: {'a' * 100_000}",
    "many headers": HEAD + "".join(f"X-{number}: a\r\n" for number in range(20_000)),
    "a path": f"GET /{'a' * 100_000}",
    "a trailer": f"{HEAD}Transfer-Encoding: chunked\r\n\r\n2\r\n{{}}\r\n0\r\nX-Long: {'a' * 100_000}",
}


@pytest.mark.parametrize("text", TOO_LONG.values(), ids=TOO_LONG)
def test_headers_without_end_are_cut_off_before_they_take_memory_and_time(text: str, served: Served) -> None:
    before = psutil.Process().memory_info().rss
    with connected(served) as connection:
        with suppress(OSError):  # the server closes the connection while it is sent something
            connection.sendall(text.encode())
            for _ in range(50):
                connection.sendall(b"a" * 2**20)
            pytest.fail("fifty megabytes of headers were taken")
    assert psutil.Process().memory_info().rss - before < 30 * 2**20
    assert served.post("/v1/completions", TEXT).status_code == 200


def test_what_is_no_http_is_told_so(served: Served) -> None:
    for text in (f"{HEAD}X-Long: {'a' * 70_000}", "garbage\r\n\r\n", f"{HEAD}Content-Length: -1\r\n\r\n"):
        answer = said_to(served, text)
        assert answer.startswith(b"HTTP/1.1 400") and b"Invalid HTTP" in answer


def test_a_request_in_one_piece_with_those_behind_it_is_no_long_header(served: Served) -> None:
    body = json.dumps(TEXT) + " " * 50_000
    whole = f"{HEAD}Content-Length: {len(body)}\r\n\r\n{body}"
    with connected(served) as connection:
        connection.sendall((whole * 4).encode())
        found = b""
        while found.count(b"HTTP/1.1 200") < 4:
            found += connection.recv(65536)


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="only Linux cuts such connections off")
def test_a_connection_whose_rest_nobody_reads_is_cut_off(model: Tyler, monkeypatch) -> None:
    monkeypatch.setattr(server, "READ_SECONDS", 0.5)
    with serving(model) as served, socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        host, port = served.url.removeprefix("http://").split(":")
        connection.connect((host, int(port)))
        connection.sendall(b"GET /page/temml.js HTTP/1.1\r\nHost: localhost\r\n\r\n" * 50)
        connections, until = served.server.server_state.connections, time.monotonic() + 60
        while not connections:
            assert time.monotonic() < until, "it is not there yet"
        while connections:
            assert time.monotonic() < until, "who reads nothing is not kept"
            time.sleep(0.05)


def test_a_text_that_no_context_holds_is_refused_before_it_becomes_tokens(served: Served) -> None:
    long = "12 + 7 " * 500_000
    chat = {"model": NAME, "messages": [{"role": "user", "content": long}]}
    asked = {"/v1/completions": TEXT | {"prompt": ["x", long]}, "/v1/chat/completions": chat}
    asked["/v1/responses"] = {"model": NAME, "input": long}
    asked["/api/answers"] = chat
    for path, body in asked.items():
        answer = served.post(path, body)
        assert answer.status_code == 400 and answer.json()["error"]["code"] == "context_length_exceeded"


def test_a_body_of_a_hundred_megabytes_is_refused_and_takes_no_memory(served: Served) -> None:
    def parts() -> Iterator[bytes]:
        for _ in range(100):
            yield b" " * 2**20

    process = psutil.Process()
    before = process.memory_info().rss
    for content in (parts(), parts()):
        with httpx2.Client(base_url=served.url, timeout=300) as client:
            with suppress(httpx2.WriteError):  # the connection may be closed before everything was sent
                answer = client.post("/v1/completions", content=content, headers=JSON)
                assert answer.status_code == 413 and "larger than 4194304 bytes" in answer.json()["error"]["message"]
    with connected(served) as connection:
        connection.sendall(f"{HEAD}Content-Length: {100 * 2**20}\r\n\r\n".encode())
        assert b" 413 " in connection.recv(65536).splitlines()[0]
    assert process.memory_info().rss - before < 60 * 2**20
    assert served.post("/v1/completions", TEXT).status_code == 200


def test_many_large_bodies_that_come_at_once_are_not_all_kept(model: Tyler, monkeypatch) -> None:
    largest = 10_000
    monkeypatch.setattr(guard, "BODY_SECONDS", 1.0)
    head = f"{HEAD}Content-Length: {largest}\r\n\r\n"
    with serving(model, max_body=largest) as served, ExitStack() as stack:
        many = [stack.enter_context(connected(served)) for _ in range(20)]
        for connection in many:
            connection.sendall(head.encode() + b" " * (largest - 1))
        answers = [connection.recv(65536).splitlines()[0] for connection in many]
        assert sorted(set(answers)) == [b"HTTP/1.1 408 Request Timeout", b"HTTP/1.1 429 Too Many Requests"]
        assert answers.count(b"HTTP/1.1 408 Request Timeout") == 16
        assert served.post("/v1/completions", TEXT).status_code == 200


@pytest.mark.parametrize("depth", [50, 300, 50_000])
@pytest.mark.parametrize("field", ["prompt", "metadata", "suffix", "tyler", "stop", "unknown"])
def test_deeply_nested_json_is_a_request_that_is_refused(depth: int, field: str, served: Served) -> None:
    for opening, closing in (("[", "]"), ('{"a":', "}")):
        middle = "1" if opening != "[" else ""
        nested = f"{opening * depth}{middle}{closing * depth}"
        content = f'{{"model": "{NAME}", "max_tokens": 4, "{field}": {nested}}}'
        with httpx2.Client(base_url=served.url, timeout=300) as client:
            answer = client.post("/v1/completions", content=content, headers=JSON)
        assert answer.status_code == 400 and answer.json()["error"]["message"]
        assert len(answer.text) < 2000, "an error does not send it all back"


def test_many_fields_and_long_names_are_refused_briefly(served: Served) -> None:
    many = {f"field-{index}": index for index in range(20_000)}
    for body in (TEXT | many, TEXT | {"x" * 10**6: 1}, TEXT | {"stop": ["x"] * 10**5}):
        answer = served.post("/v1/completions", body)
        assert answer.status_code == 400 and len(answer.text) < 2000
