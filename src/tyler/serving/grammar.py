"""Grammars that an answer keeps to: JSON Schema, any JSON object, or a regular expression, by llguidance.

Its mask takes some tens of microseconds a token, and time and memory of a grammar are bounded by its own limits; it
needs the extra `structured`. Grammars know no operators: latents in an answer's middle do not belong to its text.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal

import torch
from jaxtyping import Int
from torch import Tensor

from tyler.engine.logits import GrammarError
from tyler.modeling.backbone import Backbone

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

WHITESPACE = r"[\x20\x0A\x0D\x09]{1,20}"
"""Between the tokens of JSON: a small model may else write blanks until its limit."""
LONGEST_SCHEMA = 2**16
"""Characters of a JSON Schema."""


def words_of(backbone: Backbone) -> LLTokenizer:
    """A backbone's tokens as llguidance reads them, with every one that ends an answer; it takes a second to make.

    Raises ValueError where its tokenizer is not one of `tokenizers`, or llguidance is missing.
    """
    if find_spec("llguidance") is None:
        raise ValueError("structured answers need one more package: pip install 'tyler-reasoning[structured]'")
    if not backbone.tokenizer.is_fast:
        raise ValueError("structured answers need a tokenizer of the package tokenizers; this model's is another")
    from llguidance import LLTokenizer

    ends: Any = sorted(backbone.eos_ids)
    return LLTokenizer(backbone.tokenizer.backend_tokenizer.to_str(), n_vocab=backbone.vocab_size, eos_token=ends)


@dataclass(frozen=True)
class TextGrammar:
    """What an answer's text may be: a JSON Schema's values, or a regular expression's texts.

    `begun` are tokens of the answer that stand in the prompt. Raises ValueError at its first `start` for a grammar that
    is invalid, is too large, or has no text that begins so.
    """

    words: LLTokenizer
    kind: Literal["json_schema", "regex"]
    source: str
    begun: tuple[int, ...] = ()

    @classmethod
    def of_schema(cls, words: LLTokenizer, schema: dict[str, Any]) -> TextGrammar:
        """JSON that a schema describes. Raises ValueError for one that is too large."""
        if len(source := json.dumps(schema)) > LONGEST_SCHEMA:
            raise ValueError(f"the json_schema has {len(source)} characters; it may have {LONGEST_SCHEMA}")
        return cls(words, "json_schema", source)

    def source_of(self) -> dict[str, Any]:
        """Everything but the words, in JSON's types."""
        return {"kind": self.kind, "source": self.source, "begun": self.begun}

    def start(self) -> TextMatcher:
        return TextMatcher(compiled(self).deep_copy())


@lru_cache(maxsize=64)
def compiled(grammar: TextGrammar) -> LLMatcher:
    """A matcher where an answer begins; do not advance it. Raises ValueError for a grammar that cannot be kept to."""
    from llguidance import LLMatcher

    if grammar.kind == "regex":
        source = LLMatcher.grammar_from_regex(grammar.source)
    else:
        source = LLMatcher.grammar_from_json_schema(grammar.source, {"whitespace_pattern": WHITESPACE})
    matcher = LLMatcher(grammar.words, source, log_level=0)
    first = matcher.deep_copy()
    first.compute_bitmask()  # what holds no text at all shows here
    if first.is_error():
        raise ValueError(f"the {grammar.kind} cannot be kept to: {first_line(first.get_error())}")
    if grammar.begun and not matcher.consume_tokens(list(grammar.begun)):
        raise ValueError(f"no text of the {grammar.kind} begins as the assistant's last message does")
    return matcher


@dataclass(frozen=True)
class TextMatcher:
    """Where one answer stands in its grammar."""

    matcher: LLMatcher

    def accept(self, token: int) -> None:
        """Go on by a token that the mask allowed. Raises GrammarError where a limit of llguidance is reached."""
        if not self.matcher.consume_token(token):
            raise GrammarError(first_line(self.matcher.get_error()))

    def mask(self) -> Int[Tensor, "words"]:
        """The tokens that may come next, a bit each. Raises GrammarError as `accept`."""
        found = torch.frombuffer(bytearray(self.matcher.compute_bitmask()), dtype=torch.int32)
        if self.matcher.is_error():
            raise GrammarError(first_line(self.matcher.get_error()))
        return found


def first_line(error: str) -> str:
    """What llguidance says, without the state that it adds."""
    return error.strip().partition("\n")[0][:300]
