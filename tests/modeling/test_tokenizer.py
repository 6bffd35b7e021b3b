"""A tokenizer splits text as its tokenizer.json says, whatever class its config names."""

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from gguf_files import metadata_of, random_model
from tyler.modeling.backbone import Backbone
from tyler.modeling.gguf_tokenizer import build_tokenizer
from tyler.modeling.random_init import read_tokenizer
from tyler.modeling.tokenizer import load_tokenizer, text_settings

CORPUS = (
    "Let x = 125 + 7; then 3.14 * x = 414.48, don't you see?\n\n\n  Step 2:\tthe sum's 1,234,567.\r\n",
    "def f(n):\n    return n ** 2  # a comment\n\n\tif n == 0:\n\t\tpass\n",
    r"\frac{1}{2} \boxed{x^{2}_{1}} $\sqrt{3}\,\text{cm}$ \\ <br/> &amp; {'key': [1, 2]}",
    "e\u0301 \u00e9 \u1e9b\u0323 \ufb01 \u00bd \u00b2 \u2167 \u212b \uff21\uff22 \u0130i\u0131 STRASSE \u00df \u01c5",
    "\u4e2d\u6587\u5b57\u7b26 123 \u3068 \u304b\u306a\u30fb\u30ab\u309a \uc548 \u1112\u1161\u11ab \u0e2a\u0e27\u0e31",
    "\u0395\u03bb\u03bb\u03b7\u03bd \u0440\u0443\u0441\u0441\u043a\u0438\u0439 \u0627\u0644\u0639 \u0663",
    "\U0001f469\u200d\U0001f52c \U0001f44d\U0001f3fd \u2013\u2014\u2018q\u2019\u201cq\u201d\u2026 \u00a0\u2003\u200b",
    " leading,  two   three    spaces and trailing  ",
    "``quoted'' \u2581under _score_ ~tilde^ a\x00b \x07",
    "",
)
"""What tokenizers differ in: normalisation, splitting, digits, spaces, marks, bytes and decoding."""


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


CHANGES = {
    "no normaliser": {"normalizer": None},
    "NFC": {"normalizer": {"type": "NFC"}},
    "NFKC": {"normalizer": {"type": "NFKC"}},
    "replaced letters": {"normalizer": {"type": "Replace", "pattern": {"String": "e"}, "content": "o"}},
    "another decoder": {"decoder": {"type": "Fuse"}},
    "other splits": {
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
    },
}


@pytest.mark.parametrize("kind", ["Qwen2Tokenizer", "GPT2Tokenizer", "TokenizersBackend"])
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_the_file_wins_whatever_class_the_config_names(folder: Path, kind: str, change: dict[str, Any]) -> None:
    file = folder / "tokenizer.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    named(folder, kind)
    tokenizer, saved = load_tokenizer(str(folder)), Tokenizer.from_file(str(file))
    for text in CORPUS:
        ids = saved.encode(text, add_special_tokens=False).ids
        assert tokenizer.encode(text, add_special_tokens=False) == ids
        assert tokenizer.decode(ids) == saved.decode(ids, skip_special_tokens=False)
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id) == (1, 2, 0)


def test_the_settings_of_a_text_change_with_template_tokenizer_and_end_tokens(folder: Path) -> None:
    tokenizer = load_tokenizer(str(folder))
    before = text_settings(tokenizer, {2})
    assert before == text_settings(load_tokenizer(str(folder)), {2})
    assert len(before["end_tokens"]) == 1
    assert text_settings(tokenizer, {0, 2})["end_tokens"] != before["end_tokens"]
    tokenizer.backend_tokenizer.enable_padding()
    assert text_settings(tokenizer, {2}) == before, "padding is a matter of use"
    tokenizer.chat_template = "{{ messages[0]['content'] }}"
    assert text_settings(tokenizer, {2})["chat_template"] != before["chat_template"]
    file = folder / "tokenizer.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | CHANGES["NFKC"]))
    assert text_settings(load_tokenizer(str(folder)), {2})["tokenizer"] != before["tokenizer"]
