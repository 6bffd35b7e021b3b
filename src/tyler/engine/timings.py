"""Where the engine's time goes: by part, and by the rows that each pass served."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from tyler.engine.request_state import RequestState

Part = Literal["prefill", "decode", "synthesis", "choice"]
Charge = tuple[Part, RequestState, int]
"""A part, a row, and how many of the positions of a pass are for them."""


@dataclass
class Timings:
    """Seconds the engine spent on each part."""

    prefill: float = 0.0
    decode: float = 0.0
    synthesis: float = 0.0
    choice: float = 0.0

    @property
    def total(self) -> float:
        return self.prefill + self.decode + self.synthesis + self.choice

    @contextmanager
    def clock(self, charges: Sequence[Charge]) -> Iterator[None]:
        """Charge what happens inside to parts and rows by their positions.

        So an answer's share of all passes means the same at any number of slots. Clocks are not nested.
        """
        started = time.perf_counter()
        yield
        each = (time.perf_counter() - started) / sum(positions for _, _, positions in charges)
        for part, row, positions in charges:
            seconds = each * positions
            setattr(self, part, getattr(self, part) + seconds)
            row.engine_seconds += seconds
            if part == "synthesis":
                row.synthesis_seconds += seconds
