"""What a request changes about the choice among visible tokens, against transformers and the formulas of vLLM."""

from __future__ import annotations

from collections.abc import Collection
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    SuppressTokensLogitsProcessor,
)

import reference
import tiny
from tyler.engine.logits import LogitSettings, LogitState, adjusted, unpacked
from tyler.engine.native.engine import Engine
from tyler.engine.request import Request
from tyler.engine.routing import Forced, Learned, Never
from tyler.engine.sampling import NEVER, Sampler, Sampling

VOCAB, OPERATORS = 80, 3
PROMPT, ANSWER = [3, 17, 17, 40], [5, 5, 9, 40, 5, 79]
EOS = (2, 7)


def state(settings: LogitSettings, tokens: list[int] | None = None, temperature: float = 1.0) -> LogitState:
    backbone: Any = SimpleNamespace(eos_ids=EOS, vocab_size=VOCAB)
    return LogitState(settings, PROMPT, ANSWER if tokens is None else tokens, backbone, temperature)


def rows(count: int = 1, operators: int = OPERATORS) -> torch.Tensor:
    return 3 * torch.randn(count, VOCAB + operators, generator=torch.Generator().manual_seed(count))


def counts() -> torch.Tensor:
    return torch.bincount(torch.tensor(ANSWER), minlength=VOCAB)


def own(processors: list[Any], logits: torch.Tensor, temperature: float) -> torch.Tensor:
    """What transformers makes of one row over V."""
    read: Any = torch.tensor([PROMPT + ANSWER])
    scores: Any = logits
    return LogitsProcessorList(processors)(read, scores) / temperature


def biased(biases: dict[int, float]) -> Any:
    given: Any = {(token,): bias for token, bias in biases.items()}
    return SequenceBiasLogitsProcessor(given)


def penalized(logits: torch.Tensor, presence: float, frequency: float) -> torch.Tensor:
    """OpenAI's formula, as vLLM has it: both penalties of the answer's tokens."""
    return logits - frequency * counts() - presence * (counts() > 0)


CASES: dict[str, tuple[dict[str, Any], Any]] = {
    "repetition": (
        {"repetition_penalty": 1.3},
        lambda logits, t: own([RepetitionPenaltyLogitsProcessor(1.3)], logits, t),
    ),
    "bias": ({"logit_bias": {4: 5.0, 40: -100}}, lambda logits, t: own([biased({4: 5.0, 40: -100.0})], logits, t)),
    "ignore_eos": (
        {"ignore_eos": True},
        lambda logits, t: own([SuppressTokensLogitsProcessor(list(EOS), "cpu")], logits, t),
    ),
    "presence": ({"presence_penalty": 0.7}, lambda logits, t: penalized(logits, 0.7, 0) / t),
    "frequency": ({"frequency_penalty": -0.4}, lambda logits, t: penalized(logits, 0, -0.4) / t),
    "min_p": ({"min_p": 0.2}, lambda logits, t: own([MinPLogitsWarper(0.2)], logits / t, 1.0)),
    "all": (
        {
            "repetition_penalty": 0.8,
            "logit_bias": {4: 5.0},
            "presence_penalty": 0.7,
            "frequency_penalty": 0.3,
            "min_p": 0.1,
        },
        lambda logits, t: own(
            [MinPLogitsWarper(0.1)],
            penalized(own([biased({4: 5.0}), RepetitionPenaltyLogitsProcessor(0.8)], logits, 1.0), 0.7, 0.3) / t,
            1.0,
        ),
    ),
}


@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize("case", CASES)
def test_a_setting_is_what_transformers_and_vllm_make_of_it(case: str, temperature: float) -> None:
    settings, expected = CASES[case]
    logits = rows(operators=0)
    actual = adjusted(logits / temperature, [state(LogitSettings(**settings), temperature=temperature)])
    wanted = expected(logits.clone(), temperature)
    assert (actual == NEVER).equal(wanted == NEVER)
    assert actual.log_softmax(-1).exp().allclose(wanted.log_softmax(-1).exp(), atol=1e-6)
    assert not actual.allclose(logits / temperature)


@pytest.mark.parametrize("case", CASES)
def test_operators_are_as_probable_as_before(case: str) -> None:
    logits = rows()
    actual = adjusted(logits, [state(LogitSettings(**CASES[case][0]))])
    assert actual[:, VOCAB:].equal(logits[:, VOCAB:])
    assert actual.softmax(-1)[:, VOCAB:].allclose(logits.softmax(-1)[:, VOCAB:], atol=1e-7)
    assert not actual.softmax(-1)[:, :VOCAB].allclose(logits.softmax(-1)[:, :VOCAB])


def test_rows_are_adjusted_by_their_own_settings_and_the_others_not_at_all() -> None:
    logits = rows(5)
    settings = [LogitSettings(**CASES[case][0]) for case in ("repetition", "bias", "presence", "all")]
    lengths = (6, 0, 2, 3, 4)
    given = [settings[0], None, *settings[1:]]

    def states() -> list[LogitState | None]:
        return [
            None if setting is None else state(setting, ANSWER[:length])
            for setting, length in zip(given, lengths, strict=True)
        ]

    kept = logits.clone()
    actual = adjusted(logits, states())
    assert logits.equal(kept)
    assert actual[1].equal(logits[1])
    for row in range(5):
        assert actual[row].allclose(adjusted(logits[row : row + 1], states()[row : row + 1])[0])
    assert adjusted(logits, [None] * 5) is logits


def test_tokens_are_counted_as_they_come() -> None:
    tokens: list[int] = []
    row = state(LogitSettings(**CASES["all"][0]), tokens)
    logits = rows()
    for token in ANSWER:
        adjusted(logits, [row])
        tokens.append(token)
    assert adjusted(logits, [row]).allclose(adjusted(logits, [state(LogitSettings(**CASES["all"][0]))]))


class Odd:
    """A grammar whose texts have tokens of even and odd ids by turns, and end after three."""

    def __init__(self, ends: Collection[int] = EOS) -> None:
        self.ends = ends
        self.taken: list[int] = []

    def start(self) -> Odd:
        return Odd(self.ends)

    def accept(self, token: int) -> None:
        assert token % 2 == len(self.taken) % 2
        self.taken.append(token)

    def mask(self) -> torch.Tensor:
        over = len(self.taken) >= 3
        bits = [token in self.ends if over else token % 2 == len(self.taken) % 2 for token in range(96)]
        words = [sum(bits[32 * word + bit] << bit for bit in range(32)) for word in range(3)]
        return torch.tensor(words, dtype=torch.int64).to(torch.int32)


def test_a_grammar_leaves_the_tokens_that_continue_it_and_every_operator() -> None:
    logits = rows(2)
    actual = adjusted(logits, [state(LogitSettings(grammar=Odd()), []), state(LogitSettings(grammar=Odd()), [4])])
    tokens = torch.arange(VOCAB)
    assert (actual[0, :VOCAB] > NEVER).equal(tokens % 2 == 0)
    assert (actual[1, :VOCAB] > NEVER).equal(tokens % 2 == 1)
    assert actual[:, VOCAB:].equal(logits[:, VOCAB:])


@pytest.mark.parametrize("vocab", [60, 64, 80, 200])
def test_a_mask_has_a_bit_for_each_token_and_none_beyond(vocab: int) -> None:
    bits = torch.rand(2, 64, generator=torch.Generator().manual_seed(0)) < 0.5
    powers = (bits.long().view(2, 2, 32) << torch.arange(32)).sum(-1).to(torch.int32)
    actual = torch.stack([unpacked(words, vocab) for words in powers])
    assert actual.shape == (2, vocab)
    assert actual[:, :64].equal(bits[:, :vocab])
    assert not actual[:, 64:].any()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"min_p": 1.5}, "min_p=1.5; it must be from 0 to 1"),
        ({"presence_penalty": 3}, "presence_penalty=3; it must be from -2 to 2"),
        ({"frequency_penalty": float("nan")}, "frequency_penalty=nan; it must be from -2 to 2"),
        ({"repetition_penalty": 0}, "repetition_penalty=0; it must be above 0"),
        ({"logit_bias": {-1: 2.0}}, "a token of logit_bias=-1; it must be a token id"),
        ({"logit_bias": {3: 101}}, "the logit_bias of token 3=101; it must be from -100 to 100"),
        ({"ignore_eos": True, "grammar": Odd()}, "exclude each other"),
    ],
)
def test_a_setting_that_is_none_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LogitSettings(**settings)


# -- in the native engine --------------------------------------------------------------------------------------------


def engine() -> Engine:
    return tiny.tyler("qwen3").engine(slots=4)


def request(**given: Any) -> Request:
    plain: dict[str, Any] = {"max_new_tokens": 24, "budget": 2, "router": Learned()}
    return Request(tiny.ids(tiny.MEDIUM), **plain | given)


def test_biases_and_penalties_reach_the_answer_and_not_its_neighbours() -> None:
    plain, ended = request(sampling=Sampling(1.0, seed=4)), engine()
    first = ended.run([plain])[0].visible_ids[0]
    changed = request(sampling=Sampling(1.0, seed=4), logits=LogitSettings(logit_bias={first: -100}))
    unlike = request(sampling=Sampling(1.0, seed=4), logits=LogitSettings(presence_penalty=2, frequency_penalty=2))
    answers = engine().run([plain, changed, unlike])
    assert answers[0].actions == ended.run([plain])[0].actions
    assert first not in answers[1].visible_ids
    assert len(set(answers[2].visible_ids)) > len(set(answers[0].visible_ids))


def test_logprobs_are_the_policys_own_whatever_was_adjusted() -> None:
    """As with top-k: the distribution before what a request changes about it."""
    settings = LogitSettings(repetition_penalty=1.5, logit_bias={5: 3.0}, min_p=0.05)
    answer = engine().run([request(logits=settings, router=Never(), sampling=Sampling(0.7, seed=1))])[0]
    model, tokens = tiny.tyler("qwen3"), tiny.ids(tiny.MEDIUM)
    for action, logprob in zip(answer.actions, answer.logprobs, strict=True):
        own = reference.action_logprobs(model, reference.embed(model, tokens), [False] * 3, 0.7)
        assert logprob == pytest.approx(own[-1, action].item(), abs=1e-4)
        tokens.append(action)


def test_a_token_may_end_an_answer() -> None:
    plain = engine().run([request(router=Never())])[0]
    third = plain.actions[2]
    stopped = engine().run([request(router=Never(), stop_token_ids=(third,))])[0]
    position = plain.actions.index(third)
    assert (stopped.actions, stopped.finish_reason) == (plain.actions[: position + 1], "eos")
    assert stopped.text == tiny.tokenizer().decode(plain.actions[:position])


def test_an_answer_in_a_grammar_has_calls_in_its_middle() -> None:
    at, grammar = Forced({1: ("global",), 2: ("state",)}), Odd(tiny.tyler("qwen3").backbone.eos_ids)
    answer = engine().run([request(router=at, logits=LogitSettings(grammar=grammar))])[0]
    assert [token % 2 for token in answer.visible_ids[:3]] == [0, 1, 0]
    assert (answer.finish_reason, len(answer.visible_ids)) == ("eos", 4)
    assert [(call.operator, call.position) for call in answer.invocations] == [("global", 1), ("state", 2)]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"stop_token_ids": (10**6,)}, "stop_token_ids has 1000000; the model's tokens are from 0"),
        ({"logits": LogitSettings(logit_bias={10**6: 1.0})}, "logit_bias names token 1000000; the model's are from 0"),
    ],
)
def test_a_token_that_the_model_does_not_have_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        engine().add_request(request(**given))


def test_a_soft_sampler_goes_without() -> None:
    class Soft:
        pass

    sampler: Sampler = Soft()  # type: ignore[assignment]
    with pytest.raises(ValueError, match="leave logits out"):
        request(router=Never(), sampler=sampler, logits=LogitSettings(min_p=0.1))
