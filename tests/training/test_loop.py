"""What both loops share: the schedule, the data position, the optimizer, and the state of a run that is resumed."""

import json
import math
import os
import signal
from collections import Counter
from contextlib import closing
from operator import gt
from pathlib import Path

import pytest
import torch
from torch import nn

from tyler.config.files import parse_config
from tyler.config.loops import OptimizationConfig, Stage1Config
from tyler.runs.checkpoints import RunError, best_checkpoint, whole_checkpoints
from tyler.runs.run import Run
from tyler.runs.signals import Interrupted
from tyler.training.command import opened_run
from tyler.training.loop import batch_at, training_steps
from tyler.training.optimizer import Optimization, learning_rate_factor, load_state, save_state, state_bytes

CONFIG = "stage1:\n  steps: 4\n"


# ---------------------------------------------------------------------------------------- the schedule


def test_the_rate_warms_up_in_a_line_and_falls_in_a_cosine_or_stays() -> None:
    factors = [learning_rate_factor("cosine", step, warmup_steps=4, total_steps=12) for step in range(12)]
    assert factors[:5] == [0.25, 0.5, 0.75, 1.0, 1.0]
    assert factors[8] == pytest.approx(0.5)
    assert factors[10] == pytest.approx(0.5 * (1 + math.cos(0.75 * math.pi)))
    assert factors[4:] == sorted(factors[4:], reverse=True)
    assert 0 < factors[-1] < 0.05
    assert [learning_rate_factor("constant", step, 2, 6) for step in range(6)] == [0.5, 1.0, 1.0, 1.0, 1.0, 1.0]
    assert learning_rate_factor("cosine", 0, 0, 10) == learning_rate_factor("cosine", 0, 1, 1) == 1.0


def test_an_optimizer_step_is_adamw_on_clipped_gradients_with_a_rate_for_each_group() -> None:
    draw = torch.Generator().manual_seed(0)
    start = [torch.randn(3, generator=draw), torch.randn(2, generator=draw)]
    ours, theirs = ([nn.Parameter(tensor.clone()) for tensor in start] for _ in range(2))
    config = Stage1Config(learning_rate=0.1, weight_decay=0.01, max_grad_norm=0.5, warmup_ratio=0.3)
    optimization = Optimization.of(config, [(ours[:1], 0.1), (ours[1:], 0.02)], total_steps=5)
    adamw = torch.optim.AdamW(
        [{"params": theirs[:1], "lr": 0.1}, {"params": theirs[1:], "lr": 0.02}], weight_decay=0.01
    )
    for step, factor in enumerate([1 / 2, 1.0, 1.0, 0.75, 0.25]):
        gradients = [torch.randn(tensor.shape, generator=draw) for tensor in start]
        norm = torch.cat(gradients).norm()
        assert norm > 0.5, "the clip must bind"
        for parameter, gradient in zip(ours, gradients, strict=True):
            parameter.grad = gradient.clone()
        for parameter, gradient in zip(theirs, gradients, strict=True):
            parameter.grad = gradient * 0.5 / norm
        reported_norm, rate = optimization.step(step)
        assert reported_norm == pytest.approx(float(norm))
        assert rate == pytest.approx(0.1 * factor)
        adamw.param_groups[0]["lr"], adamw.param_groups[1]["lr"] = 0.1 * factor, 0.02 * factor
        adamw.step()
        assert all(parameter.grad is None for parameter in ours)
        for one, other in zip(ours, theirs, strict=True):
            torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-5)


# -------------------------------------------------------------------------------------------- the data


@pytest.mark.parametrize("num_examples, batch_size", [(10, 4), (3, 8), (8, 8)])
def test_every_epoch_visits_every_example_once(num_examples: int, batch_size: int) -> None:
    seen = [pair for step in range(30) for pair in batch_at(step, batch_size, num_examples, seed=1)]
    assert all(len(batch_at(step, batch_size, num_examples, seed=1)) == batch_size for step in range(3))
    for epoch in range(len(seen) // num_examples):
        visit = seen[epoch * num_examples : (epoch + 1) * num_examples]
        assert sorted(visit) == [(epoch, index) for index in range(num_examples)]


def test_the_batch_of_a_step_follows_from_the_seed_and_the_step_alone() -> None:
    forwards = [batch_at(step, 4, 50, seed=7) for step in range(20)]
    backwards = [batch_at(step, 4, 50, seed=7) for step in reversed(range(20))][::-1]
    assert forwards == backwards
    assert forwards != [batch_at(step, 4, 50, seed=8) for step in range(20)]
    orders = [[index for _, index in batch_at(epoch, 50, 50, seed=7)] for epoch in range(2)]
    assert orders[0] != orders[1], "epochs have orders of their own"


# ------------------------------------------------------------------------------------------- the state


def accumulate_gradients(parameters: list[nn.Parameter], optimization: Optimization, first: int, last: int) -> None:
    for step in range(first, last):
        for parameter in parameters:
            parameter.grad = parameter.detach() * torch.rand(parameter.shape)
        optimization.step(step)


def make(seed: int) -> tuple[list[nn.Parameter], Optimization]:
    draw = torch.Generator().manual_seed(seed)
    parameters = [nn.Parameter(torch.randn(4, 3, generator=draw)), nn.Parameter(torch.randn(2, generator=draw))]
    config = Stage1Config(weight_decay=0.1, max_skipped=0)
    return parameters, Optimization.of(config, [(parameters[:1], 0.05), (parameters[1:], 0.01)], total_steps=10)


def test_a_saved_state_goes_on_bit_by_bit_weights_moments_and_random_numbers(tmp_path: Path) -> None:
    torch.manual_seed(5)
    whole, optimization = make(seed=0)
    extra = torch.arange(3.0)
    accumulate_gradients(whole, optimization, 0, 4)
    save_state(tmp_path, [*whole, extra], optimization, steps_done=4)
    assert {path.suffix for path in tmp_path.iterdir()} == {".safetensors", ".json"}, "nothing that is unpickled"
    accumulate_gradients(whole, optimization, 4, 10)
    torch.manual_seed(99)
    resumed, optimization = make(seed=1)
    put_back = torch.zeros(3)
    assert load_state(tmp_path, [*resumed, put_back], optimization) == 4
    assert torch.equal(put_back, extra)
    accumulate_gradients(resumed, optimization, 4, 10)
    for one, other in zip(whole, resumed, strict=True):
        assert torch.equal(one, other)


def test_a_state_of_other_tensors_is_refused_and_none_is_stretched_over_the_weights(tmp_path: Path) -> None:
    parameters, optimization = make(seed=0)
    save_state(tmp_path, [parameters[0][:1], parameters[1]], optimization, steps_done=0)
    with pytest.raises(ValueError, match="holds 2 trained tensors of other shapes than the 3 of this run"):
        load_state(tmp_path, [*parameters, torch.zeros(1)], optimization)
    with pytest.raises(ValueError, match="holds 2 trained tensors of other shapes than the 2 of this run"):
        load_state(tmp_path, parameters, optimization)


@pytest.mark.parametrize("file", ["state.safetensors", "state.json"])
def test_a_state_that_was_cut_short_is_named(tmp_path: Path, file: str) -> None:
    folder = tmp_path / "checkpoints" / "step-3"
    folder.mkdir(parents=True)
    parameters, optimization = make(seed=0)
    save_state(folder, parameters, optimization, steps_done=3)
    (folder / file).write_bytes((folder / file).read_bytes()[:11])
    with pytest.raises(
        RunError, match=r"step-3 is damaged \(.*\); restore it, or move .* and the run starts from the beginning"
    ):
        load_state(folder, parameters, optimization)


# -------------------------------------------------------------------------------------------- the loop


def test_the_steps_of_a_loop_save_when_due_and_at_the_end(tmp_path: Path) -> None:
    written: list[tuple[str, int]] = []

    def write(steps_done: int, folder: Path) -> None:
        written.append((folder.name.split(".")[1], steps_done))

    with Run.create(tmp_path, CONFIG) as run:
        for step in training_steps("test", run, 7, 2, 2, write):
            step.log({"loss": 1.0}, "note")
    assert written == [("step-4", 4), ("step-6", 6), ("step-7", 7)]
    assert [line.split(",")[0] for line in (tmp_path / "metrics.jsonl").read_text().splitlines()] == [
        f'{{"step": {number}' for number in (3, 4, 5, 6, 7)
    ]


def test_a_loop_that_fails_leaves_the_signals_as_they_were(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGTERM)
    with Run.create(tmp_path, CONFIG) as run:
        with pytest.raises(RuntimeError, match="boom") as error:
            fail_in_the_loop(run)
        assert error.tb is not None, "which holds the loop's variables"
        assert signal.getsignal(signal.SIGTERM) is before
        assert whole_checkpoints(run.path) == []


def fail_in_the_loop(run: Run) -> None:
    steps = training_steps("test", run, 3, 0, 1, lambda steps_done, folder: None)
    with closing(steps):
        for _ in steps:
            raise RuntimeError("boom")


@pytest.mark.parametrize("total, way_on", [(9, "resume with --resume --output {}"), (2, "{} is complete$")])
def test_an_interrupted_loop_saves_and_says_how_to_go_on_the_last_step_too(
    total: int, way_on: str, tmp_path: Path
) -> None:
    def write(steps_done: int, folder: Path) -> None:
        (folder / "done").write_text(str(steps_done))

    with Run.create(tmp_path, CONFIG) as run:
        with pytest.raises(Interrupted, match=f"stopped after step 2 of {total}; {way_on.format(tmp_path)}") as stopped:
            for step in training_steps("test", run, total, 0, None, write):
                if step.number == 1:
                    os.kill(os.getpid(), signal.SIGINT)
        (checkpoint,) = whole_checkpoints(run.path)
    assert stopped.value.resumes == (total > 2)
    assert checkpoint.name == "step-2" and (checkpoint / "done").read_text() == "2"


def test_a_step_judged_the_best_is_saved_although_it_is_not_due(tmp_path: Path) -> None:
    accuracies = {2: 0.5, 4: 0.5, 6: 0.7}
    with Run.create(tmp_path, CONFIG) as run:
        for step in training_steps("test", run, 7, 0, 5, lambda steps_done, folder: None):
            if step.is_due(2):
                run.record_best(step.number + 1, "accuracy", accuracies[step.number + 1], gt)
        assert [path.name for path in whole_checkpoints(run.path)] == ["step-6", "step-7"]
        best = best_checkpoint(tmp_path)
    assert best is not None and best.name == "step-6"


def test_a_state_takes_the_space_that_was_foretold(tmp_path: Path) -> None:
    parameters = [nn.Parameter(torch.randn(300, 100)), nn.Parameter(torch.randn(50))]
    optimization = Optimization.of(Stage1Config(), [(parameters, 0.1)], total_steps=10)
    accumulate_gradients(parameters, optimization, 0, 1)
    save_state(tmp_path, parameters, optimization, steps_done=1)
    found = sum(path.stat().st_size for path in tmp_path.iterdir())
    assert state_bytes(parameters) <= found < 1.1 * state_bytes(parameters)


@pytest.mark.parametrize("loss, gradient", [(math.nan, 1.0), (math.inf, 1.0), (1.0, math.nan), (1.0, math.inf)])
def test_an_update_that_is_not_finite_is_skipped_and_counted_up_to_a_limit_in_a_row(
    loss: float, gradient: float
) -> None:
    parameter = nn.Parameter(torch.ones(2))
    config = Stage1Config(max_skipped=2, warmup_ratio=0)
    optimization = Optimization.of(config, [([parameter], 0.1)], total_steps=9)

    def update(step: int, loss: float, gradient: float) -> None:
        parameter.grad = torch.full((2,), gradient)
        optimization.step(step, ["first", "second"], loss)

    for step in (0, 1, 3, 4):
        update(step, loss, gradient)
        assert torch.equal(parameter, torch.ones(2)) == (step < 2) and parameter.grad is None
        if step == 1:
            update(2, 1.0, 1.0)
    assert (optimization.skipped, optimization.in_a_row) == (4, 2)
    with pytest.raises(FloatingPointError, match=r"at update 6; the batch was first, second\. .*\(3 in a row\)"):
        update(5, loss, gradient)


def test_gradients_of_float16_are_scaled_and_the_scale_falls_until_they_are_finite(tmp_path: Path) -> None:
    weight, theirs = nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(1))
    config = Stage1Config(warmup_ratio=0)
    scaled = Optimization.of(config, [([weight], 0.1)], 9, torch.amp.GradScaler("cpu", init_scale=2.0**20))
    plain = Optimization.of(config, [([theirs], 0.1)], 9)
    for step in range(8):
        scaled.backward((weight.half() * torch.tensor([3.0]).half()).sum().float())
        scaled.step(step)
    assert scaled.skipped == 6, "2**15 times 3 is beyond float16"
    for step in range(6, 8):
        plain.backward((theirs * 3.0).sum())
        plain.step(step)
    torch.testing.assert_close(weight, theirs, atol=1e-3, rtol=0)
    save_state(tmp_path, [weight], scaled, steps_done=8)
    again = Optimization.of(config, [([weight], 0.1)], 9, torch.amp.GradScaler("cpu"))
    load_state(tmp_path, [weight], again)
    assert (again.scaler.get_scale(), again.skipped) == (scaled.scaler.get_scale(), 6)


@pytest.mark.parametrize("epochs, batch, examples", [(2.0, 4, 10), (1.0, 8, 3), (1.5, 4, 9), (3.0, 5, 5)])
def test_the_steps_of_epochs_read_every_example_at_least_that_often(epochs: float, batch: int, examples: int) -> None:
    """Batches are full and go on into the next epoch: rounding up reads a few examples once more, and skips none."""
    config = OptimizationConfig(epochs=epochs, batch_size=batch)
    steps = config.num_steps(examples)
    read = [pair for step in range(steps) for pair in batch_at(step, batch, examples, 0)]
    assert len(read) == steps * batch and len(set(read)) == len(read)
    seen = Counter(index for _, index in read)
    assert min(seen[index] for index in range(examples)) >= int(epochs)
    assert len(read) < (epochs * examples + epochs * batch) + batch


def test_a_run_notes_what_its_training_problems_were_compared_with(tmp_path: Path) -> None:
    row = {"problem": "Two", "solution": "\\boxed{2}", "answer": "2"}
    (tmp_path / "held.jsonl").write_text(json.dumps(row) + "\n")
    held_out = [
        {"task": "jsonl", "path": str(tmp_path / "held.jsonl")},
        {"task": "jsonl", "split": "other", "path": str(tmp_path / "lost.jsonl"), "optional": True},
    ]
    config = parse_config(json.dumps({"data": {"held_out": held_out}}))
    for resume in (False, True):
        with opened_run(config, tmp_path / "run", resume=resume, origin={}):
            pass
    starts = json.loads((tmp_path / "run" / "environment.json").read_text())
    assert len(starts) == 2
    for start in starts:
        assert (start["held_out"][f"jsonl, {tmp_path / 'held.jsonl'}"], start["held_out"]["mini eval"]) == (1, 600)
        assert "lost.jsonl' is not a file" in start["held_out"][f"jsonl other, {tmp_path / 'lost.jsonl'}"]
        assert start["python"]
