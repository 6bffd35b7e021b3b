"""SmolLM2's GGUF file becomes the model that quantisation left, with the tokens that SmolLM2 itself reads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from gguf.quants import dequantize, quantize
from transformers import AutoConfig, AutoModelForCausalLM

from gguf_files import CONTROL, NORMAL, Q4_1, metadata, random_model, settings, write_gguf
from tyler.modeling.architectures import fetched_folder, located
from tyler.modeling.gguf import build_tokenizer, convert
from tyler.modeling.tokenizer import load_tokenizer


def test_a_file_becomes_the_model_that_quantisation_leaves(tmp_path: Path) -> None:
    source = random_model()
    convert(write_gguf(tmp_path / "model.gguf", source), AutoConfig.for_model(**settings()), tmp_path / "folder")
    model, loading = AutoModelForCausalLM.from_pretrained(tmp_path / "folder", output_loading_info=True)
    assert not any(loading.values()) and model.dtype == torch.float32
    with torch.no_grad():
        for parameter in (parameter for parameter in source.parameters() if parameter.dim() == 2):
            rounded = torch.from_numpy(dequantize(quantize(parameter.numpy(), Q4_1), Q4_1))
            assert 0 < (rounded - parameter).abs().max() < 0.1
            parameter.copy_(rounded)
        ids = torch.arange(3, 43)[None]
        torch.testing.assert_close(model(ids).logits, source(ids).logits, atol=1e-4, rtol=1e-4)
    assert all(torch.equal(model.state_dict()[name], tensor) for name, tensor in source.state_dict().items())
    for name in settings():
        assert getattr(model.config, name) == getattr(source.config, name), name


def test_special_tokens_have_their_roles_and_the_chat_template_is_the_files_own() -> None:
    reader = build_tokenizer(metadata(), max_length=256)
    assert (reader.bos_token_id, reader.eos_token_id, reader.pad_token_id, reader.unk_token_id) == (1, 2, 0, 0)
    assert reader("1<|im_end|>").input_ids[-1] == reader.eos_token_id
    assert reader.decode(reader("1 é<|im_end|>").input_ids, skip_special_tokens=True) == "1 é"
    turns = [{"role": "user", "content": "2 + 3?"}]
    text = reader.apply_chat_template(turns, add_generation_prompt=True, tokenize=False)
    assert text == "<|im_start|>user\n2 + 3?<|im_end|>\n<|im_start|>assistant\n"


@pytest.fixture(scope="module")
def pinned() -> dict[str, Any]:
    """Texts and their ids in SmolLM2, equal to those of llama.cpp, with the tokens and merges in them."""
    return json.loads((Path(__file__).parent / "smollm2_tokens.json").read_text(encoding="utf-8"))


def test_a_file_of_smollm2_gives_its_pinned_tokens(pinned: dict[str, Any]) -> None:
    """Of a file that has only those of its tokens and merges that can be in the pinned texts."""
    tokens, kinds = [f"[row {id}]" for id in range(pinned["size"])], [NORMAL] * pinned["size"]
    for kind, ids in ((NORMAL, pinned["tokens"]), (CONTROL, pinned["special"])):
        for token, id in ids.items():
            tokens[id], kinds[id] = token, kind
    entries = {"tokens": tokens, "token_type": kinds, "merges": pinned["merges"]}
    file = metadata() | {f"tokenizer.ggml.{key}": value for key, value in entries.items()}
    own = build_tokenizer(file, max_length=8192)
    assert [own(text).input_ids for text, _ in pinned["texts"]] == [ids for _, ids in pinned["texts"]]


def test_the_fetched_smollm2_gives_its_pinned_tokens(pinned: dict[str, Any]) -> None:
    if not fetched_folder("smollm2").is_dir():
        pytest.skip("smollm2 has not been fetched; run `tyler fetch smollm2`")
    tokenizer = load_tokenizer(located("smollm2"))
    assert [tokenizer(text).input_ids for text, _ in pinned["texts"]] == [ids for _, ids in pinned["texts"]]
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id) == (1, 2, 2)
    turns = [{"role": "user", "content": "2 + 3?"}]
    prompt = tokenizer.apply_chat_template(turns, add_generation_prompt=True, tokenize=False)
    assert prompt == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\n2 + 3?<|im_end|>\n<|im_start|>assistant\n"
    )
