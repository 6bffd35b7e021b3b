"""A model's own tokenizer: the one that its tokenizer.json describes, whatever class its config names."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, cast

from tokenizers import Tokenizer
from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast
from transformers.utils import cached_file

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
"""What decides whether two tokenizers are one: normalisation, splitting, digits, spaces, marks, bytes and decoding."""


def load_tokenizer(
    location: str, revision: str | None = None, *, local_files_only: bool = False
) -> PreTrainedTokenizerBase:
    """The tokenizer of a folder or a Hub id. Raises what transformers raises if it is missing.

    transformers builds some classes anew and forgets what their tokenizer.json says of normalisation, splitting or
    decoding: the model would read tokens that it never saw. Such a one is read as saved; raises ValueError, naming the
    text they differ on, where that differs from the file too.
    """
    arguments: dict[str, Any] = {"revision": revision, "local_files_only": local_files_only}
    tokenizer = cast(
        PreTrainedTokenizerBase, AutoTokenizer.from_pretrained(location, trust_remote_code=False, **arguments)
    )
    saved = cached_file(location, "tokenizer.json", **arguments, _raise_exceptions_for_missing_entries=False)
    if saved is None or not isinstance(tokenizer, PreTrainedTokenizerFast) or differs(tokenizer, Path(saved)) is None:
        return tokenizer
    tokenizer = PreTrainedTokenizerFast.from_pretrained(location, **arguments)
    if (text := differs(tokenizer, Path(saved))) is not None:
        raise ValueError(
            f"the tokenizer of {location!r} cannot be loaded as its tokenizer.json describes it: transformers reads "
            f"{text!r} into other tokens than the file does; save the tokenizer again with transformers 5, or give "
            "another model"
        )
    return tokenizer


def differs(tokenizer: PreTrainedTokenizerFast, file: Path) -> str | None:
    """The first text that a tokenizer and its tokenizer.json read into other ids, or back into other text, or None."""
    own, saved = tokenizer.backend_tokenizer, Tokenizer.from_file(str(file))
    saved.no_truncation()
    saved.no_padding()
    return next((text for text in _texts(saved) if _reading(own, text) != _reading(saved, text)), None)


def _texts(tokenizer: Tokenizer) -> Iterator[str]:
    """The corpus, and every added token between words and spaces."""
    yield from CORPUS
    for token in tokenizer.get_added_tokens_decoder().values():
        yield f"a{token.content}b {token.content} c{token.content.lower()}"


def _reading(tokenizer: Tokenizer, text: str) -> tuple[list[int], str]:
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    return ids, tokenizer.decode(ids, skip_special_tokens=False)


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
