"""The page's files and its API, without a browser."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from tests.serving.served import NAME, Served, serving, solved

from tyler.engine.routing import AtBoundaries
from tyler.engine.sampling import Sampling
from tyler.engine.trajectory import Trajectory
from tyler.lens.block import blocks_of, read_block
from tyler.model import Tyler
from tyler.serving import page
from tyler.serving.generation import router_name
from tyler.serving.page import CONTROL_TOKENS, EXAMPLES

ASKED = {"model": NAME, "messages": [{"role": "user", "content": "x"}], "max_new_tokens": 24}


def events(served: Served, body: dict[str, Any], path: str = "/api/answers") -> list[tuple[str, dict[str, Any]]]:
    """The named events of an answer."""
    text = served.post(path, body).text
    parts = [part.split("\n", 1) for part in text.split("\n\n") if part.startswith("event: ")]
    return [(name.removeprefix("event: "), json.loads(data.removeprefix("data: "))) for name, data in parts]


def ended(served: Served, body: dict[str, Any]) -> Trajectory:
    """The trajectory at the end of a stream."""
    name, data = events(served, body)[-1]
    assert name == "end", data
    return Trajectory.from_dict(data["trajectory"])


def test_every_file_that_the_page_names_is_sent_with_its_type_under_a_strict_policy(served: Served) -> None:
    assert {"index.html", "page.css", "main.js", "icon.svg", *page.VIEW} <= set(page.contents())
    for name in page.contents():
        found = served.get(f"/page/{name}")
        assert found.status_code == 200
        assert found.headers["content-type"].startswith(page.TYPES[name[name.rindex(".") :]])
        assert found.headers["content-security-policy"] == page.POLICY
    assert served.get("/").text == page.contents()["index.html"]
    assert "unsafe" not in page.POLICY and "http" not in page.POLICY


def test_the_page_s_questions_are_answered_right_by_the_model_that_ships() -> None:
    answers = Tyler.from_pretrained("mini-tyler").solve(list(EXAMPLES), max_new_tokens=CONTROL_TOKENS)
    given = [re.findall(r"boxed\{(.*?)\}", answer.text)[-1:] for answer in answers]
    assert given == [["59"], ["15"], ["86"], ["11"], ["7"], ["52"]]


@pytest.mark.parametrize("name", ["nothing.js", "..%2f..%2fmodel.py", "%2e%2e/report.html", "page.css/../../x"])
def test_nothing_else_is_sent(name: str, served: Served) -> None:
    assert served.get(f"/page/{name}").status_code == 404


def test_the_page_loads_nothing_from_elsewhere_and_writes_no_markup() -> None:
    namespaces = re.compile(r"http://www\.w3\.org/(2000/svg|1998/Math/MathML)")
    for name, text in page.contents().items():
        for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "https:", "http:"):
            assert word not in namespaces.sub("", text), f"{name} has {word}"


def test_the_model_is_described(served: Served) -> None:
    told = served.get("/api/model").json()
    assert [one["name"] for one in told["operators"]] == ["global", "state", "procedure"]
    assert told["operators"][0] == {"name": "global", "latents": 5, "colour": "#007abf"}
    assert (told["router"], told["budget"], told["max_new_tokens"]) == ("learned", None, 64)
    assert router_name(AtBoundaries(rate=0.25)) == "boundaries:0.25" and router_name(AtBoundaries()) == "boundaries"


def test_an_answer_is_that_of_solve_with_its_probabilities(served: Served, model: Tyler) -> None:
    (name, start), *others, (_, end) = events(served, ASKED | {"tyler": {"budget": 2}, "temperature": 0.8, "seed": 5})
    assert name == "start" and (start["budget"], start["router"], start["sampling"]["seed"]) == (2, "learned", 5)
    steps = [step for _, data in others for step in data["steps"]]
    answer = Trajectory.from_dict(end["trajectory"])
    plain = solved(model, "x", budget=2, sampling=Sampling(0.8, seed=5), max_new_tokens=24)
    assert answer.actions == plain.actions
    assert "".join(step.get("text", "") for step in steps) == answer.text
    assert [step["call"]["operator"] for step in steps if "call" in step] == [c.operator for c in answer.invocations]
    for step, probs in zip(steps, answer.operator_probs, strict=False):
        assert step["probs"] == pytest.approx(probs, abs=1e-6)
    assert len(answer.operator_probs) == len(answer.actions)


def test_an_answer_without_one_call_is_its_branch(served: Served) -> None:
    answer = ended(served, ASKED)
    call = answer.invocations[1]
    branch = {"prompt_ids": answer.prompt_ids, "actions": answer.actions[: call.action]}
    found = ended(served, {"model": NAME, "branch": branch, "max_new_tokens": 24})
    assert found.actions[: call.action] == answer.actions[: call.action]
    assert not found.is_operator[call.action] and found.invocations[:1] == answer.invocations[:1]


def test_the_lens_sees_what_it_sees_on_the_answer_itself(served: Served, model: Tyler) -> None:
    answer = solved(model, "x", max_new_tokens=24)
    origin = {"prompt_ids": answer.prompt_ids, "actions": answer.actions}
    told = served.post("/api/lens", {"model": NAME, "answer": origin, "invocation": 1}).json()
    controls = model.solve(list(EXAMPLES), max_new_tokens=min(CONTROL_TOKENS, 64))
    reading = read_block(model, answer, 1, controls, torch.Generator().manual_seed(0))
    assert told["operator"] == reading.operator and told["controls"] == len(blocks_of(controls)[reading.operator])
    assert list(told["effects"]) == list(reading.effects)
    for name, effect in reading.effects.items():
        assert told["effects"][name]["loss"] == pytest.approx(effect.loss, abs=1e-3)


def test_a_lens_that_finds_no_room_says_so(served: Served, model: Tyler, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_room(*_: object) -> None:
        raise ValueError("memory=1 holds no answer")

    monkeypatch.setattr(page, "read_block", no_room)
    answer = solved(model, "x", max_new_tokens=24)
    origin = {"prompt_ids": answer.prompt_ids, "actions": answer.actions}
    found = served.post("/api/lens", {"model": NAME, "answer": origin, "invocation": 0})
    assert (found.status_code, found.json()["error"]["message"]) == (400, "memory=1 holds no answer")


REFUSED = [
    ("/api/answers", {"model": NAME}, "send messages or a branch"),
    ("/api/answers", ASKED | {"branch": {"prompt_ids": [1], "actions": []}}, "send messages or a branch"),
    ("/api/answers", {"model": NAME, "branch": {"prompt_ids": [2], "actions": [10**6]}}, "branch holds 1000000"),
    (
        "/api/answers",
        {"model": NAME, "branch": {"prompt_ids": [10**6], "actions": []}},
        "the prompt has tokens from 1000000",
    ),
    ("/api/answers", ASKED | {"max_new_tokens": 65}, "up to 64"),
    ("/api/answers", ASKED | {"depth": 1}, "depth is not supported"),
    ("/api/answers", ASKED | {"model": "other"}, "not served here"),
    ("/api/lens", {"model": NAME, "answer": {"prompt_ids": [2], "actions": []}, "invocation": 0}, "is empty"),
    ("/api/lens", {"model": NAME, "answer": {"prompt_ids": [2], "actions": [3]}, "invocation": 0}, "does not exist"),
    ("/api/lens", {"model": NAME, "answer": {"prompt_ids": [2], "actions": [3] * 65}, "invocation": 0}, "up to 64"),
]


@pytest.mark.parametrize("path, body, message", REFUSED)
def test_what_cannot_be_asked_is_refused_in_words(path: str, body: dict, message: str, served: Served) -> None:
    found = served.post(path, body)
    assert found.status_code in (400, 404), found.text
    assert message in found.json()["error"]["message"]


def test_the_page_of_one_answer_is_whole_and_runs_only_what_is_in_it(served: Served) -> None:
    html = served.get(f"/page/{page.ALONE}").text
    (policy,) = re.findall(r'content="(default-src .*?)"', html)
    for kind, tag in (("style", "style"), ("script", 'script type="module"')):
        (content,) = re.findall(rf"<{tag}>(.*?)</{kind}>", html, re.DOTALL)
        assert page.digest(content) in policy and "import {" not in content
    assert html.count("$data") == 1 and html.count("</script>") == 2


@pytest.fixture(scope="module")
def locked(model: Tyler) -> Iterator[Served]:
    with serving(model, api_keys={"me": "secret"}) as running:
        yield running


def test_the_files_need_no_key_and_the_api_does(locked: Served) -> None:
    assert locked.get("/").status_code == locked.get("/page/main.js").status_code == 200
    for path, body in (("/api/answers", ASKED), ("/api/lens", {})):
        assert locked.post(path, body).status_code == 401
    assert locked.get("/api/model").status_code == 401
    assert locked.get("/api/model", headers={"Authorization": "Bearer secret"}).status_code == 200


def test_a_model_without_trained_operators_is_asked_without_them(model: Tyler) -> None:
    with serving(model.at_stage("backbone")) as plain:
        told = plain.get("/api/model").json()
        assert (told["operators"], told["router"]) == ([], "never")
        answer = ended(plain, ASKED)
        assert answer.invocations == () and answer.operator_probs == []
        lens = {"model": NAME, "answer": {"prompt_ids": [2], "actions": [3]}, "invocation": 0}
        for path, body in (("/api/lens", lens), ("/api/answers", {"model": NAME, "branch": lens["answer"]})):
            found = plain.post(path, body)
            assert found.status_code == 400 and "no trained operators" in found.json()["error"]["message"]
