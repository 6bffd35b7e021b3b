"""Where MemGen may insert latents: after the prompt, and after delimiters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice

import numpy as np
from transformers import PreTrainedTokenizerBase

from tyler.boundaries.placement import EVERYTHING, Call
from tyler.modeling.operators import Operator
from tyler.reasoners.memgen.weaver import INFERENCE, PROMPT
from tyler.training.teacher_forcing import Insertion, Trace

DELIMITERS = (",", ".", "\n")
"""The text so far ends in one of these. The rule is the release's: decimals and thousands separators fire it."""

TAIL = 8
"""Tokens that are decoded to see how the text ends; more where these have no text."""


def ends_in_delimiter(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> bool:
    """Whether the text of all ids, special tokens included, ends in a delimiter; only its tail is decoded."""
    count = TAIL
    while not (text := str(tokenizer.decode(list(ids[-count:]), skip_special_tokens=False))) and count < len(ids):
        count *= 2
    return text.endswith(DELIMITERS)


def training_insertions(tokenizer: PreTrainedTokenizerBase, trace: Trace, max_insertions: int) -> tuple[Insertion, ...]:
    """Where blocks go in a trace: at the prompt's end, and after the first `max_insertions` delimiters."""
    prompt, ids = len(trace.prompt_ids), [*trace.prompt_ids, *trace.target_ids]
    behind = (
        place
        for place in range(1, len(trace.target_ids))  # nothing follows the last target
        if ends_in_delimiter(tokenizer, ids[: prompt + place])
    )
    return (Insertion(0, PROMPT), *(Insertion(place, INFERENCE) for place in islice(behind, max_insertions)))


@dataclass(frozen=True)
class AtDelimiters:
    """One block after the prompt, not counted, and at most `max_insertions` after delimiters.

    `asks` says whether the trigger is active: then it decides at every delimiter, and after the prompt where
    `asks_at_prompt`, greedily at `temperature` 0 and else by sampling. Inactive, it always says yes.
    """

    max_insertions: int = 5
    asks: bool = False
    asks_at_prompt: bool = False
    temperature: float = 0.0
    learned: bool = field(default=False, init=False)

    def start(self, operators: Sequence[Operator], random: np.random.Generator) -> DelimiterSchedule:
        return DelimiterSchedule(self, random)


class DelimiterSchedule:
    """The blocks of one answer. `candidate` is a call that waits for the trigger's answer.

    After every visible token the caller, who has the text, says by `look` whether it ends in a delimiter.
    """

    def __init__(self, router: AtDelimiters, random: np.random.Generator) -> None:
        self.router, self.random = router, random
        self.candidate: Call | None = None
        self.unseen = False
        self._position = 0
        self._granted: Call | None = None
        self._insertions = 0
        self._propose(Call(0, PROMPT), ask=router.asks and router.asks_at_prompt)

    def observe(self, pieces: Sequence[str]) -> None:
        self._position = len(pieces)
        self.unseen = self._insertions < self.router.max_insertions

    def look(self, at_delimiter: bool) -> None:
        """Take whether the text up to the present ends in a delimiter; asked for while `unseen`."""
        self.unseen = False
        if at_delimiter:
            self._propose(Call(self._position, INFERENCE), ask=self.router.asks)

    def _propose(self, call: Call, ask: bool) -> None:
        self.candidate = call
        if not ask:
            self.answer(True)

    def answer(self, yes: bool) -> None:
        """The trigger's decision about the candidate; only what is inserted counts."""
        assert self.candidate is not None
        if yes:
            self._granted = self.candidate
            self._insertions += self.candidate.operator == INFERENCE
        self.candidate = None

    def due(self) -> Call | None:
        call, self._granted = self._granted, None
        return call

    def settled(self) -> int:
        return EVERYTHING  # a block goes after all tokens that are there
