"""Programs over fixed memory, recorded once and replayed: CUDA graphs, where there are some.

A recording holds kernels and addresses and nothing of Python. It stays true as long as the memory stays where it is.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import weakref
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Protocol

import torch
from torch import Tensor

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
        with torch.cuda.stream(self._stream), self._own_workspaces():
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                program()
                graph.capture_end()
            except BaseException:
                self._abandon(graph)
                raise
        return graph.replay

    @staticmethod
    @contextlib.contextmanager
    def _own_workspaces() -> Iterator[None]:
        """Let a recording make cuBLAS's workspaces in its pool: those in ordinary memory, others may free."""
        torch._C._cuda_clearCublasWorkspaces()
        try:
            yield
        finally:
            torch._C._cuda_clearCublasWorkspaces()

    def _abandon(self, graph: torch.cuda.CUDAGraph) -> None:
        """End a recording that failed, and leave its pool, which takes no others."""
        with contextlib.suppress(RuntimeError):  # that it is broken is known
            graph.capture_end()
        with contextlib.suppress(RuntimeError):  # where the recording ended as it should, nothing is left to end
            torch._C._cuda_endAllocateToPool(self._stream.device_index, self._pool)
        self._pool = torch.cuda.graph_pool_handle()

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


PATIENCE = 2
"""How often a program is run before it is recorded: a recording takes as long as some runs."""
KEPT = 64
"""Recordings of one kind of work that are kept; the one that has not run for longest makes room."""


class CudaGraphDispatcher:
    """Programs by what they compute, recorded when they come again and again."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._recorded: OrderedDict[Hashable, Program] = OrderedDict()
        self._runs: Counter[Hashable] = Counter()
        self._memory: list[weakref.ref[Tensor]] = []

    def run(self, kind: Hashable, program: Program, memory: Sequence[Tensor]) -> None:
        """Run a program of this kind, which works on this memory and on what never moves."""
        with torch.cuda.device_of(memory[0]):  # nothing on a CPU
            self._keep_true(memory)
            if (recorded := self._recorded.get(kind)) is not None:
                self._recorded.move_to_end(kind)
                recorded()
                return
            self._recorder.first(program)
            self._runs[kind] += 1
            if self._runs[kind] > PATIENCE:
                self._recorded[kind] = self._recording(program)
                if len(self._recorded) > KEPT:
                    self._recorded.popitem(last=False)

    def _keep_true(self, memory: Sequence[Tensor]) -> None:
        """Forget everything when the memory has moved."""
        if [id(known()) for known in self._memory] == [id(one) for one in memory]:
            return
        if self._recorded:
            self._recorded.clear()
            self._recorder.forget()
        self._memory = [weakref.ref(one) for one in memory]

    def _recording(self, program: Program) -> Program:
        """What the program is run as from now on: as it is where it cannot be recorded, which costs only time."""
        try:
            return self._recorder.record(program)
        except RuntimeError as error:
            logging.getLogger(__name__).warning("a pass of decoding is not recorded, and slower: %s", error)
            return program
