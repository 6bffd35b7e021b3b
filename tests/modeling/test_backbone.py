"""Which backbones are loaded, which are refused and with what advice, and how they are prompted."""

import copy
import json
import socket
import urllib.error
import urllib.request
from dataclasses import replace
from email.message import Message
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from huggingface_hub import constants
from huggingface_hub.errors import (
    GatedRepoError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils import are_progress_bars_disabled
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast
from transformers.utils.logging import is_progress_bar_enabled

import tiny
from tyler.modeling import backbone
from tyler.modeling.architectures import FAMILIES
from tyler.modeling.backbone import Backbone
from tyler.modeling.fingerprint import fingerprint_of
from tyler.tasks.prompts import Prompt, prompt_ids, target_ids


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A complete local model."""
    return tiny.save(tiny.build_backbone("qwen2"), tmp_path)


def refusal(id: str | Path, error: type[Exception] = FileNotFoundError) -> str:
    with pytest.raises(error) as caught:
        Backbone.load(str(id), device="cpu")
    return str(caught.value)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", torch.float32, torch.float16])
def test_a_local_folder_of_every_family_loads_in_the_dtype_that_is_asked_for(
    family: str, dtype: str | torch.dtype, tmp_path: Path
) -> None:
    backbone = tiny.build_backbone(family)
    tiny.save(backbone, tmp_path)
    loaded = Backbone.load(str(tmp_path), dtype=dtype, device="cpu")
    assert loaded.dtype == getattr(torch, str(dtype).removeprefix("torch."))
    assert loaded.fingerprint() == fingerprint_of(backbone.model, loaded.dtype)
    assert (loaded.fingerprint() == backbone.fingerprint()) == (loaded.dtype == torch.float32)
    assert not any(parameter.requires_grad for parameter in loaded.model.parameters())


@pytest.mark.parametrize("dtype", ["int8", "float8", "half", "", torch.int8, torch.complex64, 32])
def test_another_dtype_is_refused_with_those_that_are_allowed(dtype: Any, folder: Path) -> None:
    with pytest.raises(ValueError, match=rf"dtype {dtype!r} is not known; use 'auto', 'float32', 'bfloat16', 'float"):
        Backbone.load(str(folder), dtype=dtype, device="cpu")


@pytest.mark.parametrize(
    ("device", "message"),
    [
        (0.5, "device 0.5 is not known"),
        ("nosuch", "device 'nosuch' is not known; use 'cpu', 'cuda', 'cuda:1' or 'mps'"),
        ("cuda", "device 'cuda' was asked for, and torch finds no CUDA device here; `tyler doctor`"),
        ("cuda:3", "device 'cuda:3' was asked for, and torch finds no CUDA device here"),
        ("mps", "device 'mps' was asked for, and torch finds no Apple GPU here; `tyler doctor`"),
    ],
)
def test_a_device_that_is_not_there_is_refused_in_a_sentence(
    device: Any, message: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    with pytest.raises(ValueError, match=message):
        Backbone.load(str(folder), device=device)


def test_running_out_of_memory_is_not_said_to_be_the_weights_fault(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: Any, **kwargs: Any) -> None:
        raise RuntimeError("[enforce fail] DefaultCPUAllocator: not enough memory: you tried to allocate 9 bytes")

    monkeypatch.setattr(backbone.AutoModelForCausalLM, "from_pretrained", refuse)
    with pytest.raises(RuntimeError, match="not enough memory"):
        Backbone.load(str(folder), device="cpu")


def test_a_pickled_checkpoint_is_refused_with_what_to_do(folder: Path) -> None:
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    assert "Only safetensors are read" in (message := refusal(folder))
    assert "save_pretrained" in message


def test_a_damaged_weights_file_is_refused(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"x" * 100)
    assert "damaged or cut off" in refusal(folder)


def test_whole_weights_beside_an_index_of_shards_are_refused(folder: Path) -> None:
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {}}')
    with pytest.raises(ValueError, match=r"two sets of weights, model.safetensors and the shards of .*index.json"):
        Backbone.load(str(folder))


def test_missing_weights_are_not_drawn_at_random(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    assert "lacks 1 of its weights, such as model.layers.1.mlp.up_proj.weight" in refusal(folder, ValueError)


def test_a_folder_without_a_tokenizer_is_refused(folder: Path) -> None:
    for file in ("tokenizer.json", "tokenizer_config.json"):
        (folder / file).unlink()
    assert "no tokenizer" in refusal(folder, ValueError)


def test_a_tokenizer_with_more_tokens_than_embeddings_is_refused() -> None:
    model = tiny.build_backbone("qwen2").model
    model.resize_token_embeddings(50)
    with pytest.raises(ValueError, match="they do not belong together"):
        Backbone("small", model, tiny.tokenizer())


@pytest.mark.parametrize("type", ["mistral", "gemma3_text", "bert", "something_new"])
def test_another_family_is_refused_with_those_that_are_supported(type: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": type}))
    with pytest.raises((ValueError, FileNotFoundError)) as caught:
        Backbone.load(str(tmp_path))
    assert type in str(caught.value)
    assert "llama, qwen2, qwen3, smollm3" in str(caught.value)


def test_sliding_windows_are_refused(folder: Path) -> None:
    settings = json.loads((folder / "config.json").read_text())
    settings |= {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 0}
    settings.pop("layer_types", None)
    (folder / "config.json").write_text(json.dumps(settings))
    assert "sliding-window attention" in refusal(folder, ValueError)


def test_without_network_the_advice_is_how_to_bring_a_copy() -> None:
    message = refusal("Qwen/Qwen2.5-0.5B-Instruct")
    assert "hf download Qwen/Qwen2.5-0.5B-Instruct" in message and "HF_HUB_OFFLINE" in message


RESPONSE: Any = SimpleNamespace(headers={}, request=None)


@pytest.mark.parametrize(
    "cause, advice",
    [
        (GatedRepoError("gated", response=RESPONSE), "accept the terms on https://huggingface.co/some/model"),
        (GatedRepoError("gated", response=RESPONSE), "hf auth login"),
        (RepositoryNotFoundError("not there", response=RESPONSE), "Check the id"),
        (RevisionNotFoundError("not there", response=RESPONSE), "backbone.revision"),
        (LocalEntryNotFoundError("offline"), "hf download some/model"),
    ],
)
def test_what_the_hub_answers_comes_with_what_to_do(
    cause: Exception, advice: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: Any, **kwargs: Any) -> None:
        raise OSError("the Hub says no") from cause

    monkeypatch.setattr(backbone.AutoConfig, "from_pretrained", refuse)
    message = refusal("some/model")
    assert "the Hub says no" in message and advice in message


# ------------------------------------------------------------------------------------------ chat templates


SMOLLM3_STYLE = (
    "{%- if enable_thinking is not defined -%}{%- set enable_thinking = true -%}{%- endif -%}"
    "system\n{{ 'Reasoning Mode: /think' if enable_thinking else 'Reasoning Mode: /no_think' }}\n"
    "{%- for message in messages -%}\n{{ message.role }}\n{{ message.content }}{%- endfor -%}"
    "{%- if add_generation_prompt -%}\nassistant\n"
    "{%- if not enable_thinking -%}<think>\n\n</think>\n{%- endif -%}{%- endif -%}"
)
"""The ways of SmolLM3's template in small: it thinks unless told not to, and says so in the system's turn."""


def test_a_template_that_thinks_unless_told_not_to_is_told_not_to() -> None:
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=tiny.tokenizer().backend_tokenizer, eos_token="<eos>")
    tokenizer.chat_template = SMOLLM3_STYLE
    silent, aloud = (tokenizer.decode(prompt_ids(tokenizer, "2 + 3?", Prompt(thinking=on))) for on in (False, True))
    assert "/no_think" in silent and silent.endswith("</think>")
    assert "/think" in aloud and "</think>" not in aloud
    assert tokenizer.decode(prompt_ids(tokenizer, "2 + 3?")) == silent, "off is the default"


def test_weights_are_read_without_transformers_bar_and_downloads_keep_theirs(folder: Path, monkeypatch) -> None:
    shown: list[tuple[bool, bool]] = []
    load = AutoModelForCausalLM.from_pretrained

    def watched(*arguments: Any, **settings: Any) -> Any:
        shown.append((is_progress_bar_enabled(), are_progress_bars_disabled()))
        return load(*arguments, **settings)

    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", watched)
    Backbone.load(str(folder))
    assert shown == [(False, False)]
    assert is_progress_bar_enabled()


def test_an_answer_ends_where_the_chat_template_ends_a_turn() -> None:
    """A base model's folder may know `<|endoftext|>` alone, while its chat template ends turns with `<|im_end|>`."""
    plain = tiny.build_backbone("qwen2")
    tokenizer = copy.deepcopy(plain.tokenizer)
    end = next(id for id in range(len(tokenizer)) if id not in plain.eos_ids)
    word = str(tokenizer.convert_ids_to_tokens(end))
    tokenizer.add_special_tokens({"additional_special_tokens": [word]})
    tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }}" + word + "\n{% endfor %}"
    changed = replace(plain, tokenizer=tokenizer)
    assert changed.eos_ids == plain.eos_ids | {end}
    assert target_ids(tokenizer, "5")[-1] == end
    assert word in changed.text_settings["end_tokens"]
    assert changed.text_origin()["the end tokens"] != plain.text_origin()["the end tokens"]


def test_a_hub_out_of_reach_is_said_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a retry: nothing asks the network again once its address does not answer."""
    urls = []

    def refuse(request: urllib.request.Request, timeout: float) -> None:
        urls.append(request.full_url)
        raise urllib.error.URLError("Name or service not known")

    monkeypatch.setattr(urllib.request, "urlopen", refuse)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: pytest.fail("the Hub is asked again"))
    with pytest.raises(FileNotFoundError, match="The Hub cannot be reached, or HF_HUB_OFFLINE forbids it"):
        Backbone.load("someone/unheard-of-model")
    assert len(urls) == 1


def test_a_hub_that_answers_with_an_error_is_in_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(request: urllib.request.Request, timeout: float) -> None:
        raise urllib.error.HTTPError(request.full_url, 403, "Forbidden", Message(), None)

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(urllib.request, "urlopen", answer)
    assert not backbone.hub_is_out_of_reach()


def test_two_processes_may_write_out_a_backbone_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    backbone = replace(tiny.build_backbone("qwen2"), adapters=("skill",))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder, save = tmp_path / "tyler" / "exported" / backbone.fingerprint(), backbone.model.save_pretrained

    def save_twice(partial: Path) -> None:
        save(partial)
        save(folder)  # as another process does

    monkeypatch.setattr(backbone.model, "save_pretrained", save_twice)
    assert backbone.exported() == str(folder)
    assert [*folder.parent.iterdir()] == [folder] and (folder / "config.json").is_file()
