"""Checkpoints: what comes back is bit-equal, plain peft reads the adapters, misfits are refused by name."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import tiny
from tyler import CheckpointError, Tyler
from tyler.engine.request import Request
from tyler.engine.routing import Forced, Learned, Router
from tyler.engine.sampling import Sampling
from tyler.engine.trajectory import Trajectory
from tyler.modeling.backbone import Backbone, view
from tyler.modeling.interventions import swap
from tyler.modeling.lora import LoraSettings, lora_layers
from tyler.modeling.manifest import BackboneRecord
from tyler.runs.run import Run

EVERYWHERE = Forced({0: ("global",), 3: ("state", "procedure"), 7: ("global",)})


@pytest.fixture(scope="session")
def backbones(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the tiny backbone of every family."""
    folder = tmp_path_factory.mktemp("backbones")
    for family in tiny.FAMILIES:
        tiny.save(tiny.tyler(family).backbone, folder / family)
    return folder


@pytest.fixture(scope="session")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Stage 2 checkpoint of the qwen3 model; copy it before changing it."""
    folder = tmp_path_factory.mktemp("checkpoint") / "stage2"
    tiny.tyler("qwen3").save_pretrained(folder)
    return folder


@pytest.fixture
def copy(saved: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved, tmp_path / "copy"))


def load(folder: Path, backbones: Path, family: str = "qwen3") -> Tyler:
    return Tyler.from_pretrained(str(folder), backbone=str(backbones / family), device="cpu")


def answers(model: Tyler, router: Router) -> list[Trajectory]:
    requests = [
        Request(tiny.ids(text), router=router, sampling=Sampling(0.8 if seed else 0.0, seed=seed), max_new_tokens=24)
        for text in tiny.PROMPTS
        for seed in range(2)
    ]
    return model.engine(slots=3).run(requests)


def assert_bit_equal(first: list[Trajectory], second: list[Trajectory]) -> None:
    for first_answer, other in zip(first, second, strict=True):
        assert first_answer.actions == other.actions
        assert first_answer.logprobs == other.logprobs
        assert first_answer.invocations == other.invocations
        for latents, others in zip(first_answer.latents, other.latents, strict=True):
            assert torch.equal(latents, others)


# -------------------------------------------------------------------------------------------- the same


@pytest.mark.parametrize("stage", ["stage1", "stage2"])
@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_a_saved_model_reloads_to_bit_equal_outputs(family: str, stage: str, backbones: Path, tmp_path: Path) -> None:
    model = tiny.build(family, tiny.SEEDS[family], psi_scale=1.0)
    if stage == "stage1":
        model.policy.lora = None
    model = model.at_stage(stage)
    model.save_pretrained(tmp_path)
    loaded = load(tmp_path, backbones, family)
    assert (loaded.stage, loaded.operators, loaded.prompt) == (stage, model.operators, model.prompt)
    assert (loaded.policy.lora is None) == (stage == "stage1")
    before = answers(model, Learned())
    assert sum(trajectory.num_invocations for trajectory in before) >= 4
    assert_bit_equal(before, answers(loaded, Learned()))
    assert_bit_equal(answers(model, EVERYWHERE), answers(loaded, EVERYWHERE))


def test_a_model_saved_in_half_is_the_rounded_one(saved: Path, backbones: Path, tmp_path: Path) -> None:
    model = load(saved, backbones, "qwen3")
    model.save_pretrained(tmp_path / "half", half=True)
    with torch.no_grad():
        for parameter in trained_parameters(model):
            parameter.copy_(parameter.half().float())
    loaded = load(tmp_path / "half", backbones, "qwen3")
    assert {parameter.dtype for parameter in trained_parameters(loaded)} == {torch.float32}
    assert model.fingerprint() == loaded.fingerprint() != load(saved, backbones, "qwen3").fingerprint()
    assert_bit_equal(answers(model, EVERYWHERE), answers(loaded, EVERYWHERE))
    for name in ("operators.safetensors", "synthesizer/adapter_model.safetensors"):
        assert (tmp_path / "half" / name).stat().st_size < 0.6 * (saved / name).stat().st_size


def trained_parameters(model: Tyler) -> list[torch.Tensor]:
    loras = (model.synthesizer.lora, model.policy.lora)
    adapters = [tensor for lora in loras for name, tensor in lora.named_parameters() if "lora_" in name]  # type: ignore[union-attr]
    return [*adapters, *model.synthesizer.heads.parameters(), model.policy.psi]


def test_a_number_beyond_float16_is_named(saved: Path, backbones: Path, tmp_path: Path) -> None:
    model = load(saved, backbones, "qwen3")
    with torch.no_grad():
        model.policy.psi[0, 0] = 70_000.0
    with pytest.raises(ValueError, match=r"psi: numbers beyond float16, up to 65,504; save in float32"):
        model.save_pretrained(tmp_path / "half", half=True)
    assert not (tmp_path / "half").exists()


@pytest.mark.parametrize("id, hinted", [("smollm2", True), ("mini", False)])
def test_a_fetched_backbone_from_elsewhere_is_refused_with_where_to_get_the_right_one(id: str, hinted: bool) -> None:
    record = BackboneRecord(id, None, "0123456789abcdef", "float32")
    with pytest.raises(CheckpointError, match=f"was trained on backbone '{id}' with fingerprint 0123") as refused:
        record.check(tiny.tyler("qwen3").backbone, Path("model"))
    assert ("run `tyler fetch smollm2` with the other --origin" in str(refused.value)) == hinted


def test_saving_what_was_loaded_writes_the_same_files(saved: Path, backbones: Path, tmp_path: Path) -> None:
    Tyler.from_pretrained(str(saved), backbone=str(backbones / "qwen3")).save_pretrained(tmp_path)
    for name in ("operators.safetensors", "synthesizer/adapter_model.safetensors", "policy/adapter_model.safetensors"):
        assert (tmp_path / name).read_bytes() == (saved / name).read_bytes(), name


def test_a_checkpoint_holds_what_the_contract_says(saved: Path) -> None:
    names = {str(path.relative_to(saved)) for path in saved.rglob("*") if path.is_file()}
    adapters = {
        f"{part}/{name}"
        for part in ("synthesizer", "policy")
        for name in ("adapter_config.json", "adapter_model.safetensors")
    }
    assert {"tyler.json", "operators.safetensors", "README.md", *adapters} <= names
    assert {Path(name).suffix for name in names} <= {".json", ".safetensors", ".md"}, "never pickle"
    tensors = {name: list(tensor.shape) for name, tensor in load_file(saved / "operators.safetensors").items()}
    dim = tiny.tyler("qwen3").backbone.dim
    expected = {"psi": [3, dim]}
    for operator in tiny.OPERATORS:
        expected |= {
            f"{operator.name}.queries": [operator.num_latents, dim],
            f"{operator.name}.proj.weight": [dim, dim],
            f"{operator.name}.proj.bias": [dim],
        }
    assert tensors == expected
    manifest = json.loads((saved / "tyler.json").read_text())
    assert manifest["format"] == 3 and manifest["stage"] == "stage2"
    assert {"torch", "transformers", "peft"} <= set(manifest["versions"])
    assert set(manifest["digests"]) == {"operators.safetensors", *(file for file in adapters if "safetensors" in file)}


def test_a_run_directory_loads_its_newest_checkpoint(backbones: Path, tmp_path: Path) -> None:
    model = tiny.build("qwen3", tiny.SEEDS["qwen3"])
    with Run.create(tmp_path / "run", "stage2: {}\n") as run:
        for step in (9, 10):
            with torch.no_grad():
                model.policy.psi.fill_(step)
            run.save_checkpoint(step, model.save_pretrained)
    loaded = Tyler.from_pretrained(str(tmp_path / "run"), backbone=str(backbones / "qwen3"))
    assert loaded.policy.psi.unique().tolist() == [10.0]


def test_a_model_under_an_intervention_is_not_saved_as_if_it_were_the_model(tmp_path: Path, saved: Path) -> None:
    model = tiny.tyler("qwen3")
    with pytest.raises(ValueError, match=r"under an intervention .* cannot be saved; save the model it is of"):
        model.with_heads(swap(model.heads, "state", "global")).save_pretrained(tmp_path)
    assert not list(tmp_path.iterdir())
    model.with_heads(dict(model.heads)).save_pretrained(tmp_path)
    assert (tmp_path / "operators.safetensors").read_bytes() == (saved / "operators.safetensors").read_bytes()


# -------------------------------------------------------------------------------------- one theta only


def test_every_view_shares_the_tensors_of_theta() -> None:
    model = tiny.build("qwen3", tiny.SEEDS["qwen3"])
    theta = {name: tensor.data_ptr() for name, tensor in model.backbone.model.named_parameters()}
    for lora in (model.synthesizer.lora, model.policy.lora):
        for name, tensor in lora.get_base_model().named_parameters():
            if "lora_" not in name:
                assert tensor.data_ptr() == theta[name.replace(".base_layer", "")], f"{name} was copied"
    assert all(tensor.data_ptr() == theta[name] for name, tensor in view(model.backbone.model).named_parameters())


# ------------------------------------------------------------------------------------- refused by name


def refusal(folder: Path, backbones: Path, family: str = "qwen3") -> str:
    with pytest.raises(CheckpointError) as refused:
        Tyler.from_pretrained(str(folder), backbone=str(backbones / family))
    return str(refused.value)


@pytest.mark.parametrize(
    "trained, wanted",
    [("float32", half) for half in ("bfloat16", "float16")]
    + [(half, wanted) for half in ("bfloat16", "float16") for wanted in ("bfloat16", "float32")],
)
def test_a_backbone_is_compared_in_the_dtype_that_was_trained(
    trained: str, wanted: str, backbones: Path, tmp_path: Path
) -> None:
    folder = str(backbones / "qwen3")
    Tyler.start(Backbone.load(folder, dtype=trained)).save_pretrained(tmp_path)
    model = Tyler.from_pretrained(str(tmp_path), dtype=wanted)
    plain = Backbone.load(folder, dtype=wanted)
    assert model.backbone.fingerprint() == plain.fingerprint()
    assert model.backbone.dtype == getattr(torch, wanted) and model.solve(tiny.SHORT, max_new_tokens=3).actions
    rotary = model.backbone.model.base_model.rotary_emb
    assert torch.equal(rotary.inv_freq, plain.model.base_model.rotary_emb.inv_freq)
    other = tiny.build_backbone("qwen3", tiny.SEEDS["qwen3"])
    with torch.no_grad():
        other.model.get_parameter("model.layers.0.mlp.down_proj.weight")[0, 0] += 1
    with pytest.raises(CheckpointError, match=r"was trained on backbone .* load it with the backbone"):
        Tyler.from_pretrained(str(tmp_path), backbone=str(tiny.save(other, tmp_path / "other")), dtype=wanted)


def test_a_stage_is_saved_with_the_policys_lora_where_it_has_trained_one(tmp_path: Path) -> None:
    model = tiny.build("qwen3", tiny.SEEDS["qwen3"])
    model.at_stage("stage1").save_pretrained(tmp_path / "stage1")
    assert not (tmp_path / "stage1" / "policy").exists()
    model.policy.lora = None
    with pytest.raises(ValueError, match="the policy has no LoRA, and a model of stage 'stage2' has trained one"):
        model.at_stage("stage2").save_pretrained(tmp_path / "stage2")
    assert not (tmp_path / "stage2").exists()


def test_a_second_lora_of_the_policy_leaves_theta_and_takes_nothing_over() -> None:
    model = tiny.build("qwen3", tiny.SEEDS["qwen3"])
    theta = {name: tensor.clone() for name, tensor in model.backbone.model.state_dict().items()}
    for modules in (("q_proj", "v_proj"), ("o_proj",)):
        model.policy.add_lora(LoraSettings(rank=2, target_modules=modules))
        with torch.no_grad():
            for layer in lora_layers(model.policy.lora).values():
                layer.lora_B["default"].weight.normal_()
        decoder = model.policy.decoder
    assert all(torch.equal(tensor, theta[name]) for name, tensor in model.backbone.model.state_dict().items())
    assert torch.equal(decoder.layers[0].self_attn.q_proj.weight, theta["model.layers.0.self_attn.q_proj.weight"])


@pytest.mark.parametrize("name", ["lm_head", "embed_tokens", "self_attn.q_proj", "nonsense"])
def test_a_lora_on_what_decoding_would_not_read_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=rf"no map '{name}' for LoRA; target_modules has .*'v_proj'.*'down_proj'"):
        LoraSettings(target_modules=("q_proj", name))


def test_a_model_in_float64_is_saved_and_loaded_from_a_path_to_its_backbone(tmp_path: Path) -> None:
    model = tiny.build("qwen3", tiny.SEEDS["qwen3"])
    tiny.save(model.backbone, tmp_path / "backbone")
    wide = replace(model, backbone=Backbone.load(tmp_path / "backbone", dtype="float64", device="cpu"))
    for module in (wide.synthesizer, wide.policy):
        module.double()
    wide.save_pretrained(tmp_path / "wide")
    again = Tyler.from_pretrained(tmp_path / "wide", backbone=tmp_path / "backbone", dtype="float64", device="cpu")
    assert again.fingerprint() == wide.fingerprint()


def on_a_relative_path(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run in `folder` whose backbone was given as "bb" there; its newest checkpoint."""
    model = tiny.tyler("qwen3")
    tiny.save(model.backbone, folder / "bb")
    monkeypatch.chdir(folder)
    checkpoint = folder / "runs" / "a" / "checkpoints" / "step-4"
    replace(model, backbone=Backbone.load("bb", device="cpu")).save_pretrained(checkpoint)
    return checkpoint


def test_a_model_on_a_folder_loads_from_any_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = on_a_relative_path(tmp_path / "project", monkeypatch)
    record = json.loads((checkpoint / "tyler.json").read_text())["backbone"]
    assert (record["id"], record["folder"]) == ("bb", str(tmp_path / "project" / "bb"))
    monkeypatch.chdir(tmp_path)
    loaded = Tyler.from_pretrained("project/runs/a")
    assert loaded.backbone.id == "bb"
    loaded.save_pretrained(tmp_path / "again")
    assert Tyler.from_pretrained(tmp_path / "again").fingerprint() == loaded.fingerprint()


def test_a_model_that_names_no_folder_finds_it_beside_its_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = on_a_relative_path(tmp_path / "project", monkeypatch)
    manifest = json.loads((checkpoint / "tyler.json").read_text())
    manifest["backbone"]["folder"] = None
    (checkpoint / "tyler.json").write_text(json.dumps(manifest))
    assert Tyler.from_pretrained("runs/a").backbone.id == "bb"
    monkeypatch.chdir(tmp_path)
    (tmp_path / "project").rename(tmp_path / "moved")
    assert Tyler.from_pretrained("moved/runs/a").backbone.path == str(tmp_path / "moved" / "bb")


def test_a_backbone_that_is_elsewhere_now_can_be_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = on_a_relative_path(tmp_path / "project", monkeypatch)
    (tmp_path / "project" / "bb").rename(tmp_path / "elsewhere")
    with pytest.raises(
        FileNotFoundError, match=r"step-4 was trained on it\. If it is elsewhere now, give .*--backbone"
    ):
        Tyler.from_pretrained(checkpoint)
    loaded = Tyler.from_pretrained(checkpoint, backbone=str(tmp_path / "elsewhere"))
    assert loaded.backbone.id == str(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match="elsewhere is not a checkpoint and has no other backbone"):
        Tyler.from_pretrained(tmp_path / "elsewhere", backbone="mini")


def edit_manifest(folder: Path, **changes: object) -> None:
    content = json.loads((folder / "tyler.json").read_text())
    (folder / "tyler.json").write_text(json.dumps({**content, **changes}))


@pytest.mark.parametrize("format", [1, 2, 4, 99, 0, True, "1", None])
def test_another_format_is_refused_with_the_newest_that_is_read(format: object, copy: Path, backbones: Path) -> None:
    edit_manifest(copy, format=format)
    message = refusal(copy, backbones)
    assert f"tyler.json has format {format!r}" in message and "reads format 3" in message


def test_an_unknown_stage_is_refused_with_the_known_ones(copy: Path, backbones: Path) -> None:
    edit_manifest(copy, stage="stage3")
    assert "stage = 'stage3': Input should be 'backbone', 'stage1', 'stage2'" in refusal(copy, backbones)


def test_a_loaded_model_is_ready_to_answer_and_to_replay_without_dropout(saved: Path, backbones: Path) -> None:
    loaded = load(saved, backbones)
    training = [
        name for part in (loaded.policy, loaded.synthesizer) for name, module in part.named_modules() if module.training
    ]
    assert not training


def test_a_checkpoint_that_was_kept_still_loads(root: Path) -> None:
    """`tests/files/stage1`, in float16 on `mini`: what is published today is read tomorrow."""
    model = Tyler.from_pretrained(root / "tests" / "files" / "stage1", dtype="float32", device="cpu")
    assert model.fingerprint() == "f15f094aaa335729"
    (call,) = model.solve("Find x when $5x - 28 = 47$.", max_new_tokens=20).invocations
    assert (model.stage, call.operator, call.num_latents) == ("stage1", "global", 2)
