r"""The tokenizer in a GGUF file, which splits text as its own model does.

A file names the rule by which text is split into words (`tokenizer.ggml.pre`) and does not say it, and with another
rule a model reads tokens it never saw: SmolLM2 knows `\n\n1` as two tokens, and GPT-2's rule makes three of it. So the
rules are written out here as the models' own `tokenizer.json` have them, and a file with an unknown one is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers.pre_tokenizers import PreTokenizer
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from tyler.modeling.gguf import special_ids

CONTROL, USER_DEFINED, UNUSED = 3, 4, 5
"""Kinds of tokens (`tokenizer.ggml.token_type`) that do not stand for text."""

WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|DIGITS| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""GPT-4's words: contractions, letters, numbers, signs, ends of lines, spaces."""


def gpt2_words() -> PreTokenizer:
    """GPT-2's own rule, which is part of its bytes."""
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


def gpt2_words_and_single_digits() -> PreTokenizer:
    """Each digit alone, and GPT-2's words between them."""
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), gpt2_words()])


def gpt4_words(digits: str) -> PreTokenizer:
    """GPT-4's words, with numbers cut as the pattern `digits` says."""
    words = pre_tokenizers.Split(Regex(WORDS.replace("DIGITS", digits)), behavior="isolated")
    return pre_tokenizers.Sequence([words, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


@dataclass(frozen=True)
class Splitting:
    """How a family reads text: its words, whether in Unicode's composed form, whether a word that is one token needs no
    merges to be it, and whether a text begins with the bos token."""

    words: Callable[[], PreTokenizer]
    composed: bool = False
    ignore_merges: bool = False
    begins: bool = False


LLAMA3 = Splitting(lambda: gpt4_words(r"\p{N}{1,3}"), ignore_merges=True, begins=True)

SPLITTINGS: Mapping[str, Splitting] = {
    "gpt-2": Splitting(gpt2_words),
    "smollm": Splitting(gpt2_words_and_single_digits),
    "qwen2": Splitting(lambda: gpt4_words(r"\p{N}"), composed=True),
    "llama-bpe": LLAMA3,
    "llama3": LLAMA3,
    "llama-v3": LLAMA3,
}
"""By `tokenizer.ggml.pre`: GPT-2; SmolLM and SmolLM2; Qwen2, Qwen2.5 and Qwen3; Llama 3 to 3.3."""


def build_tokenizer(metadata: Mapping[str, Any], *, source: str, max_length: int) -> PreTrainedTokenizerBase:
    """The tokenizer of a GGUF file's metadata; `source` names the file in errors.

    Raises ValueError for one that is not a byte-level BPE, is incomplete, or splits text by an unknown rule.
    """
    splitting = splitting_of(metadata, source)
    pieces = read_pieces(metadata, source)
    backend = byte_level_bpe(pieces, splitting, source)
    backend.add_tokens([added(token, kind) for token, kind in pieces.pairs() if kind in (CONTROL, USER_DEFINED)])
    names = special_tokens(metadata, pieces.tokens, source)
    if metadata.get("tokenizer.ggml.add_bos_token", splitting.begins) and "bos_token" in names:
        backend.post_processor = beginning(names["bos_token"], pieces.tokens.index(names["bos_token"]))
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        chat_template=metadata.get("tokenizer.chat_template"),
        model_max_length=max_length,
        clean_up_tokenization_spaces=False,
        **names,
    )


@dataclass(frozen=True)
class Pieces:
    """A file's tokens by id, the kind of each, and which pairs of tokens are merged, first ones first."""

    tokens: Sequence[str]
    kinds: Sequence[int]
    merges: Sequence[str]

    def pairs(self) -> Iterator[tuple[str, int]]:
        """Each token with its kind."""
        return zip(self.tokens, self.kinds, strict=True)


def read_pieces(metadata: Mapping[str, Any], source: str) -> Pieces:
    """The tokens of a file. Raises ValueError where some are missing."""
    keys = [f"tokenizer.ggml.{key}" for key in ("tokens", "token_type", "merges")]
    if missing := [key for key in keys if key not in metadata]:
        raise ValueError(f"{source} has no whole tokenizer: it lacks {', '.join(missing)}")
    pieces = Pieces(*(metadata[key] for key in keys))
    if len(pieces.tokens) != len(pieces.kinds):
        raise ValueError(f"{source} has {len(pieces.tokens)} tokens, and kinds of {len(pieces.kinds)}")
    return pieces


def special_tokens(metadata: Mapping[str, Any], tokens: Sequence[str], source: str) -> dict[str, str]:
    """The text of each special token, such as `eos_token`. Raises ValueError for an id that no token has."""
    ids = {f"{role}_token": id for role, id in special_ids(metadata).items() if id is not None}
    if beyond := [role for role, id in ids.items() if not 0 <= id < len(tokens)]:
        raise ValueError(f"{source} has {len(tokens)} tokens, and {beyond[0]} has an id beyond them: {ids[beyond[0]]}")
    return {role: tokens[id] for role, id in ids.items()}


def splitting_of(metadata: Mapping[str, Any], source: str) -> Splitting:
    """How the file's model splits text. Raises ValueError for a tokenizer that is not known here."""
    if (kind := metadata.get("tokenizer.ggml.model")) != "gpt2":
        raise ValueError(f"{source} has a tokenizer of kind {kind!r}; only byte-level BPE, 'gpt2', is read from GGUF")
    rule = str(metadata.get("tokenizer.ggml.pre"))
    if rule not in SPLITTINGS:
        raise ValueError(
            f"{source} splits text by the rule {rule!r} (tokenizer.ggml.pre); known are {', '.join(SPLITTINGS)}. By "
            "another rule the model would read tokens that it never saw: give its original folder"
        )
    return SPLITTINGS[rule]


def byte_level_bpe(pieces: Pieces, splitting: Splitting, source: str) -> Tokenizer:
    """A BPE over bytes, without its added tokens. Raises ValueError for merges of tokens that are not there."""
    vocab = {token: id for id, (token, kind) in enumerate(pieces.pairs()) if kind != UNUSED}
    merges = [(left, right) for left, _, right in (merge.partition(" ") for merge in pieces.merges)]
    if wrong := [pair for pair in merges if not {*pair, "".join(pair)} <= vocab.keys()]:
        raise ValueError(f"{source} has merges of tokens that it does not have, such as {wrong[0]}")
    backend = Tokenizer(models.BPE(vocab=vocab, merges=merges, ignore_merges=splitting.ignore_merges))
    backend.pre_tokenizer = splitting.words()
    backend.decoder = decoders.ByteLevel()
    if splitting.composed:
        backend.normalizer = normalizers.NFC()
    return backend


def added(token: str, kind: int) -> AddedToken:
    """A token that is found before text is split. A control token does not appear in an answer's text."""
    return AddedToken(token, special=kind == CONTROL, normalized=False)


def beginning(token: str, id: int) -> processors.PostProcessor:
    """Puts the bos token in front."""
    return processors.TemplateProcessing(
        single=f"{token} $A", pair=f"{token} $A {token} $B", special_tokens=[(token, id)]
    )
