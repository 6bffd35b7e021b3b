"""GGUF files: every tensor is used and every setting read, or the file is refused by name."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from gguf.quants import dequantize, quantize
from transformers import PreTrainedModel

import gguf_files
from gguf_files import F16, F32, Q4_1, Q8_0, random_model, tensors_of, write_gguf
from tyler.modeling.architectures import settings_of
from tyler.modeling.backbone import Backbone
from tyler.modeling.fingerprint import fingerprint_of
from tyler.modeling.gguf import FAMILIES
from tyler.modeling.gguf_model import read_gguf
from tyler.modeling.random_init import architecture

IDS = torch.arange(3, 43)[None]


@torch.no_grad()
def logits(model: PreTrainedModel) -> torch.Tensor:
    return model(IDS).logits


def check_same(actual: PreTrainedModel, source: PreTrainedModel) -> None:
    """The same weights to the last bit, and logits that differ by rounding alone."""
    weights = actual.state_dict()
    assert weights.keys() == source.state_dict().keys()
    assert all(torch.equal(weights[name], tensor) for name, tensor in source.state_dict().items())
    torch.testing.assert_close(logits(actual), logits(source), atol=1e-4, rtol=1e-4)


def refusal(path: Path) -> str:
    with pytest.raises(ValueError) as caught:
        read_gguf(path)
    return str(caught.value)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.gguf"


# -------------------------------------------------------------------------------------------------- what is read


@pytest.mark.parametrize("kind", [F32, F16], ids=["F32", "F16"])
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("family", FAMILIES)
def test_unquantised_files_give_the_models_they_were_made_of(
    family: str, tied: bool, kind: Any, tmp_path: Path
) -> None:
    source = random_model(family, tie_word_embeddings=tied)
    model, _ = read_gguf(write_gguf(tmp_path / "model.gguf", source, kind))
    check_same(model, source)
    compared = ("model_type", "rms_norm_eps", "rope_parameters", "tie_word_embeddings", "max_position_embeddings")
    for name in (*compared, "bos_token_id", "eos_token_id", "pad_token_id"):
        assert getattr(model.config, name) == getattr(source.config, name), name


@pytest.mark.parametrize("kind", [Q8_0, Q4_1], ids=["Q8_0", "Q4_1"])
@pytest.mark.parametrize("family", FAMILIES)
def test_quantised_files_give_the_models_that_quantisation_leaves(family: str, kind: Any, tmp_path: Path) -> None:
    source = random_model(family)
    model, _ = read_gguf(write_gguf(tmp_path / "model.gguf", source, kind))
    with torch.no_grad():
        for parameter in (parameter for parameter in source.parameters() if parameter.dim() == 2):
            rounded = torch.from_numpy(dequantize(quantize(parameter.numpy(), kind), kind))
            assert 0 < (rounded - parameter).abs().max() < 0.1
            parameter.copy_(rounded)
    check_same(model, source)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_backbone_is_a_gguf_file_as_it_is_the_folder_that_it_was_made_of(family: str, tmp_path: Path) -> None:
    source = random_model(family)
    path = write_gguf(tmp_path / "model.gguf", source)
    loaded = Backbone.load(str(path), device="cpu")
    loaded.model.save_pretrained(tmp_path / "folder")
    loaded.tokenizer.save_pretrained(tmp_path / "folder")
    saved = Backbone.load(str(tmp_path / "folder"), device="cpu")
    assert loaded.fingerprint() == saved.fingerprint()
    assert torch.allclose(logits(loaded.model), logits(saved.model), atol=1e-4)
    text = "125 the\n\n1. <|im_end|> é😀"
    assert loaded.tokenizer(text).input_ids == saved.tokenizer(text).input_ids
    half = Backbone.load(str(path), dtype="bfloat16", device="cpu")
    assert half.fingerprint() == fingerprint_of(loaded.model, torch.bfloat16)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_plan_and_a_dry_run_know_the_shape_of_a_gguf_file(family: str, tmp_path: Path) -> None:
    source = random_model(family)
    path = str(write_gguf(tmp_path / "model.gguf", source))
    assert settings_of(path)["num_hidden_layers"] == 2
    assert architecture(path).to_dict() == read_gguf(path)[0].config.to_dict() | {"architectures": None, "dtype": None}


def test_the_shape_is_read_without_torch(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "model.gguf", random_model("qwen3"))
    code = f"""
import sys
from tyler.modeling.architectures import settings_of
settings_of({str(path)!r})
print("torch" in sys.modules, "transformers" in sys.modules)
"""
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout
    assert shown == "False False\n"


# ------------------------------------------------------------------------------------------------ what is refused

EXTRA = {
    "blk.1.attn_q_norm.weight": torch.ones(16),
    "blk.0.ffn_gate_exps.weight": torch.zeros(2, 64),
    "blk.0.token_embd.weight": torch.zeros(2, 64),
    "rope_factors_long.weight": torch.ones(8),
    "rope_freqs.weight": torch.ones(8),
    "blk.0.ffn_up.bias": torch.ones(96),
    "something_new": torch.ones(8),
}


@pytest.mark.parametrize("name", EXTRA)
def test_a_tensor_that_the_model_would_not_use_is_refused_by_name(name: str, path: Path) -> None:
    message = refusal(write_gguf(path, random_model("llama"), tensors={name: EXTRA[name]}))
    assert f"has tensors that its model would not use, 1 of them: {name}." in message


@pytest.mark.parametrize("name", ["token_embd.weight", "output_norm.weight", "blk.1.ffn_up.weight"])
def test_a_missing_tensor_is_refused_by_name(name: str, path: Path) -> None:
    message = refusal(write_gguf(path, random_model("qwen3"), tensors={name: None}))
    assert f"lacks tensors of its model, 1 of them: {name}" in message


def test_a_tensor_of_another_shape_is_refused_by_name(path: Path) -> None:
    message = refusal(write_gguf(path, random_model("qwen3"), tensors={"blk.0.ffn_up.weight": torch.ones(48, 64)}))
    assert all(part in message for part in ("tensor blk.0.ffn_up.weight", "(48, 64)", "(96, 64)"))


@pytest.mark.parametrize("family", ["smollm3", "gemma3", "qwen3moe", "mamba", None])
def test_another_architecture_is_refused_with_those_that_can_be_loaded(family: str | None, path: Path) -> None:
    changes = {"general.architecture": family, f"{family}.block_count": 2}
    message = refusal(write_gguf(path, random_model("qwen3"), metadata=changes))
    assert repr(str(family)) in message and "llama, qwen2, qwen3 can be loaded" in message


@pytest.mark.parametrize(
    "setting, value, message",
    [
        ("rope.scaling.type", "yarn", "qwen3.rope.scaling.type"),
        ("attention.sliding_window", 128, "qwen3.attention.sliding_window"),
        ("expert_count", 8, "qwen3.expert_count"),
        ("context_length", None, "lacks the settings qwen3.context_length"),
        ("attention.head_count", [4, 2], "qwen3.attention.head_count = [4, 2]"),
        ("attention.head_count", 0, "qwen3.attention.head_count = 0"),
        ("attention.value_length", 16, "attention.value_length = 16 and heads of 32"),
        ("rope.dimension_count", 16, "rope.dimension_count = 16 and heads of 32"),
        ("block_count", 4_000_000_000, "says it has 4000000000 layers, but it holds tensors of 2"),
    ],
)
def test_a_setting_that_cannot_be_read_is_refused_by_name(setting: str, value: Any, message: str, path: Path) -> None:
    assert message in refusal(write_gguf(path, random_model("qwen3"), metadata={f"qwen3.{setting}": value}))


@pytest.mark.parametrize("share", [0.0005, 0.01, 0.03, 0.3, 0.9, 0.9999])
def test_a_file_that_is_cut_off_is_refused(share: float, path: Path) -> None:
    write_gguf(path, random_model("qwen3"))
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * share)])
    assert "damaged or cut off" in refusal(path)


@pytest.mark.parametrize("content", [b"", b"GGU", b"PK\x03\x04" + bytes(64), b"GGUF"], ids=repr)
def test_a_file_of_another_kind_is_refused(content: bytes, path: Path) -> None:
    path.write_bytes(content)
    assert ("damaged or cut off" if content == b"GGUF" else "is no GGUF file: it begins with") in refusal(path)


def test_a_file_that_is_not_there_is_refused(path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"there is no file .*model\.gguf"):
        Backbone.load(str(path))


def test_without_the_package_it_says_what_to_install(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_gguf(path, random_model("qwen3"))
    monkeypatch.setitem(sys.modules, "gguf", None)
    assert "pip install 'path/to/tyler[gguf]'" in refusal(path)


def test_a_quantisation_that_cannot_be_undone_is_refused_by_name(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise NotImplementedError

    write_gguf(path, random_model("qwen3"), Q8_0)
    monkeypatch.setattr("gguf.quants.dequantize", refuse)
    assert "tensor token_embd.weight" in (message := refusal(path)) and "Q8_0" in message


def test_the_files_of_these_tests_hold_what_they_say() -> None:
    """All names differ, or a test of one tensor would be one of another."""
    assert len(tensors_of(random_model("llama", attention_bias=True))) == 3 + 2 * (9 + 4)
    assert len(set(gguf_files.pieces()[0])) == len(gguf_files.pieces()[0])
