"""`tyler merge`: the merged folder is the fine-tuned model."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

import tiny
from tyler.cli.main import main
from tyler.engine.routing import Never
from tyler.model import Tyler
from tyler.modeling.backbone import Backbone
from tyler.modeling.lora import ADAPTER, LoraSettings, fold, folded_view, lora_layers
from tyler.training.merging import merge


def fine_tuned(family: str = "qwen3") -> Tyler:
    """An SFT model whose LoRA is far from zero."""
    return tiny.build(family, operators=()).at_stage("sft")


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_the_merged_folder_answers_as_the_fine_tuned_model_does(family: str, tmp_path: Path) -> None:
    model = fine_tuned(family)
    question, length = tiny.MEDIUM, 24
    before = model.solve(question, max_new_tokens=length)
    untouched = Tyler.start(model.backbone, ()).solve(question, max_new_tokens=length)
    merge(model, tmp_path / "merged")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "merged", dtype="float32")
    merged = Backbone(id="merged", model=loaded, tokenizer=tiny.tokenizer())
    after = Tyler.start(merged, (), prompt=model.prompt).solve(question, router=Never(), max_new_tokens=length)
    assert merged.fingerprint() != model.backbone.fingerprint()
    assert before.actions == after.actions != untouched.actions
    assert before.logprobs == pytest.approx(after.logprobs, abs=1e-4)  # folded by another product on some processors


def test_an_adapter_in_half_precision_gives_the_same_weights_in_whatever_order_it_is_summed() -> None:
    model = fine_tuned()
    lora = model.policy.lora
    assert lora is not None
    with torch.no_grad():
        for layer in lora_layers(lora).values():
            for maps in (layer.lora_A, layer.lora_B):
                weight = maps[ADAPTER].weight
                weight.copy_(torch.randn_like(weight).half())
    view = folded_view(lora, model.backbone.model)
    fold(lora, view, torch.float64)
    for name, layer in lora_layers(lora).items():
        a, b = layer.lora_A[ADAPTER].weight.double(), layer.lora_B[ADAPTER].weight.double()
        backwards = sum(torch.outer(b[:, rank], a[rank]) for rank in reversed(range(len(a))))
        expected = (layer.get_base_layer().weight.double() + layer.scaling[ADAPTER] * backwards).float()
        assert torch.equal(view.get_submodule(name).weight, expected)


def test_what_needs_its_operators_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="a stage2 model cannot be merged: only a policy without operators"):
        merge(tiny.tyler("qwen3"), tmp_path / "merged")
    assert not (tmp_path / "merged").exists()


def test_a_folder_that_is_there_is_left_alone(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    with pytest.raises(FileExistsError, match="kept exists; give a folder that does not"):
        merge(fine_tuned(), kept)
    assert list(kept.iterdir()) == []


def test_the_command_merges_a_checkpoint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = Tyler.start(Backbone.load("mini", dtype="float32"), ()).at_stage("sft")
    model.policy.add_lora(LoraSettings())
    model.save_pretrained(tmp_path / "sft")
    assert main(["merge", str(tmp_path / "sft"), str(tmp_path / "merged")]) == 0
    assert "is an ordinary model now" in capsys.readouterr().out
    merged, plain = Backbone.load(str(tmp_path / "merged")), Backbone.load("mini")
    assert merged.tokenizer.get_vocab() == plain.tokenizer.get_vocab()
    for name, tensor in plain.model.named_parameters():
        torch.testing.assert_close(merged.model.get_parameter(name), tensor, rtol=0, atol=0)
