"""Visible tokens and their texts: how positions in text and positions in tokens meet."""

from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase

from tyler.boundaries.placement import piece_offsets

GENUINE = ("\ufffd", "ï¿½", "<0xEF><0xBF><0xBD>")
"""How tokens spell U+FFFD itself: as it is, in the letters that stand for bytes, or in bytes. Half a character is
decoded as it too."""


class IncrementalDetokenizer(Sequence[str]):
    """The visible tokens of one answer, and their texts, decoded only when they are read.

    A byte-level token may end inside a character: its text is then empty, and the token that completes the character
    carries it whole. The texts of all tokens join to the text of the answer.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, tokens: Sequence[int] = ()) -> None:
        self._spelled = tokenizer.convert_ids_to_tokens
        self._tokenizer = tokenizer.backend_tokenizer if tokenizer.is_fast else tokenizer
        self._options = {"skip_special_tokens": True}
        if not tokenizer.is_fast:
            self._options["clean_up_tokenization_spaces"] = False  # tokenizers that are fast do that outside
        self.tokens = list(tokens)
        self._pieces: list[str] = []
        self._window = 0  # first token of those decoded together
        self._shown = 0  # tokens whose text is in `_pieces`

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> str:  # type: ignore[override]
        if not 0 <= index < len(self.tokens):
            raise IndexError(f"token {index} of {len(self.tokens)}")
        while len(self._pieces) <= index:
            self._pieces.append(self._decode_next(len(self._pieces) + 1))
        return self._pieces[index]

    def _decode_next(self, end: int) -> str:
        shown = self._decode(self.tokens[self._window : self._shown])
        window = self._decode(self.tokens[self._window : end])
        if len(window) <= len(shown) or self._is_cut(window, end):
            return ""
        self._window, self._shown = self._shown, end
        return window[len(shown) :]

    def _is_cut(self, text: str, end: int) -> bool:
        """Whether the text of the tokens before `end` ends within a character."""
        last = self._spelled(self.tokens[max(0, end - 3) : end])
        return text.endswith("\ufffd") and not "".join(map(str, last)).endswith(GENUINE)

    def _decode(self, tokens: list[int]) -> str:
        return str(self._tokenizer.decode(tokens, **self._options))

    @property
    def text(self) -> str:
        whole = self._decode(self.tokens)
        return "".join(self) if self._is_cut(whole, len(self.tokens)) else whole


def token_spans(tokenizer: PreTrainedTokenizerBase, text: str, ids: Sequence[int]) -> list[tuple[int, int]]:
    """The characters [start, end) of `text` that each of its tokens holds; a character goes to the token completing it.

    Tokenizers report spans themselves, but may trim spaces or share a character between tokens; then the tokens are
    decoded one after the other, as they are online.
    """
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=tokenizer.is_fast)
    spans = encoded.get("offset_mapping", [])
    if encoded["input_ids"] == list(ids) and is_partition(spans, len(text)):
        return spans
    return piece_offsets(IncrementalDetokenizer(tokenizer, ids))


def is_partition(spans: Sequence[tuple[int, int]], length: int) -> bool:
    """Whether the spans follow each other without gap or overlap from 0 to `length`."""
    borders = [0, *(end for _, end in spans)]
    return borders[-1] == length and all(start == border for (start, _), border in zip(spans, borders, strict=False))
