"""How operators, latents and queries are written as token ids, and which rows of the table of latents are free.

vLLM knows token ids alone. A latent is a row of a table inside the model, so it has an id too, and prefix caching,
chunked prompts, preemption and tensor parallelism need no special case:

    0 .. V-1                tokens, read by the policy
    V .. V+K-1              operators: chosen, never read
    then K+1                columns of the logits that carry a decision's log-probability and p(operator)
    first_latent + u        latents; u counts through rows and generations, and the row is u % rows
    shift + any of these    the same, read by the synthesizer: the prefix cache keeps the two apart
    first_query + u*S + s   in a call alone: query s of S = sum N_k, whose latent becomes row u % rows

A row that is given out again has another generation, hence another id: what the prefix cache holds was computed from
the very latents that the id stood for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

LARGEST_ID = 2**31 - 1
"""vLLM's ids are 32 bits wide."""


@dataclass(frozen=True)
class Ids:
    """The ids of a model with `vocab_size` tokens and operators of `num_latents`, and a table of `rows` latents."""

    vocab_size: int
    num_latents: tuple[int, ...]
    rows: int

    def __post_init__(self) -> None:
        if self.generations < 2:
            raise ValueError(
                f"latents={self.rows} rows of a table for {self.num_queries} queries need more ids than there are; "
                "give fewer"
            )

    @property
    def num_operators(self) -> int:
        return len(self.num_latents)

    @property
    def num_queries(self) -> int:
        """S: queries of all operators, one after the other."""
        return sum(self.num_latents)

    @property
    def num_actions(self) -> int:
        """|V'|."""
        return self.vocab_size + self.num_operators

    @property
    def first_latent(self) -> int:
        return self.num_actions + self.num_operators + 1

    @property
    def generations(self) -> int:
        """How often a row has a new id before its first one comes again."""
        return (LARGEST_ID - 2 * self.first_latent) // (self.rows * (self.num_queries + 2))

    @property
    def shift(self) -> int:
        return self.first_latent + self.generations * self.rows

    @property
    def first_query(self) -> int:
        return 2 * self.shift

    @property
    def size(self) -> int:
        """One more than the largest id."""
        return self.first_query + self.generations * self.rows * self.num_queries

    @property
    def report(self) -> list[int]:
        """The columns of a decision's log-probability and of log p(operator)."""
        return list(range(self.num_actions, self.first_latent))

    def latents(self, places: Sequence[int]) -> list[int]:
        """Ids of latents, as the policy reads them."""
        return [self.first_latent + place for place in places]

    def call(self, context: Sequence[int], operator: int, places: Sequence[int]) -> list[int]:
        """[x_t; Q_k] as the synthesizer reads it; the latents become the rows of `places`."""
        first = sum(self.num_latents[:operator])
        queries = [self.first_query + place * self.num_queries + first + j for j, place in enumerate(places)]
        return [self.shift + one for one in context] + queries

    def row_of(self, place: int) -> int:
        return place % self.rows


class Rows:
    """The rows of the table of latents: given out for a call, taken back when its answer ends."""

    def __init__(self, ids: Ids) -> None:
        self._ids = ids
        self._free = deque(range(ids.rows))
        self._generation = [0] * ids.rows
        self.epoch = 0
        """Rises when an id comes again: what was cached under it is something else."""

    @property
    def free(self) -> int:
        return len(self._free)

    def take(self, count: int) -> list[int]:
        """Places (row and generation) of so many rows; the longest unused ones first."""
        rows = [self._free.popleft() for _ in range(count)]
        return [self._generation[row] * self._ids.rows + row for row in rows]

    def give_back(self, places: Sequence[int]) -> None:
        for place in places:
            row = self._ids.row_of(place)
            self._generation[row] += 1
            if self._generation[row] == self._ids.generations:
                self._generation[row], self.epoch = 0, self.epoch + 1
            self._free.append(row)
