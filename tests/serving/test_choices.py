"""What decides which tokens are taken, in all four protocols: penalties, biases, ends, and what the text has to be."""

import json
import re
from typing import Any

import pytest
from tests import tiny
from tests.serving.served import NAME, Served, serving

from tyler.engine.logits import LogitSettings
from tyler.engine.request import Request
from tyler.engine.routing import Learned
from tyler.engine.sampling import Sampling
from tyler.model import Tyler

SCHEMA = {
    "type": "object",
    "properties": {"x": {"type": "integer", "maximum": 99}, "unit": {"enum": ["a", "b"]}},
    "required": ["x", "unit"],
    "additionalProperties": False,
}
TURN = [{"role": "user", "content": tiny.ODD}]
COMMON = {"model": NAME, "temperature": 1.0}


def chat(served: Served, change: dict[str, Any], length: int) -> tuple[str, dict[str, Any]]:
    body = {**COMMON, "messages": TURN, "max_tokens": length, "seed": 7, **change}
    found = served.post("/v1/chat/completions", body).json()
    return found["choices"][0]["message"]["content"], found


def completion(served: Served, change: dict[str, Any], length: int) -> tuple[str, dict[str, Any]]:
    body = {**COMMON, "prompt": tiny.ODD, "max_tokens": length, "seed": 7, **change}
    found = served.post("/v1/completions", body).json()
    return found["choices"][0]["text"], found


def response(served: Served, change: dict[str, Any], length: int) -> tuple[str, dict[str, Any]]:
    if (format := change.pop("response_format", None)) is not None:
        change |= {"text": {"format": flat(format)}}
    found = served.post("/v1/responses", {**COMMON, "input": tiny.ODD, "max_output_tokens": length, **change}).json()
    return "".join(part["text"] for item in found["output"] for part in item.get("content", ())), found


def message(served: Served, change: dict[str, Any], length: int) -> tuple[str, dict[str, Any]]:
    if (format := change.pop("response_format", None)) is not None:
        change |= {"output_config": {"format": flat(format)}}
    found = served.post("/v1/messages", {**COMMON, "messages": TURN, "max_tokens": length, **change}).json()
    return "".join(block["text"] for block in found["content"] if block["type"] == "text"), found


def flat(format: dict[str, Any]) -> dict[str, Any]:
    """As responses and messages have it."""
    return {"type": format["type"], **format.get("json_schema", {}), **{k: format[k] for k in format if k == "pattern"}}


PROTOCOLS = {"chat": chat, "completion": completion, "response": response, "message": message}


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_json_of_a_schema_with_calls_in_its_middle(protocol: str, served: Served) -> None:
    format = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA, "strict": True}}
    inside = 0
    for _ in range(6):
        text, found = PROTOCOLS[protocol](served, {"response_format": format, "tyler": {"budget": 3}}, 64)
        told = (found["choices"][0] if "choices" in found else found)["tyler"]
        if told["invocations"] and text.endswith("}"):
            assert json.loads(text)["unit"] in ("a", "b")
            inside += any(0 < call["offset"] < len(text) for call in told["invocations"])
        if protocol in ("chat", "completion"):
            break  # of one seed
    assert inside or protocol in ("chat", "completion")


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_any_object_and_a_regular_expression(protocol: str, served: Served) -> None:
    pattern = r"[0-9]{2,4}(\.[0-9])? total"
    text, _ = PROTOCOLS[protocol](served, {"response_format": {"type": "regex", "pattern": pattern}}, 64)
    assert re.fullmatch(pattern, text)
    text, _ = PROTOCOLS[protocol](served, {"response_format": {"type": "json_object"}}, 64)
    assert text.startswith("{")


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_penalties_biases_and_ends_are_honoured(protocol: str, served: Served) -> None:
    ask = PROTOCOLS[protocol]
    (q,), (z,) = tiny.ids("q"), tiny.ids("z")
    assert set(ask(served, {"logit_bias": {str(q): 100}, "tyler": {"budget": 0}}, 12)[0]) == {"q"}
    greedy = {"tyler": {"budget": 0}, "temperature": 0}
    close = {**greedy, "logit_bias": {str(q): 60, str(z): 60}}
    for name, value in (("frequency_penalty", 2), ("repetition_penalty", 1.5)):
        assert {"q", "z"} == set(ask(served, close | {name: value}, 50)[0])
    eos = tiny.tokenizer().eos_token_id
    text, _ = ask(served, {"logit_bias": {str(eos): 100}, "tyler": {"budget": 0}}, 12)
    assert text == ""
    endless, found = ask(served, {"logit_bias": {str(eos): 100}, "ignore_eos": True, "tyler": {"budget": 0}}, 12)
    assert len(endless) > 0
    usage = found["usage"]
    assert usage.get("completion_tokens", usage.get("output_tokens")) == 12
    stopped, _ = ask(served, {"logit_bias": {str(q): 100}, "stop_token_ids": [q], "tyler": {"budget": 0}}, 12)
    assert stopped == ""


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("length", [1, 3, 7])
def test_a_limit_bounds_what_usage_counts(protocol: str, length: int, served: Served) -> None:
    for router in ("boundaries", "learned"):
        usage = PROTOCOLS[protocol](served, {"tyler": {"router": router}}, length)[1]["usage"]
        assert usage.get("completion_tokens", usage.get("output_tokens")) <= length


def test_the_engine_is_asked_for_just_that(served: Served, model: Tyler) -> None:
    change = {"presence_penalty": 1.5, "min_p": 0.01, "logit_bias": {"30": 2.5}, "repetition_penalty": 1.2}
    text, _ = chat(served, change, 24)
    settings = LogitSettings(presence_penalty=1.5, min_p=0.01, logit_bias={30: 2.5}, repetition_penalty=1.2)
    asked = model.request(tiny.ODD, sampling=Sampling(1.0, seed=7), max_new_tokens=24, router=Learned())
    given = {"logits": settings, "max_generated": 24}
    (answer,) = model.shared_engine.run([Request(**vars(asked) | given)])
    assert text == answer.text
    assert text != chat(served, {}, 24)[0]


def test_a_beginning_is_part_of_the_text(served: Served) -> None:
    format = {"type": "json_schema", "json_schema": {"schema": SCHEMA}}
    wrong = [*TURN, {"role": "assistant", "content": "I think"}]
    body = {**COMMON, "max_tokens": 64, "response_format": format, "messages": wrong}
    error = served.post("/v1/chat/completions", body).json()["error"]
    assert "begins as the assistant's last message does" in error["message"]


# -- log-probabilities -----------------------------------------------------------------------------------------------


def text_of(told: list[Any]) -> str:
    """What tokens spell; the last one may end inside a character, which is in no text."""
    return b"".join(bytes(one.bytes) for one in told).decode("utf-8", "replace")


def test_a_stream_tells_the_log_probabilities_of_the_whole_answer(served: Served) -> None:
    body = {**COMMON, "messages": TURN, "seed": 7, "max_tokens": 24, "logprobs": True, "top_logprobs": 3}
    whole = served.openai.chat.completions.create(**body).choices[0]
    chunks = list(served.openai.chat.completions.create(**body, stream=True))
    told = [one for chunk in chunks for one in (chunk.choices[0].logprobs.content if chunk.choices[0].logprobs else ())]
    assert told == whole.logprobs.content
    assert text_of(told).startswith(whole.message.content)
    for chunk in chunks:
        text = chunk.choices[0].delta.content or ""
        told = chunk.choices[0].logprobs.content if chunk.choices[0].logprobs else []
        assert text_of(told).startswith(text)


def test_a_streamed_completion_tells_them_with_where_they_stand(served: Served) -> None:
    body = {**COMMON, "prompt": tiny.ODD, "seed": 7, "max_tokens": 24, "logprobs": 2, "echo": True}
    whole = served.openai.completions.create(**body).choices[0]
    found: dict[str, list[Any]] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
    for chunk in served.openai.completions.create(**body, stream=True):
        if chunk.choices and chunk.choices[0].logprobs is not None:
            for name, values in found.items():
                values += getattr(chunk.choices[0].logprobs, name)
    assert found == {name: getattr(whole.logprobs, name) for name in found}


def test_a_response_tells_them_in_its_deltas_and_at_its_end(served: Served) -> None:
    body = {**COMMON, "input": tiny.ODD, "max_output_tokens": 24, "top_logprobs": 2}
    include = ["message.output_text.logprobs"]
    events = list(served.openai.responses.create(**body, include=include, stream=True))
    told = [one for event in events if event.type == "response.output_text.delta" for one in event.logprobs]
    (done,) = [event for event in events if event.type == "response.output_text.done"]
    assert [one.token for one in told] == [one.token for one in done.logprobs]
    assert all(len(one.top_logprobs) == 2 for one in told)
    (item,) = [one for one in events[-1].response.output if one.type == "message"]
    assert [one.logprob for one in item.content[0].logprobs] == [one.logprob for one in told]


# -- the prefix cache ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", ["chat", "response", "message"])
def test_a_second_turn_tells_what_it_did_not_read_again(protocol: str, model: Tyler) -> None:
    turns = [{"role": "user", "content": tiny.MEDIUM}]
    with serving(model) as served:
        for _ in range(2):
            body = {"model": NAME, "messages": turns, "max_tokens": 4}
            path = "/v1/messages" if protocol == "message" else "/v1/chat/completions"
            if protocol == "response":
                body, path = {"model": NAME, "input": turns, "max_output_tokens": 4}, "/v1/responses"
            usage = served.post(path, body).json()["usage"]
            turns = [*turns, {"role": "assistant", "content": "x"}, {"role": "user", "content": "y"}]
    if protocol == "message":
        assert usage["cache_read_input_tokens"] > 20
        assert usage["input_tokens"] > 0
    else:
        details = usage.get("prompt_tokens_details") or usage["input_tokens_details"]
        assert 20 < details["cached_tokens"] < usage.get("prompt_tokens", usage.get("input_tokens"))
