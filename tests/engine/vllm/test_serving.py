"""A server on vLLM: the same API, with the native engine's answers, calls and events."""

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from tests import tiny
from tests.serving.served import NAME, Served, serving, solved

from tyler.engine.sampling import Sampling
from tyler.model import Tyler
from tyler.serving.scoring import score_prompt

ASKED: dict[str, Any] = {
    "model": NAME,
    "messages": [{"role": "user", "content": tiny.ODD}],
    "max_tokens": 24,
    "temperature": 1.0,
    "seed": 6,
}
BOUNDARIES = {"tyler": {"router": "boundaries"}}


@pytest.fixture(scope="module")
def served(models: Mapping[str, Tyler]) -> Iterator[Served]:
    model = models["qwen3"].with_engine("vllm", enforce_eager=True, kv_cache_memory_bytes=2**26)
    with serving(model) as running:
        yield running
    model.shared_engine.close()


def expected(models: Mapping[str, Tyler], **settings: Any) -> Any:
    return solved(models["qwen3"], tiny.ODD, max_new_tokens=24, sampling=Sampling(1.0, seed=6), **settings)


def test_a_chat_is_the_native_engines_answer_with_its_calls(served: Served, models: Mapping[str, Tyler]) -> None:
    answer = expected(models, router="boundaries")
    found = served.openai.chat.completions.create(**ASKED, extra_body=BOUNDARIES)
    assert found.choices[0].message.content == answer.text
    told = [(one["operator"], one["position"], one["latents"]) for one in found.choices[0].tyler["invocations"]]
    assert told == [(call.operator, call.position, call.num_latents) for call in answer.invocations] and told
    assert found.usage.completion_tokens == answer.num_visible + answer.num_latents


def test_what_runs_on_the_native_engine_alone_is_refused_and_metrics_are_told(served: Served) -> None:
    refused = served.post("/v1/chat/completions", {**ASKED, "logprobs": True, "top_logprobs": 3})
    assert refused.status_code == 400 and "native engine alone" in refused.text
    found = served.openai.chat.completions.create(**ASKED, logprobs=True)
    assert all(one.logprob <= 0 for one in found.choices[0].logprobs.content)
    assert "tyler_" in served.get("/metrics").text


def test_an_echoed_prompt_is_scored_as_on_the_native_engine(served: Served, models: Mapping[str, Tyler]) -> None:
    body = {"model": NAME, "prompt": tiny.ODD, "max_tokens": 3, "echo": True}
    found = served.openai.completions.create(**body, logprobs=0).choices[0]
    ids = served.service.tokenizer(tiny.ODD)["input_ids"]
    expected = [one.logprob for one in score_prompt(models["qwen3"].engine(), ids, top=0)]
    assert found.text.startswith(tiny.ODD)
    assert found.logprobs.token_logprobs[: len(ids)] == [None, *(pytest.approx(one, abs=1e-4) for one in expected[1:])]
    refused = served.post("/v1/completions", body | {"logprobs": 2})
    assert refused.status_code == 400 and "native engine alone" in refused.text
    assert served.get("/health/ready").status_code == 200
