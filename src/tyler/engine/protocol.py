"""What an engine is: two implement it, `native/` (exact, runs everything) and `vllm/` (scale)."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Protocol

from tyler.engine.request import Event, Request
from tyler.engine.request_state import RequestState
from tyler.engine.weight_watch import WeightWatch


@dataclass(frozen=True)
class Load:
    """What an engine is doing: rows, requests that wait, bytes that the rows take, and their bound (0: none)."""

    running: int = 0
    waiting: int = 0
    bytes: int = 0
    memory: int = 0


class DecodingEngine(Protocol):
    """Decodes requests with continuous batching. One thread at a time uses it."""

    keeps_prefixes: bool
    """Whether what was read of a prompt is kept for one that begins with it."""

    waiting: deque[RequestState]
    """Requests that were prepared and are to begin, in their order."""

    def prepare(self, request: Request, *, streamed: bool = True) -> RequestState:
        """What a request starts as. Raises ValueError for one that this engine refuses, PromptTooLong among them."""

    def step(self) -> list[Event]:
        """Let every running answer go on; what happened."""

    def abort(self, index: int) -> None:
        """End a waiting or running request; the next step tells of its end, with the reason "abort"."""

    @property
    def busy(self) -> bool:
        """Whether any request waits or is decoded."""

    def load(self) -> Load:
        """What it is doing."""

    def fits(self, slots: int, memory: int | None, positions: int) -> bool:
        """Whether it can serve so many answers that may take so many positions, or another one has to be built."""

    def watch(self) -> WeightWatch:
        """The weights it decodes with, as they are now."""

    def refresh(self) -> bool:
        """Take the adapters' present weights; False where only a new engine can."""

    def release(self) -> bool:
        """Give back what memory can be given back while nothing is decoded; False where it is best dropped whole."""

    def close(self) -> None:
        """End it for good."""
