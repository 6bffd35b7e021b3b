"""A model behind a server is asked, graded and resumed like any other; what is wrong with a server is a sentence."""

import json
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from tests.serving.served import serving

from stored import write_problems
from tyler.cli.main import main
from tyler.evaluation.reports import Report
from tyler.evaluation.store import read_records
from tyler.model import Tyler


class Scripted(BaseHTTPRequestHandler):
    """Answers 5 to every question, or what `behaviour` says."""

    behaviour, asked = "answer", list[dict[str, Any]]()

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.asked.append(body)
        question = body["messages"][-1]["content"]
        if self.behaviour == "slow":
            return time.sleep(1)  # and hang up
        if self.behaviour == "html":
            return self.send(200, "<html>a proxy</html>", "text/html")
        if self.behaviour == "busy" or (self.behaviour == "tired" and len(self.asked) > 2):
            return self.send(429, json.dumps({"error": {"message": "slow down"}}))
        if self.behaviour == "picky" and "1 x" in question:
            return self.send(400, json.dumps({"error": {"message": "too long"}}))
        message = {"role": "assistant", "content": "So \\boxed{5}."}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        usage = {"prompt_tokens": 3, "completion_tokens": 7, "total_tokens": 10}
        done = {"id": "x", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice], "usage": usage}
        self.send(200, json.dumps(done))

    def send(self, status: int, body: str, kind: str = "application/json") -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def url() -> Iterator[str]:
    Scripted.behaviour, Scripted.asked = "answer", []
    with ThreadingHTTPServer(("127.0.0.1", 0), Scripted) as server:
        server.daemon_threads = False  # no connection outlives the test: its end waits for them
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/v1"
        server.shutdown()


def command(folder: Path, url: str, *more: str) -> list[str]:
    write_problems(folder / "test.jsonl", range(4))
    return [
        *("eval", "--endpoint", url, "--model", "m", "--task", "jsonl", "--data", str(folder / "test.jsonl")),
        *("--output", str(folder / "out"), "--retries", "0", "--concurrency", "1", "--quiet", *more),
    ]


def test_a_server_is_asked_once_and_graded(url: str, tmp_path: Path) -> None:
    assert main(command(tmp_path, url)) == 0
    records = read_records(tmp_path / "out")
    assert [one.correct for one in records] == [True] * 4 and records[0].visible_tokens == 7
    assert Report("served", tuple(records)).invocations is None, "what a server does not report is not 0"
    assert len(Scripted.asked) == 4 and main(command(tmp_path, url)) == 0
    assert len(Scripted.asked) == 4, "nothing is asked twice"


def test_what_a_server_has_answered_is_kept_when_it_tires(url: str, tmp_path: Path, capsys: Any) -> None:
    Scripted.behaviour = "tired"
    assert main(command(tmp_path, url)) == 2
    assert "still answers 429" in capsys.readouterr().err
    Scripted.behaviour, Scripted.asked = "answer", []
    assert main(command(tmp_path, url)) == 0
    assert len(Scripted.asked) == 2 and len(read_records(tmp_path / "out")) == 4


def test_a_request_that_is_refused_counts_as_wrong_until_it_is_asked_again(url: str, tmp_path: Path) -> None:
    Scripted.behaviour = "picky"
    assert main(command(tmp_path, url)) == 0
    assert [one.correct for one in read_records(tmp_path / "out")] == [True, False, True, True]
    Scripted.behaviour, Scripted.asked = "answer", []
    assert main(command(tmp_path, url)) == 0 and Scripted.asked == []
    assert main(command(tmp_path, url, "--retry-failed")) == 0
    assert len(Scripted.asked) == 1 and all(one.correct for one in read_records(tmp_path / "out"))


def test_a_server_that_is_none_is_said_in_a_sentence(url: str, tmp_path: Path, capsys: Any) -> None:
    Scripted.behaviour = "html"
    assert main(command(tmp_path, url)) == 2
    assert "which mostly ends in /v1" in capsys.readouterr().err
    (tmp_path / "down").mkdir()
    assert main(command(tmp_path / "down", "http://127.0.0.1:9/v1")) == 2
    assert "start the server or check the address" in capsys.readouterr().err
    Scripted.behaviour = "slow"
    (tmp_path / "slow").mkdir()
    assert main(command(tmp_path / "slow", url, "--timeout", "0.2")) == 2
    assert "gave no answer within 0.2 s; give a longer --timeout" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "refused"),
    [
        ("--endpoint http://x/v1 --model m --match runs/x", "--match needs a MODEL that is loaded here"),
        ("--endpoint http://x/v1 --model m --router never", "--router needs a MODEL that is loaded here"),
        ("--endpoint http://x/v1 --model m --method-set min_p=1", "--method-set needs a MODEL"),
        ("--endpoint http://x/v1 --model m --dtype float16", "--dtype needs a MODEL"),
        ("--endpoint http://x/v1 --model m --slots 2", "--slots needs a MODEL"),
        ("--endpoint http://x/v1 --model m --engine vllm", "--engine needs a MODEL"),
        ("--endpoint x/v1 --model m", "--endpoint 'x/v1' is not an address"),
        ("mini --endpoint http://x/v1 --model m", "give either the model mini or --endpoint"),
        ("mini --model m", "--model belongs to --endpoint URL"),
        ("mini --concurrency 2", "--concurrency belongs to --endpoint URL"),
        ("mini --timeout 2", "--timeout belongs to --endpoint URL"),
        ("mini --match-split train", "--match-split belongs to --match DIR"),
        ("mini --top-p 0.9", "--top-p and --top-k need a --temperature above 0"),
        ("mini --ids a --count 2", "--ids names the problems, and --count draws some; omit one"),
        ("mini --revision abc", "there is no revision 'abc'"),
        ("mini --compare a b", "--compare reads evaluations that are there and asks nothing; omit mini"),
        ("--compare a b --task gsm8k", "omit --task"),
        ("--compare a b --output c", "omit --output"),
    ],
)
def test_no_option_is_ignored_silently(options: str, refused: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", *options.split()]) == 2
    assert refused in capsys.readouterr().err


def test_without_its_client_it_says_what_to_install(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "openai", None)
    assert main(command(tmp_path, url)) == 2
    assert "pip install 'tyler-reasoning[endpoint]'" in capsys.readouterr().err


def test_what_is_asked_is_chosen_by_id_with_an_instruction_and_examples(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    example = {"problem": "How many legs has a cow?", "solution": "\\boxed{4}"}
    (tmp_path / "shots.jsonl").write_text(json.dumps(example) + "\n")
    more = ("--instruction", "Say it in a box.", "--few-shot", str(tmp_path / "shots.jsonl"))
    assert main(command(tmp_path, url, "--ids", "test-2", *more)) == 0
    (body,) = Scripted.asked
    assert [turn["role"] for turn in body["messages"]] == ["user", "assistant", "user"]
    assert body["messages"][0]["content"].startswith("How many legs has a cow?")
    assert body["messages"][1]["content"] == "\\boxed{4}"
    assert body["messages"][2]["content"] == "How many 1 x?\n\nSay it in a box."
    (record,) = read_records(tmp_path / "out")
    assert record.correct and record.id == "test-2"
    assert main(command(tmp_path, url, "--ids", "test-2", *more[2:], "--instruction", "Be brief.")) == 2
    assert "instruction was 'Say it in a box.', is 'Be brief.'" in capsys.readouterr().err


def test_a_server_of_tyler_is_as_the_model_itself(tmp_path: Path) -> None:
    """`tyler eval --endpoint` against `tyler serve mini-tyler` gives the verdicts of `tyler eval mini-tyler`.

    The limit is one that no answer reaches: that of a server counts latents, as usage does.
    """
    model = tmp_path / "mini-tyler"
    asked = ("--count", "6", "--max-new-tokens", "300", "--quiet")
    assert main(["eval", "mini-tyler", "--output", str(model), *asked]) == 0
    with serving(Tyler.from_pretrained("mini-tyler"), name="mini-tyler", max_new_tokens=300) as server:
        address = ("--endpoint", f"{server.url}/v1", "--model", "mini-tyler")
        assert main(["eval", *address, "--output", str(tmp_path / "served"), *asked]) == 0
    own, other = read_records(model), read_records(tmp_path / "served")
    assert [one.outcome for one in own] == [one.outcome for one in other] and any(one.correct for one in own)
    assert [(one.id, one.sample, one.text) for one in own] == [(one.id, one.sample, one.text) for one in other]
    assert [(one.visible_tokens, one.latents) for one in own] == [(one.visible_tokens, one.latents) for one in other]
