"""MemGen against its transcription (`memgen_reference.py`), and what a baseline must keep: reload, resume, learn."""

import functools
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import test_distributed
import torch
from peft import PeftModel
from safetensors.torch import load_file
from tests.engine.native.test_reader import fed_positions
from torch import Tensor
from transformers import AutoModelForCausalLM

import memgen_reference as reference
import tiny
from documents import documented_metrics
from interrupted import whole_and_resumed
from processes import together
from tyler.cli.main import main
from tyler.config.files import load_config
from tyler.config.loops import RewardConfig, TracesConfig
from tyler.config.schema import Config
from tyler.config.sections import DecodingConfig
from tyler.engine.request import Request
from tyler.engine.sampling import Sampling
from tyler.engine.trajectory import Trajectory
from tyler.modeling.lora import LoraSettings
from tyler.reasoners.memgen import grpo, sft
from tyler.reasoners.memgen.model import MemGen, MemGenReasoner, Settings, num_insertions
from tyler.reasoners.memgen.routing import AtDelimiters, ends_in_delimiter, training_insertions
from tyler.reasoners.memgen.settings import MemGenConfig, MemGenGrpoConfig, MemGenTriggerConfig
from tyler.reasoners.memgen.weaver import Consultation, decide
from tyler.runs.json_lines import read_jsonl
from tyler.runs.run import Run
from tyler.tasks.problem import Outcome, Problem, Verdict
from tyler.tasks.prompts import Prompt, prompt_ids, target_ids
from tyler.training import verdicts
from tyler.training.command import opened_run
from tyler.training.distributed import joined
from tyler.training.policy_losses import group_advantages
from tyler.training.rollouts import Rollout
from tyler.training.teacher_forcing import Trace
from weights import moved, tensors_of

SETTINGS = Settings(prompt_latents=5, inference_latents=3, max_insertions=2, trigger_at_prompt=True)
LORA = LoraSettings(rank=4, alpha=8, dropout=0.0)
SEEDS = {"llama": 2, "qwen2": 6, "qwen3": 2, "smollm3": 9}
TOLERANCE = 2e-5
PROMPTS = (tiny.SHORT, tiny.MEDIUM, tiny.LONG[:60], tiny.ODD)
LENGTH = 36


# ----------------------------------------------------------------------------------------------- models


@torch.no_grad()
def build(family: str, *, trigger: bool = False, settings: Settings = SETTINGS, dropout: float = 0.0) -> MemGen:
    """A model that looks trained: everything in it is random and matters, and delimiters are frequent."""
    generator = torch.Generator().manual_seed(SEEDS[family] + 1)
    backbone = tiny.build_backbone(family, SEEDS[family])
    with torch.random.fork_rng():
        torch.manual_seed(0)
        lora = replace(LORA, dropout=dropout)
        model = MemGen.start(backbone, settings, lora, Prompt(instruction=""))
        model = model.with_new_trigger(lora) if trigger else model
    likely = tiny.ids_of([",", ".", "\n", "1.5", ", ", "2. ", " 5"])
    for weight in {id(w): w for w in (backbone.embedding, backbone.head)}.values():
        weight[likely] *= 1.6
    backbone.model.get_input_embeddings().weight[backbone.tokenizer.eos_token_id] *= 0.3
    tiny.randomize_lora(model.weaver.lora, generator)
    for parameter in [p for p in model.weaver.trainable() if p.dim() == 2 and p.shape[1] == backbone.dim]:
        parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.16)
    for head in model.weaver.heads.values():
        head.scale.fill_(0.7)
        head.norm.weight.copy_(1 + 0.3 * torch.randn(backbone.dim, generator=generator))
        head.norm.bias.copy_(0.3 * torch.randn(backbone.dim, generator=generator))
    for linear in (model.weaver.reasoner_to_weaver, model.weaver.weaver_to_reasoner):
        linear.bias.copy_(0.1 * torch.randn(linear.bias.shape, generator=generator))
    tiny.randomize_lora(model.weaver.lora, generator)
    if model.trigger is not None:
        tiny.randomize_lora(model.trigger.lora, generator)
        model.trigger.output.weight.copy_(torch.randn(2, backbone.dim, generator=generator) * 0.25)
        model.trigger.output.bias.zero_()
    return model


@functools.cache
def shared(family: str, trigger: bool = False, at_prompt: bool = True) -> MemGen:
    """Do not change it. `at_prompt` is whether its trigger is asked there."""
    return build(family, trigger=trigger, settings=replace(SETTINGS, trigger_at_prompt=at_prompt))


CASES: dict[str, dict[str, Any]] = {
    **{f"greedy {place}": {"text": text} for place, text in enumerate(PROMPTS)},
    **{
        f"sampled {place}": {"text": text, "temperature": 1.0, "seed": 10 + place, "trigger_temperature": 1.0}
        for place, text in enumerate(PROMPTS)
    },
    "temperature 0.7, greedy trigger": {"text": tiny.MEDIUM, "temperature": 0.7, "seed": 5},
    "greedy tokens, sampled trigger": {"text": tiny.ODD, "seed": 6, "trigger_temperature": 1.3},
    "one token": {"text": tiny.MEDIUM, "max_new_tokens": 1},
    "sampled, again": {"text": tiny.SHORT, "temperature": 0.9, "seed": 21, "trigger_temperature": 0.9},
    "sampled, a third time": {"text": tiny.ODD, "temperature": 1.2, "seed": 22, "trigger_temperature": 1.2},
}


def request_of(model: MemGen, case: dict[str, Any]) -> Request:
    return Request(
        tiny.ids(case["text"]),
        model.router(case.get("trigger_temperature", 0.0)),
        Sampling(case.get("temperature", 0.0), seed=case.get("seed", 0)),
        max_new_tokens=case.get("max_new_tokens", LENGTH),
    )


@functools.cache
def expected(family: str, trigger: bool, name: str, at_prompt: bool = True) -> reference.Answer:
    case = {"max_new_tokens": LENGTH, **CASES[name]}
    return reference.decode(shared(family, trigger, at_prompt), tiny.ids(case.pop("text")), **case)


def differences(trajectory: Trajectory, answer: reference.Answer) -> list[str]:
    found = []
    if trajectory.visible_ids != answer.tokens:
        found.append(f"tokens {trajectory.visible_ids} instead of {answer.tokens}")
    if [(one.operator, one.position) for one in trajectory.invocations] != answer.blocks:
        found.append(f"blocks {trajectory.invocations} instead of {answer.blocks}")
    if found:
        return found
    logprobs = [p for p, is_op in zip(trajectory.logprobs, trajectory.is_operator, strict=True) if not is_op]
    gap = max(abs(a - b) for a, b in zip(logprobs, answer.logprobs, strict=True))
    if gap > TOLERANCE:
        found.append(f"log-probabilities differ by {gap}")
    for one, other in zip(trajectory.latents, answer.latents, strict=True):
        if not torch.allclose(one, other, atol=1e-4):
            found.append(f"latents differ by {float((one - other).abs().max())}")
    return found


# -------------------------------------------------------------------------- equal to the transcription


ENGINES = [(1,), (3,), (12,)]
"""Slots."""


@pytest.mark.parametrize("trigger, at_prompt", [(False, True), (True, True), (True, False)])
@pytest.mark.parametrize("family, slots", tiny.by_family(ENGINES, often=[(1,), (12,)]))
def test_the_engine_decides_what_the_transcription_decides(
    family: str, trigger: bool, at_prompt: bool, slots: int
) -> None:
    model = shared(family, trigger, at_prompt)
    engine = model.engine(slots=slots)
    trajectories = engine.run([request_of(model, case) for case in CASES.values()])
    faults = {}
    for index, (name, trajectory) in enumerate(zip(CASES, trajectories, strict=True)):
        answer = expected(family, trigger, name, at_prompt)
        found = differences(trajectory, answer)
        asked = [(one.position, one.decision) for one in engine.consultations[index]]
        if asked != [(position, decision) for position, decision, _ in answer.consultations]:
            found.append(f"asked {asked} instead of {answer.consultations}")
        elif any(
            abs(one.logprob - logprob) > TOLERANCE
            for one, (_, _, logprob) in zip(engine.consultations[index], answer.consultations, strict=True)
        ):
            found.append("the trigger's log-probabilities differ")
        if found:
            faults[name] = found
    assert not faults


def test_the_cases_exercise_what_they_are_meant_to() -> None:
    quiet = [expected(family, False, name) for family in tiny.FAMILIES for name in CASES]
    asking = [expected(family, True, name) for family in tiny.FAMILIES for name in CASES]
    count = [sum(kind == "inference" for kind, _ in answer.blocks) for answer in quiet]
    assert sum(number == SETTINGS.max_insertions for number in count) >= 6, "K is reached"
    later = [expected(family, True, name, at_prompt=False) for family in tiny.FAMILIES for name in CASES]
    assert all(answer.blocks[0] == ("prompt", 0) for answer in (*quiet, *later))
    decisions = [(position == 0, decision) for answer in asking for position, decision, _ in answer.consultations]
    assert all(decisions.count((at_prompt, choice)) >= 3 for at_prompt in (True, False) for choice in (0, 1))
    greedy = [expected(family, False, f"greedy {place}") for family in tiny.FAMILIES for place in range(4)]
    assert sum(len(answer.blocks) > 1 for answer in greedy) >= 4
    assert sum(len(set(answer.tokens)) > 4 for answer in greedy) >= 6, "answers are more than one repeated token"
    assert any(len(answer.tokens) < LENGTH for answer in [*quiet, *asking]), "some end by themselves"


def test_the_cost_of_a_block_is_what_is_new() -> None:
    """Every position goes through policy and weaver once, besides the queries and the last position of a re-read."""
    model = shared("qwen3")
    engine = model.engine(slots=1)
    fed = fed_positions(engine)
    case = next(name for name in CASES if len(expected("qwen3", False, name).blocks) == 3)
    (trajectory,) = engine.run([request_of(model, CASES[case])])
    assert num_insertions(trajectory) == 2
    length = len(trajectory.prompt_ids) + trajectory.num_visible + trajectory.num_latents
    assert length - 1 <= fed["policy"] <= length
    last = trajectory.invocations[-1]
    before = len(trajectory.prompt_ids) + last.position + trajectory.num_latents - last.num_latents
    assert fed["synthesizer"] == before + trajectory.num_latents


# ------------------------------------------------------------------------------------- where blocks go


EVERY = AtDelimiters(max_insertions=99)


def positions(text: str, router: AtDelimiters = EVERY) -> list[tuple[str, str]]:
    """What stands before each block of a text that is decoded token by token."""
    schedule = router.start((), np.random.default_rng(0))
    found, seen = [], []
    for token in [None, *tiny.ids(text)]:
        if token is not None:
            seen.append(token)
            schedule.observe([""] * len(seen))
            if schedule.unseen:
                schedule.look(ends_in_delimiter(tiny.tokenizer(), seen))
        while (call := schedule.due()) is not None:
            assert call.position == len(seen)
            found.append((call.operator, tiny.tokenizer().decode(seen)))
    return found


def test_blocks_follow_delimiters_decimals_included() -> None:
    assert positions("a,b.c\nd;e") == [
        ("prompt", ""), ("inference", "a,"), ("inference", "a,b."), ("inference", "a,b.c\n"),
    ]  # fmt: skip
    assert positions("x 3.14") == [("prompt", ""), ("inference", "x 3.")]
    assert positions("8,000") == [("prompt", ""), ("inference", "8,")]
    assert positions("1.5") == [("prompt", "")], "a token of its own ends in a digit"
    assert positions("a, b") == [("prompt", "")], "', ' is one token here, and the text ends in a space"


def test_at_most_k_blocks_follow_delimiters_and_the_first_is_not_counted() -> None:
    for limit in (0, 1, 2):
        found = positions("a,b,c,d", AtDelimiters(max_insertions=limit))
        assert found == [("prompt", ""), ("inference", "a,"), ("inference", "a,b,")][: limit + 1]


def test_a_refusal_is_not_counted() -> None:
    schedule = AtDelimiters(max_insertions=1, asks=True, asks_at_prompt=True).start((), np.random.default_rng(0))
    assert schedule.due() is None and schedule.candidate is not None
    schedule.answer(True)
    assert schedule.due() is not None
    schedule.observe(["a,"])
    schedule.look(True)
    schedule.answer(False)
    assert schedule.due() is None and schedule.candidate is None
    schedule.observe(["a,", "b."])
    schedule.look(True)
    assert schedule.candidate is not None
    schedule.answer(True)
    assert schedule.due().position == 2  # type: ignore[union-attr]
    schedule.observe(["a,", "b.", "c,"])
    assert not schedule.unseen


def test_the_text_so_far_decides_and_not_the_last_token() -> None:
    dead = len(tiny.tokenizer()) + 1  # a row of the embedding table that no text belongs to
    comma, half = tiny.ids(",")[0], tiny.ids("é")[0]
    assert tiny.tokenizer().decode([half]) == "\ufffd"
    ends = functools.partial(ends_in_delimiter, tiny.tokenizer())
    assert ends([comma]) and ends([comma, dead]) and ends([comma, *[dead] * 40]) and not ends([dead])
    assert not ends([comma, half]) and ends([comma, half, comma]) and not ends([comma, tiny.tokenizer().eos_token_id])


@pytest.mark.parametrize("text", ["a, b,c.d\n1.5,\n3.14", tiny.LONG, "no delimiter", "x.", "é,→.x,😀,"])
@pytest.mark.parametrize("limit", [0, 2, 99])
def test_training_puts_blocks_where_decoding_does(text: str, limit: int) -> None:
    model = replace(shared("qwen2"), settings=replace(SETTINGS, max_insertions=limit))
    prompt, targets = tiny.ids("Why?\n"), target_ids(tiny.tokenizer(), text)
    found = training_insertions(tiny.tokenizer(), Trace("", prompt, targets), limit)
    assert {one.position: one.operator for one in found} == reference.training_blocks(model, prompt, targets)
    online = AtDelimiters(limit).start((), np.random.default_rng(0))
    calls = [online.due()]
    for place in range(1, len(targets)):
        online.observe([""] * place)
        if online.unseen:
            online.look(ends_in_delimiter(tiny.tokenizer(), [*prompt, *targets[:place]]))
        calls.append(online.due())
    assert [(call.position, call.operator) for call in calls if call] == [(o.position, o.operator) for o in found]


def test_the_trigger_says_no_at_a_tie_and_samples_by_one_uniform_number() -> None:
    class Fixed:
        def __init__(self, value: float) -> None:
            self.value = value

        def random(self) -> float:
            return self.value

    logits = torch.tensor([0.0, math.log(3.0)])
    assert decide(torch.zeros(2), 0.0, Fixed(0.9))[0] == 0  # type: ignore[arg-type]
    assert decide(logits, 0.0, Fixed(0.0)) == (1, pytest.approx(math.log(0.75)))  # type: ignore[arg-type]
    assert decide(logits, 1.0, Fixed(0.2)) == (0, pytest.approx(math.log(0.25)))  # type: ignore[arg-type]
    assert decide(logits, 1.0, Fixed(0.3)) == (1, pytest.approx(math.log(0.75)))  # type: ignore[arg-type]
    assert decide(logits, 2.0, Fixed(0.3))[0] == 0, "temperature brings the two closer"  # type: ignore[arg-type]


# ----------------------------------------------------------------------------------------- as a reasoner


# ------------------------------------------------------------------------------------------ checkpoints


def on_disk(folder: Path, *, trigger: bool = False) -> MemGen:
    """A randomized model whose backbone is a folder."""
    model = build("qwen3", trigger=trigger)
    tiny.save(model.backbone, folder / "backbone")
    return replace(model, backbone=replace(model.backbone, id=str(folder / "backbone")))


@pytest.mark.parametrize("trigger", [False, True])
def test_a_trained_model_reloads_bit_equal_and_is_not_the_untrained_one(trigger: bool, tmp_path: Path) -> None:
    model = on_disk(tmp_path, trigger=trigger)
    torch.manual_seed(5)
    untrained = MemGen.start(model.backbone, SETTINGS, LORA, model.prompt)
    untrained = untrained.with_new_trigger(LORA) if trigger else untrained
    model.save_pretrained(tmp_path / "saved")
    loaded = MemGen.from_pretrained(str(tmp_path / "saved"))
    assert (loaded.settings, loaded.prompt) == (model.settings, model.prompt)
    assert loaded.fingerprint() == model.fingerprint() != untrained.fingerprint()
    for sampling in (Sampling(), Sampling(1.0, seed=3)):
        answers = [
            MemGenReasoner("memgen", one, sampling, 24).solve(list(PROMPTS)) for one in (model, loaded, untrained)
        ]
        for ours, again, other in zip(*answers, strict=True):
            assert ours.actions == again.actions and ours.logprobs == again.logprobs
            assert all(torch.equal(one, two) for one, two in zip(ours.latents, again.latents, strict=True))
            if ours.invocations[:1] == other.invocations[:1] != ():
                assert not torch.allclose(ours.latents[0], other.latents[0])
    for part in ("weaver", "trigger") if trigger else ("weaver",):
        plain = AutoModelForCausalLM.from_pretrained(tmp_path / "backbone")
        peft = PeftModel.from_pretrained(plain, tmp_path / "saved" / part)
        ids = torch.tensor([tiny.ids(tiny.MEDIUM)])
        with torch.no_grad():
            assert torch.allclose(peft(ids).logits, getattr(model, part).lora(ids).logits, atol=1e-5)


# ------------------------------------------------------------------------------ supervised training

SOLUTIONS = (
    "Let me solve, 5.\n\nStep 2: so we buy 12, 3, and 4 apples.\n\nThe total is $2x$.",
    "Solution: $y$ is 12.",
    "no delimiter",
)
PROBLEMS = [Problem(f"p{i}", "jsonl", f"How many {i} x?", "5", solution=text) for i, text in enumerate(SOLUTIONS)]
SMALL = TracesConfig(steps=6, batch_size=2, learning_rate=0.01, checkpoint_every=2)
WHOLE = Config(decoding=DecodingConfig(slots=4), rewards=(RewardConfig(name="verifier"),))
GRPO = MemGenGrpoConfig(
    steps=4, batch_size=2, learning_rate=0.02, group_size=3, max_new_tokens=10, checkpoint_every=2, temperature=0.9
)
TRIGGER = MemGenTriggerConfig(**{**GRPO.model_dump(), "learning_rate": 0.05, "token_temperature": 0.0})


def traces_for(model: MemGen) -> list[Trace]:
    tokenizer = model.backbone.tokenizer
    return [
        Trace(
            problem.id,
            tuple(prompt_ids(tokenizer, problem.prompt, model.prompt)),
            tuple(target_ids(tokenizer, problem.solution or "")),
        )
        for problem in PROBLEMS
    ]


def gradients(parameters: list[torch.nn.Parameter]) -> list[Tensor]:
    found = [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in parameters]
    for parameter in parameters:
        parameter.grad = None
    return found


def assert_close(ours: list[Tensor], theirs: list[Tensor]) -> None:
    assert any(float(tensor.abs().max()) > 1e-4 for tensor in theirs)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, atol=3e-6, rtol=2e-3)


def everything_of(model: MemGen) -> dict[str, Tensor]:
    return tensors_of(theta=model.backbone.model, weaver=model.weaver, trigger=model.trigger)


def trainable_names(module: torch.nn.Module) -> set[str]:
    return {name for name, parameter in module.named_parameters() if parameter.requires_grad}


def open_new(path: Path) -> Run:
    return Run.create(path, "memgen: {}\n")


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_the_weavers_loss_and_gradients_are_the_transcriptions(family: str) -> None:
    model = build(family)
    traces = traces_for(model)
    count = sum(len(trace.target_ids) for trace in traces)
    examples = [sft.with_blocks(model, trace) for trace in traces]
    loss = sft.WeaverTrainer(model, examples, SMALL).batch_loss(examples, count)
    loss.backward()
    parameters = model.weaver.trainable()
    ours = gradients(parameters)
    blocks = [reference.training_blocks(model, trace.prompt_ids, trace.target_ids) for trace in traces]
    assert [len(one) for one in blocks] == [3, 2, 1]
    total = sum(
        -reference.target_logprobs(model, trace.prompt_ids, trace.target_ids, where).sum()
        for trace, where in zip(traces, blocks, strict=True)
    )
    expected_loss = total / count
    expected_loss.backward()
    assert float(loss.detach()) == pytest.approx(float(expected_loss.detach()), abs=1e-5)
    assert_close(ours, gradients(parameters))
    assert all(float(tensor.abs().max()) > 0 for tensor in ours), "everything that is trained has a gradient"


def examples_for(model: MemGen) -> list[Trace]:
    return [sft.with_blocks(model, trace) for trace in traces_for(model)]


# ------------------------------------------------------------------------------------------------- GRPO


def consultations_of(trainer: grpo.MemGenTrainer, rollout: Rollout) -> list[list[Consultation]]:
    return [trainer.engine.consultations(answer) for answer in rollout.trajectories]


def rolled_out(trainer: grpo.MemGenTrainer) -> Rollout:
    """A rollout whose rewards differ, whatever the answers are; it keeps what the learner gives its actions."""
    rollout = trainer.roll_out(PROBLEMS[:2], step=0)
    rollout = replace(rollout, rewards=torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 1.0]]))
    trainer.learn(rollout)
    for parameter in learned(trainer):
        parameter.grad = None
    return rollout


def learned(trainer: grpo.MemGenTrainer) -> list[torch.nn.Parameter]:
    ((parameters, _),) = trainer.parameter_groups()
    return parameters


def loss_by_loops(new: list[Tensor], old: list[list[float]], rewards: Tensor, clip: float = 0.2) -> Tensor:
    """-mean over answers of the mean over actions of min(r A, clip(r) A)."""
    total, advantages = torch.zeros(()), group_advantages(rewards).flatten().tolist()
    for logprobs, recorded, advantage in zip(new, old, advantages, strict=True):
        if len(recorded) == 0:
            continue
        terms = []
        for logprob, before in zip(logprobs, recorded, strict=True):
            ratio = (logprob - before).exp()
            terms.append(torch.minimum(ratio * advantage, ratio.clamp(1 - clip, 1 + clip) * advantage))
        total = total - torch.stack(terms).mean()
    return total / len(advantages)


def assert_learns(trainer: grpo.MemGenTrainer, rollout: Rollout, size: float, expected: Callable[[], Tensor]) -> None:
    """What a trainer learns from a rollout, `size` away from the weights that gave it, is the loss that is expected."""
    shift(learned(trainer), size)
    totals = trainer.learn(rollout)
    ours = gradients(learned(trainer))
    loss = expected()
    loss.backward()
    assert totals["loss"] == pytest.approx(float(loss.detach()), abs=1e-5)
    assert_close(ours, gradients(learned(trainer)))
    assert totals["replay_gap"] < 2e-5


def shift(model_parameters: list[torch.nn.Parameter], size: float) -> None:
    """Move away from the rollout's weights, so that ratios are not 1."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model_parameters:
            parameter.add_(torch.randn(parameter.shape, generator=generator) * size)


@pytest.mark.parametrize("size", [0.0, 0.03])
def test_the_weavers_grpo_loss_and_gradients_are_those_of_loops(size: float) -> None:
    model = build("qwen3")
    trainer = trainer_of("weaver", model, GRPO)
    rollout = rolled_out(trainer)
    assert any(num_insertions(one) for one in rollout.trajectories)

    def token_loss() -> Tensor:
        new, old = [], []
        for one in rollout.trajectories:
            blocks = {call.position: call.operator for call in one.invocations if call.position < one.num_visible}
            new.append(reference.target_logprobs(model, one.prompt_ids, one.visible_ids, blocks, GRPO.temperature))
            old.append([p for p, is_op in zip(one.logprobs, one.is_operator, strict=True) if not is_op])
        return loss_by_loops(new, old, rollout.rewards)

    assert_learns(trainer, rollout, size, token_loss)


def decision_loss(trainer: grpo.TriggerGrpo, rollout: Rollout) -> Tensor:
    model, new, old = trainer.model, [], []
    for one, consulted in zip(rollout.trajectories, consultations_of(trainer, rollout), strict=True):
        visible = one.visible_ids
        rows = []
        for asked in consulted:
            logits = reference.trigger_logits(model, [*one.prompt_ids, *visible[: asked.position]])
            rows.append((logits / TRIGGER.temperature).log_softmax(dim=0)[asked.decision])
        new.append(torch.stack(rows) if rows else torch.zeros(0))
        old.append([asked.logprob for asked in consulted])
    return loss_by_loops(new, old, rollout.rewards)


@pytest.mark.parametrize("at_prompt", [True, False])
@pytest.mark.parametrize("size", [0.0, 0.03])
def test_the_triggers_loss_is_at_consulted_positions_only(size: float, at_prompt: bool) -> None:
    model = build("qwen2", trigger=True, settings=replace(SETTINGS, trigger_at_prompt=at_prompt))
    config = TRIGGER.model_copy(update={"token_temperature": 1.0, "max_new_tokens": 24})  # answers that differ
    trainer = trainer_of("trigger", model, config)
    assert isinstance(trainer, grpo.TriggerGrpo)
    rollout = rolled_out(trainer)
    asked = [len(consulted) for consulted in consultations_of(trainer, rollout)]
    assert sum(asked) > 0 and len(set(asked)) > 1
    assert_learns(trainer, rollout, size, lambda: decision_loss(trainer, rollout))
    assert all(parameter.grad is None for parameter in model.weaver.parameters())


@pytest.mark.parametrize("kind", ["weaver", "trigger"])
def test_micro_batches_of_answers_and_gradient_checkpointing_change_no_gradient(kind: str, monkeypatch) -> None:
    found: list[Any] = []
    layers = tiny.count_recomputed(monkeypatch)
    cuts = ({"micro_batch_size": 1}, {"micro_batch_size": 2}, {"micro_batch_tokens": 100}, {}, {})
    for cut, recomputed in zip(cuts, (False, True, False, False, True), strict=True):
        model = build("qwen2", trigger=kind == "trigger")
        config: MemGenGrpoConfig = (TRIGGER if kind == "trigger" else GRPO).model_copy(
            update={**cut, "gradient_checkpointing": recomputed}
        )
        trainer = trainer_of(kind, model, config)
        rollout = rolled_out(trainer)
        before = len(layers)
        totals = trainer.learn(rollout)
        assert (len(layers) > before) == recomputed
        found.append((totals["loss"], gradients(learned(trainer))))
    for loss, grads in found[1:]:
        assert loss == pytest.approx(found[0][0], abs=1e-6)
        assert_close(grads, found[0][1])


def trainer_of(kind: str, model: MemGen, config: Any, development: Sequence[Problem] = ()) -> grpo.MemGenTrainer:
    trainer = grpo.TriggerGrpo if kind == "trigger" else grpo.WeaverGrpo
    return trainer(model, PROBLEMS, WHOLE, config, development)


def reward_commas(monkeypatch: pytest.MonkeyPatch, wanted: str = "a") -> None:
    """An answer is correct when it has an even number of a character: rewards differ within groups."""

    def even(task: str, completion: str, gold: str, **_: object) -> Verdict:
        right = completion.count(wanted) % 2 == 0 and len(completion) % 3 != 0
        return Verdict(Outcome.CORRECT if right else Outcome.WRONG)

    monkeypatch.setattr(verdicts, "grade", even)


@pytest.mark.parametrize("kind", ["weaver", "trigger"])
def test_grpo_moves_only_what_it_trains(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reward_commas(monkeypatch)
    model = build("qwen2", trigger=kind == "trigger")
    config = TRIGGER if kind == "trigger" else GRPO
    before = everything_of(model)
    with open_new(tmp_path) as run:
        trainer_of(kind, model, config).train(run)
    assert moved(before, everything_of(model)) == {f"{kind}.{name}" for name in trainable_names(getattr(model, kind))}
    entries = read_jsonl(tmp_path / "metrics.jsonl")
    assert any(entry["memgen_grpo/degenerate_groups"] < 1 for entry in entries)
    assert all(entry["memgen_grpo/replay_gap"] < 5e-5 for entry in entries if "memgen_grpo/replay_gap" in entry)


@pytest.mark.parametrize("kind", ["weaver", "trigger"])
def test_greedy_answers_to_development_problems_are_the_models_own(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    reward_commas(monkeypatch)
    model, config = build("qwen2", trigger=kind == "trigger"), TRIGGER if kind == "trigger" else GRPO
    before = everything_of(model)
    found = trainer_of(kind, model, config, PROBLEMS[1:]).evaluate()
    answers = MemGenReasoner("memgen", model, max_new_tokens=config.max_new_tokens).solve(PROBLEMS[1:])
    right = [verdict is not None and verdict.correct for verdict in verdicts.Verifier()(PROBLEMS[1:], answers)]
    assert found["greedy/accuracy"] == sum(right) / len(right)
    assert found["greedy/insertions"] == sum(map(num_insertions, answers)) / len(answers)
    assert not moved(before, everything_of(model)), "watching changes no weight"


@pytest.mark.parametrize("kind", ["weaver", "trigger"])
def test_a_killed_run_resumes_to_the_same_bits(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reward_commas(monkeypatch)
    config = TRIGGER if kind == "trigger" else GRPO
    whole, resumed = whole_and_resumed(
        tmp_path,
        3,
        lambda: build("qwen2", trigger=kind == "trigger"),
        lambda model, run: trainer_of(kind, model, config).train(run),
    )
    assert not moved(everything_of(whole), everything_of(resumed))
    assert moved(everything_of(whole), everything_of(build("qwen2", trigger=kind == "trigger")))


def test_dropout_acts_in_supervised_training_only(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    reward_commas(monkeypatch)
    model = build("qwen2", dropout=0.5)
    with open_new(tmp_path / "grpo") as run:
        trainer_of("weaver", model, GRPO).train(run)
    gaps = [entry["memgen_grpo/replay_gap"] for entry in read_jsonl(tmp_path / "grpo" / "metrics.jsonl")]
    assert max(gaps) < 5e-5
    losses = []
    for dropout in (0.0, 0.5):
        model = build("qwen2", dropout=dropout)
        with open_new(tmp_path / str(dropout)) as run:
            sft.WeaverTrainer(model, examples_for(model), SMALL.model_copy(update={"steps": 1})).train(run)
        losses.append(read_jsonl(tmp_path / str(dropout) / "metrics.jsonl")[0]["memgen_weaver/loss"])
    assert abs(losses[0] - losses[1]) > 1e-3


@pytest.mark.parametrize("trigger", [False, True])
def test_the_size_of_a_checkpoint_is_foretold(trigger: bool, tmp_path: Path) -> None:
    model = build("qwen2", trigger=trigger)
    model.save_pretrained(tmp_path)
    saved = [load_file(path) for path in tmp_path.rglob("*.safetensors")]
    assert model.saved_bytes() == sum(tensor.nbytes for tensors in saved for tensor in tensors.values())


# ----------------------------------------------------------------------------------- several processes


def train_together(path: Path, kind: str) -> dict[str, Any]:
    """GRPO on batches of two problems, of which one alone is ever asked where `kind` is "seldom"; what it ends with."""
    weaver = kind == "weaver"
    with joined(test_distributed.QUICK), pytest.MonkeyPatch.context() as patch:
        reward_commas(patch)
        if kind == "seldom":
            patch.setattr(grpo.MemGenRollouts, "answer", asking_one(grpo.MemGenRollouts.answer))
        model = build("qwen2", trigger=not weaver)
        more = {"eval_every": 2, "micro_batch_size": 4, "updates_per_rollout": 2}
        config = (GRPO if weaver else TRIGGER).model_copy(
            update=more | {"batch_size": 2 if kind == "seldom" else 3, "learning_rate": 0.01}
        )
        trainer = trainer_of("weaver" if weaver else "trigger", model, config, PROBLEMS)
        with opened_run(Config(devices=test_distributed.QUICK), path) as run:
            trainer.train(run)
    part = model.weaver if weaver else model.trigger
    assert part is not None
    return {name: one.detach().numpy() for name, one in part.named_parameters() if one.requires_grad}


def asking_one(answer: Any) -> Any:
    """Answering, as if the trigger had been consulted on the first problem alone."""

    def answered(rollouts: grpo.MemGenRollouts, requests: Sequence[Request]) -> list[Trajectory]:
        answers = answer(rollouts, requests)
        first = prompt_ids(rollouts.model.backbone.tokenizer, PROBLEMS[0].prompt, rollouts.model.prompt)
        for one in answers:
            if list(one.prompt_ids) != list(first):
                rollouts._consultations[id(one)] = (one, [])
        return answers

    return answered


@pytest.mark.parametrize("kind", ["weaver", "trigger", "seldom"])
def test_grpo_of_two_processes_ends_in_the_weights_of_one(kind: str, tmp_path: Path) -> None:
    expected = train_together(tmp_path / "alone", kind)
    results = together(2, train_together, tmp_path / "run", kind)
    for found in results:
        test_distributed.assert_close(found, expected)
        assert all((found[name] == results[0][name]).all() for name in expected), "to the bit among themselves"
    test_distributed.assert_same_log(tmp_path / "run", tmp_path / "alone")
    entries = read_jsonl(tmp_path / "run" / "metrics.jsonl")
    assert any(entry["memgen_grpo/degenerate_groups"] < 1 for entry in entries), "there was something to learn"
    assert {"memgen_grpo/loss" in entry for entry in entries} == ({True, False} if kind == "seldom" else {True})


def first_alone(_: object, problems: Sequence[Problem], answers: object) -> list[Verdict]:
    return [Verdict(Outcome.CORRECT if problem.id == "p0" else Outcome.WRONG) for problem in problems]


def watch_together(count: int) -> dict[str, float]:
    """What is said of development problems of which the first alone is answered correctly."""
    with joined(test_distributed.QUICK), pytest.MonkeyPatch.context() as patch:
        patch.setattr(verdicts.Verifier, "__call__", first_alone)
        return trainer_of("weaver", build("qwen2"), GRPO, PROBLEMS[:count]).evaluate()


@pytest.mark.parametrize("count", [1, 3])
def test_development_problems_are_shared_even_where_a_process_has_none(count: int) -> None:
    expected = watch_together(count)
    assert expected["greedy/accuracy"] == pytest.approx(1 / count)
    assert together(2, watch_together, count) == [pytest.approx(expected)] * 2


# --------------------------------------------------------------------------------- config and commands


def test_the_documented_defaults() -> None:
    for config in (MemGenConfig(), load_config("paper").memgen):
        assert (config.prompt_latents, config.inference_latents, config.max_insertions) == (8, 8, 5)
        assert config.trigger_at_prompt is Settings().trigger_at_prompt is AtDelimiters().asks_at_prompt is False
        assert (config.lora.rank, config.lora.alpha, config.lora.dropout) == (16, 32, 0.1)
        assert config.lora.target_modules == ("q_proj", "v_proj")
        assert (config.weaver.epochs, config.weaver.learning_rate, config.weaver.scheduler) == (2, 1e-5, "cosine")
        assert config.weaver.warmup_ratio == 0.1
        for part in (config.weaver_grpo, config.trigger):
            assert (part.group_size, part.temperature, part.advantage_epsilon) == (8, 1.0, 1e-4)


def test_the_commands_train_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    backbone = tiny.build_backbone("qwen3", SEEDS["qwen3"])
    tiny.save(backbone, tmp_path / "backbone")
    rows = [{"problem": p.prompt, "solution": f"{p.solution}\n\nIt is \\boxed{{5}}", "answer": "5"} for p in PROBLEMS]
    (tmp_path / "traces.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    grpo_settings = {"steps": 1, "batch_size": 2, "group_size": 2, "max_new_tokens": 8}
    config = {
        "backbone": {"id": str(tmp_path / "backbone"), "instruction": "", "dtype": "float32"},
        "data": {"task": "jsonl", "path": str(tmp_path / "traces.jsonl")},
        "memgen": {
            "prompt_latents": 4, "inference_latents": 2, "lora": {"rank": 2, "alpha": 4},
            "weaver": {"steps": 2, "batch_size": 2}, "weaver_grpo": grpo_settings, "trigger": grpo_settings,
        },
    }  # fmt: skip
    (tmp_path / "tiny.yaml").write_text(json.dumps(config))
    monkeypatch.chdir(tmp_path)
    assert main(["train", "memgen", "tiny.yaml"]) == 0
    assert main(["train", "memgen-weaver-grpo", "tiny.yaml"]) == 0
    assert main(["train", "memgen-trigger", "tiny.yaml", "--start", "runs/tiny-memgen-weaver-grpo"]) == 0
    runs = [MemGen.from_pretrained(f"runs/tiny-{name}") for name in ("memgen", "memgen-weaver-grpo", "memgen-trigger")]
    assert [run.trigger is not None for run in runs] == [False, False, True]
    assert runs[0].settings == Settings(4, 2, 5)
    assert main(["train", "memgen-trigger", "tiny.yaml", "--start", "nowhere"]) == 2
    assert "tyler train memgen" in capsys.readouterr().err
    assert main(["train", "memgen", "tiny.yaml", "--start", "runs/tiny-memgen"]) == 2
    assert "tyler train memgen starts from the backbone; --start is for" in capsys.readouterr().err
    assert (
        main(["train", "memgen-weaver-grpo", "tiny.yaml", "--start", "runs/tiny-memgen-trigger", "--output", "x"]) == 2
    )
    assert "has a trigger" in capsys.readouterr().err
    noted = Path("runs/tiny-memgen/environment.json")
    whole = noted.read_text()
    noted.write_text(json.dumps([{**entry, "steps": 5} for entry in json.loads(whole)]))
    assert main(["train", "memgen-weaver-grpo", "tiny.yaml", "--start", "runs/tiny-memgen", "--output", "x"]) == 2
    assert "runs/tiny-memgen is not finished (step 2 of 5): resume it first" in capsys.readouterr().err
    noted.write_text(whole)
    other = ["--memgen.prompt_latents", "3", "--backbone.instruction", "Think."]
    for method in ("memgen-weaver-grpo", "memgen-trigger"):
        assert main(["train", method, "tiny.yaml", "--output", "x", *other]) == 2
        said = capsys.readouterr().err
        assert "conflicts with runs/tiny-memgen" in said and "memgen.prompt_latents is 3, and there 4" in said
        assert "backbone.instruction is 'Think.', and there ''" in said
    assert main(["train", "memgen-trigger", "tiny.yaml", "--output", "x", "--memgen.lora.rank", "3"]) == 2
    assert "memgen.lora.rank is 3, and there 2" in capsys.readouterr().err
    assert not (tmp_path / "x").exists(), "nothing is written of a training that is refused"
    for train in (grpo.run_weaver, grpo.run_trigger):
        weights = together(2, fingerprint_after, train, f"together-{train.__name__}")
        saved = MemGen.from_pretrained(f"together-{train.__name__}").fingerprint()
        assert weights == [saved, saved], "two processes train one model"


def fingerprint_after(train: Any, output: str) -> str:
    """What names the weights that a command ends with."""
    return train(load_config("tiny.yaml"), start="runs/tiny-memgen", output=Path(output)).fingerprint()


def test_the_metrics_of_grpo_are_documented(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reward_commas(monkeypatch)
    config = TRIGGER.model_copy(update={"eval_every": 2, "steps": 4})
    with open_new(tmp_path) as run:
        trainer_of("trigger", build("qwen2", trigger=True), config, PROBLEMS[:1]).train(run)
    logged = {key for entry in read_jsonl(tmp_path / "metrics.jsonl") for key in entry} - {"step"}
    expected = {key.replace("{reward}", "verifier") for key in documented_metrics("memgen_grpo")}
    assert logged == expected | {"greedy/accuracy", "greedy/insertions"}
