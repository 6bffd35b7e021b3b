"""Soft-Thinking and SwiReasoning on the engine against their transcriptions (`soft.py`), and CoT against generate."""

from __future__ import annotations

import functools

import pytest
from tests import tiny
from tests.reasoners import soft
from tests.reasoners.soft import Answer

from tyler.model import Tyler
from tyler.reasoners import soft_thinking, swireasoning
from tyler.request import Request
from tyler.routing import Never
from tyler.sampling import Sampling
from tyler.tasks.problem import Problem
from tyler.trajectory import Trajectory

PROMPTS = ("Find 2y:", tiny.MEDIUM, tiny.LONG, tiny.ODD)
"""Texts whose tokens differ: over one repeated token all entropies are equal, and nothing decides between them."""
PROBLEMS = [Problem(f"p{index}", "jsonl", text, "5") for index, text in enumerate(PROMPTS)]
LENGTH = 36
KINDS = {"thinking": True, "without signals": False}

SOFT_THINKING = {
    "defaults": (soft_thinking.Settings(), Sampling()),
    "wide": (soft_thinking.Settings(temperature=1.0, top_k=0, top_p=1.0, min_p=0.05, max_topk=12), Sampling()),
    "narrow": (soft_thinking.Settings(top_k=7, top_p=0.8, min_p=0.3, max_topk=3), Sampling()),
    "cold stop": (soft_thinking.Settings(cold_stop_entropy=2.2, cold_stop_steps=3), Sampling()),
    "cap": (soft_thinking.Settings(soft_steps=6), Sampling()),
    "no thought": (soft_thinking.Settings(soft_steps=0), Sampling()),
    "gumbel": (soft_thinking.Settings(gumbel=True, max_topk=5, temperature=1.0), Sampling(seed=3)),
    "gumbel, few kept": (soft_thinking.Settings(gumbel=True, top_p=0.5, top_k=6), Sampling(seed=4)),
    "sampled behind the thought": (soft_thinking.Settings(soft_steps=4), Sampling(0.6, top_k=30, seed=5)),
    "marker": (soft_thinking.Settings(answer_marker="e", temperature=1.0), Sampling()),
}
SWIREASONING = {
    "defaults": (swireasoning.Settings(), Sampling()),
    "short window": (swireasoning.Settings(window=2), Sampling()),
    "mixed": (swireasoning.Settings(window=2, a0=0.4, b0=0.5), Sampling()),
    "mixed with s": (swireasoning.Settings(window=2, a0=0.4, b0=0.5, exit_mix="soft"), Sampling()),
    "sampled": (swireasoning.Settings(window=3, a0=0.6), Sampling(0.6, top_k=20, top_p=0.95, seed=6)),
    "sampled hot": (swireasoning.Settings(window=1, a0=0.3), Sampling(1.5, seed=7)),
    "control": (swireasoning.Settings(window=1, max_switches=2, answer_tokens=9), Sampling(1.2, seed=8)),
    "control at once": (swireasoning.Settings(window=0, max_switches=1, answer_tokens=12), Sampling()),
    "control, own words": (swireasoning.Settings(window=2, max_switches=1, close=" so"), Sampling(seed=9)),
}


def chooser_of(model: Tyler, settings: soft_thinking.Settings | swireasoning.Settings):
    if isinstance(settings, soft_thinking.Settings):
        return soft_thinking.SoftThinking(model.backbone, settings)
    return swireasoning.SwiReasoning(model.backbone, settings)


def requests_for(model: Tyler, settings, sampling: Sampling, length: int = LENGTH) -> list[Request]:
    chooser = chooser_of(model, settings)
    encode = model.backbone.tokenizer.encode
    return [
        Request(encode(text), router=Never(), sampling=sampling, max_new_tokens=length + 3 * index, chooser=chooser)
        for index, text in enumerate(PROMPTS)
    ]


@functools.cache
def expected(family: str, thinks: bool, method: str, case: str) -> list[Answer]:
    model = soft.model(family, thinks)
    settings, sampling = (SOFT_THINKING if method == "soft-thinking" else SWIREASONING)[case]
    transcription = soft.soft_thinking_answer if method == "soft-thinking" else soft.swireasoning_answer
    return [transcription(model, request, settings) for request in requests_for(model, settings, sampling)]


def outcome(one: Trajectory | Answer) -> tuple[object, ...]:
    return one.actions, one.is_soft, one.text, one.finish_reason


@pytest.mark.parametrize("slots", [1, 3, 8])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("family", tiny.FAMILIES)
@pytest.mark.parametrize(
    "method, case", [("soft-thinking", one) for one in SOFT_THINKING] + [("swireasoning", one) for one in SWIREASONING]
)
def test_the_engine_does_what_the_transcription_does(
    method: str, case: str, family: str, kind: str, slots: int
) -> None:
    model = soft.model(family, KINDS[kind])
    settings, sampling = (SOFT_THINKING if method == "soft-thinking" else SWIREASONING)[case]
    found = model.engine(slots=slots).run(requests_for(model, settings, sampling))
    answers = expected(family, KINDS[kind], method, case)
    assert [outcome(one) for one in found] == [outcome(one) for one in answers]
