"""A tokenizer splits text as its tokenizer.json says, whatever class its config names."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from gguf_files import metadata_of, random_model
from tyler.modeling.backbone import Backbone
from tyler.modeling.gguf_tokenizer import build_tokenizer
from tyler.modeling.random_init import read_tokenizer
from tyler.modeling.tokenizer import load_tokenizer


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model whose tokenizer keeps digits apart and calls itself a GPT2Tokenizer, as SmolLM2's does."""
    model = random_model("qwen3")
    model.save_pretrained(tmp_path)
    build_tokenizer(metadata_of(model), source="a.gguf", max_length=256).save_pretrained(tmp_path)
    named(tmp_path, "GPT2Tokenizer")
    return tmp_path


def named(folder: Path, kind: str) -> None:
    """Let the tokenizer's config name another class."""
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"tokenizer_class": kind}))


def test_a_class_that_forgets_how_text_is_split_is_not_used(folder: Path) -> None:
    assert AutoTokenizer.from_pretrained(folder).tokenize("125\n\n1") == ["125", "Ċ", "Ċ", "1"]
    for tokenizer in (load_tokenizer(str(folder)), read_tokenizer(folder), Backbone.load(str(folder)).tokenizer):
        assert tokenizer.tokenize("125\n\n1") == ["1", "2", "5", "ĊĊ", "1"]
        assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id) == (1, 2, 0)
        assert tokenizer.chat_template is not None


def test_a_class_that_splits_text_as_it_was_saved_stays(folder: Path, data_dir: Path) -> None:
    named(folder, "TokenizersBackend")
    for place in (folder, data_dir / "tokenizers" / "qwen3"):
        assert type(load_tokenizer(str(place))) is type(AutoTokenizer.from_pretrained(place))
