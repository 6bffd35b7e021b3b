"""Stage 2 and MemGen's GRPO roll out on vLLM: they learn what they learn on the native engine, and resume."""

import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests import tiny
from tests.interrupted import killed_after
from tests.training import test_stage2

from tyler.config.loops import RewardConfig
from tyler.config.schema import Config
from tyler.config.sections import DecodingConfig
from tyler.engine.trajectory import Trajectory
from tyler.model import Tyler
from tyler.modeling.lora import LoraSettings
from tyler.reasoners.memgen.grpo import WeaverGrpo
from tyler.reasoners.memgen.model import MemGen, MemGenReasoner, Settings
from tyler.reasoners.memgen.settings import MemGenGrpoConfig
from tyler.runs.json_lines import read_jsonl
from tyler.runs.run import Run
from tyler.training import verdicts
from tyler.training.stage2 import Stage2Trainer

ON_VLLM = {"enforce_eager": True, "kv_cache_memory_bytes": 2**26}
STEPS = 3
SETTINGS = {"steps": STEPS, "checkpoint_every": 1, "psi_learning_rate": None, "kl_weight": 0.03}
CONFIG = test_stage2.with_settings(test_stage2.CONFIG, **SETTINGS)
PROBLEMS = test_stage2.PROBLEMS


@pytest.fixture(autouse=True)
def _a_verifier_that_random_models_can_satisfy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verdicts, "grade", test_stage2.verdict)


@pytest.fixture
def fresh(models: Mapping[str, Tyler]) -> Iterator[Callable[[str], Tyler]]:
    """Models as Stage 2 meets them, each with an eta of its own, on an engine; closed at the end."""
    made: list[Tyler] = []

    def start(engine: str) -> Tyler:
        template = models["qwen3"]
        built = tiny.build("qwen3", tiny.SEEDS["qwen3"], width=128)
        backbone = replace(built.backbone, path=template.backbone.path)
        backbone.model.config.max_position_embeddings = template.backbone.max_positions
        model = Tyler(backbone, built.operators, built.synthesizer, built.policy, built.heads, built.prompt, "stage2")
        with torch.random.fork_rng():
            torch.manual_seed(3)
            model.policy.add_lora(LoraSettings(rank=4, alpha=8))
        made.append(model.with_engine(engine, **(ON_VLLM if engine == "vllm" else {})))
        return made[-1]

    yield start
    for model in made:
        model.shared_engine.close()


def learned(folder: Path, model: Tyler) -> tuple[list[dict[str, Any]], list[str]]:
    """What was logged, and the texts of every rollout."""
    with Run.create(folder, "stage2: {}\n") as run:
        Stage2Trainer(model, PROBLEMS, [], CONFIG).train(run)
    return told(folder)


def told(folder: Path) -> tuple[list[dict[str, Any]], list[str]]:
    records = read_jsonl(folder / "trajectories.jsonl.gz")
    return read_jsonl(folder / "metrics.jsonl"), [record["text"] for record in records]


def test_stage_2_learns_what_it_learns_on_the_native_engine_and_resumes(
    fresh: Callable[[str], Tyler], tmp_path: Path
) -> None:
    native, mine = fresh("native"), fresh("vllm")
    logged, texts = learned(tmp_path / "native", native)
    on_vllm, same_texts = learned(tmp_path / "vllm", mine)
    updated = slice(0, 2 * len(texts) // STEPS)  # rounding, which an optimizer amplifies, soon draws another token
    assert texts[updated] == same_texts[updated] and len(set(texts)) > STEPS
    gaps = [entry["stage2/replay_gap"] for entry in on_vllm if "stage2/replay_gap" in entry]
    assert len(logged) == len(on_vllm) and gaps and max(gaps) < 1e-3

    with killed_after(STEPS - 1):
        learned(tmp_path / "cut", fresh("vllm"))
    resumed = fresh("vllm")
    with Run.resume(tmp_path / "cut", "stage2: {}\n") as run:
        Stage2Trainer(resumed, PROBLEMS, [], CONFIG).train(run)
    assert told(tmp_path / "cut")[1] == same_texts
    assert torch.equal(resumed.policy.psi, mine.policy.psi)


def weaver(models: Mapping[str, Tyler]) -> MemGen:
    torch.manual_seed(0)
    model = MemGen.start(models["qwen3"].backbone, Settings(4, 3, 3))
    tiny.randomize_lora(model.weaver.lora, torch.Generator().manual_seed(1))
    return model


def answers_of(model: MemGen, questions: Sequence[str]) -> list[Trajectory]:
    return MemGenReasoner("memgen", model, max_new_tokens=40).solve(questions)


def test_memgens_weaver_answers_and_learns_on_vllm(models: Mapping[str, Tyler]) -> None:
    asked = ["Ben has 99 books, 3 of them red. He sells 10, then", "a, b. c", "Find x."]
    native = weaver(models)
    model = native.with_engine("vllm", **ON_VLLM)
    answers, others = ([(t.actions, t.text) for t in answers_of(one, asked)] for one in (model, native))
    assert answers == others

    config = MemGenGrpoConfig(steps=1, batch_size=2, group_size=3, max_new_tokens=12, learning_rate=0.01)
    whole = Config(decoding=DecodingConfig(slots=4), rewards=(RewardConfig(name="verifier"),))
    trainer = WeaverGrpo(model, PROBLEMS, whole, config)
    rolled, again = (
        WeaverGrpo(one, PROBLEMS, whole, config).roll_out(PROBLEMS[:2], 0, (0, 0)) for one in (model, native)
    )
    assert [t.actions for t in rolled.trajectories] == [t.actions for t in again.trajectories]
    assert (trainer.replay(rolled, [0, 1])[0] - trainer.actions(rolled).logprobs[:2]).abs().max() < 1e-4
    with torch.no_grad():
        for parameter in model.weaver.trainable():
            parameter.add_(0.05 * torch.randn_like(parameter))
    answers, others = ([t.actions for t in answers_of(one, asked)] for one in (model, native))
    assert answers == others
    model.shared_engine.close()


def test_a_memgen_with_a_trigger_is_refused_by_name(models: Mapping[str, Tyler]) -> None:
    with pytest.raises(ValueError, match="trigger runs on the native engine alone"):
        weaver(models).with_new_trigger().with_engine("vllm")


SHARDED = """
extends: mini
data: {count: 16, development: null}
stage1: {steps: 1, batch_size: 4, eval_every: null}
stage2:
  {steps: 3, batch_size: 2, micro_batch_size: 2, max_new_tokens: 32, learning_rate: 0.01, eval_every: null,
   calibration: {num_problems: 4}}
grpo: {group_size: 3}
rewards: [{path: "my_rewards.py:short"}]
"""
SHORT = "def short(completions, **columns): return [-float(len(text)) for text in completions]\n"
ARGUMENTS = "enforce_eager: true, kv_cache_memory_bytes: 67108864"
ALONE = ("--decoding.engine", "vllm", "--decoding.engine_args", f"{{{ARGUMENTS}}}")
SHARING = (
    *("--stage2.shard_layers", "true", "--decoding.engine", "vllm", "--decoding.engine_args"),
    f"{{distributed_executor_backend: external_launcher, {ARGUMENTS}}}",
)


def tyler(folder: Path, *arguments: str, processes: int = 1) -> None:
    """`tyler ...` in so many processes, each with whatever it needs of this one's environment."""
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node", str(processes), "--standalone"]
    command = [sys.executable, *(launcher if processes > 1 else []), "-m", "tyler", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr


@pytest.mark.slow
def test_two_processes_that_share_layers_learn_from_rollouts_of_vllm_what_one_learns(tmp_path: Path) -> None:
    (tmp_path / "few.yaml").write_text(SHARDED)
    (tmp_path / "my_rewards.py").write_text(SHORT)
    tyler(tmp_path, "train", "stage1", "few.yaml")
    tyler(tmp_path, "train", "stage2", "few.yaml", "--output", "runs/one", *ALONE)
    tyler(tmp_path, "train", "stage2", "few.yaml", "--output", "runs/two", *SHARING, processes=2)
    one, two = (told(tmp_path / "runs" / name) for name in ("one", "two"))
    rollout = slice(0, 2 * len(one[1]) // STEPS)  # as above
    assert one[1][rollout] == two[1][rollout]
    for alone, shared in zip(one[0][:-1], two[0][:-1], strict=True):
        for name in alone.keys() & {"stage2/reward", "stage2/loss", "stage2/gradient_norm"}:
            assert shared[name] == pytest.approx(alone[name], rel=1e-2, abs=1e-5), name
    assert one[0][2]["stage2/gradient_norm"] > 0.01 and two[0][-1]["stage2/replay_gap"] < 1e-3
