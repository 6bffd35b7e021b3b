"""The audit log: a line for each request, whatever becomes of it, and never an answer lost to a line."""

import json
import threading
from collections.abc import Iterable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
from tests import tiny
from tests.processes import FRESH
from tests.serving.served import NAME, serving

from tyler.engine.shared_engine import SharedEngine
from tyler.model import Tyler
from tyler.serving.audit_log import AuditLog, check_writable
from tyler.serving.metrics import Metrics
from tyler.serving.service import settings_of

CHAT = {"model": NAME, "messages": [{"role": "user", "content": tiny.ODD}], "max_tokens": 12, "user": "someone"}


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_request_leaves_a_line_without_its_text(model: Tyler, tmp_path: Path) -> None:
    path = tmp_path / "logs" / "audit.jsonl"
    body = CHAT | {"tyler": {"router": "boundaries", "budget": 2}, "n": 2, "temperature": 0.01}
    with serving(model, log=path) as served:
        answer = served.post("/v1/chat/completions", body, headers={"x-request-id": "mine"}).json()
        served.post("/v1/completions", {"model": NAME, "prompt": "x", "max_tokens": 2, "stream": True})
        assert served.post("/v1/chat/completions", body | {"foo": 1}).status_code == 400
    first, second = lines_of(path)
    assert (first["request_id"], first["user"], first["outcome"]) == ("mine", "someone", "finished")
    assert (first["weights"], first["path"], second["path"]) == (
        "0123456789abcdef",
        "/v1/chat/completions",
        "/v1/completions",
    )
    told = answer["choices"][0]["tyler"]["invocations"]
    logged = first["answers"][0]
    assert logged["invocations"] == [[one["operator"], one["position"], one["latents"]] for one in told] and told
    assert len(first["answers"]) == 2 and logged["decoding"]["budget"] == 2 and logged["seconds"] > 0
    assert (
        sum(one["visible_tokens"] + one["latents"] for one in first["answers"]) == answer["usage"]["completion_tokens"]
    )
    assert tiny.ODD not in path.read_text() and answer["choices"][0]["message"]["content"] not in path.read_text()
    assert path.stat().st_mode & 0o077 == 0, "no other user may read it"


def test_a_replay_is_logged_with_what_it_begins_with(model: Tyler, tmp_path: Path) -> None:
    branch = {"prompt_ids": tiny.ids(tiny.ODD), "actions": [20, 21]}
    with serving(model, log=tmp_path / "audit.jsonl") as served:
        served.post("/api/answers", {"model": NAME, "branch": branch, "max_new_tokens": 4}).read()
        served.post("/v1/chat/completions", CHAT)
    assert [one["answers"][0]["branch"] for one in lines_of(tmp_path / "audit.jsonl")] == [[20, 21], None]


def test_what_a_client_sends_cannot_push_other_lines_out(model: Tyler, tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    with serving(model, log=path, max_body=2**20) as served:
        assert served.post("/v1/chat/completions", CHAT | {"user": "x" * 10**6}).status_code == 400
        long = CHAT | {"user": "x" * 256, "metadata": {f"key-{index}": "y" * 512 for index in range(16)}}
        assert served.post("/v1/chat/completions", long).status_code == 200
    assert path.stat().st_size < 12_000


CHANGES: tuple[dict[str, Any], ...] = (
    {},
    {"min_p": 0.05, "presence_penalty": 1.5, "frequency_penalty": -0.5},
    {"repetition_penalty": 1.3, "logit_bias": {"20": 5, "21": -100}, "ignore_eos": True},
    {"stop_token_ids": [40, 41], "max_tokens": 9},
    {"response_format": {"type": "regex", "pattern": "[a-z]{3,9}( [0-9]+)*"}},
)
"""What is asked for besides."""


def test_ten_sampled_answers_are_made_again_from_their_lines(model: Tyler, tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    sampled = CHAT | {"temperature": 0.9, "n": 2, "top_k": 50, "stop": ["12", "q"], "max_tokens": 20}
    with serving(model, log=path, log_text=True) as served:
        for index in range(5):
            routed = {"tyler": {"router": ("boundaries:0.5", "learned")[index % 2], "budget": index}}
            assert served.post("/v1/chat/completions", sampled | routed | CHANGES[index]).status_code == 200
        servable = served.service.servable
    again = 0
    for line in lines_of(path):
        for answer in line["answers"]:
            request = servable.continuation(line["prompt_ids"][0], settings_of(answer["decoding"], servable))
            (trajectory,) = model.shared_engine.run([request])
            assert (trajectory.text, trajectory.num_latents) == (answer["text"], answer["latents"])
            again += 1
    assert again == 10


def test_texts_are_logged_only_when_that_is_asked_for(model: Tyler, tmp_path: Path) -> None:
    with serving(model, log=tmp_path / "audit.jsonl", log_text=True) as served:
        answer = served.post("/v1/chat/completions", CHAT).json()
    (line,) = lines_of(tmp_path / "audit.jsonl")
    assert line["answers"][0]["text"] == answer["choices"][0]["message"]["content"]
    assert len(line["prompts"]) == 1 and "Step 1" in line["prompts"][0]


def logged(folder: Path, lines: Iterable[dict[str, Any]], max_bytes: int = 10**6, files: int = 2) -> tuple[int, int]:
    """How many lines were counted as on disk and as lost by a log that was opened, got these and was closed."""
    metrics = Metrics(SharedEngine(None))
    log = AuditLog(folder / "audit.jsonl", metrics, max_bytes=max_bytes, files=files)
    for line in lines:
        log.add(line)
    log.close()
    return metrics.log_lines._value.get(), metrics.log_lost._value.get()


def test_no_text_ends_the_log(tmp_path: Path) -> None:
    lines = [{"user": user} for user in ("\ud800", "ü", "\n\0")]
    assert logged(tmp_path, lines) == (3, 0)
    assert [{"user": line["user"]} for line in lines_of(tmp_path / "audit.jsonl")] == lines


def test_a_log_that_grows_is_rotated_and_no_line_is_torn(tmp_path: Path) -> None:
    lines = [{"number": number, "padding": "x" * 20} for number in range(20)]
    assert logged(tmp_path, lines, max_bytes=101, files=3) == (20, 0)
    names = sorted(one.name for one in tmp_path.iterdir())
    assert names == ["audit.jsonl", "audit.jsonl.1", "audit.jsonl.2"]
    kept = [line["number"] for name in reversed(names) for line in lines_of(tmp_path / name)]
    assert kept == list(range(20 - len(kept), 20)) and len(kept) == 6


def test_a_rotation_that_fails_loses_its_lines_and_none_before_or_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rotate, refusals = AuditLog.doRollover, iter(range(5))

    def sometimes(self: AuditLog) -> None:
        if next(refusals, None) is not None:
            raise OSError("no space left for another file")
        rotate(self)

    monkeypatch.setattr(AuditLog, "doRollover", sometimes)
    lines = [{"number": number, "padding": "x"} for number in range(8)]
    assert logged(tmp_path, lines, max_bytes=31, files=4) == (3, 5)
    names = ("audit.jsonl.2", "audit.jsonl.1", "audit.jsonl")
    assert [line["number"] for name in names for line in lines_of(tmp_path / name)] == [0, 6, 7]


def test_a_log_goes_on_where_it_was(tmp_path: Path) -> None:
    for number in range(2):
        logged(tmp_path, [{"number": number}])
    assert [line["number"] for line in lines_of(tmp_path / "audit.jsonl")] == [0, 1]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no disk that is always full")
def test_a_full_disk_loses_lines_that_are_counted_and_no_answer(model: Tyler) -> None:
    with serving(model, log=Path("/dev/full")) as served:
        for _ in range(3):
            assert served.post("/v1/chat/completions", CHAT).status_code == 200
        while served.metric("audit_log_lines_lost_total") < 3:
            pass
        assert served.metric("audit_log_lines_total") == 0


def test_a_disk_that_hangs_holds_nobody_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hangs = threading.Event()
    monkeypatch.setattr(AuditLog, "doRollover", lambda self: hangs.wait(30))
    monkeypatch.setattr("tyler.serving.audit_log.MOST_WAITING", 80)
    metrics = Metrics(SharedEngine(None))
    log = AuditLog(tmp_path / "audit.jsonl", metrics, max_bytes=1, files=2)
    for number in range(10):
        log.add({"number": number})
    assert metrics.log_lost._value.get() >= 4
    hangs.set()
    log.close()


def test_a_log_that_cannot_be_opened_is_an_error_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(OSError):
        AuditLog(tmp_path, Metrics(SharedEngine(None)), max_bytes=100, files=2)


def test_what_tyler_serve_tries_to_write_is_private_from_the_start(tmp_path: Path) -> None:
    check_writable(tmp_path / "logs" / "audit.jsonl")
    (path,) = (tmp_path / "logs").iterdir()
    assert path.name == "audit.jsonl" and path.stat().st_mode & 0o077 == 0


def write(path: Path, counted: Connection) -> None:
    """Lines without end; how many are counted as on disk is sent after each."""
    metrics = Metrics(SharedEngine(None))
    log = AuditLog(path, metrics, max_bytes=10**9, files=2)
    for number in range(10**9):
        log.add({"number": number})
        counted.send(int(metrics.log_lines._value.get()))


def test_lines_that_were_counted_outlive_a_server_that_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    mine, theirs = FRESH.Pipe(duplex=False)
    process = FRESH.Process(target=write, args=(path, theirs))
    process.start()
    counted = 0
    while counted < 200:
        counted = mine.recv()
    process.kill()
    process.join()
    assert [line["number"] for line in lines_of(path)[:counted]] == list(range(counted))
