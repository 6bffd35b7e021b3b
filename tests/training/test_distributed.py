"""Several processes train as one: the same weights, logs and checkpoints, and none waits for ever for another."""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import test_stage1
import test_stage2
import torch
from accelerate import PartialState
from safetensors.torch import load_file
from torch import Tensor, nn

import tiny
from documents import commands, steps
from processes import together
from tyler.cli.main import main
from tyler.config.loops import InsertionsConfig, Stage1Config, Stage2Config
from tyler.config.schema import Config
from tyler.config.sections import DevicesConfig
from tyler.engine.request import Request
from tyler.engine.shared_engine import WeightWatch
from tyler.engine.trajectory import Trajectory
from tyler.modeling.additions import of_policy, of_synthesizer
from tyler.runs.json_lines import read_jsonl
from tyler.tasks.problem import Verdict
from tyler.tasks.sandbox.sandbox import SandboxError
from tyler.training import distributed, stage1, stage2, verdicts
from tyler.training.command import opened_run
from tyler.training.distributed import joined
from tyler.training.loop import Step
from tyler.training.optimizer import Optimization
from tyler.training.rollouts import NativeRollouts
from tyler.training.sharding import shard

pytestmark = pytest.mark.usefixtures("one_thread")

QUICK = DevicesConfig(timeout=0.5)
"""Half a minute: a test that goes wrong ends."""

CPU = torch.device("cpu")

STAGE1 = Config(
    operators=tiny.OPERATORS,
    stage1=Stage1Config(
        steps=4,
        batch_size=5,
        micro_batch_size=2,
        learning_rate=0.01,
        weight_decay=0.01,
        checkpoint_every=2,
        eval_every=2,
        insertions=InsertionsConfig(min=1, max=2),
    ),
    devices=QUICK,
)
STAGE2 = test_stage2.with_settings(
    test_stage2.CONFIG.model_copy(update={"devices": QUICK}), batch_size=3, micro_batch_size=4, eval_every=2
)
TOLERANCE = {"atol": 2e-5, "rtol": 1e-4}
"""Of weights that moved by about 0.03: sums are taken in another order, and Adam divides by the gradient's size."""


# ---------------------------------------------------------------------------------------------- the two stages


def train_stage1(path: Path, config: Config, resume: bool = False, dropout: float = 0.0) -> dict[str, Tensor]:
    """Stage 1 on the tiny model; the weights it ends with."""
    with joined(config.devices):
        model = test_stage1.fresh(dropout)
        torch.manual_seed(11)
        traces = test_stage1.traces_for(model)
        with opened_run(config, path, resume=resume) as run:
            stage1.Stage1Trainer(model, traces, config.stage1, traces[:2]).train(run)
    return {name: one.detach().numpy() for name, one in model.synthesizer.named_parameters() if one.requires_grad}


def train_stage2(path: Path, config: Config, resume: bool = False) -> dict[str, Tensor]:
    """Stage 2 on the tiny model, with a verifier that it satisfies now and then; the weights it ends with."""
    verdicts.grade = test_stage2.verdict
    with joined(config.devices):
        model = test_stage2.fresh()
        with opened_run(config, path, resume=resume) as run:
            stage2.Stage2Trainer(model, test_stage2.PROBLEMS, test_stage2.PROBLEMS[:3], config).train(run)
    return {name: one.detach().numpy() for name, one in model.policy.named_parameters() if one.requires_grad}


def assert_close(found: Any, expected: Any) -> None:
    assert isinstance(found, dict), found
    assert found.keys() == expected.keys()
    for name in expected:
        torch.testing.assert_close(torch.tensor(found[name]), torch.tensor(expected[name]), **TOLERANCE, msg=name)


def assert_same_log(path: Path, other: Path) -> None:
    """The same metrics but for times and speed."""
    for one, two in zip(read_jsonl(path / "metrics.jsonl"), read_jsonl(other / "metrics.jsonl"), strict=True):
        assert one.keys() == two.keys()
        for name in (name for name in one if "second" not in name):
            rounding = 5e-5 if name == "stage2/replay_gap" else 1e-5  # the gap is nothing but rounding
            assert one[name] == pytest.approx(two[name], rel=1e-3, abs=rounding, nan_ok=True), name


@pytest.fixture(scope="module")
def stage1_alone(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Tensor]]:
    path = tmp_path_factory.mktemp("stage1")
    return path / "run", train_stage1(path / "run", STAGE1)


@pytest.fixture(scope="module")
def stage2_alone(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Tensor]]:
    path = tmp_path_factory.mktemp("stage2")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(verdicts, "grade", test_stage2.verdict)
        return path / "run", train_stage2(path / "run", STAGE2)


@pytest.mark.parametrize("world", [2, 3])
def test_stage_1_ends_in_the_weights_of_one_process_whatever_the_shares(
    world: int, stage1_alone: Any, tmp_path: Path
) -> None:
    whole, expected = stage1_alone
    results = together(world, train_stage1, tmp_path / "run", STAGE1)
    for found in results:
        assert_close(found, expected)
        assert all((found[name] == results[0][name]).all() for name in expected), "to the bit among themselves"
    assert_same_log(tmp_path / "run", whole)
    kept = {path.name for path in (tmp_path / "run" / "checkpoints").iterdir()}
    assert kept == {path.name for path in (whole / "checkpoints").iterdir()}


def test_stage_2_ends_in_the_weights_of_one_process(stage2_alone: Any, tmp_path: Path) -> None:
    whole, expected = stage2_alone
    results = together(2, train_stage2, tmp_path / "run", STAGE2)
    for found in results:
        assert_close(found, expected)
    assert_same_log(tmp_path / "run", whole)
    trails = [read_jsonl(path / "trajectories.jsonl.gz") for path in (tmp_path / "run", whole)]
    assert len(trails[0]) == 4 * 3 * 3
    assert trails[0] == trails[1], "every trajectory, in the order of the batch"


@pytest.mark.parametrize("stage", ["stage 1", "stage 2"])
def test_a_resumed_run_of_two_processes_ends_in_the_bits_of_an_uninterrupted_one(stage: str, tmp_path: Path) -> None:
    train, config = (train_stage1, STAGE1) if stage == "stage 1" else (train_stage2, STAGE2)
    more = {"dropout": 0.3} if stage == "stage 1" else {}
    whole = together(2, partial(train, tmp_path / "whole", config, **more))[0]
    stopped = together(2, stopping, partial(train, tmp_path / "cut", config, **more))
    assert all("Interrupted: stopped after step 3 of 4" in text for text in stopped), stopped
    resumed = together(2, partial(train, tmp_path / "cut", config, True, **more))
    for found in resumed:
        assert isinstance(found, dict), found
        assert all((found[name] == whole[name]).all() for name in whole)
    files = [tmp_path / run / "checkpoints" / "step-4" / "state.safetensors" for run in ("whole", "cut")]
    assert files[0].read_bytes() == files[1].read_bytes()


def stopping(train: Callable[[], Any]) -> Any:
    """Train, and let the second process alone be asked to stop after step 3."""
    if os.environ["RANK"] == "1":
        is_due = Step.is_due
        asked = []

        def ask(self: Any, every: int | None) -> bool:
            if self.number == 2 and not asked:
                asked.append(os.kill(os.getpid(), 15))
            return is_due(self, every)

        Step.is_due = ask
    return train()


def test_every_process_drops_its_own(tmp_path: Path) -> None:
    draws = together(3, drawn)
    assert len({tuple(draw) for draw in draws}) == 3
    assert draws[0] == drawn(), "the first goes on as a single process does"
    assert draws == together(3, drawn)


def drawn() -> list[float]:
    with joined(QUICK):
        torch.manual_seed(5)
        distributed.seed_rank_rng(torch.initial_seed(), step=2)
        return torch.rand(3).tolist()


# ------------------------------------------------------------------------------------------ sharded layers


def sharded_gradients(recompute: bool) -> list[Any]:
    """Loss, gradients and the shapes of a layer's matrices, of Stage 1 over shards."""
    with joined(QUICK):
        model = test_stage1.fresh()
        examples = stage1.draw_batch(test_stage1.traces_for(model), ONE_BLOCK, 0)
        if distributed.world() > 1:
            shard(model, CPU, {})
        settings = Stage1Config(micro_batch_size=1, gradient_checkpointing=recompute)
        losses = [stage1.Stage1Trainer(model, (), settings).accumulate(examples) for _ in range(2)]
        parameters = model.synthesizer.trainable()
        distributed.sum_gradients(parameters)
        layers = [model.backbone.decoder.layers[0], model.synthesizer.decoder.layers[0]]
        drawn = [one.grad.numpy() for one in parameters if one.grad is not None]
        with torch.no_grad():  # after a pass that no backward pass follows, too
            model.backbone.decoder(inputs_embeds=model.backbone.embed(torch.tensor([[1, 2]])))
        return [losses, drawn, held(layers)]


def held(layers: Iterable[nn.Module]) -> int:
    """Numbers of frozen matrices that this process has."""
    matrices = [one for layer in layers for one in layer.parameters() if one.dim() == 2 and not one.requires_grad]
    return sum(one.to_local().numel() if hasattr(one, "to_local") else one.numel() for one in matrices)


ONE_BLOCK = Stage1Config(batch_size=4, insertions=InsertionsConfig(min=1, max=1))


@pytest.mark.parametrize("recompute", [False, True])
def test_sharded_layers_give_the_loss_and_gradients_of_whole_ones(recompute: bool) -> None:
    losses, gradients, held = sharded_gradients(recompute)
    for found_losses, found, found_held in together(2, sharded_gradients, recompute):
        assert found_losses == pytest.approx(losses, rel=1e-6)
        for one, other in zip(found, gradients, strict=True):
            torch.testing.assert_close(torch.tensor(one), torch.tensor(other), rtol=1e-4, atol=1e-6)
        assert found_held == held // 2


def train_sharded(path: Path, sharded: bool) -> dict[str, Tensor]:
    with joined(QUICK):
        model = test_stage1.fresh()
        settings = ONE_BLOCK.model_copy(update={"steps": 2, "shard_layers": sharded, "learning_rate": 0.01})
        if sharded:
            shard(model, CPU, {})
        with opened_run(STAGE1.model_copy(update={"stage1": settings}), path) as run:
            stage1.Stage1Trainer(model, test_stage1.traces_for(model), settings).train(run)
    return {name: one.detach().numpy() for name, one in model.synthesizer.named_parameters() if one.requires_grad}


def test_a_run_over_shards_saves_an_ordinary_checkpoint(tmp_path: Path) -> None:
    expected = train_sharded(tmp_path / "whole", False)
    for found in together(2, train_sharded, tmp_path / "shards", True):
        assert_close(found, expected)
    folders = [tmp_path / run / "checkpoints" / "step-2" for run in ("whole", "shards")]
    for name in ("operators.safetensors", "synthesizer/adapter_model.safetensors", "state.safetensors"):
        tensors = [load_file(folder / name) for folder in folders]
        assert {key: one.shape for key, one in tensors[0].items()} == {
            key: one.shape for key, one in tensors[1].items()
        }
    manifests = [json.loads((folder / "tyler.json").read_text()) for folder in folders]
    digests = [manifest.pop("digests").keys() for manifest in manifests]  # of weights that are equal up to rounding
    assert manifests[0] == manifests[1] and digests[0] == digests[1]


class Recording(NativeRollouts):
    """Answers, and keeps them by the version that gave them and what was asked."""

    kept: dict[Any, Trajectory]

    def answer(self, requests: Sequence[Request]) -> list[Trajectory]:
        answers = super().answer(requests)
        self.kept |= {asked(self.version, one): answer for one, answer in zip(requests, answers, strict=True)}
        return answers


@dataclass
class Recorded:
    """Rollouts of an engine that has weights of its own, as vLLM has them."""

    kept: dict[Any, Trajectory]
    version: int = 0

    def update(self, version: int) -> None:
        self.version = version

    def answer(self, requests: Sequence[Request]) -> list[Trajectory]:
        return [self.kept[asked(self.version, one)] for one in requests]

    def close(self) -> None:
        """Nothing to let go of."""


def asked(version: int, request: Request) -> Any:
    return version, tuple(request.prompt_ids), request.sampling.seed


def sometimes_unjudged(task: str, completion: str, gold: str, **_: object) -> Verdict:
    """The verifier of Stage 2's tests where it runs; answers to one problem it cannot judge."""
    if gold == UNJUDGED:
        raise SandboxError("no sandbox")
    return test_stage2.verdict(task, completion, gold)


UNJUDGED = "unjudged"
SOME = [replace(one, answer=UNJUDGED) if n == 1 else one for n, one in enumerate(test_stage2.PROBLEMS)]
IN_STEP = test_stage2.with_settings(STAGE2, batch_size=4, micro_batch_size=1)


def learn_sharded(path: Path, kept: dict[Any, Trajectory], recompute: bool) -> list[Any]:
    """Stage 2 with recorded rollouts, or alone with its own, which are kept: weights, and how many numbers it holds."""
    verdicts.grade = sometimes_unjudged
    with joined(QUICK):
        shards = distributed.world() > 1
        model = test_stage2.fresh()
        config = test_stage2.with_settings(IN_STEP, shard_layers=shards, gradient_checkpointing=recompute)
        if shards:
            shard(model, CPU, {"stage2.batch_size": config.stage2.batch_size})
        watched: Any = SimpleNamespace(backbone=model.backbone, adapted=[model.policy, model.synthesizer])
        watch = WeightWatch(watched)
        trainer, recording = (
            stage2.Stage2Trainer(model, SOME, SOME[:3], config),
            Recording(model.shared_engine, config.decoding),
        )
        recording.kept = kept
        trainer.rollouts = Recorded(kept) if shards else recording
        with opened_run(config, path) as run:
            trainer.train(run)
        assert watch.changed and not watch.theta_changed, "an engine takes eta and psi, and need not start again"
        assert of_policy(model.policy).adapter and of_synthesizer(model.synthesizer, model.operators).adapter
        views = (model.backbone.decoder, model.synthesizer.decoder, model.policy.decoder)
        learned = {name: one.detach().numpy() for name, one in model.policy.named_parameters() if one.requires_grad}
        return [learned, held(layer for view in views for layer in view.layers)]


@pytest.mark.parametrize("recompute", [False, True])
def test_stage_2_over_shards_learns_from_an_engines_rollouts_what_one_process_learns(
    recompute: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verdicts, "grade", verdicts.grade)  # put back what the next line sets
    kept: dict[Any, Trajectory] = {}
    expected, whole = learn_sharded(tmp_path / "whole", kept, recompute)
    for learned, part in together(2, learn_sharded, tmp_path / "shards", kept, recompute):
        assert_close(learned, expected)
        assert part == whole // 2
    assert_same_log(tmp_path / "shards", tmp_path / "whole")
    assert read_jsonl(tmp_path / "shards" / "metrics.jsonl")[1]["stage2/left_out"] == 0.25


def shard_badly(batch_size: int, num_development: int) -> Any:
    with joined(QUICK):
        counts = {"batch_size": batch_size, "the number of development traces": num_development}
        shard(test_stage1.fresh(), CPU, counts)


def test_what_would_let_processes_fall_out_of_step_is_refused() -> None:
    assert "batch_size is 5, which 2 processes do not divide" in together(2, shard_badly, 5, 2)[1]
    assert "development traces is 3, which 2 processes do not divide" in together(2, shard_badly, 4, 3)[0]
    with pytest.raises(ValueError, match="this one is alone; start it with torchrun"):
        shard_badly(4, 2)
    with pytest.raises(ValueError, match=r"shard_layers needs insertions.max=1, got 3"):
        Stage1Config(shard_layers=True, insertions=InsertionsConfig(max=3))
    with pytest.raises(ValueError, match=r"shard_layers needs micro_batch_tokens=null, got auto"):
        Config(stage2=Stage2Config(shard_layers=True, micro_batch_tokens="auto"))
    with pytest.raises(ValueError, match="the native engine decodes with whole layers; set decoding"):
        Config(stage2=Stage2Config(shard_layers=True))


# ------------------------------------------------------------------------------------------------ launchers

LITTLE = ("--data.count", "8", "--data.development", "null")
STAGE1_LITTLE = ("--stage1.steps", "1", "--stage1.batch_size", "4", "--stage1.eval_every", "null")
STAGE2_LITTLE = (
    *("--stage2.steps", "1", "--stage2.batch_size", "2", "--stage2.eval_every", "null"),
    *("--stage2.max_new_tokens", "24", "--grpo.group_size", "2", "--stage2.calibration.num_problems", "4"),
)


def launch(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Two processes of `python -m tyler`, as torchrun starts them."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone", "-m", "tyler"]
    return subprocess.run([*command, *arguments], cwd=folder, capture_output=True, text=True, timeout=280)


@pytest.mark.slow
def test_torchrun_trains_both_stages(tmp_path: Path) -> None:
    for stage, settings in (("stage1", STAGE1_LITTLE), ("stage2", STAGE2_LITTLE)):
        done = launch(stage, "mini", *LITTLE, *settings, folder=tmp_path)
        assert done.returncode == 0, done.stderr
        run = tmp_path / "runs" / f"mini-{stage}"
        assert read_jsonl(run / "metrics.jsonl")[-1]["step"] == 1
        assert json.loads((run / "environment.json").read_text())[0]["processes"] == 2
    assert len(read_jsonl(tmp_path / "runs" / "mini-stage2" / "trajectories.jsonl.gz")) == 4
    again = launch("stage1", "mini", *LITTLE, *STAGE1_LITTLE, folder=tmp_path)
    assert again.returncode != 0
    assert "tyler: process 0: runs/mini-stage1 already holds a run" in again.stderr


def command(folder: Path, arguments: list[str]) -> int:
    """`tyler ...` in a folder."""
    os.chdir(folder)
    return main(arguments)


def test_the_sharded_learner_of_the_tutorial_trains(root: Path, tmp_path: Path) -> None:
    page = "docs/tutorials/training.md"
    settings, *_, sharded = steps((root / page).read_text(), page)
    (tmp_path / "short.yaml").write_text(settings.text)
    (arguments,) = commands(sharded.text)
    assert together(2, command, tmp_path, arguments) == [0, 0]
    assert read_jsonl(tmp_path / "runs" / "sharded" / "metrics.jsonl")[-1]["step"] == 2


# ----------------------------------------------------------------------------------------- shares and sums


@pytest.mark.parametrize("count, world", [(8, 3), (8, 8), (2, 3), (0, 2), (7, 2)])
def test_shares_are_neighbours_in_order_and_even(count: int, world: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distributed, "world", lambda: world)
    shares = []
    for rank in range(world):
        monkeypatch.setattr(distributed, "rank", lambda rank=rank: rank)
        shares.append(list(distributed.share(range(count))))
    assert [one for part in shares for one in part] == list(range(count))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def reduced() -> list[Any]:
    with joined(QUICK):
        parameters = [nn.Parameter(torch.full((2,), float(distributed.rank()))) for _ in range(3)]
        distributed.broadcast_from_rank_zero(parameters)
        parameters[0].grad = torch.tensor([1.0, 2.0]) * (distributed.rank() + 1)
        if distributed.rank() == 1:
            parameters[1].grad = torch.tensor([5.0, 6.0])
        distributed.sum_gradients(parameters)
        gradients = [None if one.grad is None else one.grad.tolist() for one in parameters]
        return [gradients, [one.tolist() for one in parameters]]


def test_gradients_are_added_up_and_one_that_nobody_has_stays_none() -> None:
    for gradients, values in together(2, reduced):
        assert gradients == [[3.0, 6.0], [5.0, 6.0], None]
        assert values == [[0.0, 0.0]] * 3, "all start with the first one's values"


def averaged() -> dict[str, float]:
    with joined(QUICK):
        own = [{"a": 1.0, "b_seconds": 2.0}, {"a": 4.0, "b_seconds": 1.0}, {}][distributed.rank()]
        return distributed.average(own, [2, 1, 0][distributed.rank()])


def test_means_weigh_what_they_are_of_and_the_slowest_counts() -> None:
    assert together(3, averaged) == [{"a": 2.0, "b_seconds": 2.0}] * 3


# -------------------------------------------------------------------------------------------------- errors


def failing_in_step_2(path: Path, how: Callable[[], None]) -> Any:
    if os.environ["RANK"] == "1":
        steps, accumulate = [], stage1.Stage1Trainer.accumulate

        def fail(*arguments: Any) -> float:
            steps.append(1)
            if len(steps) == 2:
                how()
            return accumulate(*arguments)

        stage1.Stage1Trainer.accumulate = fail
    return train_stage1(path, STAGE1.model_copy(update={"devices": DevicesConfig(timeout=0.1)}))


def out_of_memory() -> None:
    raise RuntimeError("CUDA out of memory")


def test_an_error_in_one_process_ends_the_others_with_a_message(tmp_path: Path) -> None:
    started = time.monotonic()
    first, second = together(2, failing_in_step_2, tmp_path, out_of_memory)
    assert "CUDA out of memory" in second and "LostPeer" not in second
    assert "LostPeer: process 0 of 2 lost the others: one of them stopped, and its own message says why" in first
    assert time.monotonic() - started < 60
    assert [entry["step"] for entry in read_jsonl(tmp_path / "metrics.jsonl")] == [1]


def test_a_process_that_does_not_answer_is_given_up_after_the_timeout(tmp_path: Path) -> None:
    first, second = together(2, failing_in_step_2, tmp_path, partial(time.sleep, 12))
    assert "did not answer within devices.timeout" in first
    assert "LostPeer" in second


def opened(path: Path) -> str:
    with joined(QUICK), opened_run(STAGE1, path if distributed.rank() == 0 else path.with_name("elsewhere")):
        return "opened"


def test_what_stops_the_first_process_stops_the_others_before_training(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    first, second = together(2, train_stage1, tmp_path, STAGE1)
    assert "RunError" in first and "is not empty" in first
    assert re.search("LostPeer: the first process stopped: .* is not empty", second)


def test_a_machine_that_does_not_see_the_run_is_told(tmp_path: Path) -> None:
    assert "all machines need the same directory" in together(2, opened, tmp_path / "run")[1]


def small_batch() -> Any:
    with joined(QUICK):
        return Optimization.of(Stage1Config(batch_size=2), [([nn.Parameter(torch.zeros(1))], 0.1)], 3)


def test_a_batch_smaller_than_the_number_of_processes_is_refused() -> None:
    for text in together(3, small_batch):
        assert "batch_size=2 leaves some of the 3 processes without an example" in text


def test_more_processes_than_devices_are_refused() -> None:
    with pytest.raises(ValueError, match="local rank 2, and there are 2 CUDA devices"):
        distributed.check_device(2, 2)


def number_of_processes() -> int:
    with joined(QUICK):
        return distributed.world()


def test_a_process_that_was_alone_before_joins_the_others() -> None:
    PartialState()
    try:
        assert together(2, number_of_processes) == [2, 2]
    finally:
        PartialState._reset_state()
