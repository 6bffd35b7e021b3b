"""Whose time a pass is: attributed to the rows it served, at any number of slots, on any device."""

import time
from typing import Any

import pytest
from tests import tiny
from tests.asking import CASES

from tyler.engine.native.attention import Span
from tyler.engine.native.engine import Engine
from tyler.engine.native.reader import Reader
from tyler.engine.request import Request
from tyler.engine.routing import AtBoundaries
from tyler.engine.sampling import Sampling
from tyler.engine.trajectory import Trajectory


class Device:
    """A fake device and the host's clock: a pass costs its positions, at once or when the host waits for it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, asynchronous: bool = False, per_pass: float = 0.0) -> None:
        self.now, self.pending = 1.0, 0.0
        read = Reader.read

        def timed(reader: Reader, spans: list[Span]) -> Any:
            hidden = read(reader, spans)
            self.pending += per_pass + len(hidden)
            if not asynchronous:
                self.wait()
            return hidden

        monkeypatch.setattr(time, "perf_counter", lambda: self.now)
        monkeypatch.setattr(Reader, "read", timed)
        monkeypatch.setattr(Engine, "_wait_for_device", lambda engine: self.wait())

    def wait(self) -> None:
        self.now, self.pending = self.now + self.pending, 0.0


def different_prompts() -> list[Request]:
    """Requests that share nothing, or a batch would read less than its rows alone."""
    texts = [f"{text} {number}" for text in (tiny.MEDIUM, tiny.LONG, tiny.ODD) for number in range(3)]
    return [
        Request(tiny.ids(text), router=AtBoundaries(), sampling=Sampling(1.0, seed=seed), max_new_tokens=40)
        for seed, text in enumerate(texts)
    ]


def share(trajectories: list[Trajectory]) -> float:
    """As a report has it."""
    return sum(answer.synthesis_seconds for answer in trajectories) / sum(
        answer.engine_seconds for answer in trajectories
    )


@pytest.mark.parametrize("slots", [1, 3, 8])
def test_every_pass_is_split_over_the_rows_it_served(slots: int) -> None:
    engine = tiny.tyler("qwen3").engine(slots=slots)
    answers = engine.run(list(CASES.values()))
    for answer in answers:
        assert (answer.synthesis_seconds > 0) == (answer.num_invocations > 0)
        assert answer.synthesis_seconds < answer.engine_seconds < answer.seconds * (1 + 1e-9)


@pytest.mark.parametrize(
    ("per_pass", "tolerance"), [(0.0, 1e-6), (1.0, 0.35)], ids=["positions", "positions and passes"]
)
def test_the_synthesis_share_is_the_same_at_any_number_of_slots(
    per_pass: float, tolerance: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a pass costs its positions, batching changes no cost and no share; a batch saves passes of both kinds."""
    requests, shares = different_prompts(), {}
    for slots in (1, 8):
        with monkeypatch.context() as patch:
            Device(patch, per_pass=per_pass)
            shares[slots] = share(tiny.tyler("qwen3").engine(slots=slots).run(requests))
    assert 0.1 < shares[1] < 0.9
    assert shares[8] == pytest.approx(shares[1], rel=tolerance)


def test_a_prompt_that_is_still_being_read_is_not_charged_to_the_first_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU a pass is only started: the next wait is charged, unless the clock waits first."""
    request = Request(tiny.ids(tiny.LONG), router=AtBoundaries(), max_new_tokens=24)
    answers = {}
    for asynchronous in (False, True):
        with monkeypatch.context() as patch:
            Device(patch, asynchronous=asynchronous)
            engine = tiny.tyler("qwen3").engine(slots=1)
            (answers[asynchronous],) = engine.run([request])
    assert answers[True].invocations == answers[False].invocations != ()
    assert answers[True].invocations[0].position == 0, "the first call follows the prompt at once"
    assert answers[True].synthesis_seconds == answers[False].synthesis_seconds
