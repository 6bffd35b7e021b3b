"""The steady step: decide, append and read as one program that asks nothing of the host.

While no row starts, ends or calls an operator, a step follows from what the device holds. The engine therefore launches
a step before it has seen what the one before decided, and learns of it while the device works. What turns out to be in
vain is dropped: a row that ended or called is skipped when the step lands, and whatever was written behind its context
is overwritten. Between two growths of the context all memory stays where it is, so that a CUDA device records the
program of each number of rows once, as a graph, and replays it.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tyler.backbone import Backbone
from tyler.context import Context, OpenWindow, Reader, down
from tyler.policy import Policy
from tyler.request import Row
from tyler.sampling import filtered, invert, limits, logprobs_of, masked_logits

Program = Callable[[], None]


class Recorder(Protocol):
    """How a program is run for the first time, and what is kept to run it again."""

    def first(self, program: Program) -> None:
        """Run the program as it is."""

    def record(self, program: Program) -> Program:
        """What does the same as the program, in the same memory. Does not run it."""

    def forget(self) -> None:
        """Nothing that was recorded will run again."""


class Unrecorded:
    """Programs run as they are, step by step."""

    def first(self, program: Program) -> None:
        program()

    def record(self, program: Program) -> Program:
        return program

    def forget(self) -> None:
        pass


class CudaGraphs:
    """Programs are recorded as CUDA graphs that share one pool: none runs while another does.

    Its methods are called with the device as the current one.
    """

    def __init__(self, device: torch.device) -> None:
        self._stream = side_stream(device)
        self._pool = torch.cuda.graph_pool_handle()

    def first(self, program: Program) -> None:
        """On the stream of the recordings, so that libraries set up there what a recording may not."""
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            program()
        torch.cuda.current_stream().wait_stream(self._stream)

    def record(self, program: Program) -> Program:
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.stream(self._stream):
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                program()
            except BaseException:
                with contextlib.suppress(RuntimeError):  # that the recording is broken is known
                    graph.capture_end()
                raise
            graph.capture_end()
        return graph.replay

    def forget(self) -> None:
        """A pool whose graphs are gone takes no others, and recordings cannot use memory that is only cached."""
        self._pool = torch.cuda.graph_pool_handle()
        torch.cuda.empty_cache()


@functools.cache
def side_stream(device: torch.device) -> torch.cuda.Stream:
    """One for all engines: libraries keep a workspace for each stream."""
    return torch.cuda.Stream(device)


def recorder_for(device: torch.device) -> Recorder:
    """CUDA graphs where there are some."""
    return CudaGraphs(device) if device.type == "cuda" else Unrecorded()


class Flight:
    """One launched step: pinned memory in which its uniform numbers leave the host and its actions arrive."""

    def __init__(self, slots: int, device: torch.device) -> None:
        pinned = device.type == "cuda"
        self.uniforms = torch.zeros(slots, dtype=torch.float64, pin_memory=pinned)
        self._actions = torch.zeros(slots, dtype=torch.int64, pin_memory=pinned)
        self._logprobs = torch.zeros(slots, pin_memory=pinned)
        self._arrival = torch.cuda.Event() if pinned else None
        self.rows = 0

    def send(self, actions: Int[Tensor, "rows"], logprobs: Float[Tensor, "rows"]) -> None:
        """Start the way to the host, behind what the device was given so far."""
        self.rows = len(actions)
        self._actions[: self.rows].copy_(actions, non_blocking=True)
        self._logprobs[: self.rows].copy_(logprobs, non_blocking=True)
        if self._arrival is not None:
            self._arrival.record()

    def arrived(self) -> tuple[list[int], list[float]]:
        """The actions and their log-probabilities; waits for this step alone."""
        if self._arrival is not None:
            self._arrival.synchronize()
        return self._actions[: self.rows].tolist(), self._logprobs[: self.rows].tolist()


@dataclass(frozen=True)
class Kind:
    """What a program computes: for how many rows, and which parts of a decision they need."""

    rows: int
    operators: bool
    scaled: bool
    sampled: bool
    filtered: bool


class Steady:
    """The programs of an engine, and the state of its running rows on the device."""

    def __init__(
        self,
        backbone: Backbone,
        policy: Policy,
        context: Context,
        reader: Reader,
        hidden: Float[Tensor, "slots dim"],
        recorder: Recorder,
    ) -> None:
        slots, device = len(hidden), hidden.device
        self._device_guard = functools.partial(torch.cuda.device_of, hidden)  # nothing on a CPU
        self._backbone, self._policy, self._recorder = backbone, policy, recorder
        self._context, self._reader, self._hidden = context, reader, hidden
        self._lengths = torch.zeros(slots, dtype=torch.int64, device=device)
        self._advance = torch.zeros_like(self._lengths)
        self._allowed = torch.zeros(slots, len(policy.psi), dtype=torch.bool, device=device)
        self._scales = torch.ones(slots, device=device)
        self._greedy = torch.ones(slots, dtype=torch.bool, device=device)
        self._top_k, self._top_p = torch.zeros_like(self._lengths), torch.ones(slots, device=device)
        self._uniforms = torch.zeros(slots, dtype=torch.float64, device=device)
        self._actions, self._logprobs = torch.zeros_like(self._lengths), torch.zeros(slots, device=device)
        with self._device_guard():
            self._flights = [Flight(slots, device) for _ in range(2)]
        self._kind = Kind(0, False, False, False, False)
        self._programs: dict[Kind, Program] = {}
        self._memory: list[weakref.ref[Tensor]] = []

    @torch.no_grad()
    def launch(self, rows: Sequence[Row], aloft: int) -> Flight:
        """Start a step of the first rows, behind `aloft` others that have not landed: none or one."""
        with self._device_guard():
            if not aloft:
                self._load(rows)
            flight = self._flights[0]
            self._flights.reverse()
            if self._kind.sampled:
                numbers = [row.uniforms.peek(aloft) for row in rows]
                flight.uniforms[: len(rows)] = torch.tensor(numbers, dtype=torch.float64)
                self._uniforms.copy_(flight.uniforms, non_blocking=True)
            if (program := self._programs.get(self._kind)) is not None:
                program()
            else:
                program = functools.partial(self._step, self._kind)
                self._recorder.first(program)
                self._programs[self._kind] = self._recorded(program)
            flight.send(self._actions[: len(rows)], self._logprobs[: len(rows)])
        return flight

    def _recorded(self, program: Program) -> Program:
        """What the program is run as from now on: as it is where it cannot be recorded, which costs only time."""
        try:
            return self._recorder.record(program)
        except RuntimeError as error:
            logging.getLogger(__name__).warning("a step of decoding is not recorded, and slower: %s", error)
            return program

    def _load(self, rows: Sequence[Row]) -> None:
        """Tell the device where the rows stand and how they decide; nothing of it changes until one of them does.

        A program may have places for more rows. Those repeat one step behind their contexts, where nobody looks.
        """
        self._reader.hold(self._context.capacity)
        memory = (self._context.embeds, self._reader.cache.keys)
        if [id(known()) for known in self._memory] != [id(one) for one in memory]:
            self._programs.clear()
            self._recorder.forget()
            self._memory = [weakref.ref(one) for one in memory]
        count, samplings = bucket(len(rows), self._context.rows), [row.request.sampling for row in rows]
        allowed, scales = [row.allowed for row in rows], [sampling.scale for sampling in samplings]
        top_k, top_p = limits(samplings, self._backbone.vocab_size + len(self._policy.psi), self._lengths.device)
        last = self._context.capacity - 1
        place(self._lengths, [min(length, last) for length in self._context.lengths[:count]])
        place(self._advance, [1] * len(rows) + [0] * (count - len(rows)))
        place(self._scales, scales)
        place(self._greedy, [sampling.greedy for sampling in samplings])
        self._allowed[: len(rows)] = torch.tensor(allowed, dtype=torch.bool)
        self._top_k[: len(rows)], self._top_p[: len(rows)] = top_k, top_p
        self._kind = Kind(
            rows=count,
            operators=any(map(any, allowed)),
            scaled=set(scales) != {1.0},
            sampled=not all(sampling.greedy for sampling in samplings),
            filtered=any(sampling.filters for sampling in samplings),
        )

    def _step(self, kind: Kind) -> None:
        """Each of the first rows takes an action, reads it as a token, and has a new last hidden state.

        An operator or an end is read as whatever token it is nearest to: its row is dropped when the step lands.
        """
        hidden, lengths = self._hidden[: kind.rows], self._lengths[: kind.rows]
        actions, logprobs = self._decide(kind, hidden)
        self._actions[: kind.rows], self._logprobs[: kind.rows] = actions, logprobs
        embeds = self._backbone.embed(actions.clamp_max(self._backbone.vocab_size - 1))[:, None]
        window = OpenWindow(self._reader.cache, lengths)
        self._context.embeds[: kind.rows][down(kind.rows, lengths.device), window.positions] = embeds
        hidden.copy_(self._reader.lean(embeds, window)[:, -1])
        lengths += self._advance[: kind.rows]

    def _decide(
        self, kind: Kind, hidden: Float[Tensor, "rows dim"]
    ) -> tuple[Int[Tensor, "rows"], Float[Tensor, "rows"]]:
        """a_t ~ p(. | x_t) and its log-probability, as `sampling.choose` decides."""
        if kind.operators:
            logits = self._policy.logits(hidden)
            logits = masked_logits(logits, self._allowed[: kind.rows], self._scales[: kind.rows])
        else:
            logits = self._policy.token_logits(hidden)
            logits = logits / self._scales[: kind.rows, None] if kind.scaled else logits
        actions = logits.argmax(dim=-1)
        if kind.sampled:
            limited = logits
            if kind.filtered:
                limited = filtered(logits, self._top_k[: kind.rows], self._top_p[: kind.rows])
            drawn = invert(limited, self._uniforms[: kind.rows])
            actions = torch.where(self._greedy[: kind.rows], actions, drawn)
        return actions, logprobs_of(logits, actions)


def place(state: Tensor, values: Sequence[object]) -> None:
    """Overwrite the first entries."""
    state[: len(values)] = torch.tensor(values, dtype=state.dtype, device=state.device)


def bucket(rows: int, most: int) -> int:
    """How many rows a program is made for: 1, 2, 4 or a multiple of 8, so that there are few."""
    return min(most, next(size for size in (1, 2, 4, -(-rows // 8) * 8) if size >= rows))
