r"""The tokenizer in a GGUF file, which splits text as its own model does.

A file names the rule by which text is split into words (`tokenizer.ggml.pre`) and does not say it, and with another
rule a model reads tokens it never saw: SmolLM2 knows `\n\n1` as two tokens, and GPT-2's rule makes three of it. So the
rules are written out here as the models' own `tokenizer.json` have them, and a file with an unknown one is refused.
"""

from collections.abc import Mapping
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models
from tokenizers.normalizers import NFC, Normalizer
from tokenizers.pre_tokenizers import ByteLevel, Digits, PreTokenizer, Sequence, Split
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from tyler.modeling.gguf import special_ids

CONTROL, USER_DEFINED, UNUSED = 3, 4, 5
"""Kinds of tokens (`tokenizer.ggml.token_type`) that do not stand for text."""

QWEN2_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""Contractions, letters, single digits, signs, ends of lines, spaces."""

GPT2_WORDS = ByteLevel(add_prefix_space=False, use_regex=True)
BYTES = ByteLevel(add_prefix_space=False, use_regex=False)

Splitting = tuple[PreTokenizer, Normalizer | None]
"""How a family reads text: its words, and the form of Unicode in which it reads them."""

SPLITTINGS: Mapping[str, Splitting] = {
    "gpt-2": (GPT2_WORDS, None),
    "smollm": (Sequence([Digits(individual_digits=True), GPT2_WORDS]), None),
    "qwen2": (Sequence([Split(Regex(QWEN2_WORDS), behavior="isolated"), BYTES]), NFC()),
}
"""By `tokenizer.ggml.pre`: GPT-2; SmolLM and SmolLM2; Qwen2, Qwen2.5 and Qwen3."""


def build_tokenizer(metadata: Mapping[str, Any], *, source: str, max_length: int) -> PreTrainedTokenizerBase:
    """The tokenizer of a GGUF file's metadata; `source` names the file in errors.

    Raises ValueError for one that is not a byte-level BPE, is incomplete, splits text by an unknown rule, or puts a
    token in front of every text.
    """
    splitting = splitting_of(metadata, source)
    keys = [f"tokenizer.ggml.{key}" for key in ("tokens", "token_type", "merges")]
    if missing := [key for key in keys if key not in metadata]:
        raise ValueError(f"{source} has no whole tokenizer: it lacks {', '.join(missing)}")
    tokens, kinds, merges = (metadata[key] for key in keys)
    if len(tokens) != len(kinds):
        raise ValueError(f"{source} has {len(tokens)} tokens, and kinds of {len(kinds)}")
    ids = {f"{role}_token": id for role, id in special_ids(metadata).items() if id is not None}
    if beyond := [role for role, id in ids.items() if not 0 <= id < len(tokens)]:
        raise ValueError(f"{source} has {len(tokens)} tokens, and {beyond[0]} has an id beyond them: {ids[beyond[0]]}")
    vocab = {token: id for id, (token, kind) in enumerate(zip(tokens, kinds, strict=True)) if kind != UNUSED}
    backend = byte_level_bpe(vocab, merges, splitting, source)
    added = [(token, kind) for token, kind in zip(tokens, kinds, strict=True) if kind in (CONTROL, USER_DEFINED)]
    backend.add_tokens([AddedToken(token, special=kind == CONTROL, normalized=False) for token, kind in added])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        chat_template=metadata.get("tokenizer.chat_template"),
        model_max_length=max_length,
        clean_up_tokenization_spaces=False,
        **{role: tokens[id] for role, id in ids.items()},
    )


def splitting_of(metadata: Mapping[str, Any], source: str) -> Splitting:
    """How the file's model splits text. Raises ValueError for a tokenizer that is not known here."""
    if (kind := metadata.get("tokenizer.ggml.model")) != "gpt2":
        raise ValueError(f"{source} has a tokenizer of kind {kind!r}; only byte-level BPE, 'gpt2', is read from GGUF")
    if metadata.get("tokenizer.ggml.add_bos_token"):
        raise ValueError(f"{source} begins every text with a token of its own (tokenizer.ggml.add_bos_token)")
    rule = str(metadata.get("tokenizer.ggml.pre"))
    if rule not in SPLITTINGS:
        raise ValueError(
            f"{source} splits text by the rule {rule!r} (tokenizer.ggml.pre); known are {', '.join(SPLITTINGS)}. By "
            "another rule the model would read tokens that it never saw: give its original folder"
        )
    return SPLITTINGS[rule]


def byte_level_bpe(vocab: dict[str, int], merges: list[str], splitting: Splitting, source: str) -> Tokenizer:
    """A BPE over bytes, without its added tokens. Raises ValueError for merges of tokens that are not there."""
    pairs = [(left, right) for left, _, right in (merge.partition(" ") for merge in merges)]
    if wrong := [pair for pair in pairs if not {*pair, "".join(pair)} <= vocab.keys()]:
        raise ValueError(f"{source} has merges of tokens that it does not have, such as {wrong[0]}")
    backend = Tokenizer(models.BPE(vocab=vocab, merges=pairs))
    backend.pre_tokenizer, backend.normalizer = splitting
    backend.decoder = decoders.ByteLevel()
    return backend
