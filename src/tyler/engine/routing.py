"""When an operator is invoked: by the policy itself (Learned), or by a schedule fixed from outside.

A router is a setting and starts one `Schedule` per request. Schedules place operators between visible tokens; the
engine asks them after every visible token and knows nothing about how they decide.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import numpy as np

from tyler.boundaries.placement import BoundarySchedule, Call, ForcedSchedule, Schedule
from tyler.engine.checks import check_real, check_whole
from tyler.modeling.operators import Operator


@runtime_checkable
class Router(Protocol):
    """Who decides about operators. `learned`: they are actions of the policy; else a schedule places them."""

    @property
    def learned(self) -> bool: ...

    def start(self, operators: Sequence[Operator], random: np.random.Generator) -> Schedule: ...


@dataclass(frozen=True)
class Learned:
    """Operators compete with tokens in one next-action distribution (Section 3.3)."""

    learned: bool = field(default=True, init=False)

    def start(self, operators: Sequence[Operator], random: np.random.Generator) -> Schedule:
        return ForcedSchedule()


@dataclass(frozen=True)
class Never:
    """No operators: plain decoding of the policy over V."""

    learned: bool = field(default=False, init=False)

    def start(self, operators: Sequence[Operator], random: np.random.Generator) -> Schedule:
        return ForcedSchedule()


@dataclass(frozen=True)
class Forced:
    """Operators at given numbers of visible tokens: {0: ("global",), 12: ("state", "procedure")}."""

    calls: Mapping[int, Sequence[str]]
    learned: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        for position, names in self.calls.items():
            check_whole("position", position, 0, "Forced counts visible tokens: whole numbers from 0")
            if isinstance(names, str):
                raise ValueError(f"Forced({{{position}: {names!r}}}); give the operators as a tuple, ({names!r},)")

    def start(self, operators: Sequence[Operator], random: np.random.Generator) -> Schedule:
        check_names("Forced", (name for names in self.calls.values() for name in names), operators)
        calls = [Call(position, name) for position, names in sorted(self.calls.items()) for name in names]
        return ForcedSchedule(calls)


@dataclass(frozen=True)
class AtBoundaries:
    """Each operator at the boundaries of its rule, each with probability `rate`: Stage 1 as a method, and Rand@p.

    `only` restricts it to some operators by name. The rule is the one Stage 1 data is made with, so decoding meets
    operators where training put them.
    """

    rate: float = 1.0
    only: tuple[str, ...] | None = None
    learned: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        check_real("rate", self.rate, "it is a probability, between 0 and 1", 0, 1)
        if isinstance(self.only, str):
            raise ValueError(f"only={self.only!r}; give the operators as a tuple, ({self.only!r},)")

    def start(self, operators: Sequence[Operator], random: np.random.Generator) -> Schedule:
        check_names("AtBoundaries(only=...)", self.only or (), operators)
        chosen = [operator for operator in operators if self.only is None or operator.name in self.only]
        return BoundarySchedule(chosen, self.rate, random)


def check_names(router: str, names: Iterable[str], operators: Sequence[Operator]) -> None:
    """Raise ValueError for an operator that the model does not have."""
    known = [operator.name for operator in operators]
    for name in names:
        if name not in known:
            raise ValueError(f"{router} names operator {name!r}; this model has {', '.join(known) or 'none'}")


def check_router(router: object) -> None:
    """Raise ValueError for what cannot route: a class instead of an object, or anything else."""
    if isinstance(router, type):
        raise ValueError(f"router={router.__name__} is a class; write {router.__name__}()")
    if not isinstance(router, Router):
        raise ValueError(f"router={router!r} is not a router; give Learned(), Never(), AtBoundaries(), Forced({{...}})")


def router_named(text: str) -> Router:
    """The router of a name: learned, never, boundaries, or boundaries:RATE with 0 <= RATE <= 1.

    Raises ValueError for any other text.
    """
    name, _, rate = text.partition(":")
    if name == "boundaries":
        try:
            return AtBoundaries(rate=float(rate or 1))
        except ValueError as error:
            raise ValueError(f"router {text!r}: {error}") from error
    named: dict[str, Router] = {"learned": Learned(), "never": Never()}
    if text not in named:
        raise ValueError(
            f"router {text!r} is unknown; choose from learned, never, boundaries, boundaries:RATE (0 to 1)"
        )
    return named[text]
