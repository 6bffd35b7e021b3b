"""Requests of every kind, and when two answers to one are the same."""

import functools
from collections.abc import Sequence

import torch
from tests import reference, tiny
from tests.reference import Answer

from tyler.engine.request import Request
from tyler.engine.routing import AtBoundaries, Forced, Never
from tyler.engine.sampling import Sampling
from tyler.engine.trajectory import Trajectory
from tyler.model import Tyler

TOLERANCE = 1e-4
ACTIONS = 24


def ask(text: str, **settings: object) -> Request:
    return Request(prompt_ids=tiny.ids(text), **{"max_new_tokens": ACTIONS, **settings})  # type: ignore[arg-type]


CASES = {
    "greedy": ask(tiny.MEDIUM),
    "greedy, long prompt, budget 1": ask(tiny.LONG, budget=1),
    "greedy, other prompt, no budget": ask(tiny.ODD),
    "sampled, one-token prompt": ask(tiny.SHORT, sampling=Sampling(1.0, seed=1)),
    "sampled, budget 3": ask(tiny.LONG, sampling=Sampling(0.7, seed=2), budget=3),
    "sampled, budget 0": ask(tiny.ODD, sampling=Sampling(0.7, seed=3), budget=0),
    "top-k": ask(tiny.MEDIUM, sampling=Sampling(1.0, top_k=6, seed=4)),
    "top-k and top-p": ask(tiny.ODD, sampling=Sampling(0.8, top_k=20, top_p=0.7, seed=5)),
    "top-p, short": ask(tiny.SHORT, sampling=Sampling(1.3, top_p=0.9, seed=6), max_new_tokens=9),
    "boundaries": ask(tiny.LONG, router=AtBoundaries()),
    "boundaries, sampled": ask(tiny.MEDIUM, router=AtBoundaries(), sampling=Sampling(1.0, seed=7), max_new_tokens=40),
    "boundaries, sampled, temperature 0.7": ask(tiny.ODD, router=AtBoundaries(), sampling=Sampling(0.7, seed=23)),
    "boundaries, several at one token": ask(
        tiny.LONG, router=AtBoundaries(), sampling=Sampling(1.0, seed=26), max_new_tokens=40
    ),
    "boundaries, long waits": ask(
        tiny.MEDIUM, router=AtBoundaries(), sampling=Sampling(1.0, seed=33), max_new_tokens=40
    ),
    "half of the boundaries": ask(tiny.SHORT, router=AtBoundaries(rate=0.5), sampling=Sampling(1.0, seed=8)),
    "boundaries, budget 0": ask(tiny.ODD, router=AtBoundaries(), sampling=Sampling(0.7, seed=3), budget=0),
    "boundaries, budget 2": ask(tiny.ODD, router=AtBoundaries(), sampling=Sampling(0.9, seed=9), budget=2),
    "boundaries, one operator": ask(
        tiny.LONG, router=AtBoundaries(only=("procedure",)), sampling=Sampling(1.0, seed=10)
    ),
    "never": ask(tiny.LONG, router=Never(), sampling=Sampling(1.0, seed=11)),
    "forced": ask(tiny.SHORT, router=Forced({0: ("global",), 3: ("state", "procedure"), 4: ("state", "state")})),
}


@functools.cache
def expected(family: str, case: str) -> Answer:
    return reference.decode(tiny.tyler(family), CASES[case])


def differences(trajectory: Trajectory, answer: Answer) -> list[str]:
    """What differs between the engine's answer and the transcription's."""
    differing = []
    if trajectory.actions != answer.actions:
        differing.append(f"actions {trajectory.actions} instead of {answer.actions}")
    elif (error := distance(trajectory.logprobs, answer.logprobs)) > TOLERANCE:
        differing.append(f"log-probabilities differ by {error}")
    calls = [(call.operator, call.position, call.num_latents, call.action) for call in trajectory.invocations]
    if calls != answer.invocations:
        differing.append(f"invocations {calls} instead of {answer.invocations}")
    elif any(
        not torch.allclose(a.cpu(), b, atol=TOLERANCE) for a, b in zip(trajectory.latents, answer.latents, strict=True)
    ):
        differing.append("the latents differ")
    if trajectory.text != answer.text:
        differing.append(f"text {trajectory.text!r} instead of {answer.text!r}")
    if trajectory.finish_reason != answer.finish_reason:
        differing.append(f"finish reason {trajectory.finish_reason} instead of {answer.finish_reason}")
    return differing


def distance(first: Sequence[float], second: Sequence[float]) -> float:
    return max((abs(a - b) for a, b in zip(first, second, strict=True)), default=0.0)


def same(first: Trajectory, second: Trajectory) -> bool:
    return (
        first.actions == second.actions
        and first.invocations == second.invocations
        and (first.text, first.finish_reason) == (second.text, second.finish_reason)
        and distance(first.logprobs, second.logprobs) < TOLERANCE
    )


def run(model: Tyler, requests: Sequence[Request], slots: int = 8) -> list[Trajectory]:
    return model.engine(slots=slots).run(requests)
