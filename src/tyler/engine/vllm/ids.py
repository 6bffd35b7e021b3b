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

from collections import deque
from collections.abc import Sequence

LARGEST_ID = 2**31 - 1
"""vLLM's ids are 32 bits wide."""


class Ids:
    """The ids of a model with `vocab_size` tokens and operators of `num_latents`, and a table of `rows` latents."""

    def __init__(self, vocab_size: int, num_latents: Sequence[int], rows: int) -> None:
        self.vocab_size, self.num_latents, self.rows = vocab_size, list(num_latents), rows
        self.settings = {"vocab_size": vocab_size, "num_latents": self.num_latents, "rows": rows}
        self.num_queries = sum(num_latents)  # S: of all operators, one after the other
        self.num_actions = vocab_size + len(num_latents)  # |V'|
        self.first_latent = self.num_actions + len(num_latents) + 1
        self.report = list(range(self.num_actions, self.first_latent))
        """The columns of a decision's log-probability and of log p(operator)."""
        self.generations = (LARGEST_ID - 2 * self.first_latent) // (rows * (self.num_queries + 2))
        """How often a row has a new id before its first one comes again."""
        if self.generations < 2:
            raise ValueError(f"latents={rows} rows for {self.num_queries} queries need too many ids; give fewer")
        self.shift = self.first_latent + self.generations * rows
        self.first_query = 2 * self.shift
        self.size = self.first_query + self.generations * rows * self.num_queries  # one more than the largest id

    def latents(self, places: Sequence[int]) -> list[int]:
        """Ids of latents, as the policy reads them."""
        return [self.first_latent + place for place in places]

    def places(self, ids: Sequence[int]) -> list[int]:
        """Those of the latents in a context."""
        return [one - self.first_latent for one in ids if one >= self.first_latent]

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
        self.free = deque(range(ids.rows))
        self._generation = [0] * ids.rows
        self.epoch = 0
        """Rises when an id comes again: what was cached under it is something else."""

    def take(self, count: int) -> list[int]:
        """Places (row and generation) of so many rows; the longest unused ones first."""
        rows = [self.free.popleft() for _ in range(count)]
        return [self._generation[row] * self._ids.rows + row for row in rows]

    def give_back(self, places: Sequence[int]) -> None:
        for place in places:
            row = self._ids.row_of(place)
            self._generation[row] += 1
            if self._generation[row] == self._ids.generations:
                self._generation[row], self.epoch = 0, self.epoch + 1
            self.free.append(row)
