"""OpenAI's own client works unchanged, and what it gets is what the model answers."""

import asyncio
from typing import Any

import pytest
from openai import AsyncOpenAI
from tests import tiny
from tests.serving.served import NAME, Served, solved

from tyler.engine.routing import AtBoundaries
from tyler.engine.sampling import Sampling
from tyler.model import Tyler
from tyler.serving.scoring import token_bytes

SAID = [{"role": "user", "content": tiny.ODD}]
SAMPLED = {"model": NAME, "messages": SAID, "max_tokens": 24, "temperature": 1.0, "seed": 6}


def expected(model: Tyler, **settings: Any) -> Any:
    return solved(model, tiny.ODD, **{"max_new_tokens": 24, "sampling": Sampling(1.0, seed=6), **settings})


def test_a_chat_is_what_solve_answers_with_latents_as_reasoning_tokens(served: Served, model: Tyler) -> None:
    answer, found = expected(model), served.openai.chat.completions.create(**SAMPLED)
    choice = found.choices[0]
    assert answer.num_invocations and found.model == NAME and found.id.startswith("chatcmpl-")
    assert (choice.message.content, choice.message.role) == (answer.text, "assistant")
    assert choice.finish_reason == {"eos": "stop", "length": "length"}[answer.finish_reason]
    assert found.usage.prompt_tokens == len(answer.prompt_ids)
    assert found.usage.completion_tokens == answer.num_visible + answer.num_latents
    assert found.usage.completion_tokens_details.reasoning_tokens == answer.num_latents
    marks = [f"⟨{call.operator} ×{call.num_latents}⟩" for call in answer.invocations]
    assert choice.message.reasoning_content == "\n".join(marks)
    told = [(one["operator"], one["position"], one["latents"]) for one in choice.tyler["invocations"]]
    assert told == [(call.operator, call.position, call.num_latents) for call in answer.invocations]
    assert all(one["milliseconds"] > 0 and one["budget_left"] is None for one in choice.tyler["invocations"])


def test_budget_and_router_are_exact(served: Served, model: Tyler) -> None:
    extra = {"tyler": {"budget": 2, "router": "boundaries"}}
    found = served.openai.chat.completions.create(**SAMPLED, extra_body=extra)
    answer = expected(model, budget=2, router=AtBoundaries())
    assert found.choices[0].message.content == answer.text
    assert [one["budget_left"] for one in found.choices[0].tyler["invocations"]] == [1, 0]
    none = served.openai.chat.completions.create(**SAMPLED, reasoning_effort="none")
    assert none.usage.completion_tokens_details.reasoning_tokens == 0
    assert none.choices[0].message.content == expected(model, budget=0).text


def test_a_stream_is_the_same_answer_with_invocations_at_their_places(served: Served, model: Tyler) -> None:
    options = {"include_usage": True}
    chunks = list(served.openai.chat.completions.create(**SAMPLED, stream=True, stream_options=options))
    answer = expected(model)
    deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
    assert "".join(delta.content or "" for delta in deltas) == answer.text
    assert deltas[0].role == "assistant" and len({chunk.id for chunk in chunks}) == 1
    text, places = "", []
    for delta in deltas:
        text += delta.content or ""
        if getattr(delta, "reasoning_content", None):
            places.append(len(text))
    assert places == [call.offset for call in answer.invocations]
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "length"
    assert chunks[-1].choices == [] and chunks[-1].usage.completion_tokens == answer.num_visible + answer.num_latents
    assert all(chunk.usage is None for chunk in chunks[:-1])
    plain = list(served.openai.chat.completions.create(**SAMPLED, stream=True))
    assert all(chunk.choices and chunk.usage is None for chunk in plain), "usage comes only where it is asked for"


def test_several_answers_have_seeds_of_their_own_and_the_first_is_the_one_alone(served: Served, model: Tyler) -> None:
    found = served.openai.chat.completions.create(**SAMPLED, n=3)
    texts = [choice.message.content for choice in found.choices]
    assert texts[0] == expected(model).text and len(set(texts)) == 3
    assert [choice.index for choice in found.choices] == [0, 1, 2]
    again = [""] * 3
    for chunk in served.openai.chat.completions.create(**SAMPLED, n=3, stream=True):
        again[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
    assert again == texts
    assert found.usage.prompt_tokens == len(expected(model).prompt_ids)


def test_a_stop_string_and_the_end_of_the_tokens(served: Served, model: Tyler) -> None:
    text = expected(model).text
    stop = text[6:9]
    found = served.openai.chat.completions.create(**SAMPLED, stop=[stop])
    assert found.choices[0].message.content == text[: text.index(stop)]
    assert found.choices[0].finish_reason == "stop"
    chunks = served.openai.chat.completions.create(**SAMPLED, stop=stop, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == text[: text.index(stop)]


def test_a_conversation_may_hold_what_the_server_answered(served: Served, model: Tyler) -> None:
    client = served.openai
    first = client.chat.completions.create(**SAMPLED).choices[0].message
    history = [*SAID, first.model_dump(), {"role": "user", "content": [{"type": "text", "text": "And $x$?"}]}]
    found = client.chat.completions.create(**SAMPLED | {"messages": history})
    turns = [*SAID, {"role": "assistant", "content": first.content}, {"role": "user", "content": "And $x$?"}]
    answer = solved(model, turns, max_new_tokens=24, sampling=Sampling(1.0, seed=6))
    assert found.choices[0].message.content == answer.text


def test_log_probabilities_of_a_chat_are_those_it_was_decoded_with(served: Served, model: Tyler) -> None:
    found = served.openai.chat.completions.create(**SAMPLED, logprobs=True, top_logprobs=3).choices[0]
    answer = expected(model)
    kept = [(action, value) for action, value in zip(answer.actions, answer.logprobs, strict=True)]
    shown = [value for action, value in kept if action < model.backbone.vocab_size]
    assert [one.logprob for one in found.logprobs.content] == pytest.approx(shown, abs=1e-5)
    whole = bytes(byte for one in found.logprobs.content for byte in one.bytes)
    assert whole.decode("utf-8", "replace") == answer.text
    for one in found.logprobs.content:
        best = [other.logprob for other in one.top_logprobs]
        assert len(best) == 3 and best == sorted(best, reverse=True) and one.logprob <= best[0] + 1e-4


def test_completions_continue_texts_and_tokens_as_they_are(served: Served, model: Tyler) -> None:
    ids = tiny.ids(tiny.ODD)
    client, common = served.openai.completions, {"model": NAME, "max_tokens": 12}
    found = client.create(prompt=[tiny.ODD, tiny.SHORT], n=1, **common)
    assert [choice.index for choice in found.choices] == [0, 1]
    by_ids = client.create(prompt=ids, **common)
    assert by_ids.choices[0].text == found.choices[0].text
    request = model.request("x", max_new_tokens=12)
    (answer,) = model.shared_engine.run([type(request)(ids, request.router, max_new_tokens=12)])
    assert by_ids.choices[0].text == answer.text
    echoed = client.create(prompt=tiny.ODD, echo=True, **common).choices[0].text
    assert echoed == tiny.ODD + answer.text
    chunks = client.create(prompt=tiny.ODD, stream=True, echo=True, **common)
    assert "".join(chunk.choices[0].text for chunk in chunks) == echoed


def test_a_response_has_a_reasoning_item_for_each_invocation(served: Served, model: Tyler) -> None:
    asked = {"model": NAME, "input": tiny.ODD, "max_output_tokens": 24, "temperature": 0}
    found = served.openai.responses.create(**asked, extra_body={"tyler": {"router": "boundaries"}})
    answer = solved(model, tiny.ODD, max_new_tokens=24, router=AtBoundaries())
    assert found.output_text == answer.text and answer.num_invocations
    items = [item for item in found.output if item.type == "reasoning"]
    assert [item.tyler["operator"] for item in items] == [call.operator for call in answer.invocations]
    assert found.usage.output_tokens_details.reasoning_tokens == answer.num_latents
    assert found.usage.output_tokens == answer.num_visible + answer.num_latents
    assert found.status == ("incomplete" if answer.finish_reason == "length" else "completed")


def test_a_streamed_response_adds_up_to_the_whole_one(served: Served, model: Tyler) -> None:
    asked = {"model": NAME, "input": [{"role": "user", "content": tiny.ODD}], "max_output_tokens": 24}
    options = {"extra_body": {"tyler": {"router": "boundaries"}}}
    events = list(served.openai.responses.create(**asked, **options, stream=True))
    whole = served.openai.responses.create(**asked, **options)
    assert [event.sequence_number for event in events] == list(range(len(events)))
    last = events[-1].response
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == whole.output_text
    assert last.output_text == whole.output_text and last.usage == whole.usage
    assert [item.type for item in last.output] == [item.type for item in whole.output]
    for _ in range(50):  # until one ends by itself: only that has a final response for the client
        with served.openai.responses.stream(**asked | {"max_output_tokens": 64}, temperature=1.0) as stream:
            *_, last_event = stream
            if last_event.type == "response.completed":
                found = stream.get_final_response()
                assert found.output_text == last_event.response.output_text, "the client's own bookkeeping agrees"
                break
    else:
        pytest.fail("no answer ended by itself")
    again = served.openai.responses.create(
        model=NAME, input=[*asked["input"], *whole.output, {"role": "user", "content": "x"}], max_output_tokens=4
    )
    assert again.usage.input_tokens > whole.usage.input_tokens


def test_instructions_are_a_system_turn(served: Served, model: Tyler) -> None:
    found = served.openai.responses.create(model=NAME, input="x", instructions="Box it.", max_output_tokens=6)
    turns = [{"role": "system", "content": "Box it."}, {"role": "user", "content": "x"}]
    assert found.output_text == solved(model, turns, max_new_tokens=6).text


def test_the_asynchronous_client_gets_the_same_and_shares_batches(served: Served, model: Tyler) -> None:
    async def ask_all() -> list[str]:
        async with AsyncOpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as client:

            async def streamed() -> str:
                stream = await client.chat.completions.create(**SAMPLED, stream=True)
                return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

            async def whole() -> str:
                return (await client.chat.completions.create(**SAMPLED)).choices[0].message.content or ""

            return await asyncio.gather(*(one() for one in (streamed, whole) for _ in range(6)))

    assert set(asyncio.run(ask_all())) == {expected(model).text}


def test_models_are_listed(served: Served) -> None:
    (found,) = served.openai.models.list()
    assert found.id == NAME and found.max_model_len == tiny.MAX_POSITIONS
    assert served.openai.models.retrieve(NAME).id == NAME


def test_a_token_inside_a_character_is_named_by_its_bytes(served: Served) -> None:
    tokenizer = served.service.tokenizer
    ids = tokenizer("é", add_special_tokens=False)["input_ids"]
    assert len(ids) == 2 and b"".join(token_bytes(tokenizer, id) for id in ids) == "é".encode()
    body = {"model": NAME, "prompt": "é", "echo": True, "logprobs": 5, "max_tokens": 1}
    (choice,) = served.post("/v1/completions", body).json()["choices"]
    told = choice["logprobs"]
    assert told["tokens"][:2] == ["bytes:\\xc3", "bytes:\\xa9"] and told["text_offset"][:3] == [0, 0, 1]
    assert len(told["top_logprobs"][1]) == 5, "alternatives do not share a name"
    chat = SAMPLED | {"logprobs": True, "top_logprobs": 5}
    for one in served.openai.chat.completions.create(**chat).choices[0].logprobs.content:
        for other in one.top_logprobs:
            assert other.token != one.token or other.logprob == one.logprob, "one number for one token"
