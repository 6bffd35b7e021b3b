"""What vLLM makes of a backbone: compiled, it answers alike; quantised, it answers, too."""

import json
from collections.abc import Mapping
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests import tiny
from tests.engine.vllm.conftest import POSITIONS, engine_of
from tests.engine.vllm.test_engine import SOME, check_equal, requests
from torch import nn

from tyler.model import Tyler
from tyler.modeling.backbone import Backbone

INT8 = {
    "quant_method": "compressed-tensors",
    "format": "int-quantized",
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel", "dynamic": False},
            "input_activations": {
                "num_bits": 8, "type": "int", "symmetric": True, "strategy": "token", "dynamic": True,
            },
        }
    },
    "ignore": ["lm_head"],
}  # fmt: skip


def test_a_compiled_backbone_answers_alike(models: Mapping[str, Tyler], monkeypatch: pytest.MonkeyPatch) -> None:
    import_module("vllm.v1.sample.sampler")  # its functions, slower to compile than the model, stay as they are
    monkeypatch.delenv("TORCHDYNAMO_DISABLE")
    monkeypatch.setattr(torch._dynamo.config, "disable", False)
    counts = torch._dynamo.utils.counters["stats"]
    before, model, asked = counts["unique_graphs"], models["qwen3"], requests()[:: 2 * SOME]
    with engine_of(model, enforce_eager=False) as engine:
        answers = engine.run(asked)
    assert counts["unique_graphs"] > before
    check_equal(answers, model.engine(slots=16).run(asked))
    assert sum(answer.num_invocations for answer in answers) > 10


def quantised(backbone: Backbone, folder: Path) -> Backbone:
    """The backbone with an int8 copy of it in a folder."""
    linear = {name for name, one in backbone.model.model.named_modules() if isinstance(one, nn.Linear)}
    backbone.model.save_pretrained(folder)
    tensors = load_file(folder / "model.safetensors")
    for name in sorted(linear):
        weight = tensors.pop(f"model.{name}.weight")
        scale = weight.abs().amax(dim=1, keepdim=True) / 127
        tensors |= {
            f"model.{name}.weight": (weight / scale).round().to(torch.int8),
            f"model.{name}.weight_scale": scale,
        }
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": INT8}))
    return replace(backbone, path=str(folder))


def test_a_quantised_backbone_answers_with_calls(tmp_path: Path) -> None:
    """In int8; how near the numbers are is not looked at."""
    built = tiny.build("qwen3", tiny.SEEDS["qwen3"], width=128)
    built.backbone.model.config.max_position_embeddings = POSITIONS
    backbone = quantised(built.backbone, tmp_path)
    model = Tyler(backbone, built.operators, built.synthesizer, built.policy, built.heads, built.prompt, built.stage)
    with engine_of(model, dtype="bfloat16") as engine:  # vLLM's kernel for int8 on a CPU with AMX takes no float32
        answers = engine.run(requests()[:: 2 * SOME])
        kinds = {type(one.quant_method).__name__ for one in engine._llm.apply_model(linear_maps)[0]}
    assert kinds == {"CompressedTensorsLinearMethod"}
    assert sum(answer.num_invocations for answer in answers) > 10


def linear_maps(model: nn.Module) -> list[nn.Module]:
    return [one for name, one in model.named_modules() if name.endswith("_proj")]
