"""Fixed schedules: the boundaries that Stage 1 uses, found while the text grows."""

from collections.abc import Sequence
from random import Random
from typing import Any

import pytest
from tests import tiny

from tyler.boundaries.detokenizer import IncrementalDetokenizer
from tyler.boundaries.placement import candidates, piece_offsets
from tyler.boundaries.scanner import RULES, find_boundaries
from tyler.engine.routing import AtBoundaries, Call, Forced, Learned, Never, Router, Schedule
from tyler.engine.sampling import Sampling
from tyler.modeling.operators import Operator

STEPS = [piece for n in range(1, 41) for piece in (f"Step {n}: ", "so ", "$x^2$", " is", " 4.", "\n\n")]
"""Forty steps with a formula each."""


def start(router: Router, operators: Sequence[Operator] = tiny.OPERATORS, seed: int = 0) -> Schedule:
    return router.start(operators, Sampling(seed=seed).stream(purpose=1))


def calls_in(schedule: Schedule, pieces: Sequence[str]) -> list[Call]:
    """All calls, in the order in which they come due as the pieces arrive one by one.

    Every promise of `settled` is checked on the way: no call comes before it, and none behind it.
    """
    calls = due(schedule)
    for count in range(1, len(pieces) + 1):
        before = schedule.settled()
        schedule.observe(pieces[:count])
        settled = schedule.settled()
        new = due(schedule)
        assert before <= settled and all(call.position >= min(before, count) for call in new)
        assert all(call.position <= max(settled, schedule.settled()) for call in new)
        calls += new
    return calls


def due(schedule: Schedule) -> list[Call]:
    calls = []
    while (call := schedule.due()) is not None:
        calls.append(call)
    return calls


def random_pieces(seed: int, length: int = 60) -> list[str]:
    """The texts of random tokens, most of them beginnings of structures; some end inside a character."""
    random = Random(seed)
    likely = tiny.ids_of(tiny.STRUCTURAL)
    usual = tiny.ids_of(tiny.PLAIN)
    every = range(2, len(tiny.tokenizer()))
    transcript = IncrementalDetokenizer(tiny.tokenizer())
    transcript.tokens += [random.choice(random.choice([likely, usual, every])) for _ in range(length)]
    return list(transcript)


# ------------------------------------------------------------------------------------------- schedules


@pytest.mark.parametrize("router", [Learned(), Never()])
def test_learned_and_never_place_nothing(router: Router) -> None:
    schedule = start(router)
    assert calls_in(schedule, STEPS) == []
    assert schedule.settled() > len(STEPS)


def test_forced_calls_come_when_their_position_is_reached() -> None:
    schedule = start(Forced({2: ("state", "procedure"), 0: ("global",), 4: ("state", "state")}))
    assert due(schedule) == [Call(0, "global")]
    assert schedule.settled() == 2
    schedule.observe(["a"])
    assert due(schedule) == []
    schedule.observe(["a", "b"])
    assert due(schedule) == [Call(2, "state"), Call(2, "procedure")]
    schedule.observe(["a", "b", "c", "d"])
    assert due(schedule) == [Call(4, "state"), Call(4, "state")]
    assert schedule.settled() > 1000


def test_every_boundary_is_used_at_rate_one_and_none_at_rate_zero() -> None:
    calls = calls_in(start(AtBoundaries()), STEPS)
    names = [call.operator for call in calls]
    assert (names.count("global"), names.count("state"), names.count("procedure")) == (1, 40, 40)
    assert calls_in(start(AtBoundaries(rate=0.0)), STEPS) == []


@pytest.mark.parametrize("rate", [0.25, 0.6])
def test_the_rate_is_the_share_of_boundaries_used(rate: float) -> None:
    every = set(calls_in(start(AtBoundaries()), STEPS))
    used = [calls_in(start(AtBoundaries(rate=rate), seed=seed), STEPS) for seed in range(40)]
    assert all(set(calls) <= every for calls in used)
    total = 40 * len(every)
    expected, deviation = rate * total, (total * rate * (1 - rate)) ** 0.5
    assert abs(sum(map(len, used)) - expected) < 4 * deviation
    for name in ("state", "procedure"):
        share = sum(call.operator == name for calls in used for call in calls)
        assert abs(share - rate * 1600) < 4 * (1600 * rate * (1 - rate)) ** 0.5
    assert len({tuple(calls) for calls in used}) == 40, "each request draws for itself"


def test_only_restricts_the_operators() -> None:
    calls = calls_in(start(AtBoundaries(only=("state",))), STEPS)
    assert len(calls) == 40 and {call.operator for call in calls} == {"state"}
    assert calls == [call for call in calls_in(start(AtBoundaries()), STEPS) if call.operator == "state"]


def test_an_operator_is_called_once_per_visible_position() -> None:
    pieces = ["We", " know", " ", "$x$$y$ and $z$", " so", "."]
    assert len(find_boundaries("".join(pieces), ("structure",))) == 3
    calls = calls_in(start(AtBoundaries()), pieces)
    assert [call for call in calls if call.operator == "procedure"] == [Call(3, "procedure")]


def test_two_operators_of_one_rule_are_both_called() -> None:
    twins = (Operator("one", 2, "step"), Operator("two", 3, "step"))
    calls = calls_in(start(AtBoundaries(), twins), ["a", ".\n\n", "b", " c"])
    assert calls == [Call(2, "one"), Call(2, "two")]


def test_a_structure_is_known_after_its_opening_token_and_waits_until_then() -> None:
    schedule = start(AtBoundaries(only=("procedure",)))
    pieces = ["Pay", " $", "5", "+", "x_", "1", "$"]
    seen = []
    for count in range(1, len(pieces) + 1):
        schedule.observe(pieces[:count])
        seen.append((schedule.settled(), due(schedule)))
    assert [calls for _, calls in seen if calls] == [[Call(1, "procedure")]]
    placed = next(index for index, (_, calls) in enumerate(seen) if calls)
    assert placed > 1, "what the amount is shows only later"
    assert all(settled == 1 for settled, _ in seen[1:placed]), "the opening token may not be shown before"


def test_boundaries_found_online_are_those_found_offline() -> None:
    """As far as the text reached: what the last characters open may still be undecided."""
    counts = {rule: 0 for rule in RULES}
    for seed in range(300):
        pieces = random_pieces(seed)
        schedule = start(AtBoundaries())
        calls = calls_in(schedule, pieces)
        online = {(call.position, call.operator) for call in calls if call.position < len(pieces)}
        offline = {
            (b, operator.name) for b, operator in candidates("".join(pieces), piece_offsets(pieces), tiny.OPERATORS)
        }
        assert online <= offline
        assert {pair for pair in offline if pair[0] < schedule.settled()} <= online
        assert len(calls) == len(set(calls))
        for boundary in find_boundaries("".join(pieces)):
            counts[boundary.rule] += 1
    assert all(count > 150 for count in counts.values()), "the texts must be full of boundaries"


CROSSING = [
    ["We.", "\n\n$", "x", "$ is", " 4"],
    ["We.", "\n\n$", "5", "+", "x_", "1", "$"],
    ["1. ", "a\n\n\\(", "x", "\\)"],
    ["We.", "\n\n```", "python\n", "x", "\n```", "\n\n$", "y", "$"],
]
"""Tokens that end a step and open a structure at once: O_s belongs after them, O_p in front."""


@pytest.mark.parametrize("pieces", CROSSING)
def test_calls_come_in_the_order_of_their_positions(pieces: list[str]) -> None:
    """Else a call would cut latents out of the context that were placed after its position."""
    calls = calls_in(start(AtBoundaries()), pieces)
    positions = [call.position for call in calls]
    assert positions == sorted(positions)
    offline = {(b, operator.name) for b, operator in candidates("".join(pieces), piece_offsets(pieces), tiny.OPERATORS)}
    assert {(call.position, call.operator) for call in calls} == offline


def test_texts_can_arrive_several_tokens_at_a_time() -> None:
    for seed in range(30):
        pieces = random_pieces(seed)
        schedule, calls = start(AtBoundaries()), []
        for count in (0, 7, 8, 30, 60):
            schedule.observe(pieces[:count])
            calls += due(schedule)
        assert calls == calls_in(start(AtBoundaries()), pieces)


NUMBERS = "Forced counts visible tokens: whole numbers from 0"


@pytest.mark.parametrize(
    ("router", "given", "message"),
    [
        *((AtBoundaries, {"rate": rate}, f"rate={rate!r}") for rate in (-0.1, 1.01, float("nan"), "x", True, None)),
        (AtBoundaries, {"only": "global"}, r"only='global'; give the operators as a tuple, \('global',\)"),
        *((Forced, {"calls": {at: ("state",)}}, f"position={at!r}; {NUMBERS}") for at in (-1, 1.5, True, "3")),
        (Forced, {"calls": {3: "state"}}, r"give the operators as a tuple, \('state',\)"),
    ],
)
def test_a_setting_that_no_router_has_is_refused_by_name(router: Any, given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        router(**given)
