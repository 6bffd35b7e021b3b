"""What a message says never becomes a control token.

A tokenizer finds its control tokens (`<|im_end|>`) by their text, wherever that stands: a problem that spells one would
end its own turn. So a message is cut after the first character of every control token that it spells, and the parts of
the prompt are encoded one by one: the same text, in ordinary tokens. Text that spells none is encoded whole, as ever.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class Cuts:
    """Where the messages of one prompt are to be cut; a random mark stands there while they are written
    into a chat template."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        spelled = {token.content for token in tokenizer.added_tokens_decoder.values() if token.special}
        longest_first = sorted((text for text in spelled if len(text) > 1), key=len, reverse=True)
        self._control = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")
        self._mark = secrets.token_hex(16)

    def mark(self, text: str) -> str:
        """A message with its marks."""
        parts, at = [], 0
        while found := self._control.search(text, at):
            parts.append(text[at : found.start() + 1])
            at = found.start() + 1
        return self._mark.join([*parts, text[at:]])

    def parts(self, written: str) -> list[str]:
        """The whole prompt, without marks, in the parts that are encoded one by one."""
        return written.split(self._mark)


def encode_parts(tokenizer: PreTrainedTokenizerBase, parts: Sequence[str]) -> list[int]:
    """Token ids of a prompt in parts; one without a chat template begins with what the tokenizer puts in front."""
    # Not verbose: what is too long is refused in our own words, where the context is known.
    first = list(tokenizer.encode(parts[0], add_special_tokens=tokenizer.chat_template is None, verbose=False))
    others = [tokenizer.encode(part, add_special_tokens=False, verbose=False) for part in parts[1:]]
    return [*first, *(id for ids in others for id in ids)]
