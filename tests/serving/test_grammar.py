"""Answers within a grammar: what it allows, with operators called in its middle, and invalid grammars."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

import tiny
from tyler.engine.logits import GrammarError, LogitSettings
from tyler.engine.request import FinishEvent, Request
from tyler.engine.routing import Learned, Never
from tyler.engine.sampling import Sampling
from tyler.serving.grammar import TextGrammar, words_of

pytest.importorskip("llguidance")

SCHEMA = {
    "type": "object",
    "properties": {"x": {"type": "integer"}, "unit": {"enum": ["a", "b"]}, "steps": {"type": "array", "maxItems": 2}},
    "required": ["x", "unit"],
    "additionalProperties": False,
}


@cache
def words(family: str = "qwen3") -> Any:
    return words_of(tiny.tyler(family).backbone)


def request(grammar: TextGrammar, **given: Any) -> Request:
    plain: dict[str, Any] = {"max_new_tokens": 180, "budget": 3, "router": Learned()}
    return Request(tiny.ids(tiny.MEDIUM), logits=LogitSettings(grammar=grammar), **plain | given)


def test_answers_are_json_of_the_schema_with_calls_in_their_middle() -> None:
    grammar = TextGrammar.of_schema(words(), SCHEMA)
    requests = [request(grammar, sampling=Sampling(1.0, seed=seed)) for seed in range(6)]
    answers = tiny.tyler("qwen3").engine(slots=6).run(requests)
    finished = [answer for answer in answers if answer.finish_reason == "eos"]
    assert len(finished) >= 3
    for answer in finished:
        found = json.loads(answer.text)
        assert isinstance(found["x"], int)
        assert found["unit"] in ("a", "b")
        assert found.keys() <= SCHEMA["properties"].keys()  # type: ignore[attr-defined]
    inside = [call for one in finished for call in one.invocations if 0 < call.offset < len(one.text)]
    assert {call.operator for call in inside} >= {"state"}


def test_an_empty_schema_is_any_json() -> None:
    answers = (
        tiny.tyler("qwen3")
        .engine(slots=8)
        .run([request(TextGrammar.of_schema(words(), {}), sampling=Sampling(1.0, seed=seed)) for seed in range(8)])
    )
    found = [json.loads(answer.text) for answer in answers if answer.finish_reason == "eos"]
    assert found and not all(isinstance(one, dict) for one in found)


def test_every_end_token_ends_a_complete_text() -> None:
    """The llama declares two; one of them is also a text, which the grammar may hold."""
    grammar = TextGrammar(words("llama"), "regex", "[0-9]")
    (answer,) = tiny.tyler("llama").engine().run([request(grammar, router=Never())])
    assert (answer.finish_reason, len(answer.text)) == ("eos", 1)


def test_the_beginning_in_the_prompt_belongs_to_the_text() -> None:
    begun = tiny.ids('{"x": 1')
    short = SCHEMA | {"properties": {"x": {"type": "integer"}, "unit": {"enum": ["a", "b"]}}}
    grammar = replace(TextGrammar.of_schema(words(), short), begun=tuple(begun))
    (answer,) = tiny.tyler("qwen3").engine().run([request(grammar, sampling=Sampling(1.0, seed=3))])
    assert json.loads('{"x": 1' + answer.text)["unit"] in ("a", "b")
    with pytest.raises(ValueError, match="no text of the json_schema begins as"):
        replace(TextGrammar.of_schema(words(), SCHEMA), begun=tuple(tiny.ids("[1"))).start()


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"type": "foo"}, "Invalid type: foo"),
        ({"type": "array", "uniqueItems": True}, "uniqueItems"),
        ({"not": {}}, "not"),
        ({"$ref": "http://example.com/schema"}, "example.com"),
        ({"type": "string", "pattern": "("}, "regex"),
    ],
)
def test_a_schema_that_cannot_be_kept_to_is_refused(schema: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TextGrammar.of_schema(words(), schema).start()


def test_a_grammar_that_grows_too_complex_ends_its_answer_alone() -> None:
    class Failing:
        def start(self) -> Failing:
            return Failing()

        def accept(self, token: int) -> None:
            raise GrammarError("too many states")

        def mask(self) -> Any:
            return TextGrammar(words(), "regex", "[0-9]+").start().mask()

    engine = tiny.tyler("qwen3").engine()
    plain = Request(tiny.ids(tiny.MEDIUM), max_new_tokens=12, router=Never())
    failing = Request(tiny.ids(tiny.MEDIUM), max_new_tokens=12, router=Never(), logits=LogitSettings(grammar=Failing()))
    places = [engine.add_request(plain), engine.add_request(failing)]
    ended: dict[int, FinishEvent] = {}
    while engine.busy:
        ended |= {event.index: event for event in engine.step() if isinstance(event, FinishEvent)}
    assert ended[places[0]].trajectory.finish_reason == "length"
    assert "too many states" in str(ended[places[1]].error)
