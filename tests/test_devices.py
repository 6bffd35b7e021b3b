"""What the oracles hold on a CPU holds on every other device there is, and on a stand-in where there is no Apple GPU.

Every comparison is with the CPU's transcription: of the engine, of Stage 1's context, of Stage 2's sums.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
import test_stage2 as stage2
import test_teacher_forcing as stage1
import torch
from test_replay import largest_gap, replay
from tests import tiny
from tests.asking import CASES, TOLERANCE, differences, expected, run
from tests.devices import OnStandIn, ready

from tyler import Tyler
from tyler.cli.main import main
from tyler.config.files import load_config
from tyler.config.sections import DevicesConfig
from tyler.engine.sampling import Sampling
from tyler.modeling.backbone import Backbone, best_device, resolve_device, resolve_dtype
from tyler.reasoners.memgen.weaver import decide
from tyler.training import verdicts
from tyler.training.distributed import joined

FEW = ("greedy", "sampled, budget 3", "top-k and top-p", "boundaries, long waits")


@pytest.fixture(params=["cuda", "mps", "stand-in"])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    with ready(request.param, monkeypatch) as name:
        yield name


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    with ready("stand-in", monkeypatch) as name:
        yield name


def test_the_engine_decides_there_what_the_transcription_decides_on_a_cpu(device: str) -> None:
    model = tiny.tyler("qwen3", device)
    assert {parameter.device.type for parameter in model.policy.parameters()} == {device}
    trajectories = run(model, [CASES[case] for case in FEW], slots=3)
    for case, trajectory in zip(FEW, trajectories, strict=True):
        assert not differences(trajectory, expected("qwen3", case)), case


def test_replayed_log_probabilities_are_the_sampled_ones_there(device: str) -> None:
    model = tiny.tyler("qwen3", device)
    cases = [case for case in CASES.values() if case.sampling == Sampling(1.0, seed=case.sampling.seed)]
    trajectories = run(model, cases)
    assert replay(model, trajectories)[0].device.type == device
    assert sum(answer.num_invocations for answer in trajectories) > 2
    assert largest_gap(model, trajectories) < TOLERANCE


def test_stage_1_has_there_the_log_probabilities_and_gradients_of_full_passes(device: str) -> None:
    model, on_cpu = tiny.tyler("qwen3", device), tiny.tyler("qwen3")
    logprobs, mask = stage1.logprobs_of(model, stage1.RAGGED)
    slow = [stage1.full_logprobs(on_cpu, row) for row in stage1.RAGGED]
    for row, of_pass in enumerate(slow):
        torch.testing.assert_close(logprobs[row][mask[row]].cpu(), of_pass, atol=TOLERANCE, rtol=0)
    gradients = stage1.gradients(model, sum(logprobs[row][mask[row]].sum() for row in range(len(slow))))
    for name, gradient in stage1.gradients(on_cpu, sum(logprob.sum() for logprob in slow)).items():
        error = (gradients[name].cpu() - gradient).norm() / gradient.norm()
        assert error < 1e-3, f"the gradient of {name} is off by {error:.1e} of its norm"


def test_stage_2_has_there_the_loss_and_gradients_of_the_papers_sums(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verdicts, "grade", stage2.verdict)
    model, rollout, reference_psi = stage2.moved_policy(device=device)
    terms, gradients = stage2.learned(model, rollout, reference_psi, stage2.CONFIG)
    on_cpu, _, reference_on_cpu = stage2.moved_policy()
    for trajectory in rollout.trajectories:
        trajectory.latents = [latents.cpu() for latents in trajectory.latents]
    loss = stage2.slow_loss(on_cpu, reference_on_cpu, rollout, stage2.CONFIG)
    named = stage2.trainable(on_cpu)
    assert terms["loss"] == pytest.approx(float(loss), abs=TOLERANCE)
    for name, gradient in zip(named, torch.autograd.grad(loss, list(named.values())), strict=True):
        error = (gradients[name].cpu() - gradient).norm() / gradient.norm()
        assert error < 5e-3, f"the gradient of {name} is off by {error:.1e} of its norm"


def test_a_trigger_decides_there_what_it_decides_on_a_cpu(device: str) -> None:
    logits = torch.tensor([0.3, 0.1])
    for temperature in (0.0, 0.7):
        there, here = (decide(row, temperature, Sampling(seed=1).stream(0)) for row in (logits.to(device), logits))
        assert there == pytest.approx(here)


# ---------------------------------------------------------------------------------------- what it cannot do


def test_the_stand_in_refuses_what_an_apple_gpu_refuses(stand_in: str) -> None:
    there = torch.ones(3, device=stand_in)
    assert isinstance(there, OnStandIn) and there.device.type == "mps" and there.cpu().device.type == "cpu"
    with pytest.raises(TypeError, match="float64"):
        there.double()
    with pytest.raises(RuntimeError, match="two devices"):
        there + torch.ones(3)
    with pytest.raises(RuntimeError, match="two devices"):
        there[torch.tensor([0])] = torch.ones(1)


def test_an_apple_gpu_is_taken_where_it_is_named_and_only_there(stand_in: str) -> None:
    assert resolve_device("mps").type == "mps"
    assert best_device().type != "mps"
    assert resolve_dtype("auto", torch.device("mps")) == torch.float32
    with pytest.raises(ValueError, match=r"dtype 'float64' was asked for, and an Apple GPU has none; use 'float32'"):
        resolve_dtype("float64", torch.device("mps"))


@pytest.mark.parametrize(
    "command",
    [
        "solve mini-tyler x --device mps",
        "chat mini-tyler --device mps",
        "eval mini-tyler --count 1 --device mps",
        "stage1 mini --output run --data.count 2 --devices.device mps",
        "train softcot mini --output run --data.count 2 --devices.device mps",
    ],
)
def test_every_command_takes_the_device_and_says_where_there_is_none(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    assert main(command.split()) == 2
    assert "device 'mps' was asked for, and torch finds no Apple GPU here" in capsys.readouterr().err


ONE_STEP = "--{0}.steps 1 --{0}.batch_size 1 --{0}.eval_every null"
SAMPLED = ONE_STEP + " --{0}.max_new_tokens 16"
STAGES = {
    "stage1": ("", "stage1", ONE_STEP),
    "stage2": ("stage1", "stage2", SAMPLED + " --{0}.calibration.num_problems 2"),
    "sft": ("", "sft", ONE_STEP),
}
METHODS = {
    "grpo": ("", "stage2", SAMPLED),
    "memgen": ("", "memgen.weaver", ONE_STEP),
    "memgen-weaver-grpo": ("memgen", "memgen.weaver_grpo", SAMPLED),
    "memgen-trigger": ("memgen", "memgen.trigger", SAMPLED),
    "softcot": ("", "softcot", ONE_STEP),
}
DATA = "--data.count 4 --data.development null --data.held_out [] --grpo.group_size 2"


@pytest.mark.parametrize(("dtype", "methods"), [("float32", STAGES | METHODS), ("float16", STAGES)])
def test_every_method_trains_there_and_answers(
    dtype: str, methods: dict[str, tuple[str, str, str]], device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for method, (start, section, settings) in methods.items():
        where = f"--devices.device {device} --backbone.dtype {dtype} --output {method} {start and f'--start {start}'}"
        given = f"{where} {DATA} {settings.format(section)}"
        assert main(["train", method, "mini", *given.split()]) == 0, method
    options = f"--count 2 --max-new-tokens 12 --device {device} --dtype {dtype} --output"
    for method in methods.keys() - {"stage1", "memgen"}:
        assert main(["eval", method, *options.split(), f"asked-{method}"]) == 0, method
    for method in ("soft-thinking", "swireasoning"):
        assert main(["eval", "mini", "--method", method, *options.split(), f"asked-{method}"]) == 0, method


def test_blocks_are_read_and_replaced_there(device: str) -> None:
    assert main(["lens", "mini-tyler", "--count", "3", "--device", device, "--max-new-tokens", "40"]) == 0


def test_one_device_is_not_named_for_several_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match=r"devices.device='cpu' names one device, and 2 processes were started"):
        with joined(DevicesConfig(device="cpu")):
            pytest.fail("they joined")


def test_another_device_is_refused_by_its_key() -> None:
    with pytest.raises(ValueError, match=r"devices\.device"):
        load_config("mini", ["devices.device=tpu"])


def test_a_model_is_loaded_there(stand_in: str) -> None:
    model = Tyler.from_pretrained("mini-tyler", device="mps")
    assert model.backbone.device.type == "mps"
    problem = "What is $3 + 4$?"
    there, here = (tyler.solve(problem, max_new_tokens=12) for tyler in (model, Tyler.from_pretrained("mini-tyler")))
    assert (there.actions, there.text) == (here.actions, here.text)
    assert isinstance(model.backbone, Backbone)
