"""LiteLLM, behind which many agents and proxies sit, gets the model's answers. It needs the extra `clients`."""

import asyncio
import os
from collections.abc import Iterator
from typing import Any

import pytest
from tests.serving.served import NAME, Served
from tests.serving.test_clients import SAID, expected

from tyler.model import Tyler

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # its prices come from the network otherwise
litellm = pytest.importorskip("litellm", reason="litellm is not installed (extra clients)")
litellm.telemetry = False


@pytest.fixture(scope="module", autouse=True)
def loop() -> Iterator[None]:
    """LiteLLM asks for the thread's event loop and leaves it open; this one is closed."""
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    yield
    asyncio.set_event_loop(None)
    loop.close()


def asked(served: Served, **changes: Any) -> Any:
    common = {"model": f"openai/{NAME}", "api_base": f"{served.url}/v1", "api_key": "none", "num_retries": 0}
    return litellm.completion(**common, messages=SAID, max_tokens=24, temperature=1.0, seed=6, **changes)


def test_litellm_gets_the_answer_and_shows_invocations_as_reasoning(served: Served, model: Tyler) -> None:
    answer, found = expected(model), asked(served)
    message = found.choices[0].message
    assert message.content == answer.text and found.usage.prompt_tokens == len(answer.prompt_ids)
    assert message.reasoning_content.count("⟨") == answer.num_invocations > 0
    assert found.usage.completion_tokens_details.reasoning_tokens == answer.num_latents


def test_litellm_gets_a_stream(served: Served, model: Tyler) -> None:
    deltas = [chunk.choices[0].delta for chunk in asked(served, stream=True)]
    answer = expected(model)
    assert "".join(delta.content or "" for delta in deltas) == answer.text
    shown = "".join(getattr(delta, "reasoning_content", None) or "" for delta in deltas)
    assert shown.count("⟨") == answer.num_invocations


def test_litellm_passes_a_budget_on_and_tells_of_refusals(served: Served, model: Tyler) -> None:
    found = asked(served, extra_body={"tyler": {"budget": 0}})
    assert found.choices[0].message.content == expected(model, budget=0).text
    with pytest.raises(litellm.BadRequestError, match="presence_penalty"):
        asked(served, presence_penalty=5.0)
