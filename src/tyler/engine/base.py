"""What an engine is, and what each does with requests however it decodes them: checks, numbers, events, aborts."""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tyler.engine.request import Event, FinishEvent, PromptTooLong, Request, checked
from tyler.engine.request_state import RequestState
from tyler.engine.trajectory import Trajectory
from tyler.modeling.backbone import Backbone
from tyler.modeling.lora import Adapted
from tyler.modeling.operators import Operator
from tyler.modeling.policy import Policy
from tyler.modeling.synthesis import Heads, SynthesisModel


@dataclass(frozen=True)
class Load:
    """What an engine is doing: rows, requests that wait, bytes that the rows take, and their bound (0: none)."""

    running: int = 0
    waiting: int = 0
    bytes: int = 0
    memory: int = 0


def longest_action(heads: Heads) -> int:
    """Positions that one action may take: a token has one, a call as many as its operator has latents."""
    return max((head.num_latents for head in heads.values()), default=1)


class BaseEngine(ABC):
    """Decodes requests with continuous batching. One thread at a time uses it.

    A subclass decodes in `step`, and has in `running` the rows that it has begun.
    """

    def __init__(
        self,
        backbone: Backbone,
        operators: Sequence[Operator],
        policy: Policy,
        synthesizer: SynthesisModel,
        heads: Heads | None,
        max_positions: int,
    ) -> None:
        self.backbone, self.operators = backbone, tuple(operators)
        self.policy, self.synthesizer = policy, synthesizer
        self.heads: Heads = synthesizer.mapping() if heads is None else heads
        self.max_positions, self.longest_action = max_positions, longest_action(self.heads)
        self.vocab_size = backbone.vocab_size
        self._names = [operator.name for operator in self.operators]
        self.waiting: deque[RequestState] = deque()
        self._submitted = 0

    keeps_prefixes = False
    """Whether what was read of a prompt is kept for one that begins with it."""

    running: Sequence[RequestState]
    row_type: type[RequestState] = RequestState
    """What is known of a request; a subclass may know more."""
    refused: tuple[str, ...] = ()
    """Settings of a request that only the native engine follows."""

    @abstractmethod
    def step(self) -> list[Event]:
        """Let every running answer go on; what happened."""

    def load(self) -> Load:
        return Load(len(self.running), len(self.waiting))

    @abstractmethod
    def fits(self, slots: int, memory: int | None, positions: int) -> bool:
        """Whether it can serve so many answers that may take so many positions, or another one has to be built."""

    @property
    def adapted(self) -> list[Policy | Adapted]:
        """The modules whose LoRAs it decodes with."""
        return [self.policy, self.synthesizer]

    @abstractmethod
    def refresh(self) -> bool:
        """Take the adapters' present weights, where nothing is decoded; False where only a new engine can."""

    def release(self) -> bool:
        """Give back what memory can be given back while nothing is decoded; False where it is best dropped whole."""
        return False

    def close(self) -> None:  # noqa: B027
        """End it for good; nothing to do where nothing outlives it."""

    @property
    def busy(self) -> bool:
        return bool(self.waiting or self.running)

    def add_request(self, request: Request) -> int:
        """Queue a request and return its index. Raises ValueError for one that `prepare` refuses."""
        row = self.prepare(request)
        self.waiting.append(row)
        return row.index

    def prepare(self, request: Request, *, streamed: bool = True) -> RequestState:
        """What a request starts as; `waiting` takes it whenever it is to begin.

        `streamed` says whether tokens and calls are told of, or only the end. Raises PromptTooLong (a ValueError)
        when the prompt does not fit the model's context, and ValueError for tokens that the model does not have and for
        settings that this engine does not follow.
        """
        if name := next((name for name in self.refused if getattr(request, name) not in (None, 0)), None):
            raise ValueError(f"a request with a {name} runs on the native engine alone; use engine 'native'")
        first, last = min(request.prompt_ids), max(request.prompt_ids)
        if len(request.prompt_ids) > (limit := self.max_positions - self.longest_action):
            raise PromptTooLong(
                f"the prompt has {len(request.prompt_ids)} tokens, but this model's context of "
                f"{self.max_positions} positions leaves room for {limit}; shorten the prompt"
            )
        if first < 0 or last >= self.vocab_size:
            raise ValueError(
                f"the prompt has tokens from {first} to {last}, and the model's are from 0 to {self.vocab_size - 1}; "
                "encode it with the model's own tokenizer"
            )
        schedule = request.router.start(self.operators, request.sampling.stream(purpose=1))
        index, self._submitted = self._submitted, self._submitted + 1
        return self.row_type(index, request, schedule, self.offered(request), self.backbone, streamed)

    def offered(self, request: Request) -> tuple[bool, ...]:
        """Which operators are actions of the policy: none under a fixed router, never a removed one."""
        return tuple(request.router.learned and operator.name in self.heads for operator in self.operators)

    def counted(self, row: RequestState) -> int:
        """How much of `max_new_tokens` a row has used: it counts actions."""
        return len(row.choices)

    def finish_if_full(self, row: RequestState, capacity: int) -> None:
        """End a row where a limit is reached: of actions, of what is generated with the latents of the call that it
        waits for, or of positions, of which there are `capacity`, so that any one action fits after its context. All
        count the held tokens, too.
        """
        if row.finish_reason:
            return
        latents = 0 if row.call is None else self.heads[row.call.operator].num_latents
        most = row.request.max_generated
        if self.counted(row) + len(row.held) >= row.request.max_new_tokens:
            row.limited_by = "max_new_tokens"
        elif most is not None and row.generated + max(latents, 1) > most:
            row.limited_by = "max_generated"
        elif row.length + len(row.held) > capacity - self.longest_action:
            row.limited_by = "context" if capacity == self.max_positions else "memory"
        else:
            return
        row.finish_reason, row.call = "length", None

    def abort(self, index: int) -> None:
        """End a waiting or running request; the next step tells of its end, with the reason "abort".

        Raises ValueError for an index that is neither waiting nor running.
        """
        row = next((row for row in (*self.waiting, *self.running) if row.index == index), None)
        if row is None:
            raise ValueError(f"request {index} is neither waiting nor running; nothing was aborted")
        row.finish_reason, row.call = "abort", None

    def take_aborted(self) -> list[RequestState]:
        """The rows that were aborted while they waited; they wait no more."""
        aborted = [row for row in self.waiting if row.finish_reason]
        for row in aborted:
            self.waiting.remove(row)
        return aborted

    def run(self, requests: Sequence[Request]) -> list[Trajectory]:
        """Decode the requests; trajectories in their order."""
        first, events = self._submitted, self.stream(requests, streamed=False)
        ended = {event.index: event.trajectory for event in events if isinstance(event, FinishEvent)}
        return [ended[first + place] for place in range(len(requests))]

    def stream(self, requests: Sequence[Request], *, streamed: bool = True) -> Iterator[Event]:
        """Decode the requests, yielding tokens, invocations and finished trajectories as they happen; without
        `streamed` only the last. Where that fails, or the caller stops listening, these requests end."""
        rows = [self.prepare(request, streamed=streamed) for request in requests]
        self.waiting += rows
        try:
            while self.busy:
                yield from checked(self.step())
        finally:
            while own := [row for row in (*self.waiting, *self.running) if row in rows]:
                for row in own:
                    self.abort(row.index)
                self.step()
