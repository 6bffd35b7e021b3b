"""Soft-Thinking and SwiReasoning on the engine against their transcriptions (`soft.py`), and CoT against generate."""

import copy
import functools
from collections import Counter
from dataclasses import replace

import pytest
import torch
from tests import tiny
from tests.reasoners import soft
from tests.reasoners.soft import Answer

from tyler.engine.request import Request
from tyler.engine.routing import Learned, Never
from tyler.engine.sampling import Sampling
from tyler.engine.trajectory import Trajectory
from tyler.model import Tyler
from tyler.reasoners import cot, soft_thinking, swireasoning
from tyler.tasks.problem import Problem

PROMPTS = ("Find 2y:", tiny.MEDIUM, tiny.LONG, tiny.ODD)
"""Texts whose tokens differ: over one repeated token all entropies are equal, and nothing decides between them."""
PROBLEMS = [Problem(f"p{index}", "jsonl", text, "5") for index, text in enumerate(PROMPTS)]
LENGTH = 30

SOFT_THINKING = {
    "defaults": (soft_thinking.SoftThinkingSettings(), Sampling()),
    "wide": (
        soft_thinking.SoftThinkingSettings(temperature=1.0, top_k=0, top_p=1.0, min_p=0.05, max_topk=12),
        Sampling(),
    ),
    "narrow": (soft_thinking.SoftThinkingSettings(top_k=7, top_p=0.8, min_p=0.3, max_topk=3), Sampling()),
    "cold stop": (soft_thinking.SoftThinkingSettings(cold_stop_entropy=2.2, cold_stop_steps=3), Sampling()),
    "cap": (soft_thinking.SoftThinkingSettings(soft_steps=6), Sampling()),
    "no thought": (soft_thinking.SoftThinkingSettings(soft_steps=0), Sampling()),
    "gumbel": (soft_thinking.SoftThinkingSettings(gumbel=True, max_topk=5, temperature=1.0), Sampling(seed=3)),
    "gumbel, few kept": (soft_thinking.SoftThinkingSettings(gumbel=True, top_p=0.5, top_k=6), Sampling(seed=4)),
    "sampled after the thought": (soft_thinking.SoftThinkingSettings(soft_steps=4), Sampling(0.6, top_k=30, seed=5)),
    "marker": (soft_thinking.SoftThinkingSettings(answer_marker="e", temperature=1.0), Sampling()),
}
SWIREASONING = {
    "defaults": (swireasoning.SwiReasoningSettings(), Sampling()),
    "short window": (swireasoning.SwiReasoningSettings(window=2), Sampling()),
    "mixed": (swireasoning.SwiReasoningSettings(window=2, a0=0.4, b0=0.5), Sampling()),
    "mixed with the token": (swireasoning.SwiReasoningSettings(window=2, a0=0.4, b0=0.5, exit_mix="token"), Sampling()),
    "sampled": (swireasoning.SwiReasoningSettings(window=3, a0=0.6), Sampling(0.6, top_k=20, top_p=0.95, seed=6)),
    "sampled hot": (swireasoning.SwiReasoningSettings(window=1, a0=0.3), Sampling(1.5, seed=7)),
    "control": (swireasoning.SwiReasoningSettings(window=1, max_switches=2, answer_tokens=4), Sampling(1.2, seed=8)),
    "control at once": (swireasoning.SwiReasoningSettings(window=0, max_switches=1, answer_tokens=12), Sampling()),
    "control, own words": (swireasoning.SwiReasoningSettings(window=2, max_switches=1, close=" so"), Sampling(seed=9)),
}


def chooser_of(model: Tyler, settings: soft_thinking.SoftThinkingSettings | swireasoning.SwiReasoningSettings):
    if isinstance(settings, soft_thinking.SoftThinkingSettings):
        return soft_thinking.SoftThinking(model.backbone, settings)
    return swireasoning.SwiReasoning(model.backbone, settings)


def requests_for(model: Tyler, settings, sampling: Sampling, length: int = LENGTH) -> list[Request]:
    sampler = chooser_of(model, settings)
    encode = model.backbone.tokenizer.encode
    return [
        Request(encode(text), router=Never(), sampling=sampling, max_new_tokens=length + 3 * index, sampler=sampler)
        for index, text in enumerate(PROMPTS)
    ]


METHODS = {"soft-thinking": SOFT_THINKING, "swireasoning": SWIREASONING}
OFTEN = ("gumbel", "cold stop", "mixed", "control")
"""The cases that every family takes without `--slow`: how a step is chosen does not depend on the family."""
CASES = [(method, case, True) for method, cases in METHODS.items() for case in cases] + [
    *(("soft-thinking", case, False) for case in ("defaults", "cold stop", "cap", "marker", "gumbel")),
    *(("swireasoning", case, False) for case in ("mixed", "sampled", "control")),
]
"""(method, case, whether the tokenizer has the tokens of thinking models)."""
EACH_FAMILY = tiny.by_family(CASES, often=[case for case in CASES if case[1] in OFTEN])


@functools.cache
def expected(family: str, method: str, case: str, thinks: bool) -> list[Answer]:
    model = soft.model(family, thinks)
    settings, sampling = METHODS[method][case]
    transcription = soft.soft_thinking_answer if method == "soft-thinking" else soft.swireasoning_answer
    return [transcription(model, request, settings) for request in requests_for(model, settings, sampling)]


def decoded(family: str, method: str, case: str, thinks: bool, slots: int) -> list[Trajectory]:
    model = soft.model(family, thinks)
    return model.engine(slots=slots).run(requests_for(model, *METHODS[method][case]))


def outcome(one: Trajectory | Answer) -> tuple[object, ...]:
    return one.actions, one.is_soft, one.text, one.finish_reason


# -------------------------------------------------------------------------- equal to the transcription


@pytest.mark.parametrize("family, method, case, thinks", EACH_FAMILY)
def test_the_engine_does_what_the_transcription_does(family: str, method: str, case: str, thinks: bool) -> None:
    found = decoded(family, method, case, thinks, slots=3)
    assert [outcome(one) for one in found] == [outcome(one) for one in expected(family, method, case, thinks)]


@pytest.mark.parametrize("method, case, thinks", [case for case in CASES if case[1] in OFTEN])
def test_an_answer_alone_is_the_answer_in_a_batch(method: str, case: str, thinks: bool) -> None:
    alone = decoded("qwen3", method, case, thinks, slots=1)
    assert [outcome(one) for one in alone] == [outcome(one) for one in expected("qwen3", method, case, thinks)]


def test_the_cases_exercise_what_they_are_meant_to() -> None:
    reasons: Counter[str] = Counter()

    def happened(method: str, thinks: bool = True) -> Counter[str]:
        cases = [case for one, case, kind in CASES if one == method and kind == thinks]
        runs = [(family, case) for family in tiny.FAMILIES for case in cases if family == tiny.FULLY or case in OFTEN]
        answers = [answer for family, case in runs for answer in expected(family, method, case, thinks)]
        assert min(answer.margin for answer in answers) > 1e-6, "no decision hangs on rounding"
        reasons.update(answer.finish_reason for answer in answers)
        return Counter(event for answer in answers for event in answer.happened)

    thought = happened("soft-thinking")
    assert all(thought[event] >= 5 for event in ("end", "cold stop", "cap"))
    assert happened("soft-thinking", thinks=False)["end"] >= 5
    switched = happened("swireasoning")
    events = ("to normal", "to soft", "too early", "locked out", "symbol", "closing", "opening", "forced")
    assert all(switched[event] >= 20 for event in events)
    assert switched["locked while normal"] >= 3 and switched["locked while soft"] >= 1
    assert happened("swireasoning", thinks=False)["opening"] >= 3
    assert all(reasons[reason] >= 10 for reason in ("eos", "length", "stop"))


def test_different_requests_of_one_method_and_plain_ones_share_a_batch() -> None:
    model = soft.model("qwen3")
    names = [("soft-thinking", "wide"), ("swireasoning", "mixed"), ("swireasoning", "sampled hot")]
    groups = [requests_for(model, *METHODS[method][case]) for method, case in names]
    plain = [replace(request, sampler=None) for request in groups[0]]
    mixed = [request for together in zip(*groups, plain, strict=True) for request in together]
    found = model.engine(slots=5).run(mixed)
    for place, (method, case) in enumerate(names):
        answers = expected("qwen3", method, case, True)
        assert [outcome(one) for one in found[place::4]] == [outcome(one) for one in answers]
    alone = model.engine(slots=1).run(plain)
    assert [one.actions for one in found[3::4]] == [one.actions for one in alone]
    assert not any(one.is_soft for one in alone)


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_cot_is_what_generate_decodes(family: str) -> None:
    model = tiny.tyler(family)
    for slots in (1, 3):
        solver = replace(cot.reasoner(model, cot.NoSettings()), max_new_tokens=20, slots=slots)
        for problem, trajectory in zip(PROBLEMS, solver.solve(PROBLEMS), strict=True):
            prompt = torch.tensor([list(model.request(problem).prompt_ids)])
            found = model.backbone.model.generate(
                input_ids=prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=20, do_sample=False
            )
            assert trajectory.actions == found[0, prompt.shape[1] :].tolist()
            assert (trajectory.num_latents, trajectory.num_visible) == (0, len(trajectory.actions))
    assert solver.model.policy.lora is None


# ------------------------------------------------------------------------------------------- what is counted


def test_the_end_of_a_sequence_is_no_soft_step() -> None:
    model = soft.model("qwen2")
    first = decoded("qwen2", "soft-thinking", "wide", True, slots=1)[0]
    assert first.is_soft[3]
    ends = replace(model.backbone, model=copy.deepcopy(model.backbone.model))
    ends.model.generation_config.eos_token_id = first.actions[3]
    sampler = soft_thinking.SoftThinking(ends, SOFT_THINKING["wide"][0])
    request = Request(first.prompt_ids, router=Never(), sampler=sampler)
    (cut,) = Tyler.start(ends, ()).engine(slots=1).run([request])
    assert cut.finish_reason == "eos" and cut.actions == first.actions[: first.actions.index(first.actions[3]) + 1]
    assert cut.is_soft == [True] * (len(cut.actions) - 1) + [False]


def test_log_probabilities_are_of_the_recorded_tokens() -> None:
    model = soft.model("qwen2")
    for case in ("defaults", "sampled hot"):
        settings, sampling = SWIREASONING[case]
        request = requests_for(model, settings, sampling)[1]
        (found,) = model.engine(slots=1).run([request])
        logits = model.backbone.model(input_ids=torch.tensor([list(request.prompt_ids)])).logits[0, -1]
        first = (logits / sampling.scale).log_softmax(dim=-1)[found.actions[0]]
        assert found.logprobs[0] == pytest.approx(float(first), abs=1e-5)


def test_a_stop_string_ends_a_thought() -> None:
    model = soft.model("qwen2")
    free = decoded("qwen2", "soft-thinking", "wide", True, slots=1)[1]
    request = replace(requests_for(model, *SOFT_THINKING["wide"])[1], stop=(free.text[4:7],))
    (cut,) = model.engine(slots=1).run([request])
    assert cut.finish_reason == "stop" and free.text.startswith(cut.text + free.text[4:7])


# ------------------------------------------------------------------------------------- edges and refusals


def test_a_closed_thought_in_the_prompt_leaves_the_end_to_the_marker() -> None:
    model = soft.model("qwen2")
    settings = soft_thinking.SoftThinkingSettings(
        answer_marker="e", temperature=1.0, cold_stop_entropy=2.2, cold_stop_steps=20
    )
    sampler = soft_thinking.SoftThinking(model.backbone, settings)
    for text in ("<think>\n\n</think>\n\nFind 2y:", tiny.ODD + "</think>"):
        request = Request(model.backbone.tokenizer.encode(text), router=Never(), max_new_tokens=25, sampler=sampler)
        (found,) = model.engine(slots=1).run([request])
        assert outcome(found) == outcome(soft.soft_thinking_answer(model, request, settings))


def test_the_marker_may_be_split_over_tokens() -> None:
    model = soft.model("qwen2", thinks=False)
    sampler = soft_thinking.SoftThinking(model.backbone, soft_thinking.SoftThinkingSettings(answer_marker="\\boxed"))
    memory = sampler.start([1], Sampling(), 10)
    for token in tiny.ids("a \\box"):
        memory.recorded.append(token)
        assert not sampler._marked(memory)
    memory.recorded += tiny.ids("ed{")
    assert sampler._marked(memory)


def test_the_symbols_are_explicit_and_words_are_not() -> None:
    ids = swireasoning.symbol_ids(tiny.tokenizer())
    assert {*tiny.ids("7"), *tiny.ids("x"), *tiny.ids("Q"), *tiny.ids("="), *tiny.ids("\\frac")} <= ids
    assert not {*tiny.ids(" the"), *tiny.ids("Solution:"), *tiny.ids("\n"), *tiny.ids("$")} & ids
    assert len(swireasoning.SYMBOLS) == len(set(swireasoning.SYMBOLS))


def test_requests_with_a_chooser_have_no_operators() -> None:
    sampler = swireasoning.SwiReasoning(soft.model("qwen2").backbone, swireasoning.SwiReasoningSettings())
    with pytest.raises(ValueError, match=r"router=Never\(\), not Learned"):
        Request([1], router=Learned(), sampler=sampler)


@pytest.mark.parametrize(
    "kind, wrong, message",
    [
        (soft_thinking.SoftThinkingSettings, {"temperature": 0}, r"temperature\n.*greater than 0"),
        (soft_thinking.SoftThinkingSettings, {"top_p": 1.5}, r"top_p\n.*less than or equal to 1"),
        (soft_thinking.SoftThinkingSettings, {"top_k": -1}, r"top_k\n.*greater than or equal to 0"),
        (soft_thinking.SoftThinkingSettings, {"min_p": 2}, r"min_p\n.*less than or equal to 1"),
        (soft_thinking.SoftThinkingSettings, {"max_topk": 0}, r"max_topk\n.*greater than or equal to 1"),
        (soft_thinking.SoftThinkingSettings, {"soft_steps": -1}, "soft_steps\n"),
        (soft_thinking.SoftThinkingSettings, {"answer_marker": ""}, r"answer_marker\n.*at least 1 character"),
        (soft_thinking.SoftThinkingSettings, {"cold_stop_steps": 0}, "cold_stop_steps\n"),
        (swireasoning.SwiReasoningSettings, {"a0": 0}, r"a0\n.*greater than 0"),
        (swireasoning.SwiReasoningSettings, {"b0": 1.1}, "b0\n"),
        (swireasoning.SwiReasoningSettings, {"window": -1}, "window\n"),
        (swireasoning.SwiReasoningSettings, {"max_switches": 0}, "max_switches\n"),
        (swireasoning.SwiReasoningSettings, {"answer_tokens": 0}, "answer_tokens\n"),
    ],
)
def test_impossible_settings_are_refused(kind, wrong, message) -> None:
    with pytest.raises(ValueError, match=message):
        kind(**wrong)


def test_the_defaults_are_the_documented_ones() -> None:
    thought = soft_thinking.SoftThinkingSettings()
    assert (thought.temperature, thought.top_p, thought.top_k, thought.min_p) == (0.6, 0.95, 30, 0.001)
    assert (thought.max_topk, thought.cold_stop_entropy, thought.cold_stop_steps) == (10, 0.01, 256)
    assert (thought.gumbel, thought.gumbel_temperature) == (False, 0.5)
    switching = swireasoning.SwiReasoningSettings()
    assert (switching.a0, switching.b0, switching.window) == (1.0, 0.7, 512)
    assert (switching.max_switches, switching.answer_tokens, switching.exit_mix) == (None, 32, "soft")
    assert Sampling(0.6, top_k=20, top_p=0.95) == swireasoning.SAMPLING


# ---------------------------------------------------------------------------------- by hand, and at equality


@pytest.mark.parametrize(
    "settings, kept, weights",
    [
        ({"top_k": 2, "top_p": 0.6, "min_p": 0.0}, [0], [1.0]),  # 0.5 / 0.8 passes 0.6; top-p first would keep two
        ({"top_k": 0, "top_p": 0.6, "min_p": 0.0}, [0, 1], [0.625, 0.375]),
        ({"top_k": 0, "top_p": 1.0, "min_p": 0.5}, [0, 1], [0.625, 0.375]),  # 0.3 is over half of 0.5, not over 0.5
        ({"top_k": 3, "top_p": 1.0, "min_p": 0.0}, [0, 1, 2], [0.5 / 0.95, 0.3 / 0.95, 0.15 / 0.95]),
        ({"top_k": 0, "top_p": 1.0, "min_p": 0.0, "max_topk": 2}, [0, 1], [0.625, 0.375]),
    ],
)
def test_the_weights_of_a_mixture_are_those_computed_by_hand(settings: dict, kept: list[int], weights: list) -> None:
    sampler = soft_thinking.SoftThinking(soft.model("qwen3").backbone, soft_thinking.SoftThinkingSettings(**settings))
    p = torch.tensor([[0.05, 0.3, 0.5, 0.15]])
    found, ids = sampler._weights(p, [sampler.start([], Sampling(), 9)])
    by_rank = [2, 1, 3, 0]
    mixture = {int(id): float(weight) for id, weight in zip(ids[0], found[0], strict=True) if weight > 0}
    assert mixture == pytest.approx({by_rank[rank]: weight for rank, weight in zip(kept, weights, strict=True)})


def test_an_end_token_on_the_step_of_cold_stop_ends_the_answer() -> None:
    """As in the release, which looks for the end of the answer before it looks at Cold Stop."""
    settings = soft_thinking.SoftThinkingSettings(cold_stop_entropy=1.0, cold_stop_steps=2)
    backbone = soft.model("qwen3").backbone
    (end_of_sequence, *_) = backbone.eos_ids
    chooser = soft_thinking.SoftThinking(backbone, settings)
    memory = chooser.start([], Sampling(), 99)
    assert [chooser._think(memory, 7, 0.5), chooser._think(memory, end_of_sequence, 0.5)] == [7, end_of_sequence]


def test_equal_entropies_turn_nothing_and_the_window_counts_steps_since_the_switch() -> None:
    def after(soft_mode: bool, entropies: list[float], window: int = 0) -> list[str]:
        memory = swireasoning.Memory(99, steps=1, soft=soft_mode, reference=1.0)
        return [memory.switch(entropy, window) for entropy in entropies]

    assert after(True, [1.0, 1.5, 1.0]) == ["", "", ""]
    assert after(False, [1.0, 0.5]) == ["", ""]
    assert after(False, [1.5, 1.5]) == ["soft", ""]
    assert after(False, [2.0, 2.0, 2.0, 2.0], window=3) == ["", "", "soft", ""]
    assert after(True, [0.5, 2.0, 2.0, 2.0, 1.0], window=2) == ["normal", "", "soft", "", "normal"]
    first = swireasoning.Memory(99)
    assert (first.switch(0.3, 0), first.reference, first.stay, first.soft) == ("", 0.3, 0, True)
