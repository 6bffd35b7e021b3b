"""The overlap step: decide, append and read as one program that asks nothing of the host.

While no row starts, ends or calls an operator, a step follows from what the device holds. The engine therefore launches
a step before it has seen what the one before decided, and learns of it while the device works. What turns out to be in
vain is dropped: a row that ended or called is skipped when the step lands, and whatever was written after its context
is overwritten. The caches are in pages (`paged.py`), so that memory stays where it is while rows come, grow and go,
and a CUDA device records the program of each number of rows and pages once, as a graph, and replays it.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tyler.engine.native.cuda_graphs import CudaGraphDispatcher, Recorder
from tyler.engine.native.paged import PagedAttentionMetadata, PagedReader
from tyler.engine.request_state import RequestState
from tyler.engine.sampling import filtered, float64_device, invert, limits, logprobs_of, masked_logits, operator_probs
from tyler.engine.sizes import bucket, doubled, pages_for
from tyler.modeling.backbone import Backbone
from tyler.modeling.policy import Policy


class InFlightStep:
    """One launched step: pinned memory in which its uniform numbers leave the host and its actions arrive."""

    def __init__(self, slots: int, num_operators: int, device: torch.device) -> None:
        pinned = device.type == "cuda"
        self.uniforms = torch.zeros(slots, dtype=torch.float64, pin_memory=pinned)
        self._actions = torch.zeros(slots, dtype=torch.int64, pin_memory=pinned)
        self._logprobs = torch.zeros(slots, pin_memory=pinned)
        self._operator_probs = torch.zeros(slots, num_operators, pin_memory=pinned)
        self._arrival = torch.cuda.Event() if pinned else None
        self.rows = 0

    def send(
        self,
        actions: Int[Tensor, "rows"],
        logprobs: Float[Tensor, "rows"],
        operator_probs: Float[Tensor, "rows operators"],
    ) -> None:
        """Start the way to the host, after what the device was given so far."""
        self.rows = len(actions)
        self._actions[: self.rows].copy_(actions, non_blocking=True)
        self._logprobs[: self.rows].copy_(logprobs, non_blocking=True)
        self._operator_probs[: self.rows].copy_(operator_probs, non_blocking=True)
        if self._arrival is not None:
            self._arrival.record()

    def arrived(self) -> tuple[list[int], list[float], list[list[float]]]:
        """The actions, their log-probabilities and p(operator), 0 where no row asks; waits for this step alone."""
        if self._arrival is not None:
            self._arrival.synchronize()
        found = (self._actions, self._logprobs, self._operator_probs)
        actions, logprobs, operator_probs = (one[: self.rows].tolist() for one in found)
        return actions, logprobs, operator_probs


@dataclass(frozen=True)
class BatchDescriptor:
    """What a program computes: for how many rows, of how many pages each, and which parts of a decision they need."""

    rows: int
    width: int
    operators: bool
    reported: bool
    scaled: bool
    sampled: bool
    filtered: bool


class OverlapScheduler:
    """The programs of an engine, and the state of its running rows on the device."""

    def __init__(
        self,
        backbone: Backbone,
        policy: Policy,
        reader: PagedReader,
        hidden: Float[Tensor, "slots dim"],
        recorder: Recorder,
    ) -> None:
        slots, device = len(hidden), hidden.device
        self._device_guard = functools.partial(torch.cuda.device_of, hidden)  # nothing on a CPU
        self._backbone, self._policy = backbone, policy
        self._context, self._reader, self._hidden = reader.pages, reader, hidden
        self._lengths = torch.zeros(slots, dtype=torch.int64, device=device)
        self._advance = torch.zeros_like(self._lengths)
        self._allowed = torch.zeros(slots, len(policy.psi), dtype=torch.bool, device=device)
        self._scales = torch.ones(slots, device=device)
        self._greedy = torch.ones(slots, dtype=torch.bool, device=device)
        self._top_k, self._top_p = torch.zeros_like(self._lengths), torch.ones(slots, device=device)
        self._uniforms = torch.zeros(slots, dtype=torch.float64, device=float64_device(device))
        self._actions, self._logprobs = torch.zeros_like(self._lengths), torch.zeros(slots, device=device)
        self._operator_probs = torch.zeros(slots, len(policy.psi), device=device)
        with self._device_guard():
            self._buffers = [InFlightStep(slots, len(policy.psi), device) for _ in range(2)]
        self._numbers = torch.arange(slots + 1, dtype=torch.int32, device=device)
        self._descriptor = BatchDescriptor(0, 0, False, False, False, False, False)
        self._programs = CudaGraphDispatcher(recorder)
        self.in_flight: InFlightStep | None = None
        """The step that has been launched and has not landed."""

    @torch.no_grad()
    def launch(self, rows: Sequence[RequestState], in_flight: int) -> InFlightStep:
        """Start a step of the first rows, after `in_flight` others that have not landed: none or one."""
        with self._device_guard():
            if not in_flight:
                self._load(rows)
            step = self._buffers[0]
            self._buffers.reverse()
            if self._descriptor.sampled:
                numbers = [row.uniforms.peek(in_flight) for row in rows]
                step.uniforms[: len(rows)] = torch.tensor(numbers, dtype=torch.float64)
                self._uniforms.copy_(step.uniforms, non_blocking=True)
            descriptor = replace(self._descriptor, width=self._width(in_flight))
            self._programs.run(descriptor, functools.partial(self._step, descriptor), self._reader.memory)
            step.send(*(one[: len(rows)] for one in (self._actions, self._logprobs, self._operator_probs)))
        return step

    def _width(self, in_flight: int) -> int:
        """Pages that hold the longest of the rows when it has taken the step that is launched."""
        longest = max(self._context.lengths[: self._descriptor.rows])
        return doubled(pages_for(longest + in_flight + 1))

    def _load(self, rows: Sequence[RequestState]) -> None:
        """Tell the device where the rows stand and how they decide; nothing of it changes until one of them does.

        A program may have places for more rows. Those repeat one step behind their contexts, which is never read.
        """
        self._reader.hold(range(len(rows)), [length + 2 for length in self._context.lengths[: len(rows)]])
        count, samplings = bucket(len(rows), len(self._lengths)), [row.request.sampling for row in rows]
        allowed, scales = [row.allowed for row in rows], [sampling.scale for sampling in samplings]
        top_k, top_p = limits(samplings, self._backbone.vocab_size + len(self._policy.psi), self._lengths.device)
        place(self._lengths, self._context.lengths[:count])
        place(self._advance, [1] * len(rows) + [0] * (count - len(rows)))
        place(self._scales, scales)
        place(self._greedy, [sampling.greedy for sampling in samplings])
        self._allowed[: len(rows)] = torch.tensor(allowed, dtype=torch.bool)
        self._top_k[: len(rows)], self._top_p[: len(rows)] = top_k, top_p
        self._descriptor = BatchDescriptor(
            rows=count,
            width=0,
            operators=any(map(any, allowed)),
            reported=any(row.reports for row in rows),
            scaled=set(scales) != {1.0},
            sampled=not all(sampling.greedy for sampling in samplings),
            filtered=any(sampling.filters for sampling in samplings),
        )

    def _step(self, descriptor: BatchDescriptor) -> None:
        """Each of the first rows takes an action, reads it as a token, and has a new last hidden state.

        An operator or an end is read as whatever token it is nearest to: its row is dropped when the step lands.
        """
        hidden, lengths = self._hidden[: descriptor.rows], self._lengths[: descriptor.rows]
        actions, logprobs = self._decide(descriptor, hidden)
        self._actions[: descriptor.rows], self._logprobs[: descriptor.rows] = actions, logprobs
        embeds = self._backbone.embed(actions.clamp_max(self._backbone.vocab_size - 1))[None]
        rows, starts = self._numbers[: descriptor.rows], self._numbers[: descriptor.rows + 1]
        table = self._reader.pages.block_table[: descriptor.rows, : descriptor.width]
        metadata = PagedAttentionMetadata.over(
            self._reader, rows, lengths, starts, (lengths + 1).int(), table, longest=1
        )
        self._context.embeds.flatten(0, 1).index_copy_(0, metadata.slot_mapping, embeds[0])
        hidden.copy_(self._reader.fused(embeds, metadata)[0])
        lengths += self._advance[: descriptor.rows]

    def _decide(
        self, descriptor: BatchDescriptor, hidden: Float[Tensor, "rows dim"]
    ) -> tuple[Int[Tensor, "rows"], Float[Tensor, "rows"]]:
        """a_t ~ p(. | x_t) and its log-probability, as `sampling.choose` decides."""
        if descriptor.operators:
            logits = self._policy.logits(hidden)
            logits = masked_logits(logits, self._allowed[: descriptor.rows], self._scales[: descriptor.rows])
        else:
            logits = self._policy.token_logits(hidden)
            logits = logits / self._scales[: descriptor.rows, None] if descriptor.scaled else logits
        if descriptor.reported:
            told = self._operator_probs[: descriptor.rows]
            told.copy_(operator_probs(logits, len(self._policy.psi))) if descriptor.operators else told.zero_()
        actions = logits.argmax(dim=-1)
        if descriptor.sampled:
            limited = logits
            if descriptor.filtered:
                limited = filtered(logits, self._top_k[: descriptor.rows], self._top_p[: descriptor.rows])
            drawn = invert(limited, self._uniforms[: descriptor.rows])
            actions = torch.where(self._greedy[: descriptor.rows], actions, drawn)
        return actions, logprobs_of(logits, actions)


def place(state: Tensor, values: Sequence[object]) -> None:
    """Overwrite the first entries."""
    state[: len(values)] = torch.tensor(values, dtype=state.dtype, device=state.device)
