"""The tokenizer of a GGUF file splits text as its own model does, or is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from gguf_files import NORMAL, metadata_of, random_model, write_gguf
from tyler.modeling.architectures import fetched_folder, located
from tyler.modeling.backbone import Backbone
from tyler.modeling.gguf_tokenizer import CONTROL, SPLITTINGS, UNUSED, USER_DEFINED, build_tokenizer
from tyler.modeling.tokenizer import load_tokenizer

TEXTS = (
    "125", "1,250.75 + 3/4 = ?", "in 2024 it's 12:30", "x\n\n1. y", "x \n \n\n  1", "   four spaces   ", "\t\ttabs\t1",
    "\r\nlines\r\n\r\n2", "HE'LL they're I'd", "def f(x):\n    return x**2 + 10\n", '{"a": [1, 2.5, null]}',
    "<b>100%</b> & more...", "😀👍🏽 7️⃣", "中文字符 123 と かな", "é e\u0301 ﬁ ½ ² Ⅷ ٣٤", "naïve café",
    "\u00a0nbsp\u2003em",
    "<|im_start|>user\n5<|im_end|>\n", "a<|endoftext|>b", "$x^2$ \\frac{1}{2} \\boxed{42}", "",
)  # fmt: skip
"""What tokenizers differ in: digits, spaces, ends of lines, contractions, code, emoji, CJK, other numerals."""


def metadata(**changes: Any) -> dict[str, Any]:
    """Of a small file; `changes` are of `tokenizer.ggml`."""
    changed = {f"tokenizer.ggml.{key}": value for key, value in changes.items()}
    metadata = metadata_of(random_model("qwen3")) | changed
    return {key: value for key, value in metadata.items() if value is not None}


def tokenizer(**changes: Any) -> PreTrainedTokenizerBase:
    return build_tokenizer(metadata(**changes), source="a.gguf", max_length=256)


def refusal(**changes: Any) -> str:
    with pytest.raises(ValueError) as caught:
        tokenizer(**changes)
    return str(caught.value)


# ------------------------------------------------------------------------------------------------------- words

GPT2 = ["x", "Ġ1250", "Ċ", "Ċ", "1", ".", "ĠHE", "'", "S", "Ġit", "'s"]
SMOLLM = ["x", "Ġ", "1", "2", "5", "0", "ĊĊ", "1", ".", "ĠHE", "'", "S", "Ġit", "'s"]
QWEN = ["x", "Ġ", "1", "2", "5", "0", "ĊĊ", "1", ".", "ĠHE", "'S", "Ġit", "'s"]


@pytest.mark.parametrize("rule, words", {"gpt-2": GPT2, "smollm": SMOLLM, "qwen2": QWEN}.items())
def test_each_rule_splits_text_into_the_words_of_its_model(rule: str, words: list[str]) -> None:
    splitter, _ = SPLITTINGS[rule]
    assert [word for word, _ in splitter.pre_tokenize_str("x 1250\n\n1. HE'S it's")] == words


def test_words_decide_the_tokens() -> None:
    """The vocabulary has `125` and `\\n\\n1.` as tokens, and only a rule that lets them be words uses them."""
    assert tokenizer(pre="gpt-2").tokenize("125") == ["125"]
    assert tokenizer(pre="smollm").tokenize("125\n\n1.") == ["1", "2", "5", "ĊĊ", "1", "."]
    assert tokenizer(pre="qwen2").tokenize("125\n\n1.") == ["1", "2", "5", "ĊĊ", "1", "."]


@pytest.mark.parametrize("rule", SPLITTINGS)
@pytest.mark.parametrize("text", TEXTS, ids=ascii)
def test_what_was_encoded_is_decoded(rule: str, text: str) -> None:
    reader = tokenizer(pre=rule)
    expected = text.replace("e\u0301", "é") if SPLITTINGS[rule][1] is not None else text
    assert reader.decode(reader(text, add_special_tokens=False).input_ids) == expected


# --------------------------------------------------------------------------------------------- special tokens


def test_special_tokens_have_their_roles() -> None:
    reader = tokenizer()
    assert (reader.bos_token_id, reader.eos_token_id, reader.pad_token_id, reader.unk_token_id) == (1, 2, 0, 0)
    assert reader("1<|im_end|>").input_ids[-1] == reader.eos_token_id
    assert reader.decode(reader("1<|im_end|>").input_ids, skip_special_tokens=True) == "1"
    assert reader.model_max_length == 256


def test_rows_that_no_token_uses_are_no_tokens() -> None:
    reader = tokenizer()
    assert len(reader) == len(metadata()["tokenizer.ggml.tokens"]) - 2
    assert "[PAD0]" not in reader.get_vocab()


def test_a_user_defined_token_is_found_in_text_and_is_part_of_the_answer() -> None:
    fields = metadata()
    kinds = [*fields["tokenizer.ggml.token_type"]]
    kinds[0] = USER_DEFINED
    reader = tokenizer(token_type=kinds, unknown_token_id=None, padding_token_id=None)
    assert reader.decode(reader("a<|endoftext|>").input_ids, skip_special_tokens=True) == "a<|endoftext|>"
    assert reader("a<|endoftext|>").input_ids[-1] == 0


def test_the_chat_template_is_the_files_own() -> None:
    turns = [{"role": "user", "content": "2 + 3?"}]
    text = tokenizer().apply_chat_template(turns, add_generation_prompt=True, tokenize=False)
    assert text == "<|im_start|>user\n2 + 3?<|im_end|>\n<|im_start|>assistant\n"


def test_every_token_that_ends_an_answer_does(tmp_path: Path) -> None:
    ends = {"tokenizer.ggml.eot_token_id": 5, "tokenizer.ggml.eom_token_id": 4}
    path = write_gguf(tmp_path / "model.gguf", random_model("qwen3"), metadata=ends)
    assert Backbone.load(str(path), device="cpu").eos_ids == {2, 4, 5}


# ---------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize("rule", ["default", "llama-bpe", "deepseek-r1-qwen", None])
def test_an_unknown_rule_is_refused_with_those_that_are_known(rule: str | None) -> None:
    message = refusal(pre=rule)
    assert repr(str(rule)) in message and "gpt-2, smollm, qwen2." in message


@pytest.mark.parametrize(
    "key, value, message",
    [
        ("model", "llama", "tokenizer of kind 'llama'"),
        ("add_bos_token", True, "tokenizer.ggml.add_bos_token"),
        *((key, None, f"it lacks tokenizer.ggml.{key}") for key in ("tokens", "token_type", "merges")),
        ("token_type", [NORMAL], "tokens, and kinds of 1"),
        ("merges", ["q z"], "merges of tokens that it does not have, such as ('q', 'z')"),
        ("eos_token_id", 90_000, "eos_token has an id beyond them: 90000"),
    ],
)
def test_a_tokenizer_that_cannot_be_read_is_refused_by_name(key: str, value: Any, message: str) -> None:
    assert message in refusal(**{key: value})


# -------------------------------------------------------------------------------------- tokenizers of real models


def metadata_of_saved(folder: Path) -> dict[str, Any]:
    """What a GGUF file of the tokenizer in `folder` would say."""
    saved = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    kinds = {token["id"]: CONTROL if token["special"] else USER_DEFINED for token in saved["added_tokens"]}
    texts = {id: token for token, id in saved["model"]["vocab"].items()}
    texts |= {token["id"]: token["content"] for token in saved["added_tokens"]}
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in saved["model"]["merges"]]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": [texts[id] for id in range(len(texts))],
        "tokenizer.ggml.token_type": [kinds.get(id, NORMAL) for id in range(len(texts))],
        "tokenizer.ggml.merges": merges,
    }


@pytest.mark.parametrize("name", ["qwen2.5", "qwen3"])
def test_the_rule_of_qwen_gives_its_own_tokens(name: str, data_dir: Path) -> None:
    folder = data_dir / "tokenizers" / name
    built = build_tokenizer(
        metadata_of_saved(folder) | {"tokenizer.ggml.pre": "qwen2"}, source="a.gguf", max_length=32768
    )
    own = AutoTokenizer.from_pretrained(folder)
    for text in TEXTS:
        assert built(text).input_ids == own(text).input_ids, text


@pytest.fixture(scope="module")
def pinned() -> dict[str, Any]:
    """Texts and their ids in SmolLM2, equal to those of llama.cpp, with the tokens and merges in them."""
    return json.loads((Path(__file__).parent / "smollm2_tokens.json").read_text(encoding="utf-8"))


def metadata_of_pinned(pinned: dict[str, Any], rule: str) -> dict[str, Any]:
    """A GGUF file of SmolLM2's size that has only those of its tokens and merges that can be in the pinned texts."""
    tokens = [f"[row {id}]" for id in range(pinned["size"])]
    kinds = [UNUSED] * pinned["size"]
    for kind, ids in ((NORMAL, pinned["tokens"]), (CONTROL, pinned["special"])):
        for token, id in ids.items():
            tokens[id], kinds[id] = token, kind
    entries = {"model": "gpt2", "pre": rule, "tokens": tokens, "token_type": kinds, "merges": pinned["merges"]}
    return {f"tokenizer.ggml.{key}": value for key, value in entries.items()}


def test_the_rule_of_smollm2_gives_its_pinned_tokens_and_gpt2s_does_not(pinned: dict[str, Any]) -> None:
    own, other = (
        build_tokenizer(metadata_of_pinned(pinned, rule), source="a.gguf", max_length=8192)
        for rule in ("smollm", "gpt-2")
    )
    assert [own(text).input_ids for text, _ in pinned["texts"]] == [ids for _, ids in pinned["texts"]]
    wrong = [text for text, ids in pinned["texts"] if other(text).input_ids != ids]
    assert "x\n\n1. y" in wrong and len(wrong) >= 3


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
