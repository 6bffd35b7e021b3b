"""Every method is served by the same code, and metrics tell of all of them."""

from types import ModuleType
from typing import Any

import pytest
import torch
from tests import kinds, tiny
from tests.serving.served import NAME, Served, serving

from tyler.model import Tyler
from tyler.reasoners import cot, soft_thinking, swireasoning
from tyler.reasoners.memgen import model as memgen
from tyler.reasoners.reasoner import AnswerSettings
from tyler.reasoners.softcot import model as softcot
from tyler.tasks.problem import Problem

CHAT = {"model": NAME, "messages": [{"role": "user", "content": tiny.MEDIUM}], "max_tokens": 10}


@pytest.mark.parametrize("module", [cot, soft_thinking, swireasoning, softcot, memgen])
def test_a_baseline_is_served_and_answers_as_it_does_in_an_evaluation(module: ModuleType) -> None:
    torch.manual_seed(1)
    kind = {softcot: "softcot", memgen: "memgen"}.get(module, "backbone")
    reasoner = module.reasoner(kinds.new(kind, tiny.tyler("qwen2").backbone), module.METHOD.settings())
    bounded = AnswerSettings(max_new_tokens=10, max_generated=10)  # as the server has it
    problem = Problem("1", "jsonl", tiny.MEDIUM, "5")
    (answer,) = reasoner.model.shared_engine.run([reasoner.request(problem, bounded)])
    assert answer.num_visible + answer.num_latents <= 10
    with serving(reasoner) as served:
        found = served.post("/v1/chat/completions", CHAT)
        assert found.status_code == 200, found.text
        assert found.json()["choices"][0]["message"]["content"] == answer.text
        details = found.json()["usage"]["completion_tokens_details"]
        assert details["reasoning_tokens"] == answer.num_latents
        streamed = served.openai.chat.completions.create(**CHAT, stream=True)
        assert "".join(chunk.choices[0].delta.content or "" for chunk in streamed) == answer.text
        continued = served.post("/v1/completions", {"model": NAME, "prompt": "x", "max_tokens": 3})
        assert continued.status_code == (400 if module is softcot else 200)
        if module is not cot:
            for change, param in (
                ({"tyler": {"budget": 1}}, "tyler.budget"),
                ({"tyler": {"router": "boundaries"}}, "tyler.router"),
                ({"reasoning_effort": "low"}, "reasoning_effort"),
            ):
                refused = served.post("/v1/chat/completions", CHAT | change)
                assert refused.status_code == 400 and refused.json()["error"]["param"] == param
                assert f"has no operators; omit {param}" in refused.json()["error"]["message"]
        asks_for_nothing = served.post("/v1/chat/completions", CHAT | {"reasoning_effort": "none"})
        assert asks_for_nothing.status_code == 200


def test_metrics_count_what_was_decoded(model: Tyler) -> None:
    body = CHAT | {"tyler": {"router": "boundaries", "budget": 1}, "max_tokens": 20}
    with serving(model, memory=2 * 10**7) as served:
        usage = served.post("/v1/chat/completions", body).json()["usage"]
        assert_counted(served, usage)
        routes = served.get("/metrics").text
        assert 'tyler_http_requests_total{route="/v1/chat/completions",status="200"} 1.0' in routes
        served.get("/nowhere/at/all")
        assert 'route="other",status="404"' in served.get("/metrics").text, "labels are never what a client sends"


def assert_counted(served: Served, usage: dict[str, Any]) -> None:
    latents = usage["completion_tokens_details"]["reasoning_tokens"]
    assert served.metric("latents_total") == latents
    assert served.metric("generation_tokens_total") == usage["completion_tokens"] - latents
    assert served.metric("prompt_tokens_total") == usage["prompt_tokens"]
    assert served.metric("budget_exhausted_total") == 1
    for name in ("time_to_first_token", "e2e_request_latency", "request_queue_time"):
        assert served.metric(f"{name}_seconds_count") == 1
    assert served.metric("inter_token_latency_seconds_count") >= 5
    assert served.metric("num_requests_running") == 0 and served.metric("kv_cache_usage_perc") == 0
