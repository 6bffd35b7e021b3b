"""A model's own tokenizer: the one that its tokenizer.json describes, whatever class its config names."""

import hashlib
import json
from collections.abc import Iterable
from typing import Any

from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import bytes_to_unicode
from transformers.utils import cached_file

BYTES = {letter: byte for byte, letter in bytes_to_unicode().items()}
"""The bytes that letters of a byte-level token stand for."""


def load_tokenizer(
    location: str, revision: str | None = None, *, local_files_only: bool = False
) -> PreTrainedTokenizerBase:
    """The tokenizer of a folder or a Hub id. Raises what transformers raises if it is missing.

    transformers builds some classes anew and forgets what their tokenizer.json says of normalisation, splitting or
    decoding: the model would read tokens that it never saw. So one that has this file is read as it was saved.
    """
    arguments: dict[str, Any] = {"revision": revision, "local_files_only": local_files_only}
    if cached_file(location, "tokenizer.json", **arguments, _raise_exceptions_for_missing_entries=False) is None:
        return AutoTokenizer.from_pretrained(location, trust_remote_code=False, **arguments)
    return PreTrainedTokenizerFast.from_pretrained(location, **arguments)


def text_settings(tokenizer: PreTrainedTokenizerBase, end_ids: Iterable[int]) -> dict[str, Any]:
    """What decides how a model is asked and where its answers end, besides its weights: part of what a run resumes by.

    The tokens that end an answer as text, in the order of their ids, and short hashes of chat template and tokenizer.
    """
    template = tokenizer.chat_template
    return {
        "end_tokens": [str(tokenizer.convert_ids_to_tokens(id)) for id in sorted(end_ids)],
        "chat_template": None if template is None else _short_hash(json.dumps(template, sort_keys=True)),
        "tokenizer": _short_hash(_described(tokenizer)),
    }


def _described(tokenizer: PreTrainedTokenizerBase) -> str:
    """All that a tokenizer does with a text; not whether it pads or truncates, which depends on its last use."""
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        return json.dumps(tokenizer.get_vocab(), sort_keys=True)
    described = tokenizer.backend_tokenizer.to_str()
    return described[described.index('"added_tokens"') :]


def _short_hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def byte_level(tokenizer: PreTrainedTokenizerBase, id: int) -> bytes | None:
    """The bytes of a byte-level token, which may begin or end inside a character; None for a token of another kind."""
    letters = str(tokenizer.convert_ids_to_tokens(id))
    return bytes(BYTES[letter] for letter in letters) if all(letter in BYTES for letter in letters) else None
