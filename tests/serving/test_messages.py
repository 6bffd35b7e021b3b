"""Anthropic's client gets the model's answers; invocations are thinking blocks. It needs the extra `clients`."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from tests import tiny
from tests.serving.served import NAME, Served, serving, solved

from tyler.engine.routing import AtBoundaries
from tyler.model import Tyler

anthropic = pytest.importorskip("anthropic", reason="anthropic is not installed (extra clients)")

ASKED: dict[str, Any] = {
    "model": NAME,
    "max_tokens": 24,
    "messages": [{"role": "user", "content": tiny.ODD}],
    "extra_body": {"tyler": {"router": "boundaries"}},
}


@pytest.fixture()
def client_of() -> Iterator[Callable[..., Any]]:
    """Makes clients, which are closed after the test: their connections would outlive it."""
    with ExitStack() as stack:

        def client(served: Served, key: str = "none") -> Any:
            return stack.enter_context(anthropic.Anthropic(base_url=served.url, api_key=key, max_retries=0))

        yield client


def text_of(message: Any) -> str:
    return "".join(block.text for block in message.content if block.type == "text")


def read_by(message: Any) -> int:
    """The tokens of a prompt: Anthropic counts those that a cache held apart."""
    return int(message.usage.input_tokens + message.usage.cache_read_input_tokens)


def test_a_message_is_what_solve_answers_with_thinking_for_each_invocation(
    client_of: Callable[..., Any], served: Served, model: Tyler
) -> None:
    answer, found = solved(model, tiny.ODD, max_new_tokens=24, router=AtBoundaries()), None
    found = client_of(served).messages.create(**ASKED)
    assert text_of(found) == answer.text and answer.num_invocations
    thoughts = [block.thinking for block in found.content if block.type == "thinking"]
    assert thoughts == [f"⟨{one.operator} ×{one.num_latents}⟩" for one in answer.invocations]
    assert found.usage.output_tokens == answer.num_visible + answer.num_latents
    assert read_by(found) == len(answer.prompt_ids)
    assert found.stop_reason == {"length": "max_tokens", "eos": "end_turn"}[answer.finish_reason]


def test_a_streamed_message_adds_up_to_the_whole_one(client_of: Callable[..., Any], served: Served) -> None:
    client = client_of(served)
    whole = client.messages.create(**ASKED)
    with client.messages.stream(**ASKED) as stream:
        text, last = "".join(stream.text_stream), stream.get_final_message()
    assert text == text_of(whole) == text_of(last)
    assert [block.type for block in last.content] == [block.type for block in whole.content]
    assert (last.stop_reason, last.usage.output_tokens) == (whole.stop_reason, whole.usage.output_tokens)


def test_a_system_text_and_a_beginning_of_the_answer_are_in_the_prompt(
    client_of: Callable[..., Any], served: Served, model: Tyler
) -> None:
    turns = [{"role": "system", "content": "Box it."}, {"role": "user", "content": "x"}]
    client, settings = client_of(served), {"model": NAME, "max_tokens": 6, "system": "Box it."}
    found = client.messages.create(**settings, messages=turns[1:])
    assert text_of(found) == solved(model, turns, max_new_tokens=6).text
    begun = [*turns[1:], {"role": "assistant", "content": "So, "}]
    longer = client.messages.create(**settings, messages=begun)
    assert read_by(longer) > read_by(found)
    counted = client.messages.count_tokens(model=NAME, system="Box it.", messages=begun)
    assert counted.input_tokens == read_by(longer)


def test_thinking_is_a_budget_of_latents(client_of: Callable[..., Any], served: Served) -> None:
    client, asked = client_of(served), {key: value for key, value in ASKED.items()}
    none = client.messages.create(**asked, thinking={"type": "disabled"})
    assert all(block.type == "text" for block in none.content)
    some = client.messages.create(**asked, thinking={"type": "enabled", "budget_tokens": 9})
    assert sum(block.type == "thinking" for block in some.content) == 1, "the largest operator has five latents"


def test_errors_and_keys_have_anthropics_shape(client_of: Callable[..., Any], served: Served, model: Tyler) -> None:
    with pytest.raises(anthropic.BadRequestError, match="tools") as refused:
        client_of(served).messages.create(**ASKED | {"tools": [{"name": "x", "input_schema": {}}]})
    assert refused.value.body["type"] == "error" and refused.value.body["error"]["type"] == "invalid_request_error"
    with serving(model, api_keys={"alice": "secret-key"}) as locked:
        with pytest.raises(anthropic.AuthenticationError):
            client_of(locked, "wrong").messages.create(**ASKED)
        assert client_of(locked, "secret-key").messages.create(**ASKED).content
