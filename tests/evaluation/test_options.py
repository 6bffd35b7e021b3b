"""The options of an evaluation: what a config says arrives, and what cannot be meant is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from tyler.config.sections import DecodingConfig, EvaluationConfig
from tyler.engine.sampling import Sampling
from tyler.evaluation.options import Answering, Asked, Questions


def test_every_key_of_a_config_arrives() -> None:
    """A key that is new to the config needs a place among the options."""
    evaluation = EvaluationConfig(task="gsm8k", split="test", path="data", count=7)
    assert Questions.of(evaluation) == Questions(("gsm8k",), "test", Path("data"), 7)
    assert set(EvaluationConfig.model_fields) == {"task", "split", "path", "count"}
    decoding = DecodingConfig(max_new_tokens=9, temperature=0.5, budget=2, slots=3, memory=2**30)
    answering = Answering.of(decoding)
    assert (answering.max_new_tokens, answering.budget, answering.slots, answering.bytes) == (9, 2, 3, 2**30)
    assert answering.sampling == Sampling(0.5)
    assert set(DecodingConfig.model_fields) == {
        *("max_new_tokens", "temperature", "budget", "slots", "memory", "engine", "engine_args"),
    }
    assert Answering.of(DecodingConfig()).bytes is None


@pytest.mark.parametrize(
    ("answering", "message"),
    [
        (Answering(router="nver"), "--router"),
        (Answering(memory="much"), "--memory"),
        (Answering(temperature=-1.0), "temperature=-1.0"),
        (Answering(top_p=0.0), "top_p=0.0"),
    ],
)
def test_what_cannot_be_meant_is_refused_before_anything_is_loaded(answering: Answering, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Asked(answering=answering).check()
