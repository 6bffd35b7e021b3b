"""Backbones with adapters merged into their weights: loaded, compared, trained on, saved and refused."""

import json
import runpy
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import tiny
from tyler.model import Tyler
from tyler.modeling import loading
from tyler.modeling.backbone import Backbone
from tyler.modeling.checkpoint import trained_tensors
from tyler.modeling.loading import load_backbone
from tyler.modeling.lora import LoraSettings, lora_layers
from tyler.modeling.manifest import CheckpointError
from tyler.modeling.tensor_files import round_file


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    """The folder of a backbone."""
    backbone = tiny.build_backbone("qwen3")
    tiny.save(backbone, tmp_path / "plain")
    return tmp_path / "plain"


@pytest.fixture
def skills(plain: Path, tmp_path: Path) -> list[Path]:
    """Two adapters of it in float16, as two SFT checkpoints in half precision hold them."""
    for name, seed in (("first", 1), ("second", 2)):
        model = Tyler.start(Backbone.load(str(plain)), ()).at_stage("sft")
        model.policy.add_lora(LoraSettings(rank=4, alpha=8))
        tiny.randomize_lora(model.policy.lora, torch.Generator().manual_seed(seed))
        model.save_pretrained(tmp_path / name, half=True)
    return [tmp_path / "first" / "policy", tmp_path / "second" / "policy"]


def summed(plain: Path, skills: list[Path]) -> dict[str, torch.Tensor]:
    """The merged weights, by the adapters that peft loaded."""
    weights = {name: theta.double() for name, theta in Backbone.load(str(plain)).model.named_parameters()}
    for folder in skills:
        lora = Tyler.from_pretrained(str(folder.parent)).policy.lora
        assert lora is not None
        for name, layer in lora_layers(lora).items():
            a, b = (maps["default"].weight.double() for maps in (layer.lora_A, layer.lora_B))
            key = f"{name}.weight"
            weights[key] = (weights[key] + layer.scaling["default"] * b @ a).float().double()
    return weights


def test_adapters_are_merged_in_order_in_float32_before_any_cast(plain: Path, skills: list[Path]) -> None:
    exact = summed(plain, skills)
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        merged = load_backbone(str(plain), skills, dtype=dtype)
        for name, theta in merged.model.named_parameters():
            assert torch.equal(theta, exact[name].detach().float().to(dtype)), name
    assert merged.fingerprint() != Backbone.load(str(plain), dtype=torch.float16).fingerprint()


def test_a_checkpoint_keeps_the_adapters_of_its_backbone(plain: Path, skills: list[Path], tmp_path: Path) -> None:
    model = Tyler.start(load_backbone(str(plain), skills)).at_stage("stage1")
    expected = model.solve(tiny.MEDIUM, max_new_tokens=12)
    model.save_pretrained(tmp_path / "once")
    for folder in skills:
        shutil.rmtree(folder)
    Tyler.from_pretrained(str(tmp_path / "once")).save_pretrained(tmp_path / "twice", half=True)
    shutil.rmtree(tmp_path / "once")
    written = json.loads((tmp_path / "twice" / "tyler.json").read_text())["backbone"]
    assert written["merged_adapters"] == ["merged_adapters/1", "merged_adapters/2"]
    loaded = Tyler.from_pretrained(str(tmp_path / "twice"))
    assert loaded.backbone.fingerprint() == model.backbone.fingerprint() == written["fingerprint"]
    assert loaded.solve(tiny.MEDIUM, max_new_tokens=12).actions == expected.actions
    assert Tyler.from_pretrained(str(tmp_path / "twice"), dtype="bfloat16").backbone.dtype == torch.bfloat16


def test_the_name_of_a_model_that_ships_means_the_skill_inside_it(
    plain: Path, skills: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Tyler.start(load_backbone(str(plain), skills[:1])).save_pretrained(tmp_path / "ships")
    monkeypatch.setattr(loading, "shipped", lambda name: tmp_path / "ships" if name == "ships" else None)
    named, given = (load_backbone(str(plain), adapters) for adapters in (["ships"], skills[:1]))
    assert named.fingerprint() == given.fingerprint() and named.adapters == given.adapters
    with pytest.raises(CheckpointError, match=r"mini-tyler/merged_adapters/1 is missing: backbone 'mini'"):
        monkeypatch.undo()
        load_backbone("mini", ["mini-tyler"])


def test_bfloat16_adapters_are_read(plain: Path, skills: list[Path]) -> None:

    file = skills[0] / "adapter_model.safetensors"
    save_file({name: tensor.bfloat16() for name, tensor in load_file(file).items()}, file)
    assert load_backbone(str(plain), skills[:1]).fingerprint() != Backbone.load(str(plain)).fingerprint()


def test_what_is_no_adapter_of_the_backbone_is_refused_by_name(plain: Path, skills: list[Path], tmp_path: Path) -> None:
    Tyler.start(load_backbone(str(plain), skills)).save_pretrained(tmp_path / "kept")
    second = tmp_path / "kept" / "merged_adapters" / "2"
    moved = shutil.move(second, tmp_path / "away")
    with pytest.raises(CheckpointError, match=r"merged_adapters/2 is missing: backbone .* adapter merged into it"):
        Tyler.from_pretrained(str(tmp_path / "kept"))
    shutil.copytree(skills[0], second)
    with pytest.raises(CheckpointError, match=r"was trained on backbone .* but .* has"):
        Tyler.from_pretrained(str(tmp_path / "kept"))
    shutil.rmtree(second)
    shutil.copytree(moved, second)
    round_file(second / "adapter_model.safetensors")
    Tyler.from_pretrained(str(tmp_path / "kept"))
    settings = json.loads((second / "adapter_config.json").read_text())
    (second / "adapter_config.json").write_text(json.dumps({**settings, "r": settings["r"] + 1}))
    with pytest.raises(CheckpointError, match=r"merged_adapters/2/adapter_model.safetensors does not fit .* misshapen"):
        Tyler.from_pretrained(str(tmp_path / "kept"))


@pytest.mark.parametrize("name", ["../elsewhere", "/etc", "a/../../b", "", ".hidden"])
def test_an_adapter_outside_the_checkpoint_is_refused(
    plain: Path, skills: list[Path], tmp_path: Path, name: str
) -> None:
    Tyler.start(load_backbone(str(plain), skills)).save_pretrained(tmp_path / "kept")
    file = tmp_path / "kept" / "tyler.json"
    content = json.loads(file.read_text())
    content["backbone"]["merged_adapters"] = [name]
    file.write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match="give the path of a folder inside the checkpoint"):
        Tyler.from_pretrained(str(tmp_path / "kept"))


def test_what_ships_has_matrices_in_eight_bits_and_loads_as_they_are_written(tmp_path: Path) -> None:
    ship = runpy.run_path(str(Path(__file__).parents[2] / "scripts" / "ship_operators.py"))["ship"]
    model, card = Tyler.from_pretrained("mini-tyler", dtype="float32", device="cpu"), tmp_path / "card.md"
    model.save_pretrained(tmp_path / "whole")
    card.write_text("# What it can do")
    size = ship(tmp_path / "whole", tmp_path / "shipped", card=card)
    assert size < sum(file.stat().st_size for file in (tmp_path / "whole").rglob("*") if file.is_file()) / 2
    assert (tmp_path / "shipped" / "README.md").read_text() == "# What it can do"
    shipped = Tyler.from_pretrained(str(tmp_path / "shipped"), dtype="float32", device="cpu")
    exact, rounded = (trained_tensors(tyler.synthesizer, tyler.policy) for tyler in (model, shipped))
    for name, tensor in exact.items():
        dtype = torch.float8_e4m3fn if tensor.ndim > 1 else torch.float16
        assert torch.equal(rounded[name], tensor.to(dtype).float()), name
