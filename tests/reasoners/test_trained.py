"""The baselines that are trained without operators: SFT and GRPO."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from test_stage1 import SOLUTIONS
from test_stage2 import verdict
from transformers import AutoModelForCausalLM

import tiny
from tyler.config.loops import GrpoConfig, Stage2Config, TracesConfig
from tyler.config.schema import Config
from tyler.config.sections import DataConfig, DecodingConfig, DevelopmentConfig
from tyler.engine.routing import Learned, Never
from tyler.model import Tyler
from tyler.modeling.lora import LoraSettings
from tyler.reasoners import grpo, sft
from tyler.reasoners.sft import SftTrainer
from tyler.runs.checkpoints import RunError
from tyler.runs.json_lines import read_jsonl
from tyler.runs.run import Run
from tyler.tasks.problem import Problem
from tyler.tasks.prompts import Prompt
from tyler.training import verdicts
from tyler.training.stage2 import Stage2Trainer
from tyler.training.teacher_forcing import Trace
from tyler.training.traces import tokenize
from weights import everything_of, moved

PROBLEMS = [Problem(f"p{i}", "jsonl", f"How many {i} x?", "5", solution=text) for i, text in enumerate(SOLUTIONS)]
SMALL = TracesConfig(steps=6, batch_size=2, learning_rate=0.02, checkpoint_every=2)
WATCHED = SMALL.model_copy(update={"eval_every": 2, "checkpoint_every": 3, "micro_batch_size": 1})
CONFIG = Config(
    stage2=Stage2Config(steps=4, batch_size=2, learning_rate=0.05, max_new_tokens=16, checkpoint_every=2),
    grpo=GrpoConfig(group_size=3, budget=0, budget_weight=5.0, temperature=0.8),
    decoding=DecodingConfig(slots=4),
)


def fresh(family: str = "qwen3", dropout: float = 0.0, stage: str = "sft") -> Tyler:
    """A plain backbone with a new eta."""
    model = Tyler.start(tiny.build_backbone(family, tiny.SEEDS[family]), (), prompt=Prompt(instruction=""))
    with torch.random.fork_rng():
        torch.manual_seed(3)
        model.policy.add_lora(LoraSettings(rank=4, alpha=8, dropout=dropout))
    return model.at_stage(stage)


def randomized(model: Tyler) -> Tyler:
    assert model.policy.lora is not None
    tiny.randomize_lora(model.policy.lora, torch.Generator().manual_seed(5))
    return model


def traces_for(model: Tyler) -> list[Trace]:
    return [tokenize(model.backbone, (), model.prompt, problem) for problem in PROBLEMS]


def open_new(path: Path) -> Run:
    return Run.create(path, "sft: {}\n")


# ------------------------------------------------------------------------------------------------- SFT


@pytest.mark.parametrize("family", tiny.SEEDS)
def test_the_loss_and_its_gradients_are_those_of_transformers(family: str) -> None:
    model = randomized(fresh(family))
    traces = traces_for(model)
    count = sum(len(trace.target_ids) for trace in traces)
    loss = SftTrainer(model, traces, SMALL).batch_loss(traces, count)
    loss.backward()
    lora = model.policy.lora
    assert lora is not None
    ours = {name: p.grad.clone() for name, p in lora.named_parameters() if p.grad is not None}
    lora.zero_grad()
    expected = torch.zeros(())
    for trace in traces:
        labels = torch.tensor([[-100] * len(trace.prompt_ids) + list(trace.target_ids)])
        ids = torch.tensor([[*trace.prompt_ids, *trace.target_ids]])
        expected = expected + lora(input_ids=ids, labels=labels, num_items_in_batch=torch.tensor(count)).loss
    expected.backward()
    assert float(loss.detach()) == pytest.approx(float(expected.detach()), abs=1e-6)
    assert set(ours) == {name for name, p in lora.named_parameters() if p.requires_grad}
    for name, p in lora.named_parameters():
        if p.requires_grad:
            assert p.grad is not None and float(p.grad.abs().max()) > 1e-4
            torch.testing.assert_close(ours[name], p.grad, atol=1e-6, rtol=1e-4)


def test_sft_sees_the_traces_of_stage_1_in_its_order(tmp_path: Path) -> None:
    place = files(tmp_path)
    rows = [{"problem": "How many 9 x?", "solution": f"{SOLUTIONS[0]} \\boxed{{5}}", "answer": "5"}]
    (place / "development.jsonl").write_text(json.dumps(rows[0]) + "\n")
    development = DevelopmentConfig(path=str(place / "development.jsonl"), count=None)
    data = DataConfig(task="jsonl", path=str(place / "traces.jsonl"), development=development)
    config = Config(
        data=data, operators=tiny.OPERATORS, sft=WATCHED.model_copy(update={"steps": 2}), backbone=backbone_at(place)
    )
    trained = sft.run(config, output=tmp_path / "sft")
    assert trained.stage == "sft" and trained.operators == ()
    lines = read_jsonl(tmp_path / "sft" / "metrics.jsonl")
    assert ["sft/development_loss" in line for line in lines] == [False, True]
    loaded = Tyler.from_pretrained(str(tmp_path / "sft"))
    assert loaded.solve("How many 1 x?", max_new_tokens=12).actions == (
        trained.solve("How many 1 x?", max_new_tokens=12).actions
    )


def test_an_adapter_goes_on_learning(tmp_path: Path) -> None:
    place = files(tmp_path)
    data = DataConfig(task="jsonl", path=str(place / "traces.jsonl"))
    loop = SMALL.model_copy(update={"steps": 1, "checkpoint_every": 1})
    config = Config(data=data, operators=tiny.OPERATORS, sft=loop, backbone=backbone_at(place))
    first = sft.run(config, output=tmp_path / "first")
    adapter = tmp_path / "first" / "checkpoints" / "step-1" / "policy"
    still = config.model_copy(update={"sft": loop.model_copy(update={"learning_rate": 1e-30})})
    second = sft.run(still, start=adapter, output=tmp_path / "second")
    fresh_start = sft.run(still, output=tmp_path / "new")
    assert not moved(everything_of(first), everything_of(second))
    assert moved(everything_of(first), everything_of(fresh_start))
    wider = config.model_copy(update={"lora": config.lora.model_copy(update={"rank": 5})})
    with pytest.raises(ValueError, match=r"lora\.rank is 5, and there 8"):
        sft.run(wider, start=adapter, output=tmp_path / "wider")
    with pytest.raises(RunError, match="the weights it starts from"):
        sft.run(still, output=tmp_path / "second", resume=True)


def files(folder: Path) -> Path:
    """A tiny backbone and a file of traces."""
    tiny.save(tiny.build_backbone("qwen3", tiny.SEEDS["qwen3"]), folder / "backbone")
    rows = [{"problem": p.prompt, "solution": f"{p.solution} \\boxed{{5}}", "answer": "5"} for p in PROBLEMS]
    (folder / "traces.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def backbone_at(place: Path) -> Any:
    from tyler.config.sections import BackboneConfig

    return BackboneConfig(id=str(place / "backbone"), instruction="", dtype="float32")


@pytest.mark.parametrize("stage", ["sft", "grpo"])
def test_a_trained_baseline_reloads_bit_equal_and_plain_peft_loads_it(stage: str, tmp_path: Path) -> None:
    place = files(tmp_path)
    model = Tyler.from_pretrained(str(place / "backbone"))
    bare = Tyler.start(model.backbone, (), prompt=Prompt(instruction=""))
    bare.policy.add_lora(LoraSettings(rank=4, alpha=8))
    saved = randomized(bare.at_stage(stage))
    saved.save_pretrained(tmp_path / "saved")
    loaded = Tyler.from_pretrained(str(tmp_path / "saved"))
    assert loaded.stage == stage
    ours = [loaded.solve(list(tiny.PROMPTS), max_new_tokens=12, router=router) for router in (None, Never(), Learned())]
    expected = saved.solve(list(tiny.PROMPTS), max_new_tokens=12)
    for answers in ours:
        assert [answer.actions for answer in answers] == [answer.actions for answer in expected]
        assert [answer.logprobs for answer in answers] == [answer.logprobs for answer in expected]
    plain = AutoModelForCausalLM.from_pretrained(place / "backbone", dtype=torch.float32)
    peft = PeftModel.from_pretrained(plain, str(tmp_path / "saved" / "policy")).eval()
    prompt = torch.tensor([list(loaded.request(tiny.PROMPTS[0]).prompt_ids)])
    greedy = peft.generate(input_ids=prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=12, do_sample=False)
    assert greedy[0, prompt.shape[1] :].tolist() == expected[0].actions


# ------------------------------------------------------------------------------------------------ GRPO


def test_grpo_rewards_success_alone_and_moves_eta_alone(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(verdicts, "grade", verdict)
    model = fresh(stage="grpo")
    before = everything_of(model)
    with open_new(tmp_path) as run:
        Stage2Trainer(model, PROBLEMS, [], CONFIG, title="GRPO").train(run)
    lines = read_jsonl(tmp_path / "metrics.jsonl")
    assert [line["step"] for line in lines] == [1, 2, 3, 4], "no psi is calibrated at step 0"
    for line in lines:
        assert line["stage2/reward"] == line["stage2/success"]
        assert line["stage2/invocations"] == line["stage2/anchor"] == 0
        assert line["stage2/replay_gap"] < 1e-4
    changed = moved(before, everything_of(model))
    assert changed and all(name.startswith("policy.lora.") and "lora_" in name for name in changed)


def test_the_command_trains_grpo_from_the_plain_backbone(tmp_path: Path) -> None:
    place = files(tmp_path)
    data = DataConfig(task="jsonl", path=str(place / "traces.jsonl"))
    config = CONFIG.model_copy(
        update={"data": data, "backbone": backbone_at(place), "stage2": CONFIG.stage2.model_copy(update={"steps": 1})}
    )
    trained = grpo.run(config, output=tmp_path / "grpo")
    assert (trained.stage, trained.operators) == ("grpo", ())
    assert Tyler.from_pretrained(str(tmp_path / "grpo")).stage == "grpo"
