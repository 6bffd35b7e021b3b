import io
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import tiny
from scripted import trajectory
from tyler.cli import main
from tyler.cli.answers import print_answers
from tyler.engine.request import FinishEvent, InvocationEvent, TokenEvent
from tyler.engine.sampling import Sampling
from tyler.model import Tyler
from tyler.reasoners import registry
from tyler.reasoners.cot import backbone_alone

ASKED = ["solve", "model", "What is 2 + 3?", "--max-new-tokens", "12", "--budget", "2"]


@pytest.fixture(autouse=True)
def model(monkeypatch: pytest.MonkeyPatch) -> Tyler:
    """Whatever is loaded is a tiny model that invokes operators often."""
    built = tiny.build("qwen3", tiny.SEEDS["qwen3"], psi_scale=1.0)
    monkeypatch.setattr(registry.Tyler, "from_pretrained", lambda *_, **__: built)
    return built


@pytest.fixture
def solved(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    def solved(*options: str) -> str:
        """What a command prints."""
        assert main.main([*ASKED, *options]) == 0, capsys.readouterr().err
        return capsys.readouterr().out

    return solved


def test_text_comes_with_operators_in_place_and_the_counts_on_standard_error(model: Tyler, capsys) -> None:
    answer = model.solve("What is 2 + 3?", max_new_tokens=12, budget=2)
    assert answer.num_invocations > 0
    assert main.main(ASKED) == 0
    assert capsys.readouterr() == (f"{answer.__rich__().plain}\n", f"{answer.summary()}\n")


def test_the_text_alone_is_what_a_pipe_may_want(solved, model: Tyler) -> None:
    assert solved("--show", "never") == model.solve("What is 2 + 3?", max_new_tokens=12, budget=2).text + "\n"


def test_a_question_may_be_put_to_another_method(model: Tyler, capsys) -> None:
    command = ["solve", "model", "What is 2 + 3?", "--max-new-tokens", "12", "--method", "cot", "--show", "never"]
    assert main.main(command) == 0
    expected = backbone_alone(model).solve("What is 2 + 3?", max_new_tokens=12).text
    assert capsys.readouterr().out == f"{expected}\n" != f"{model.solve('What is 2 + 3?', max_new_tokens=12).text}\n"


def test_json_is_one_object_on_one_line(solved, model: Tyler) -> None:
    (line,) = solved("--json").splitlines()
    printed, answer = json.loads(line), model.solve("What is 2 + 3?", max_new_tokens=12, budget=2)
    assert (printed["model"], printed["problem"], printed["text"]) == ("model", "What is 2 + 3?", answer.text)
    assert printed["num_visible"] == answer.num_visible and printed["finish_reason"] == "length"
    assert printed["limited_by"] == "max_new_tokens"
    assert [call["operator"] for call in printed["invocations"]] == [call.operator for call in answer.invocations]


def test_streamed_json_tells_of_every_token_and_invocation_as_it_happens(solved) -> None:
    *events, last = map(json.loads, solved("--json", "--stream").splitlines())
    assert {event["event"] for event in events} == {"token", "invocation"}
    assert last["event"] == "finish"
    assert "".join(event["text"] for event in events if event["event"] == "token") == last["text"]
    calls = [event["operator"] for event in events if event["event"] == "invocation"]
    assert calls == [call["operator"] for call in last["invocations"]]


def test_several_answers_differ_under_one_seed_and_are_those_of_the_model(solved, model: Tyler) -> None:
    settings = ("--temperature", "1.0", "--seed", "4", "-n", "3")
    printed = [json.loads(line) for line in solved("--json", *settings).splitlines()]
    samples = model.solve(
        "What is 2 + 3?", num_samples=3, sampling=Sampling(temperature=1.0, seed=4), max_new_tokens=12, budget=2
    )
    assert {line["sample"]: line["text"] for line in printed} == dict(enumerate(sample.text for sample in samples))
    assert len({line["seed"] for line in printed}) == 3
    shown = solved(*settings, "--show", "never")
    assert sorted(shown) == sorted("".join(sample.text + "\n" for sample in samples))


def test_filters_and_stop_strings_reach_the_answer(solved, model: Tyler) -> None:
    sampling = Sampling(temperature=1.0, top_k=3, top_p=0.9, seed=2)
    expected = model.solve("What is 2 + 3?", sampling=sampling, max_new_tokens=12, budget=2, stop=["e"])
    options = ["--temperature", "1.0", "--top-k", "3", "--top-p", "0.9", "--seed", "2", "--stop", "e"]
    assert json.loads(solved("--json", *options))["text"] == expected.text


def test_device_and_dtype_reach_the_model(solved, model: Tyler, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: dict[str, Any] = {}

    def load(location: str, **settings: Any) -> Tyler:
        loaded.update(settings)
        return model

    monkeypatch.setattr(registry.Tyler, "from_pretrained", load)
    solved("--device", "cuda:1", "--dtype", "bfloat16")
    assert loaded == {"device": "cuda:1", "dtype": "bfloat16", "backbone": None, "revision": None}


def test_a_question_comes_from_standard_input(solved, model: Tyler, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("What is 2 + 3?"))
    assert main.main(["solve", "model", "-", *ASKED[3:], "--show", "never"]) == 0
    assert capsys.readouterr().out == model.solve("What is 2 + 3?", max_new_tokens=12, budget=2).text + "\n"


def test_a_terminal_shows_what_a_model_wrote_and_obeys_none_of_it(monkeypatch, capsys) -> None:
    answer = trajectory(1)
    attack = "\x1b]0;title\x07\x1b[2Jso\r\u202e\n"
    events = [TokenEvent(0, 7, attack), InvocationEvent(0, answer.invocations[0]), FinishEvent(0, answer)]
    print_answers(iter(events), operators=True, alone=True)
    assert attack in capsys.readouterr().out, "a pipe gets the bytes"
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    print_answers(iter(events), operators=True, alone=True)
    shown = capsys.readouterr().out
    assert shown.startswith("\\x1b]0;title\\x07\\x1b[2Jso\\r\\u202e\n")


def test_a_pipe_gets_several_answers_as_they_were_written(capsys) -> None:
    wrote = "def f():\n\treturn 1\r\n\x07bell"
    answers = [FinishEvent(n, replace(trajectory(0), text=wrote, invocations=())) for n in range(2)]
    print_answers(iter(answers), operators=False, alone=False)
    assert capsys.readouterr().out == f"{wrote}\n{wrote}\n"


def test_a_terminal_says_what_is_being_loaded_and_forgets_it(solved, monkeypatch, capsys) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert main.main(ASKED) == 0
    written = capsys.readouterr().err
    assert "loading model ..." in written and "\x1b[2K" in written.rpartition("loading model ...")[2]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["solve", "m"], "needs a QUESTION, or a file of them"),
        (["solve", "m", "q", "--input", "a.jsonl", "--answers", "b.jsonl"], "one, not both"),
        (["solve", "m", "--input", "a.jsonl"], "--input and --answers go together"),
        (["solve", "m", "--input", "a.jsonl", "--answers", "b.jsonl", "--json"], "JSON lines anyway"),
        (["solve", "m", "q", "--stream"], "--stream is for --json"),
        (["solve", "m", "q", "--json", "--show", "never"], "--show is for the text of one QUESTION"),
        (["solve", "m", "q", "--slots", "0"], "--slots 0: each must be at least 1"),
        (["solve", "m", "q", "-n", "0"], "--samples 0 and"),
        (["solve", "m", "q", "-n", "2"], "give a --temperature above 0"),
    ],
)
def test_what_does_not_go_together_is_refused(arguments: list[str], words: str, capsys) -> None:
    assert main.main(arguments) == 2
    assert words in capsys.readouterr().err


def test_a_file_of_questions_becomes_a_file_of_answers(tmp_path: Path, model: Tyler, capsys) -> None:
    questions, output = tmp_path / "questions.jsonl", tmp_path / "answers.jsonl"
    questions.write_text('{"problem": "x", "id": "a"}\n{"problem": ""}\n')
    command = ["solve", "model", "--input", str(questions), "--answers", str(output), "--max-new-tokens", "4"]
    assert main.main(command) == 2
    assert "line 2: field 'problem' is empty" in capsys.readouterr().err
    questions.write_text(f'{{"problem": "x", "id": "a"}}\n{{"problem": "{"1 " * 4000}", "id": "b"}}\n')
    assert main.main(command) == 0
    shown = capsys.readouterr()
    assert shown.out == f"1 answers are in {output}\n"
    assert "warning: 1 of 2 could not be asked, first line 2 (id 'b'): the prompt has " in shown.err
    first, second = map(json.loads, output.read_text().splitlines())
    assert (first["line"], first["id"], first["text"]) == (1, "a", model.solve("x", max_new_tokens=4).text)
    assert "shorten the prompt" in second["error"]
