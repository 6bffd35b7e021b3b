"""Stage 1: what it draws, what it moves, that it learns, and that it can be killed."""

import json
import random
import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import tiny
from tyler.boundaries.rules import RULES
from tyler.config.loops import InsertionsConfig, Stage1Config
from tyler.config.schema import Config
from tyler.config.sections import DataConfig, DevelopmentConfig
from tyler.model import Tyler
from tyler.reasoners.memgen.settings import MemGenConfig
from tyler.runs.checkpoints import RunError
from tyler.runs.json_lines import read_jsonl
from tyler.runs.run import Run
from tyler.tasks.problem import Problem
from tyler.tasks.prompts import Prompt
from tyler.training import stage1
from tyler.training.command import development_problems, origin_of
from tyler.training.optimizer import state_bytes
from tyler.training.stage1 import Stage1Trainer, draw_batch, draw_insertions
from tyler.training.teacher_forcing import Trace
from tyler.training.traces import load_development, load_traces, tokenize, warn_of_idle

SOLUTIONS = (
    "Let me solve $x$ = 5.\n\nStep 2: so we buy 12 apples.\n\nThe total is $2x$.",
    "Solution: $y$ is 12.\n\nStep 2: and $x$ is 5",
    "Step 1: we add 5 and 12.\n\nStep 2: so the total is $17$.",
)
PROMPT = Prompt(instruction="")
SMALL = Stage1Config(
    max_skipped=0,
    steps=6,
    batch_size=2,
    learning_rate=0.01,
    checkpoint_every=2,
    insertions=InsertionsConfig(min=1, max=3),
)


def problem(index: int) -> Problem:
    return Problem(f"p{index}", "jsonl", f"How many {index} x?", "5", solution=SOLUTIONS[index % len(SOLUTIONS)])


def traces_for(model: Tyler) -> list[Trace]:
    return [tokenize(model.backbone, model.operators, PROMPT, problem(index)) for index in range(3)]


def fresh(dropout: float = 0.0) -> Tyler:
    """A model of its own, whose synthesizer has the given LoRA dropout."""
    model = tiny.build("qwen3", tiny.SEEDS["qwen3"]).at_stage("stage1")
    for module in model.synthesizer.lora.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = dropout
    return model


def train(model: Tyler, traces: list[Trace], config: Stage1Config, run: Run, development: Sequence[Trace] = ()) -> None:
    Stage1Trainer(model, traces, config, development).train(run)


def losses(run: Path) -> list[float]:
    return [entry["stage1/loss"] for entry in read_jsonl(run / "metrics.jsonl")]


def open_new(path: Path) -> Run:
    return Run.create(path, "stage1: {}\n")


# ------------------------------------------------------------------------------------ traces and draws


def test_a_trace_is_the_prompt_the_solution_with_its_end_and_the_candidates() -> None:
    model = tiny.tyler("qwen3")
    trace = tokenize(model.backbone, model.operators, PROMPT, problem(0))
    assert tiny.tokenizer().decode(trace.target_ids[:-1]) == SOLUTIONS[0]
    assert trace.target_ids[-1] == tiny.tokenizer().eos_token_id
    assert "How many 0 x?" in tiny.tokenizer().decode(trace.prompt_ids)
    assert {operator.name for _, operator in trace.candidates} == {"global", "state", "procedure"}
    assert all(0 <= position < len(trace.target_ids) - 1 for position, _ in trace.candidates)


def test_a_problem_without_a_solution_is_refused_by_its_id() -> None:
    model = tiny.tyler("qwen3")
    with pytest.raises(ValueError, match="problem 'p0' has no solution trace"):
        tokenize(model.backbone, model.operators, PROMPT, replace(problem(0), solution=None))


def candidates(*names: str) -> Trace:
    operators = {operator.name: operator for operator in tiny.OPERATORS}
    return Trace(
        "t", (1,), (2,) * (len(names) + 1), tuple((place, operators[name]) for place, name in enumerate(names))
    )


def draw(trace: Trace, seed: int, **settings: Any) -> list[tuple[int, str]]:
    drawn = draw_insertions(trace, InsertionsConfig(**settings), random.Random(seed))
    return [(insertion.position, insertion.operator) for insertion in drawn]


def test_an_operator_is_drawn_first_and_then_one_of_its_positions() -> None:
    trace = candidates("global", *["state"] * 8, "procedure")
    draws = [draw(trace, seed) for seed in range(1500)]
    assert {len(one) for one in draws} == {1}, "the paper draws one pair"
    counts, positions = (Counter(one[0][part] for one in draws) for part in (1, 0))
    for name in ("global", "state", "procedure"):
        assert 0.27 < counts[name] / 1500 < 0.40, f"{counts}: uniform over pairs would draw global one time in ten"
    assert all(30 < positions[place] < 100 for place in range(1, 9))


def test_more_insertions_are_distinct_sorted_and_as_many_as_were_asked_for() -> None:
    trace = candidates("global", "state", "procedure", "state", "state", "procedure")
    draws = [draw(trace, seed, min=2, max=4) for seed in range(200)]
    assert {len(one) for one in draws} == {2, 3, 4}
    assert all(one == sorted(set(one)) for one in draws)
    assert all(len(draw(trace, seed, min=9, max=12)) == 6 for seed in range(5)), "all there are, and no more"


def test_the_first_operator_is_always_among_them() -> None:
    trace = candidates("state", "global", "state", "global", "procedure")
    draws = [draw(trace, seed, min=1, max=3, first="global") for seed in range(100)]
    assert all((1, "global") in one for one in draws)
    assert {len(one) for one in draws} == {1, 2, 3}
    assert draw(candidates("state"), 0, first="global") == [(0, "state")], "a trace without it is still used"


def test_a_batch_follows_from_the_seed_and_the_step_and_every_epoch_draws_anew() -> None:
    model = tiny.tyler("qwen3")
    traces = traces_for(model)
    config = Stage1Config(batch_size=3, insertions=InsertionsConfig(min=1, max=3))
    assert draw_batch(traces, config, 5) == draw_batch(traces, config, 5)
    epochs = [{example.id: example.insertions for example in draw_batch(traces, config, step)} for step in range(6)]
    assert all(set(epoch) == {"p0", "p1", "p2"} for epoch in epochs)
    assert len({epoch["p0"] for epoch in epochs}) > 2
    other = Stage1Config(batch_size=3, seed=43, insertions=config.insertions)
    assert [draw_batch(traces, config, step) for step in range(4)] != [
        draw_batch(traces, other, step) for step in range(4)
    ]


# ---------------------------------------------------------------------------------------------- learns


def test_the_reported_loss_is_the_mean_over_the_visible_targets_of_the_batch(tmp_path: Path) -> None:
    model = fresh()
    traces = traces_for(model)
    from tyler.training.teacher_forcing import synthesize, target_logprobs

    examples = draw_batch(traces, SMALL, 0)
    total, count = 0.0, 0
    for example in examples:
        latents = synthesize(model.backbone, model.synthesizer.decoder, model.heads, [example])
        logprobs, _ = target_logprobs(model.backbone, [example], latents)
        total, count = total - float(logprobs.detach().sum()), count + len(example.target_ids)
    with open_new(tmp_path) as run:
        train(model, traces, SMALL.model_copy(update={"steps": 1}), run)
    assert losses(tmp_path) == [pytest.approx(total / count, abs=1e-5)]


# ---------------------------------------------------------------------------------- killed and resumed


def test_a_loss_that_is_not_a_number_stops_before_the_weights_and_names_the_traces(tmp_path: Path, monkeypatch) -> None:
    model = fresh()
    loss_of = Stage1Trainer.batch_loss
    monkeypatch.setattr(Stage1Trainer, "batch_loss", lambda *arguments: loss_of(*arguments) * float("inf"))
    ids = ", ".join(example.id for example in draw_batch(traces_for(model), SMALL, 0))
    with open_new(tmp_path) as run, pytest.raises(FloatingPointError, match=f"inf at update 1; the batch was {ids}"):
        train(model, traces_for(model), SMALL, run)
    assert all(torch.isfinite(parameter).all() for parameter in model.synthesizer.trainable())


# --------------------------------------------------------------------------------- the development loss


def test_a_disk_without_room_for_the_checkpoints_stops_before_the_first_step(tmp_path: Path, monkeypatch) -> None:
    model = fresh()
    size = state_bytes(model.synthesizer.trainable()) + model.saved_bytes()
    with open_new(tmp_path) as run:
        monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=4 * size - 1))
        with pytest.raises(RunError, match="4 checkpoints of"):
            train(model, traces_for(model), SMALL, run)
        assert losses(tmp_path) == []
        monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=4 * size))
        train(model, traces_for(model), SMALL, run)


# ------------------------------------------------------------------------------------------- the files


def write_traces(path: Path, count: int = 3, first: int = 0) -> Path:
    rows = [
        {"problem": f"How many {i} x?", "solution": SOLUTIONS[i % 3] + " \\boxed{5}", "answer": "5"}
        for i in range(first, first + count)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def config_for(path: Path, **stage1_settings: Any) -> Config:
    data = DataConfig(task="jsonl", path=str(path))
    return Config(data=data, operators=tiny.OPERATORS, stage1=Stage1Config(**stage1_settings))


def test_traces_too_long_for_the_setting_or_the_model_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backbone = tiny.tyler("qwen3").backbone
    path = write_traces(tmp_path / "traces.jsonl")
    every = load_traces(config_for(path), backbone)
    assert [trace.id for trace in every] == ["train-1", "train-2", "train-3"]
    lengths = sorted(len(trace.prompt_ids) + len(trace.target_ids) for trace in every)
    room = config_for(path).most_latents
    kept = load_traces(config_for(path, max_length=lengths[1] + room), backbone)
    assert sorted(len(trace.prompt_ids) + len(trace.target_ids) for trace in kept) == lengths[:2]
    with pytest.raises(ValueError, match=rf"none of the 3 traces has at most 2 .*; raise stage1.max_length={room + 2}"):
        load_traces(config_for(path, max_length=room + 2), backbone)
    monkeypatch.setattr(type(backbone), "max_positions", room + 2)
    with pytest.raises(ValueError, match=rf"the model's context has {room + 2} positions: train on shorter traces"):
        load_traces(config_for(path, max_length=100), backbone)


def test_traces_without_a_boundary_are_told_from_those_that_are_too_long(tmp_path: Path) -> None:
    path = tmp_path / "traces.jsonl"
    path.write_text(json.dumps({"problem": "How many x?", "solution": "\\boxed{5}", "answer": "5"}) + "\n")
    inside = tuple(operator for operator in tiny.OPERATORS if operator.boundary != "answer_start")
    config = config_for(path).model_copy(update={"operators": inside})
    with pytest.raises(ValueError, match=r"none of the 1 traces has a boundary of an operator \("):
        load_traces(config, tiny.tyler("qwen3").backbone)


def test_latents_that_leave_no_room_for_a_trace_are_refused_as_such(tmp_path: Path) -> None:
    config = config_for(write_traces(tmp_path / "traces.jsonl"), max_length=3)
    with pytest.raises(ValueError, match=f"max_length=3 .* leaves no room beside {config.most_latents} latents"):
        load_traces(config, tiny.tyler("qwen3").backbone)


def test_all_methods_learn_from_the_same_traces_and_an_idle_operator_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = config_for(write_traces(tmp_path / "traces.jsonl"))
    more = MemGenConfig(max_insertions=9)
    assert config.most_latents == 8 + 5 * 8 and config.model_copy(update={"memgen": more}).most_latents == 80
    warn_of_idle([Trace("one", (1,), (2, 3), ((0, tiny.OPERATORS[0]),))], tiny.OPERATORS[:2])
    assert [record.getMessage() for record in caplog.records] == [
        "operator 'state' learns nothing: its boundary 'step' has no place in 1 traces"
    ]


def test_an_edited_rule_is_another_origin(monkeypatch: pytest.MonkeyPatch) -> None:
    backbone = tiny.tyler("qwen3").backbone
    before = origin_of("", [], backbone, tiny.OPERATORS)
    assert {"the rule 'answer_start'", "the rule 'step'", "the rule 'structure'"} < set(before)
    monkeypatch.setitem(RULES, "step", replace(RULES["step"], once=True))
    after = origin_of("", [], backbone, tiny.OPERATORS)
    assert [name for name in before if before[name] != after[name]] == ["the rule 'step'"]


def test_a_development_set_that_nothing_watches_is_said(caplog: pytest.LogCaptureFixture) -> None:
    config = Config(data=DataConfig(development=DevelopmentConfig()))
    assert development_problems(config, config.stage1) == []
    assert "data.development is not used: the eval_every of this training is null" in caplog.text


def test_development_traces_are_loaded_where_something_watches(tmp_path: Path) -> None:
    backbone = tiny.tyler("qwen3").backbone
    path = write_traces(tmp_path / "traces.jsonl")
    data = DataConfig(task="jsonl", path=str(path), development=DevelopmentConfig(path=str(path), count=2))
    for every, count in ((5, 2), (None, 0)):
        config = config_for(path, eval_every=every).model_copy(update={"data": data})
        assert len(load_development(config, backbone, config.stage1)) == count


def test_the_command_trains_on_a_file_resumes_and_writes_a_model_that_loads(tmp_path: Path) -> None:
    model = tiny.tyler("qwen3")
    folder = tmp_path / "backbone"
    tiny.save(model.backbone, folder)
    config = config_for(
        write_traces(tmp_path / "traces.jsonl"), steps=2, batch_size=2, learning_rate=0.01, eval_every=1
    )
    path = write_traces(tmp_path / "development.jsonl", 2, first=7)
    development = DevelopmentConfig(path=str(path), count=None)
    config = config.model_copy(update={"data": config.data.model_copy(update={"development": development})})
    config = config.model_copy(
        update={"backbone": config.backbone.model_copy(update={"id": str(folder), "instruction": ""})}
    )
    trained = stage1.run(config, output=tmp_path / "run")
    assert trained.stage == "stage1"
    assert len(losses(tmp_path / "run")) == 2
    loaded = Tyler.from_pretrained(str(tmp_path / "run"))
    assert (loaded.stage, loaded.operators, loaded.prompt) == ("stage1", tiny.OPERATORS, Prompt(""))
    for one, other in zip(trained.synthesizer.trainable(), loaded.synthesizer.trainable(), strict=True):
        assert torch.equal(one, other)
    best = Tyler.from_pretrained(str(tmp_path / "run" / "checkpoints" / "best"))
    assert best.stage == "stage1"
    again = stage1.run(config, output=tmp_path / "run", resume=True)
    for one, other in zip(trained.synthesizer.trainable(), again.synthesizer.trainable(), strict=True):
        assert torch.equal(one, other)
