"""Real traces, a real tokenizer and its chat template on a small backbone of random weights, through the commands."""

from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer, GenerationConfig, Qwen2Config, Qwen2ForCausalLM

from tyler import AtBoundaries, Tyler
from tyler.config.files import load_config
from tyler.modeling.backbone import no_progress_bar
from tyler.runs.json_lines import read_jsonl
from tyler.training import stage1


def write_random(tokenizer: Path, folder: Path) -> Path:
    """A small backbone of random weights around a real tokenizer and its chat template."""
    read = AutoTokenizer.from_pretrained(tokenizer)
    config = Qwen2Config(
        vocab_size=len(read),
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=192,
        tie_word_embeddings=True,
        initializer_range=0.125,  # at the usual 0.02 so narrow a model hardly looks at its context
    )
    torch.manual_seed(0)
    model = Qwen2ForCausalLM(config)
    model.generation_config = GenerationConfig(eos_token_id=read.eos_token_id, pad_token_id=read.pad_token_id)
    with no_progress_bar():
        model.save_pretrained(folder)
    read.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def backbone(tmp_path_factory: pytest.TempPathFactory, data_dir: Path) -> Path:
    return write_random(data_dir / "tokenizers" / "qwen2.5", tmp_path_factory.mktemp("random-qwen2"))


def learned(run: Path, backbone: Path, data_dir: Path, *settings: str) -> list[float]:
    """The losses of a Stage 1 on real traces."""
    data = ["data.task=gsm8k", f"data.path={data_dir / 'gsm8k_train.jsonl'}", "stage1.learning_rate=1e-2"]
    own = [f"backbone.id={backbone}", "backbone.dtype=float32"]
    stage1.run(load_config("qwen2.5-1.5b", [*own, *data, *settings]), output=run)
    return [record["stage1/loss"] for record in read_jsonl(run / "metrics.jsonl")]


def test_stage_1_and_decoding_run_on_real_gsm8k_traces(backbone: Path, data_dir: Path, tmp_path: Path) -> None:
    few = ("data.count=4", "stage1.steps=2", "stage1.batch_size=2")
    losses = learned(tmp_path / "run", backbone, data_dir, *few)
    assert len(losses) == 2 and all(10 < loss < 15 for loss in losses), "random weights over 151,665 tokens"
    model = Tyler.from_pretrained(str(tmp_path / "run"))
    assert model.stage == "stage1"
    trajectory = model.solve("What is $2 + 3$?", router=AtBoundaries(), max_new_tokens=12)
    assert [(call.operator, call.position) for call in trajectory.invocations][:1] == [("global", 0)]
    assert trajectory.actions[0] == model.backbone.vocab_size
    template = model.backbone.tokenizer.decode(trajectory.prompt_ids)
    assert template.endswith("<|im_start|>assistant\n") and "\\boxed{}" in template


@pytest.mark.slow
def test_the_loss_falls_over_500_real_rows(backbone: Path, data_dir: Path, tmp_path: Path) -> None:
    losses = learned(tmp_path / "run", backbone, data_dir, "data.count=500", "stage1.epochs=1.0")
    assert sum(losses[-10:]) / 10 < sum(losses[:10]) / 10 - 0.05
