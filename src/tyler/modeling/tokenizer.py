"""A model's own tokenizer, which splits text as its tokenizer.json says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast
from transformers.utils import cached_file


def load_tokenizer(location: str, revision: str | None = None) -> PreTrainedTokenizerBase:
    """The tokenizer of a folder or a Hub id. Raises what transformers raises where there is none.

    transformers 5 builds some classes anew and forgets how their tokenizer.json splits text: a `GPT2Tokenizer` such as
    SmolLM2's loses its rule for digits, and then reads tokens that the model never saw. Such a one is read as saved.
    """
    arguments: dict[str, Any] = {"revision": revision, "trust_remote_code": False}
    tokenizer = cast(PreTrainedTokenizerBase, AutoTokenizer.from_pretrained(location, **arguments))
    saved = cached_file(location, "tokenizer.json", revision=revision, _raise_exceptions_for_missing_entries=False)
    if saved is None or splits_as_saved(tokenizer, Path(saved)):
        return tokenizer
    return cast(PreTrainedTokenizerBase, PreTrainedTokenizerFast.from_pretrained(location, **arguments))


def splits_as_saved(tokenizer: PreTrainedTokenizerBase, file: Path) -> bool:
    """Whether a tokenizer splits text into words as a tokenizer.json says; always true of one without such a file."""
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        return True
    rule = tokenizer.backend_tokenizer.pre_tokenizer
    found = None if rule is None else json.loads(rule.__getstate__())
    return without_offsets(found) == without_offsets(json.loads(file.read_text(encoding="utf-8"))["pre_tokenizer"])


def without_offsets(rule: Any) -> Any:
    """A rule for splitting text without what changes only where a word is said to begin."""
    if isinstance(rule, dict):
        return {key: without_offsets(value) for key, value in rule.items() if key != "trim_offsets"}
    return [without_offsets(part) for part in rule] if isinstance(rule, list) else rule
