"""Answers on vLLM are the native engine's: actions, texts, calls and ends, under every router, budget and sampling."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from tests import tiny
from tests.engine.vllm.conftest import POSITIONS, engine_of

from tyler.engine.logits import GrammarError, LogitSettings
from tyler.engine.request import InvocationEvent, PromptTooLong, Request, SoftPrompt, TokenEvent
from tyler.engine.routing import AtBoundaries, Forced, Learned, Never
from tyler.engine.sampling import Sampling
from tyler.engine.shared_engine import DecodingError
from tyler.engine.trajectory import Trajectory
from tyler.model import Tyler

if TYPE_CHECKING:
    from tyler.engine.vllm.engine import VllmEngine

LENGTHS = (1, 2, 31, 32, 33, 64, 100, 257, 300)
"""Of prompts: around the sizes of vLLM's blocks too."""
SOME = 4
"""Every so manieth of the requests: these still meet all 5 routers, 3 samplings and 5 budgets."""
ROUTERS = (Learned(), AtBoundaries(), AtBoundaries(0.5), Never(), Forced({0: ("global",), 3: ("state", "procedure")}))
FORCED = Forced({position: ("global", "state") for position in range(0, 30, 2)})


def prompts(lengths: Sequence[int] = LENGTHS) -> list[list[int]]:
    random = np.random.default_rng(1)
    texts = [tiny.ids(text) for text in tiny.PROMPTS]
    return [*texts, *(random.integers(2, len(tiny.tokenizer()), size=length).tolist() for length in lengths)]


def requests(budgets: Sequence[int | None] = (None, 0, 1, 2, 8)) -> list[Request]:
    """Every prompt under every router, greedy and sampled, with budgets that take turns."""
    samplings = (Sampling(), Sampling(0.9, seed=3), Sampling(1.2, top_k=20, top_p=0.9, seed=4))
    cases = [(ids, router, sampling) for ids in prompts() for router in ROUTERS for sampling in samplings]
    return [
        Request(ids, router, sampling, budget=budgets[case % len(budgets)], max_new_tokens=24)
        for case, (ids, router, sampling) in enumerate(cases)
    ]


def check_equal(answers: Sequence[Trajectory], others: Sequence[Trajectory]) -> None:
    """Equal but for rounding: log-probabilities within 1e-4, latents within 1e-3."""
    for answer, other in zip(answers, others, strict=True):
        for name in ("actions", "text", "invocations", "finish_reason", "limited_by", "offered", "budget"):
            assert getattr(answer, name) == getattr(other, name), name
        assert np.allclose(answer.logprobs, other.logprobs, atol=1e-4, rtol=0)
        assert np.allclose(answer.operator_probs, other.operator_probs, atol=1e-4, rtol=0)
        for mine, theirs in zip(answer.latents, other.latents, strict=True):
            assert torch.allclose(mine, theirs, atol=1e-3, rtol=0)


def check_nothing_left(engine: VllmEngine) -> None:
    assert len(engine.rows.free) == engine.ids.rows
    assert not engine.busy and not engine._in_flight
    assert engine._llm.get_num_unfinished_requests() == 0


@pytest.mark.parametrize("family", [family for family in tiny.FAMILIES if family != tiny.FULLY])
def test_answers_of_every_family_equal_the_native_engines(models: Mapping[str, Tyler], family: str) -> None:
    asked = requests()[::SOME]
    with engine_of(models[family]) as engine:
        answers = engine.run(asked)
        check_nothing_left(engine)
    check_equal(answers, models[family].engine(slots=16).run(asked))
    assert sum(answer.num_invocations for answer in answers) > 20


@pytest.mark.parametrize(
    "arguments",
    [
        {"enable_prefix_caching": False},
        {"max_num_batched_tokens": 48, "block_size": 32},
        {"num_gpu_blocks_override": 26, "block_size": 32},
    ],
    ids=["no prefix caching", "prompts in chunks", "preemption"],
)
def test_how_vllm_schedules_changes_nothing(models: Mapping[str, Tyler], arguments: dict[str, Any]) -> None:
    model = models["qwen3"]
    asked = requests()[::SOME]
    with engine_of(model, **arguments) as engine:
        check_equal(engine.run(asked), model.engine(slots=16).run(asked))
        check_nothing_left(engine)


@pytest.fixture(scope="module")
def engine(models: Mapping[str, Tyler]) -> Iterator[VllmEngine]:
    """An engine whose table of latents is soon full."""
    with engine_of(models["qwen3"], latents=POSITIONS) as opened:
        yield opened


@pytest.fixture
def model(models: Mapping[str, Tyler]) -> Tyler:
    return models["qwen3"]


def test_answers_equal_the_native_engines(engine: VllmEngine, model: Tyler) -> None:
    answers, asked = engine.run(requests()), requests()
    check_equal(answers, model.engine(slots=16).run(asked))
    assert sum(answer.num_invocations for answer in answers) > 100
    check_nothing_left(engine)


def test_a_full_table_of_latents_makes_answers_wait_and_changes_none(engine: VllmEngine, model: Tyler) -> None:
    asked = [Request(ids, FORCED, max_new_tokens=48) for ids in prompts((5, 40, 41, 90))]
    lent, lend = list[int](), engine._lend_rows
    engine._lend_rows = lambda idle: (lent.append(1), lend(idle))  # type: ignore[method-assign]
    answers = engine.run(asked)
    engine._lend_rows = lend  # type: ignore[method-assign]
    assert lent and sum(answer.num_latents for answer in answers) == 2 * engine.ids.rows
    check_equal(answers, model.engine(slots=8).run(asked))
    check_nothing_left(engine)


def test_latents_are_bit_for_bit_what_the_policy_read(engine: VllmEngine) -> None:
    """Also of rows that were given out before, for the same prompts."""
    read: dict[int, torch.Tensor] = {}
    latents = engine._llm.apply_model(lambda worker: worker.latents)[0]
    embed = latents.embed

    def noted(ids: torch.Tensor, embed_tokens: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        embeds = embed(ids, embed_tokens)
        for place in ((ids >= latents.ids.first_latent) & (ids < latents.ids.shift)).nonzero().flatten().tolist():
            vector = read.setdefault(int(ids[place]), embeds[place].clone())
            assert torch.equal(vector, embeds[place])
        return embeds

    latents.embed = noted
    for _ in range(3):
        (answer,) = engine.run([Request(prompts()[1], FORCED, max_new_tokens=24)])
        assert torch.equal(torch.cat(answer.latents), torch.stack(list(read.values())))
        read.clear()
    latents.embed = embed


def test_p_of_operators_is_reported_at_each_decision(engine: VllmEngine, model: Tyler) -> None:
    asked = [Request(ids, budget=1, max_new_tokens=12, operator_probs=True) for ids in prompts((8,))]
    answers = engine.run(asked)
    check_equal(answers, model.engine().run(asked))
    assert all(len(answer.operator_probs) == len(answer.actions) for answer in answers)


def test_events_come_in_the_native_engines_order(engine: VllmEngine, model: Tyler) -> None:
    for router in ROUTERS:
        for stop in ((), (" x", "Step 1")):
            request = Request(prompts()[2], router, Sampling(0.8, seed=1), max_new_tokens=30, stop=stop)
            mine, theirs = (list(one.stream([request])) for one in (engine, model.engine()))
            kinds = (TokenEvent, InvocationEvent)
            assert [type(event) for event in mine] == [type(event) for event in theirs]
            for event, other in zip(mine[:-1], theirs[:-1], strict=True):
                fields = ("token", "text") if isinstance(event, TokenEvent) else ("invocation",)
                assert isinstance(event, kinds)
                assert all(getattr(event, name) == getattr(other, name) for name in fields)


def test_a_stop_string_is_seen_across_a_call(engine: VllmEngine, model: Tyler) -> None:
    plain = Request(prompts()[1], FORCED, max_new_tokens=24)
    (whole,) = engine.run([plain])
    stop = whole.text[len(whole.text) // 2 :][:4]
    asked = [Request(plain.prompt_ids, FORCED, max_new_tokens=24, stop=stop)]
    (answer,) = engine.run(asked)
    assert answer.finish_reason == "stop" and stop not in answer.text
    check_equal([answer], model.engine().run(asked))


def test_an_answer_that_fills_the_context_ends_where_the_native_engine_ends_it(
    engine: VllmEngine, model: Tyler
) -> None:
    asked = [Request(prompts((length,))[-1], FORCED, max_new_tokens=999) for length in range(360, 380)]
    answers = engine.run(asked)
    assert {answer.limited_by for answer in answers} >= {"context"}
    check_equal(answers, model.engine().run(asked))
    with pytest.raises(PromptTooLong, match="leaves room for 379"):
        engine.run([Request([5] * 380)])


def test_each_number_of_actions_ends_where_the_native_engine_ends_it(engine: VllmEngine, model: Tyler) -> None:
    asked = [
        Request(prompts()[3], router, max_new_tokens=n, max_generated=limit)
        for router in ROUTERS
        for n in range(1, 12)
        for limit in (None, n)  # which a call may not fit
    ]
    check_equal(engine.run(asked), model.engine().run(asked))


def test_actions_are_drawn_as_often_as_by_the_native_engine(engine: VllmEngine, model: Tyler) -> None:
    """Under other seeds on each, so that this says something of the distribution."""
    counts = []
    for decoder, first in ((engine, 0), (model.engine(slots=32), 10_000)):
        asked = [Request(prompts()[0], sampling=Sampling(1.0, seed=first + k), max_new_tokens=3) for k in range(2000)]
        counts.append(Counter(action for answer in decoder.run(asked) for action in answer.actions))
    often = [action for action in counts[0] | counts[1] if counts[0][action] + counts[1][action] >= 20]
    table = np.array([[count[action] for action in often] for count in counts])
    assert len(often) > 20
    expected = table.sum(axis=0) * table.sum(axis=1, keepdims=True) / table.sum()
    distance = torch.tensor(((table - expected) ** 2 / expected).sum())
    freedom = torch.tensor(len(often) - 1.0)
    assert torch.special.gammaincc(freedom / 2, distance / 2) > 1e-3  # the chi-square test's p


def test_an_abort_at_any_moment_leaves_nothing_behind(engine: VllmEngine) -> None:
    random = np.random.default_rng(0)
    short = prompts((3, 33))
    asked = [Request(short[k % 6], ROUTERS[k % 5], Sampling(0.9, seed=k), max_new_tokens=12) for k in range(500)]
    indices, ended = [engine.add_request(request) for request in asked], dict[int, str]()
    while engine.busy:
        left = [index for index in indices if index not in ended]
        for index in random.choice(left, size=min(len(left), int(random.integers(0, 3))), replace=False).tolist():
            engine.abort(index)
        ended |= {
            e.index: e.trajectory.finish_reason
            for e in engine.step()
            if not isinstance(e, TokenEvent | InvocationEvent)
        }
    assert sorted(ended) == indices and set(ended.values()) >= {"abort", "length"}
    check_nothing_left(engine)


def test_latents_that_are_not_finite_end_an_answer_that_reads_none_of_them(engine: VllmEngine, model: Tyler) -> None:
    adapters = [tensor for name, tensor in model.synthesizer.named_parameters() if "lora_" in name]
    kept = [tensor.detach().clone() for tensor in adapters]
    try:
        with torch.no_grad():
            for tensor in adapters:
                tensor.fill_(torch.nan)
        engine.refresh()
        with pytest.raises(FloatingPointError, match="the latents of a call are not finite"):
            engine.run([Request(prompts()[0], AtBoundaries(), max_new_tokens=1)])
    finally:
        with torch.no_grad():
            for tensor, values in zip(adapters, kept, strict=True):
                tensor.copy_(values)
        engine.refresh()
    assert engine.run([Request(prompts()[0], AtBoundaries(), max_new_tokens=1)])[0].num_invocations == 1


class Failing:
    """A grammar, and its matcher, that allows the tokens 32 to 63 and grows too complex at the fifth."""

    def __init__(self) -> None:
        self.left = 5

    def start(self) -> Failing:
        return Failing()

    def accept(self, token: int) -> None:
        self.left -= 1
        if not self.left:
            raise GrammarError("too many states")

    def mask(self) -> torch.Tensor:
        mask = torch.zeros(-(-len(tiny.tokenizer()) // 32), dtype=torch.int32)
        mask[1] = -1
        return mask


def test_a_grammar_that_grows_too_complex_ends_its_answer(engine: VllmEngine, model: Tyler) -> None:
    asked = [Request(prompts()[0], Never(), max_new_tokens=12, logits=LogitSettings(grammar=Failing()))]
    for decoder in (engine, model.engine()):
        with pytest.raises(FloatingPointError, match="too many states"):
            decoder.run(asked)


def test_who_stops_listening_ends_the_answer(engine: VllmEngine) -> None:
    stream = engine.stream([Request(prompts()[1], FORCED, max_new_tokens=50)])
    next(stream)
    stream.close()
    check_nothing_left(engine)


def test_new_weights_reach_the_next_answer_and_not_a_running_one(engine: VllmEngine, model: Tyler) -> None:
    asked = [Request(ids, max_new_tokens=16) for ids in prompts((40,))]
    before = engine.run(asked)
    kept = {
        name: tensor.clone() for name, tensor in model.policy.state_dict().items() if "lora_" in name or name == "psi"
    }
    with torch.no_grad():
        for name, tensor in model.policy.state_dict().items():
            if name in kept:
                tensor.add_(torch.randn_like(tensor) * 0.2)
    engine.refresh()
    after = engine.run(asked)
    check_equal(after, model.engine().run(asked))
    assert any(one.actions != other.actions for one, other in zip(before, after, strict=True))
    model.policy.load_state_dict(kept, strict=False)
    index = engine.add_request(asked[0])
    with pytest.raises(RuntimeError, match="finish or abort them first"):
        engine.refresh()
    engine.abort(index)
    while engine.busy:
        engine.step()
    engine.refresh()
    check_equal(engine.run(asked), before)


def test_memory_is_lent_where_vllm_can_sleep_and_only_there(
    engine: VllmEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A CPU cannot: vLLM's own calls are noted instead."""
    told = list[str]()
    for name in ("sleep", "wake_up"):
        monkeypatch.setattr(engine._llm, name, partial(told.append, name))
    monkeypatch.setattr(engine._llm, "is_sleeping", lambda: told[-1:] == ["sleep"])
    asked = [Request(ids, max_new_tokens=8) for ids in prompts((40,))]
    assert engine.release()
    before = engine.run(asked)
    assert not told
    monkeypatch.setattr(engine, "_sleeps", True)
    assert engine.release() and engine.release()
    assert told == ["sleep"]
    check_equal(engine.run(asked), before)
    assert told == ["sleep", "wake_up"]
    engine.release()
    engine.refresh()
    assert told == ["sleep", "wake_up"] * 2


class Sampler:
    """Any other rule of choosing."""

    def start(self, *_: object) -> None:
        return None


@pytest.mark.parametrize(
    "given",
    [
        {"soft_prompt": SoftPrompt((0,), torch.zeros(1, 128))},
        {"branch": [5]},
        {"sampler": Sampler(), "router": Never()},
        {"top_logprobs": 3},
    ],
    ids=["soft prompt", "branch", "sampler", "top_logprobs"],
)
def test_what_runs_on_the_native_engine_alone_is_refused_by_name(engine: VllmEngine, given: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(given))} runs on the native engine alone"):
        engine.add_request(Request([5, 6], **given))


def test_what_changes_the_choice_of_tokens_changes_it_alike(engine: VllmEngine, model: Tyler) -> None:
    """Penalties, biases, min_p, end tokens and a limit on what is generated, also over calls and held tokens."""
    penalties = {"presence_penalty": 0.5, "frequency_penalty": 0.3, "repetition_penalty": 1.2}
    logits = LogitSettings(min_p=0.05, logit_bias={5: 3.0}, ignore_eos=True, **penalties)
    asked = [
        Request(ids, router, sampling, max_new_tokens=24, stop_token_ids=(7,), logits=logits, max_generated=limit)
        for ids in prompts()[:2]
        for router in ROUTERS
        for sampling in (Sampling(), Sampling(0.9, seed=3))
        for limit in (None, 15)
    ]
    answers = engine.run(asked)
    check_equal(answers, model.engine(slots=16).run(asked))
    assert {answer.limited_by for answer in answers} >= {"max_generated", "max_new_tokens"}
    with pytest.raises(ValueError, match="logit_bias names token 99999"):
        engine.add_request(Request([5, 6], logits=LogitSettings(logit_bias={99999: 1.0})))


def test_interventions_and_unknown_arguments_are_refused_before_anything_loads(model: Tyler) -> None:
    from tyler.engine.vllm.engine import VllmEngine

    parts = (model.backbone, model.operators, model.policy, model.synthesizer)
    with pytest.raises(ValueError, match="with_heads"):
        VllmEngine(*parts, {"state": model.heads["global"]})
    with pytest.raises(ValueError, match="did you mean tensor_parallel_size"):
        VllmEngine(*parts, arguments={"tensor_paralel_size": 2})
    with pytest.raises(ValueError, match="Tyler sets it itself"):
        VllmEngine(*parts, arguments={"logprobs_mode": "raw_logits"})
    for refused in ({"pipeline_parallel_size": 2}, {"speculative_config": {}}, {"enable_lora": True}):
        with pytest.raises(ValueError, match=f"{next(iter(refused))}=.*leave it out"):
            VllmEngine(*parts, arguments=refused)
    if not torch.cuda.is_available():
        with pytest.raises(ValueError, match="Sleep mode is not supported"):
            VllmEngine(*parts, arguments={"enable_sleep_mode": True})
    with pytest.raises(ValueError, match="give 384 or more"):
        VllmEngine(*parts, arguments={"latents": 10})


def test_a_failed_engine_says_so_and_nothing_hangs(models: Mapping[str, Tyler]) -> None:
    with engine_of(models["qwen2"]) as engine:
        engine.run([Request([5, 6], max_new_tokens=2)])
        engine._llm.apply_model(lambda worker: setattr(worker, "forward", None))
        with pytest.raises(DecodingError, match="vLLM failed: TypeError"):
            engine.run([Request([5, 6], max_new_tokens=2)])
        with pytest.raises(DecodingError, match="does not run any more"):
            engine.run([Request([5, 6], max_new_tokens=2)])


def test_an_abort_of_an_answer_that_holds_rows_ends_it_alone(models: Mapping[str, Tyler]) -> None:
    """While all others have lent theirs."""
    with engine_of(models["qwen2"], slots=4, max_model_len=128, latents=127) as engine:
        router, aborted = Forced({position: ("global",) for position in range(0, 60, 2)}), 0
        for trial in range(30):
            for first in range(5, 9):
                engine.add_request(Request([first, 6], router, max_new_tokens=60))
            occasions = 0
            while engine.running or engine.waiting:
                engine.step()
                if not any(answer.lends for answer in engine.running):
                    continue
                holding = [one for one in engine.running if one.sent is None and one.latents and not one.lends]
                occasions += bool(holding)
                if occasions > trial:
                    engine.abort(holding[0].index)
                    aborted += 1
                    break
            while engine.busy:
                engine.step()
            check_nothing_left(engine)
        assert aborted > 10
