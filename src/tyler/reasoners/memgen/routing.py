"""Where MemGen may insert latents: after the prompt, and behind delimiters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from transformers import PreTrainedTokenizerBase

from tyler.operators import Operator
from tyler.reasoners.memgen.weaver import INFERENCE, PROMPT
from tyler.routing import EVERYTHING, Call
from tyler.teacher_forcing import Insertion
from tyler.transcript import Transcript

DELIMITERS = (",", ".", "\n")
"""The text so far ends in one of these. The rule is the release's: decimals and thousands separators fire it."""


def training_insertions(
    tokenizer: PreTrainedTokenizerBase, target_ids: Sequence[int], max_insertions: int
) -> tuple[Insertion, ...]:
    """Where blocks go in a trace: at the prompt's end, and behind the first `max_insertions` delimiters."""
    visible = Transcript(tokenizer)
    visible.tokens.extend(target_ids[:-1])  # nothing follows the last target
    places = [index + 1 for index, piece in enumerate(visible) if piece.endswith(DELIMITERS)]
    return (Insertion(0, PROMPT), *(Insertion(place, INFERENCE) for place in places[:max_insertions]))


@dataclass(frozen=True)
class AtDelimiters:
    """One block after the prompt, not counted, and at most `max_insertions` behind delimiters.

    `asks` says whether the trigger is active: then it decides at every delimiter, and after the prompt where
    `asks_at_prompt`, greedily at `temperature` 0 and else by sampling. Inactive, it always says yes.
    """

    max_insertions: int = 5
    asks: bool = False
    asks_at_prompt: bool = True
    temperature: float = 0.0
    learned: bool = field(default=False, init=False)

    def start(self, operators: Sequence[Operator], random: np.random.Generator) -> DelimiterSchedule:
        return DelimiterSchedule(self, random)


class DelimiterSchedule:
    """The blocks of one answer. `candidate` is a call that waits for the trigger's answer."""

    def __init__(self, router: AtDelimiters, random: np.random.Generator) -> None:
        self.router, self.random = router, random
        self.candidate: Call | None = None
        self._granted: Call | None = None
        self._insertions = 0
        self._propose(Call(0, PROMPT), ask=router.asks and router.asks_at_prompt)

    def observe(self, pieces: Sequence[str]) -> None:
        # A piece is empty inside a character and for a special token; the text does not end in a delimiter then.
        if pieces[len(pieces) - 1].endswith(DELIMITERS) and self._insertions < self.router.max_insertions:
            self._propose(Call(len(pieces), INFERENCE), ask=self.router.asks)

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
        return EVERYTHING  # a block goes behind all tokens that are there
