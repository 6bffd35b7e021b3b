"""lm-evaluation-harness asks a server as it asks any other, and finds what the model does."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from lm_eval.api.instance import Instance
from lm_eval.models.openai_completions import LocalChatCompletion, LocalCompletionsAPI
from tests import tiny
from tests.serving.served import NAME, Served, likelihood, solved

from tyler.engine.request import Request
from tyler.model import Tyler


@pytest.fixture()
def settings(served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """What --model_args would say."""
    tiny.tokenizer().save_pretrained(tmp_path)
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    yield {"model": NAME, "tokenizer": str(tmp_path), "tokenizer_backend": "huggingface", "max_retries": 1}


def asked(kind: str, *arguments: tuple[Any, ...]) -> list[Instance]:
    return [Instance(kind, {}, one, index) for index, one in enumerate(arguments)]


def test_log_likelihoods_over_http_are_those_of_one_pass(
    served: Served, model: Tyler, settings: dict[str, Any]
) -> None:
    pairs = [(tiny.LONG, " so we add"), (tiny.MEDIUM, " 12"), ("x", "y and so on"), (tiny.MEDIUM, tiny.ODD)]
    client = LocalCompletionsAPI(base_url=f"{served.url}/v1/completions", batch_size=2, max_length=250, **settings)
    found = client.loglikelihood(asked("loglikelihood", *pairs), disable_tqdm=True)
    for (logprob, greedy), pair in zip(found, pairs, strict=True):
        expected, expected_greedy = likelihood(model, *client._encode_pair(*pair))
        assert logprob == pytest.approx(expected, abs=1e-4) and greedy == expected_greedy


def test_texts_over_http_are_what_the_model_answers(served: Served, model: Tyler, settings: dict[str, Any]) -> None:
    limits = {"until": ["Step 9"], "max_gen_toks": 12, "temperature": 0.0}
    contexts = asked("generate_until", *((text, limits) for text in (tiny.ODD, tiny.MEDIUM)))
    client = LocalCompletionsAPI(base_url=f"{served.url}/v1/completions", **settings)
    found = client.generate_until(contexts, disable_tqdm=True)
    router, stop = model.routed(None), limits["until"]
    own = [Request(tiny.ids(text), router, max_generated=12, stop=stop) for text in (tiny.ODD, tiny.MEDIUM)]
    assert found == [answer.text for answer in model.shared_engine.run(own)]


def test_chats_over_http_are_what_the_model_answers(served: Served, model: Tyler, settings: dict[str, Any]) -> None:
    client = LocalChatCompletion(base_url=f"{served.url}/v1/chat/completions", **settings)
    limits = {"until": [], "max_gen_toks": 12, "temperature": 0.0}
    said = client.apply_chat_template([{"role": "user", "content": tiny.MEDIUM}])
    (found,) = client.generate_until(asked("generate_until", (said, limits)), disable_tqdm=True)
    assert found == solved(model, tiny.MEDIUM, max_new_tokens=12).text
