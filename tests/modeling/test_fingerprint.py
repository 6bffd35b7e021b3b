"""A fingerprint sees every element of every tensor and every setting of the function, and nothing else."""

import copy
from typing import Any

import pytest
import torch

import tiny
from damage import nudge
from tyler.modeling import fingerprint
from tyler.modeling.backbone import Backbone
from tyler.modeling.fingerprint import FUNCTION_KEYS, fingerprint_of


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_one_element_of_any_tensor_changes_the_fingerprint_and_its_return_brings_it_back(family: str) -> None:
    model = tiny.build_backbone(family).model
    before, seen = fingerprint_of(model), set()
    for _, tensor in model.named_parameters():
        nudge(tensor)
        seen.add(fingerprint_of(model))
        nudge(tensor)
    assert len(seen) == len(list(model.parameters())) and before not in seen
    assert fingerprint_of(model) == before


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_no_element_is_too_small_to_be_seen_in_any_dtype(dtype: torch.dtype) -> None:
    model = tiny.build_backbone("qwen3").model.to(dtype)
    before = fingerprint_of(model)
    nudge(model.get_parameter("model.layers.1.mlp.up_proj.weight"))
    assert fingerprint_of(model) != before


def test_two_tensors_that_change_places_change_the_fingerprint() -> None:
    model = tiny.build_backbone("qwen3").model
    before = fingerprint_of(model)
    up, gate = (model.get_parameter(f"model.layers.0.mlp.{name}_proj.weight") for name in ("up", "gate"))
    up.data, gate.data = gate.data, up.data
    assert fingerprint_of(model) != before


CHANGES: dict[str, Any] = {
    "rope_parameters": {"rope_type": "default", "rope_theta": 20_000.0},
    "layer_types": ["full_attention"],
    "no_rope_layers": [1, 1, 1],
    "hidden_act": "gelu",
    "model_type": "other",
    "attention_bias": True,
    "mlp_bias": True,
    "tie_word_embeddings": False,
}


@pytest.mark.parametrize("key", FUNCTION_KEYS)
def test_every_setting_of_the_function_changes_the_fingerprint(key: str) -> None:
    model = tiny.build_backbone("smollm3").model
    before, changed = fingerprint_of(model), copy.copy(model)
    settings = model.config.to_dict()
    value = CHANGES[key] if key in CHANGES else (settings.get(key) or 0) * 2 + 1
    changed.config = type("Config", (), {"to_dict": lambda self: {**settings, key: value}})()
    assert fingerprint_of(changed) != before


def test_what_does_not_change_the_function_leaves_the_fingerprint_alone() -> None:
    model = tiny.build_backbone("qwen3").model
    before = fingerprint_of(model)
    settings = model.config.to_dict()
    whole = {**settings["rope_parameters"], "rope_theta": int(settings["rope_parameters"]["rope_theta"])}
    irrelevant = {"transformers_version": "9", "dtype": "bfloat16", "use_cache": False, "a_new_key": 1}
    changed = copy.copy(model)
    settings = {**settings, **irrelevant, "rope_parameters": whole}
    changed.config = type("Config", (), {"to_dict": lambda self: settings})()
    assert fingerprint_of(changed) == before


def test_weights_that_fit_bfloat16_have_one_fingerprint_in_both_dtypes_and_others_have_two() -> None:
    model = tiny.build_backbone("qwen3").model
    whole, half = fingerprint_of(model), fingerprint_of(copy.deepcopy(model).bfloat16())
    assert whole != half == fingerprint_of(model, torch.bfloat16)
    published = copy.deepcopy(model).bfloat16()
    assert fingerprint_of(copy.deepcopy(published).float()) == fingerprint_of(published)


@pytest.mark.parametrize("chunk, threads", [(7, 1), (7, 3), (2**24, 2)])
def test_threads_change_nothing_and_every_chunk_counts(
    chunk: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny.build_backbone("qwen2").model
    monkeypatch.setattr(fingerprint, "CHUNK", chunk)
    alone = fingerprint_of(model)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    assert fingerprint_of(model) == alone
    nudge(model.get_parameter("lm_head.weight"))
    assert fingerprint_of(model) != alone


def test_the_shipped_backbone_has_the_fingerprints_that_checkpoints_on_it_name() -> None:
    mini = Backbone.load("mini", dtype="float32", device="cpu")
    assert mini.fingerprint() == "eb926075f422a5e0"
    half = fingerprint_of(mini.model, torch.bfloat16)
    assert Backbone.load("mini", dtype="bfloat16", device="cpu").fingerprint() == half == "4be84f868a0ae1b6"


def test_a_backbone_is_read_once_for_its_fingerprint(monkeypatch: pytest.MonkeyPatch) -> None:
    backbone = tiny.build_backbone("qwen3")
    first = backbone.fingerprint()
    monkeypatch.setattr("tyler.modeling.backbone.fingerprint_of", lambda model: pytest.fail("read again"))
    assert backbone.fingerprint() == first
