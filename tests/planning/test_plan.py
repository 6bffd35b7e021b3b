"""The plan against what torch counts, what the engine does and what transformers reads; and it is quick and light."""

from __future__ import annotations

import json
import math
import resource
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import tiny
from tyler.cli import main
from tyler.config.files import load_config
from tyler.modeling.architectures import FAMILIES, PUBLISHED, settings_of
from tyler.modeling.random_init import architecture
from tyler.planning import plan, roofline
from tyler.planning.device_benchmark import this_device
from tyler.planning.hardware import COMPUTE, KNOWN, LAUNCH, REPLAY, STREAMING, Device, device_named
from tyler.planning.memory import CHOICE, Read, Shape, Workload, rollout_memory
from tyler.planning.plan import Advice, advise, changed, duration, lengths_for, smaller, times_on
from tyler.planning.roofline import (
    Cost,
    Lengths,
    forward,
    learning_costs,
    log_probabilities,
    rollout_costs,
    stage1_costs,
)
from tyler.training.objectives import chosen_logprobs

SLOW = Device("slow", 8e9, bandwidth=100.0, bfloat16=1000.0, float32=500.0, launch=2.0, source="a test", queued=False)

# ----------------------------------------------------------------------------------------------- what is read


@pytest.mark.parametrize("id", PUBLISHED)
def test_a_published_shape_is_the_one_that_transformers_builds(id: str) -> None:
    assert Shape.read(settings_of(id)) == Shape.of(architecture(id))


OPTIONAL = dict.fromkeys(tiny.FAMILIES, ("head_dim", "tie_word_embeddings")) | {
    "llama": ("head_dim", "tie_word_embeddings", "num_key_value_heads", "attention_bias", "mlp_bias")
}
"""What a `config.json` may leave out."""


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_a_folders_shape_is_read_as_transformers_reads_it_with_and_without_its_defaults(
    family: str, tmp_path: Path
) -> None:
    settings = tiny.config(family).to_dict()
    bare = {key: value for key, value in settings.items() if key not in OPTIONAL[family]}
    for name, content in (("full", settings), ("bare", bare)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(content))
        assert Shape.read(settings_of(str(tmp_path / name))) == Shape.of(architecture(str(tmp_path / name)))


def test_what_cannot_be_read_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"is not known here; .*Qwen/Qwen2\.5-0\.5B-Instruct"):
        settings_of("Qwen/Qwen9-900B")
    path = tmp_path / "config.json"
    for text, message in (
        ("{", "is not valid JSON"),
        ("[]", "of type None; supported are"),
        ('{"model_type": "mistral"}', "of type 'mistral'; supported are .* llama, qwen2, qwen3, smollm3"),
    ):
        path.write_text(text)
        with pytest.raises(ValueError, match=message):
            settings_of(str(tmp_path))
    path.write_text(json.dumps({**tiny.config("qwen3").to_dict(), "num_key_value_heads": None}))
    with pytest.raises(ValueError, match="'num_key_value_heads'"):
        Shape.read({key: value for key, value in json.loads(path.read_text()).items() if value is not None})
    assert set(FAMILIES) == set(tiny.FAMILIES)


# ------------------------------------------------------------------------------------- operations, as torch counts


def counted(family: str, gradients: bool) -> tuple[int, Shape, Read]:
    """The operations of one pass of the frozen decoder; eager attention, whose products torch can see."""
    backbone = tiny.build_backbone(family)
    backbone.model.set_attn_implementation("eager")
    embeds = torch.randn(2, 24, backbone.dim, requires_grad=gradients)
    mask = torch.zeros(2, 1, 24, 24)
    counter = FlopCounterMode(display=False)
    with counter, torch.set_grad_enabled(gradients):
        hidden = backbone.decoder(
            inputs_embeds=embeds, attention_mask=mask, position_ids=torch.arange(24)[None], use_cache=False
        ).last_hidden_state
        if gradients:
            hidden.sum().backward()
    return counter.get_total_flops(), Shape.of(backbone.model.config), Read(2, 24, 24)


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_the_operations_of_a_pass_are_those_torch_counts(family: str) -> None:
    operations, shape, read = counted(family, gradients=False)
    assert forward(shape, read, 4).operations == pytest.approx(operations, rel=0.01)


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_the_operations_of_a_training_pass_are_those_torch_counts(family: str) -> None:
    operations, shape, read = counted(family, gradients=True)
    assert roofline.training(shape, read, 4, None, False).operations == pytest.approx(operations, rel=0.01)


@pytest.mark.parametrize("gradients", [False, True])
def test_the_operations_of_log_probabilities_are_those_torch_counts(gradients: bool) -> None:
    shape = Shape.of(tiny.config("qwen3"))
    states, head = torch.randn(2048, shape.dim, requires_grad=gradients), torch.randn(shape.vocab, shape.dim)
    counter = FlopCounterMode(display=False)
    with counter, torch.set_grad_enabled(gradients):
        chosen = chosen_logprobs(states, head, None, torch.zeros(2048, dtype=torch.long), None).logprobs
        if gradients:
            chosen.sum().backward()
    assert log_probabilities(shape, 2048, 4, gradients).operations == counter.get_total_flops()


def test_attention_without_a_mask_skips_half_and_chunks_see_what_came_before() -> None:
    shape = Shape.of(tiny.config("qwen3"))
    products = 2 * roofline.layer_weights(shape) * 64
    masked, causal, chunked = (
        forward(shape, read, 4).operations - products
        for read in (Read(1, 64, 64), Read(1, 64, 64, masked=False), Read(1, 64, 64, chunks=4))
    )
    assert causal == masked / 2
    assert chunked == masked * (1 + 2 + 3 + 4) / 16
    assert forward(shape, Read(1, 64, 64, chunks=4), 4).weights == 4 * forward(shape, Read(1, 64, 64), 4).weights


# ------------------------------------------------------------------------------------------------ the roofline


def test_the_roofline_by_hand() -> None:
    cost = Cost(operations=2000, weights=300, traffic=50, layers=3)
    assert cost.seconds(SLOW, "bfloat16") == max(2.0, 3.0) + 0.5 + 6.0
    assert cost.seconds(SLOW, "float32") == max(4.0, 3.0) + 0.5 + 6.0
    queued = replace(SLOW, queued=True)
    assert cost.seconds(queued, "float32") == max(4.0 + 0.5, 6.0), "a GPU starts work while it works"
    assert cost + cost == cost * 2 == Cost(4000, 600, 100, 6)


@pytest.fixture
def config():
    return load_config("qwen2.5-1.5b", ["data.count=96", "stage1.epochs=2", "stage2.epochs=1"])


SHAPE = Shape(layers=2, dim=8, intermediate=16, attention=8, key_value=4, head_dim=4, vocab=100, tied=True,
              biased=frozenset(), qk_norm=False)  # fmt: skip
WEIGHTS = 2 * (8 * 8 + 2 * 8 * 4 + 8 * 8 + 3 * 8 * 16)


def test_a_rollout_by_hand(config) -> None:
    lengths = Lengths(prompt=10, target=1, answer=20, calls=0)
    found = rollout_costs(SHAPE, config, lengths, answers=4, element=2)
    steps, head = 20, 100 * 8
    assert set(found) == {"prompts", "decoding"}
    assert found["decoding"].operations == steps * 4 * 2 * (WEIGHTS + head)
    assert found["decoding"].weights == steps * 2 * (WEIGHTS + head)
    caches = steps * 4 * (2 * 2 * 4 * 2) * (10 + 30) / 2
    assert found["decoding"].traffic == caches + steps * 4 * 100 * CHOICE
    twice = rollout_costs(SHAPE, config, lengths, answers=2 * config.decoding.slots, element=2)
    assert twice["decoding"] == rollout_costs(SHAPE, config, lengths, config.decoding.slots, 2)["decoding"] * 2


def test_calls_cost_a_second_reading_of_the_context_and_their_passes(config) -> None:
    lengths = Lengths(prompt=10, target=1, answer=20, calls=2)
    found = rollout_costs(SHAPE, config, lengths, answers=1, element=2)["synthesis"]
    latents = 2 * 16 / 3
    assert found.operations == pytest.approx(2 * WEIGHTS * (30 + latents + 2 * latents))
    passes = 2 * 2
    assert (found.layers, found.replayed) == (0, 2 * passes), "a pass of the synthesizer and one of the policy"
    far = rollout_costs(SHAPE, config, Lengths(prompt=10, target=1, answer=2000, calls=2), answers=1, element=2)
    assert (far["synthesis"].layers, far["synthesis"].replayed) == (passes, passes), "long passes are not recorded"


@pytest.mark.parametrize("slots", [1, 8, 64])
def test_the_calls_of_a_step_share_a_pass(config, slots: int) -> None:
    lengths, config = Lengths(10, 1, 100, 5), changed(config, {"decoding.slots": slots})
    assert roofline.together(config, slots, lengths) == pytest.approx(1 + (slots - 1) * 5 / 100)


def test_a_step_of_stage_1_reads_every_trace_of_its_batch(config) -> None:
    config = changed(config, {"stage1.gradient_checkpointing": False, "stage1.micro_batch_size": 4})
    lengths = Lengths(prompt=100, target=200, answer=1, calls=0)
    found = stage1_costs(SHAPE, config, lengths, 2)
    latents = 16 / 3
    assert found["log-probabilities"].operations == 2 * 2 * 8 * 200 * 100 * 8
    read = round(100 + 100 + latents)
    assert found["synthesizer"] == roofline.training(SHAPE, Read(4, read, read), 2, config.lora, False) * 2
    more = stage1_costs(SHAPE, changed(config, {"stage1.gradient_checkpointing": True}), lengths, 2)
    assert more["synthesizer"].operations > 1.3 * found["synthesizer"].operations


def test_learning_reads_every_rollout_with_the_policy_and_the_reference(config) -> None:
    lengths = Lengths(prompt=100, target=1, answer=200, calls=0)
    found = learning_costs(SHAPE, config, lengths, 2)
    rollouts, rows = 8 * 8, config.stage2.micro_batch_size
    assert found["reference"] == forward(SHAPE, Read(rows, 300, 300, masked=False), 2) * (rollouts / rows)
    assert found["log-probabilities"].operations == (2 + 1) * 2 * rollouts * 200 * 100 * 8
    alone = learning_costs(SHAPE, changed(config, {"grpo.kl_weight": 0.0}), lengths, 2)
    assert set(alone) == {"policy", "log-probabilities"} and alone["policy"] == found["policy"]
    assert alone["log-probabilities"].operations == 2 * 2 * rollouts * 200 * 100 * 8


def test_memory_and_costs_take_a_micro_batch_of_more_answers_than_a_step_has_prompts() -> None:
    config = load_config("paper", ["stage2.batch_size=4", "grpo.group_size=8", "stage2.micro_batch_size=16"])
    lengths = Lengths(prompt=100, target=1, answer=200, calls=0)
    assert Workload.of(config).replay.rows == 16
    read = Read(16, 300, 300, masked=False)
    assert learning_costs(SHAPE, config, lengths, 2)["reference"] == forward(SHAPE, read, 2) * 2


def test_a_gpu_replays_the_layers_of_a_decoding_step_and_a_cpu_starts_them() -> None:
    step = Cost(weights=1e9, replayed=10)
    gpu = Device("fast", 8e9, bandwidth=1e12, bfloat16=1e15, float32=1e15, launch=2.0, source="a test")
    assert step.seconds(gpu, "bfloat16") == pytest.approx(1e9 / 1e12 + 10 * REPLAY)
    assert step.seconds(SLOW, "bfloat16") == pytest.approx(1e9 / 100 + 10 * 2.0)
    assert Cost(layers=3, replayed=1).seconds(gpu, "bfloat16") == 6.0, "what is started one by one is waited for"
    assert (step + step).replayed == (step * 2).replayed == 20


# ------------------------------------------------------------------------------------------------- devices


def test_devices_have_names_and_their_figures_are_the_data_sheets() -> None:
    h100 = device_named("h100-80gb")
    assert h100 is KNOWN["H100-80GB"]
    assert (h100.memory, h100.bandwidth, h100.bfloat16) == (80e9, 3350e9 * STREAMING, 989e12 * COMPUTE)
    assert all(device.source and device.queued and device.launch == LAUNCH for device in KNOWN.values())
    assert [device.memory for device in KNOWN.values()] == sorted(device.memory for device in KNOWN.values())


def test_a_device_may_be_three_numbers() -> None:
    given = device_named("96,1792,250")
    assert (given.memory, given.bandwidth, given.rate("bfloat16")) == (96e9, 1792e9 * STREAMING, 250e12 * COMPUTE)


@pytest.mark.parametrize("name", ["H100", "1,2", "1,2,3,4", "0,1,1", "80,-1,3", "nan,1,1", ""])
def test_an_unknown_device_is_refused_with_those_that_are_known(name: str) -> None:
    with pytest.raises(ValueError, match=r"known are RTX-4090, .*'this' measures this machine.*96,1792,250"):
        device_named(name)


def test_this_machine_is_measured() -> None:
    found = this_device("float32")
    assert min(found.memory, found.bandwidth, found.float32, found.launch) > 0
    assert found.queued is torch.cuda.is_available()
    assert "float32" in found.source


# --------------------------------------------------------------------------------------------------- advice


def test_the_advice_is_the_mildest_that_fits() -> None:
    config, device = load_config("qwen3-4b", ["decoding.slots=32"]), KNOWN["RTX-4090"]
    shape = Shape.read(settings_of(config.backbone.id))
    advice = advise(shape, config, "rollout", device)
    assert (advice.verdict, advice.changes) == ("too large", {"decoding.slots": advice.changes["decoding.slots"]})

    def needed(slots: int) -> float:
        one = changed(config, {"decoding.slots": slots})
        return plan.MARGIN * sum(rollout_memory(shape, one, Workload.of(one), 2).values())

    slots = advice.changes["decoding.slots"]
    assert needed(slots) <= device.memory < needed(slots + 1)


def test_what_fits_narrowly_is_tight_and_what_never_fits_has_no_advice() -> None:
    config = load_config("qwen3-4b")
    shape = Shape.read(settings_of(config.backbone.id))
    needed = advise(shape, config, "Stage 1 step", KNOWN["B200"]).needed
    assert advise(shape, config, "Stage 1 step", KNOWN["B200"]) == Advice("fits", needed, {})
    tight = advise(shape, config, "Stage 1 step", replace(SLOW, memory=1.1 * needed, queued=True))
    assert (tight.verdict, tight.changes) == ("tight", {"stage1.micro_batch_size": 1})
    assert advise(shape, config, "Stage 1 step", replace(SLOW, queued=True)) == Advice("too large", needed)


def test_micro_batches_of_tokens_are_counted_at_each_length_and_halved_as_such() -> None:
    tokens = {"stage1.micro_batch_size": None, "stage1.micro_batch_tokens": 4096, "stage1.max_length": 1024}
    config = changed(load_config("paper"), tokens)
    assert config.rows("stage1") == 8
    assert Workload.of(config).synthesis.rows == 4
    assert roofline.micro_batches(config.stage1, 8, 600) == (2, 6)
    assert roofline.micro_batches(config.stage1, 8, 100) == (1, 8)
    assert roofline.micro_batches(config.stage1, 8, 10_000) == (8, 1), "a row is never cut"
    found = [one["stage1.micro_batch_tokens"] for one in smaller(config, "Stage 1 step") if len(one) == 2]
    assert found == [2048, 1024, 512]
    automatic = changed(config, {"stage1.micro_batch_tokens": "auto"})
    assert Workload.of(automatic).synthesis.rows == 1, "what a device must have room for at least"


def test_memory_is_saved_in_steps_from_what_costs_least() -> None:
    config = load_config("paper", ["stage2.batch_size=2", "grpo.group_size=2", "stage2.micro_batch_size=2"])
    steps = list(smaller(config, "Stage 2 step"))
    assert steps[0] == {"stage2.gradient_checkpointing": True}
    assert steps[1] == {"stage2.gradient_checkpointing": True, "stage2.micro_batch_size": 1}
    assert steps[-1] == {**steps[1], "stage2.max_new_tokens": 256}
    assert [one["decoding.slots"] for one in smaller(config, "rollout")] == list(range(15, 0, -1))
    whole = changed(config, {"stage2.micro_batch_size": None, "stage2.gradient_checkpointing": True})
    assert next(smaller(whole, "Stage 2 step")) == {"stage2.micro_batch_size": 2}, "half of its 4 answers"
    assert all(key in str(steps) for key in ("2048", "1024", "512")) is False, "2,048 is where it starts"


# ------------------------------------------------------------------------------------------------- the command


def test_lengths_stay_within_what_the_config_allows(config) -> None:
    assert lengths_for(config, 128, 600, 600) == Lengths(128, 600, 600, 5)
    longest = lengths_for(config, 128, 10**6, 10**6)
    assert (longest.target, longest.answer) == (4096 - 128 - math.ceil(16 / 3), 2048)
    assert lengths_for(config, 1, 1, 3).calls == 2
    with pytest.raises(ValueError, match=r"leave no room in stage1\.max_length=4096"):
        lengths_for(config, 4096, 1, 1)


def test_a_stages_time_is_its_steps_times_one(config) -> None:
    lengths = lengths_for(config, 128, 600, 600)
    found = times_on(SHAPE, config, lengths, SLOW, None)
    assert (found.stage1_steps, found.stage2_steps) == (24, 12)
    assert found.stage1_total == pytest.approx(24 * sum(found.stage1.values()))
    assert found.stage2_total == pytest.approx(
        found.start + 12 * (sum(found.rollout.values()) + sum(found.learning.values()))
    )
    twice = times_on(SHAPE, changed(config, {"grpo.updates_per_rollout": 2}), lengths, SLOW, examples=192)
    assert sum(twice.learning.values()) == pytest.approx(2 * sum(found.learning.values()))
    assert twice.stage1_steps == 48


def test_the_length_of_an_epoch_must_be_known() -> None:
    config = load_config("paper", ["data.count=null", "stage1.steps=5"])
    with pytest.raises(ValueError, match=r"give --examples, or stage2\.steps"):
        times_on(SHAPE, config, Lengths(1, 1, 1, 0), SLOW, None)


def test_the_command_makes_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    monkeypatch.setattr(plan, "run", lambda config, **settings: calls.append((config, settings)))
    arguments = [
        "plan",
        "qwen3-4b",
        "--hardware",
        "H200",
        "--hardware",
        "1,2,3",
        "--examples",
        "9",
        "--decoding.slots",
        "2",
    ]
    assert main.main(arguments) == 0
    ((config, settings),) = calls
    assert (config.backbone.id, config.decoding.slots) == ("Qwen/Qwen3-4B", 2)
    assert settings == {"devices": ("H200", "1,2,3"), "prompt": 128, "target": 600, "answer": 600, "examples": 9}


def test_the_help_and_the_page_name_every_device(root: Path) -> None:
    page = (root / "docs" / "plan.md").read_text()
    for device in KNOWN.values():
        assert device.name in (main.plan.__doc__ or "")
        assert f"| {device.name} | {device.memory / 1e9:.0f} | " in page


def test_a_plan_shows_parts_times_and_what_to_change(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert main.main(["plan", "qwen3-4b"]) == 0
    shown = capsys.readouterr().out
    for part in (*KNOWN, "4,022,468,096", "policy's KV", "synthesizer's KV", "optimizer", "3,750 steps", "in all"):
        assert part in shown
    assert main.main(["plan", "mini", "--hardware", "this", "--prompt", "20", "--trace", "60", "--answer", "60"]) == 0
    shown = capsys.readouterr().out
    assert all(part in shown for part in ("measured in float32", "log-probabilities", "start of psi", "250 steps"))


@pytest.mark.parametrize("config", ["mini", "qwen3-4b"])
def test_on_eighty_columns_no_option_is_cut_and_no_heading_has_three_lines(
    config: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main.main(["plan", config]) == 0
    lines = capsys.readouterr().out.splitlines()
    switched = str(config == "mini").lower()
    for stage in (1, 2):
        said = [line for line in lines if line.endswith(f" with --stage{stage}.gradient_checkpointing {switched}")]
        assert said and all(line.startswith(f"Stage {stage} step: ") for line in said)
    assert not any("…" in line for line in lines)
    starts, ends = ([at for at, line in enumerate(lines) if line.startswith(mark)] for mark in "┏┡")
    assert all(end - start <= 3 for start, end in zip(starts, ends, strict=True))


@pytest.mark.parametrize("arguments", [["--prompt", "0"], ["--answer", "-1"], ["--examples", "0"], ["--trace", "0"]])
def test_a_length_below_1_is_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["plan", "mini", *arguments]) == 2
    assert f"{arguments[0]} {arguments[1]}: at least 1 is needed" in capsys.readouterr().err


def test_a_plan_of_4_billion_parameters_takes_less_than_two_seconds_and_no_torch() -> None:
    code = "import sys; from tyler.cli.main import main; main(['plan', 'qwen3-4b']); print('torch' in sys.modules)"
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.stdout.endswith("False\n")
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 2


def test_durations_are_in_units_people_read() -> None:
    shown = [duration(seconds) for seconds in (0.0312, 1.5, 119, 120, 7200, 200_000)]
    assert shown == ["31 ms", "1.5 s", "119.0 s", "2.0 min", "2.0 h", "2.3 d"]
