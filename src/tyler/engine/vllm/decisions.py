"""The shared rule of choosing actions (`engine/sampling.py`), as a logits processor of vLLM.

A row's decision is made here, from its own random stream, and handed on as the only action that vLLM's greedy sampler
can take. So both engines mask, sample and record alike, and a seed gives the same draws on both.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from vllm.config import VllmConfig
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessor
from vllm.v1.sample.logits_processor.builtin import process_dict_updates

from tyler.engine.logits import LogitState, drawn
from tyler.engine.sampling import NEVER, Sampling, masked_logits
from tyler.engine.vllm.ids import Ids

TURN = "tyler"
"""Under which key of a request's extra arguments its Turn is."""


@dataclass(frozen=True)
class Turn:
    """How one request of vLLM decides: as much of an answer as lies between two calls, or a call itself.

    `taken` numbers of the answer's random stream were used before it. `forced` tokens are chosen first, whatever the
    policy would have drawn: they stood behind a call's place and are read after its latents. `shown` are the answer's
    visible tokens before it, where `logit_state` looks at them.
    """

    sampling: Sampling = field(default_factory=Sampling)
    allowed: tuple[bool, ...] = ()
    taken: int = 0
    forced: tuple[int, ...] = ()
    logit_state: LogitState | None = None
    shown: tuple[int, ...] = ()
    is_call: bool = False


class Row:
    """One row of the batch: its Turn, and the actions that it has chosen so far, which vLLM appends to."""

    def __init__(self, turn: Turn, chosen: Sequence[int]) -> None:
        self.turn, self._chosen = turn, chosen
        self._random, self._numbers = turn.sampling.stream(purpose=0), list[float]()
        self._random.random(turn.taken)

    @property
    def logit_state(self) -> LogitState | None:
        """How its logits change, with the tokens that it has chosen."""
        if self.turn.logit_state is not None:
            self.turn.logit_state.tokens = [*self.turn.shown, *self._chosen]
        return self.turn.logit_state

    @property
    def forced(self) -> int | None:
        """The token that it must choose now, if there is one."""
        return next(iter(self.turn.forced[len(self._chosen) :]), None)

    def uniform(self) -> float:
        """The number of its stream that belongs to this decision, however often it is asked for."""
        place = len(self._chosen) - len(self.turn.forced)
        while len(self._numbers) <= place:
            self._numbers.append(self._random.random())
        return self._numbers[place] if place >= 0 else 0.0


class Decisions(LogitsProcessor):
    """Chooses the action of every row; see above."""

    def __init__(self, vllm_config: VllmConfig, device: torch.device, is_pin_memory: bool) -> None:
        self._told = vllm_config.additional_config[TURN]
        self._ids = Ids(**self._told["ids"])
        self._rows: dict[int, Row] = {}

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """Follow vLLM's batch; it calls this before every forward pass, so the host knows what the pass will hold."""
        process_dict_updates(self._rows, batch_update, lambda params, _, chosen: Row(params.extra_args[TURN], chosen))
        self._told["has_calls"] = any(row.turn.is_call for row in self._rows.values())

    def apply(self, logits: Tensor) -> Tensor:
        """Put the action of each row [V', report] above all others, and report its log-probability and log p(operator).

        Of a call any token will do.
        """
        places = [place for place, row in self._rows.items() if not row.turn.is_call and place < len(logits)]
        if places:
            actions, reported = self._decide(logits, places)
            logits[places, actions] = torch.finfo(logits.dtype).max
            first = self._ids.report[0]
            logits[places, first : first + reported.shape[1]] = reported.nan_to_num(nan=NEVER)
        return logits

    def _decide(self, logits: Tensor, places: list[int]) -> tuple[Tensor, Tensor]:
        rows, vocab_size = [self._rows[place] for place in places], self._ids.vocab_size
        own = (logits if places == list(range(len(logits))) else logits[places])[:, : self._ids.num_actions]
        samplings, states = [row.turn.sampling for row in rows], [row.logit_state for row in rows]
        allowed, scales = tuple(row.turn.allowed for row in rows), tuple(one.scale for one in samplings)
        scaled = masked_logits(own, vocab_size, allowed, scales)
        numbers, forced = [row.uniform() for row in rows], [row.forced for row in rows]
        actions, logprobs = drawn(scaled, states, samplings, numbers, forced)
        logprobs[[place for place, state in enumerate(states) if state is not None and state.error]] = torch.nan
        if scaled.shape[1] == vocab_size:
            return actions, logprobs[:, None]
        operators = scaled[:, vocab_size:] - scaled.logsumexp(dim=-1, keepdim=True)
        return actions, torch.cat([logprobs[:, None], operators], dim=-1)
