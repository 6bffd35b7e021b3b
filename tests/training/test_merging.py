"""`tyler merge`: the merged folder is the fine-tuned model."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

import tiny
from tyler.cli.main import main
from tyler.engine.routing import Never
from tyler.model import Tyler
from tyler.modeling.backbone import Backbone
from tyler.modeling.lora import ADAPTER, LoraSettings, lora_layers, lost_to_rounding, merged
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
    backbone = Backbone(id="merged", model=loaded, tokenizer=tiny.tokenizer())
    after = Tyler.start(backbone, (), prompt=model.prompt).solve(question, router=Never(), max_new_tokens=length)
    assert backbone.fingerprint() != model.backbone.fingerprint()
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
    plain = merged(lora, model.backbone.model, torch.float32)
    for name, layer in lora_layers(lora).items():
        a, b = layer.lora_A[ADAPTER].weight.double(), layer.lora_B[ADAPTER].weight.double()
        backwards = sum(torch.outer(b[:, rank], a[rank]) for rank in reversed(range(len(a))))
        expected = (layer.get_base_layer().weight.double() + layer.scaling[ADAPTER] * backwards).float()
        assert torch.equal(plain.get_submodule(name).weight, expected)


def small_steps(steps: int) -> Tyler:
    """A fine-tuned model in bfloat16 weights of std 0.02, some steps of the paper's rate from its start."""
    model = Tyler.start(tiny.build_backbone("qwen3"), ()).at_stage("sft")
    with torch.no_grad():
        for theta in model.backbone.model.parameters():
            theta.copy_(torch.randn_like(theta).mul_(0.02).bfloat16())
        model.policy.add_lora(LoraSettings())
        assert model.policy.lora is not None
        for layer in lora_layers(model.policy.lora).values():
            weight = layer.lora_B[ADAPTER].weight
            weight.copy_(torch.randn_like(weight).sign() * 1e-5 * steps)
    return model


def test_an_adapter_that_rounding_would_lose_is_merged_by_force_alone(tmp_path: Path) -> None:
    model = small_steps(10)
    with pytest.raises(ValueError, match=r"in bfloat16 [\d.]+% of the adapter survives rounding; merge into float32"):
        merge(model, tmp_path / "half", torch.bfloat16)
    assert not (tmp_path / "half").exists()
    lost = merge(model, tmp_path / "half", torch.bfloat16, force=True)
    assert 0.3 < lost < 1.2
    assert all(
        parameter.dtype == torch.bfloat16
        for parameter in Backbone.load(str(tmp_path / "half"), dtype="bfloat16").model.parameters()
    )
    assert merge(model, tmp_path / "whole") < 1e-3
    assert model.backbone.dtype == torch.float32, "theta is as it was"


def test_what_rounding_loses_falls_with_the_steps() -> None:
    losses = [lost_to_rounding(small_steps(steps).policy.lora, torch.bfloat16) for steps in (1, 100, 10_000)]
    assert losses[0] > 0.9 and losses[0] > losses[1] > losses[2]
    assert losses[2] < 0.01


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
    assert main(["merge", str(tmp_path / "sft"), "--output", str(tmp_path / "merged")]) == 0
    assert "is an ordinary model now" in capsys.readouterr().out
    backbone, plain = Backbone.load(str(tmp_path / "merged")), Backbone.load("mini")
    assert backbone.tokenizer.get_vocab() == plain.tokenizer.get_vocab()
    for name, tensor in plain.model.named_parameters():
        torch.testing.assert_close(backbone.model.get_parameter(name), tensor, rtol=0, atol=0)
