"""What holds for every training on traces: Stage 1, SFT, SoftCoT and MemGen's weaver."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
import torch
from tests import tiny
from tests.documents import documented_metrics
from tests.interrupted import whole_and_resumed
from tests.reasoners import test_memgen, test_softcot, test_trained
from tests.training import test_stage1
from tests.weights import moved, tensors_of
from torch import Tensor, nn

from tyler.config.loops import TracesConfig
from tyler.reasoners.memgen.sft import WeaverTrainer
from tyler.reasoners.sft import SftTrainer
from tyler.reasoners.softcot.sft import SoftCotTrainer
from tyler.runs.checkpoints import best_checkpoint
from tyler.runs.json_lines import read_jsonl
from tyler.runs.run import Run
from tyler.training.stage1 import Stage1Trainer
from tyler.training.supervised import SupervisedTrainer


@dataclass(frozen=True)
class Kind:
    """A training: a new model with some LoRA dropout, its trainer and traces, and all modules of the model."""

    build: Callable[[float], Any]
    trainer: Callable[..., SupervisedTrainer[Any, Any]]
    traces: Callable[[Any], Sequence[Any]]
    config: TracesConfig
    parts: tuple[str, ...]

    def fresh(self, dropout: float = 0.0) -> Any:
        """The same model every time."""
        torch.manual_seed(3)
        return self.build(dropout)

    def of(self, model: Any, watched: int = 0, **settings: Any) -> SupervisedTrainer[Any, Any]:
        """A trainer with other settings, that watches some of the traces."""
        traces = self.traces(model)
        return self.trainer(model, traces, self.config.model_copy(update=settings), traces[len(traces) - watched :])

    def tensors(self, model: Any) -> dict[str, Tensor]:
        return tensors_of(**{part: attrgetter(part)(model) for part in self.parts})


KINDS = {
    "stage1": Kind(
        test_stage1.fresh,
        Stage1Trainer,
        test_stage1.traces_for,
        test_stage1.SMALL.model_copy(update={"weight_decay": 0.01}),
        ("backbone.model", "synthesizer", "policy"),
    ),
    "sft": Kind(
        lambda dropout: test_trained.fresh(dropout=dropout),
        SftTrainer,
        test_trained.traces_for,
        test_trained.SMALL,
        ("backbone.model", "synthesizer", "policy"),
    ),
    "softcot": Kind(
        lambda dropout: test_softcot.fresh(),  # a Linear drops nothing
        SoftCotTrainer,
        test_softcot.examples_of,
        test_softcot.SMALL,
        ("backbone.model", "assistant.model", "projection"),
    ),
    "memgen_weaver": Kind(
        lambda dropout: test_memgen.build("qwen3", trigger=True, dropout=dropout),
        WeaverTrainer,
        test_memgen.examples_for,
        test_memgen.SMALL,
        ("backbone.model", "weaver", "trigger"),
    ),
}


@pytest.fixture(params=KINDS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def kind(name: str) -> Kind:
    return KINDS[name]


def learned(trainer: SupervisedTrainer[Any, Any]) -> list[nn.Parameter]:
    return [parameter for parameters, _ in trainer.parameter_groups() for parameter in parameters]


@pytest.mark.parametrize(
    "cut, recomputed",
    [({"micro_batch_size": 1}, False), ({"micro_batch_size": 2}, True), ({"micro_batch_tokens": 100}, True)],
)
def test_micro_batches_and_gradient_checkpointing_change_no_gradient(
    cut: dict[str, int], recomputed: bool, kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    layers, found = tiny.count_recomputed(monkeypatch), []
    for settings in (cut | {"gradient_checkpointing": recomputed}, {"micro_batch_size": 5}):
        trainer = kind.of(kind.fresh(), batch_size=5, **settings)
        batch = trainer.batch(0)
        assert len({len(example.target_ids) for example in batch}) > 1, "micro-batches must weigh differently"
        loss = trainer.accumulate(batch)
        found.append((loss, [one.grad for one in learned(trainer)], len(layers)))
    (loss, ours, count), (whole, theirs, after) = found
    assert (count > 0) == recomputed and after == count
    assert loss == pytest.approx(whole, rel=1e-5)
    for one, other in zip(ours, theirs, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            torch.testing.assert_close(one, other, atol=3e-6, rtol=2e-3)


def test_training_learns_moves_what_it_trains_alone_and_logs_what_is_documented(
    name: str, kind: Kind, tmp_path: Path
) -> None:
    model = kind.fresh()
    trainer = kind.of(model, watched=2, steps=40, batch_size=3, eval_every=2, learning_rate=0.02)
    before, trained = kind.tensors(model), {id(one) for one in learned(trainer)}
    with Run.create(tmp_path, "run: {}\n") as run:
        trainer.train(run)
    after = kind.tensors(model)
    named = [(part, *one) for part in kind.parts for one in attrgetter(part)(model).named_parameters()]
    expected = {f"{part}.{key}" for part, key, parameter in named if id(parameter) in trained}
    assert moved(before, after) == expected
    assert not any(module.training for module in trainer.module.modules())
    lines = read_jsonl(tmp_path / "metrics.jsonl")
    losses = [line[f"{name}/loss"] for line in lines]
    assert sum(losses[-5:]) < 0.9 * sum(losses[:5])
    assert set(lines[1]) - {"step"} == documented_metrics(name)


@pytest.mark.parametrize("after, tokens", [(1, None), (3, 100), (5, "auto")])
def test_a_killed_run_resumes_to_the_same_bits_and_chooses_the_same_best(
    after: int, tokens: Any, name: str, kind: Kind, tmp_path: Path
) -> None:
    settings = {"micro_batch_tokens": tokens, "eval_every": 2}
    models = whole_and_resumed(
        tmp_path, after, lambda: kind.fresh(0.3), lambda model, run: kind.of(model, watched=2, **settings).train(run)
    )
    whole, resumed = map(kind.tensors, models)
    assert not moved(whole, resumed)
    ends = [tmp_path / run / "checkpoints" / "step-6" for run in ("whole", "cut")]
    bests = [best_checkpoint(tmp_path / run) for run in ("whole", "cut")]
    assert bests[0] is not None and bests[1] is not None and bests[0].name == bests[1].name
    for one, other in (ends, bests):
        for file in ("best.json", *(path.relative_to(one) for path in one.rglob("*.safetensors"))):
            assert (one / file).read_bytes() == (other / file).read_bytes(), file
    logs = [read_jsonl(tmp_path / run / "metrics.jsonl") for run in ("whole", "cut")]
    for key in (f"{name}/loss", f"{name}/development_loss"):
        assert [line.get(key) for line in logs[0]] == [line.get(key) for line in logs[1]]
    lowest = min((line[key], line["step"]) for line in logs[0] if key in line)
    assert bests[0].name == f"step-{lowest[1]}"


def test_watching_the_development_loss_changes_no_weight(name: str, kind: Kind, tmp_path: Path) -> None:
    found = []
    for every in (2, None):
        model = kind.fresh(0.3)
        torch.manual_seed(7)
        with Run.create(tmp_path / str(every), "run: {}\n") as run:
            kind.of(model, watched=2, eval_every=every).train(run)
        lines = read_jsonl(tmp_path / str(every) / "metrics.jsonl")
        watched = [line["step"] for line in lines if f"{name}/development_loss" in line]
        assert watched == ([2, 4, 6] if every else [])
        found.append(kind.tensors(model))
    assert not moved(*found)


def test_the_development_loss_is_the_mean_over_targets_without_dropout(kind: Kind) -> None:
    model = kind.fresh(0.5)
    losses = []
    for settings in ({"micro_batch_size": 1}, {}, {"micro_batch_tokens": "auto"}):
        trainer = kind.of(model, watched=3, **settings)
        trainer.module.train()
        losses.append(trainer.evaluate()[trainer.best])
        assert all(module.training for module in trainer.module.modules()), "and training goes on with it"
    trainer.module.eval()
    traces = kind.traces(model)[-3:]
    watched = [trainer.development[place] for place in range(3)]
    total = sum(float(trainer.batch_loss([example], 1).detach()) for example in watched)
    assert losses == pytest.approx([total / sum(len(trace.target_ids) for trace in traces)] * 3, abs=1e-5)
