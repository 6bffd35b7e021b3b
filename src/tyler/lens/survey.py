"""The operator lens over a set of problems: what the blocks of each operator do, tested against controls.

Means are over problems, blocks of one problem first averaged, and intervals resample problems: a problem with many
blocks counts once, and differences between replacements are paired.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from statistics import fmean
from typing import Any

import numpy as np
import torch

from tyler.engine.routing import Router
from tyler.evaluation.statistics import holm, middle95, resampled, resolution, sign_flips
from tyler.lens.block import TOGETHER, Effect, Reading, read_blocks, read_together
from tyler.lens.interventions import REPLACEMENTS
from tyler.lens.rescoring import differences, kept_answers
from tyler.model import Tyler
from tyler.runs.progress import bar

DRAWS = 2000
FEWEST = 6
"""Problems that a verdict takes: if all of five lie on one side, a fair coin does that once in 16 times."""
Value = Callable[[Reading], float | None]
Blocks = Sequence[Sequence[Reading]]
"""Readings of one operator's blocks, those of each problem together."""


@dataclass(frozen=True)
class Estimate:
    """A mean over problems and its 95% bootstrap interval.

    `p` is that of a test: of sign flips over problems, two-sided, adjusted by Holm for all tests of a survey.
    """

    mean: float
    low: float
    high: float
    count: int
    p: float | None = None

    @property
    def verdict(self) -> str:
        """Whether it is above zero, as far as the interval tells."""
        if self.count < FEWEST:
            return "too few"
        return "yes" if self.low > 0 else "no" if self.high < 0 else "not clear"


@dataclass(frozen=True)
class Statement:
    """A question that is answered yes where a difference, paired by problem, is above zero."""

    question: str
    difference: str
    value: Value


def of_effect(name: str, measure: str) -> Value:
    """A measure of a replacement, by its name in `Effect`; None where a block has no such replacement."""
    return lambda reading: getattr(reading.effects[name], measure) if name in reading.effects else None


def loss_with(name: str) -> Value:
    """log p that the tokens after a block lose with something in its place."""
    return of_effect(name, "loss")


def of_carried(name: str) -> Value:
    """What is carried over, a donor."""
    return lambda reading: getattr(reading.carried, name) / reading.carried.donors if reading.carried else None


def minus(first: Value, second: Value) -> Value:
    """A difference, None where either side is."""

    def difference(reading: Reading) -> float | None:
        one, other = first(reading), second(reading)
        return None if one is None or other is None else one - other

    return difference


STATEMENTS = (
    Statement("Does the answer lean on it?", "loss with no block", loss_with("no block")),
    Statement(
        "Is silence in its place worse than no place?",
        "loss with zeros, less that with no block",
        minus(loss_with("zeros"), loss_with("no block")),
    ),
    Statement(
        "Does its mean do more than no block?",
        "loss with no block, less that with means",
        minus(loss_with("no block"), loss_with("means")),
    ),
    Statement("Does it do more than its mean?", "loss with means", loss_with("means")),
    Statement(
        "Is it of its problem?",
        "loss with another problem's block, less that with means",
        minus(loss_with("other problem"), loss_with("means")),
    ),
    Statement("Is it of its type?", "loss with another operator's block", loss_with("other operator")),
    Statement("Does it do what an untrained operator does not?", "loss with an untrained one", loss_with("untrained")),
    Statement(
        "Can what follows be read from it?",
        "share of readable latents, less that of another problem's block",
        minus(lambda reading: reading.readable, lambda reading: reading.readable_other),
    ),
    Statement(
        "Does it carry its answer elsewhere?",
        "logit difference moved by its block, less that by noise",
        minus(of_carried("moved"), of_carried("noise")),
    ),
)
"""What is tested of every operator; which they are was chosen before any was measured."""


@dataclass(frozen=True)
class OperatorSurvey:
    """What the blocks of one operator do.

    `effects` has the measures of each replacement: effects["zeros"]["loss"] is in nats. `readable` and `enough` have
    "own" and "other problem" (where no part of another problem's block is enough, all its latents count), `carried`
    "moved", "noise" and "whole" in nats. `kept` is the share of what leaving the block out costs that its operator's
    mean keeps, where that costs anything. `tested` answers `STATEMENTS` by their questions. What nothing could be
    measured of is absent, or None.
    """

    num_blocks: int
    effects: dict[str, dict[str, Estimate]]
    readable: dict[str, Estimate]
    carried: dict[str, Estimate]
    enough: dict[str, Estimate]
    kept: Estimate | None
    tested: dict[str, Estimate]


@dataclass(frozen=True)
class Survey:
    """What a set of answers shows, by operator; the last, `lens.TOGETHER`, is all blocks of an answer at once.

    `decoded` is the share of answers that keep what is in their box when they are decoded again with all latents
    replaced, `decoded_tested` answers `rescoring.DIFFERENCES`. Both are empty where no answer has a box.
    """

    num_problems: int
    operators: dict[str, OperatorSurvey]
    decoded: dict[str, Estimate]
    decoded_tested: dict[str, Estimate]

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        return asdict(self)


def survey(
    model: Tyler,
    problems: Sequence[str],
    *,
    router: Router | None = None,
    max_new_tokens: int = 256,
    seed: int = 0,
    memory: int | None = None,
) -> Survey:
    """Answer the problems, put every block under the lens, and count.

    `memory` bounds the bytes of context and caches while they are answered.
    Raises ValueError where fewer than two answers invoke an operator: a block needs another problem's as its control.
    """
    own = model.solve(list(problems), router=router, max_new_tokens=max_new_tokens, memory=memory)
    called = [(problem, answer) for problem, answer in zip(problems, own, strict=True) if answer.invocations]
    if len(called) < 2:
        raise ValueError(f"{len(called)} of {len(problems)} answers invoked an operator; at least 2 are needed")
    asked, answers = [problem for problem, _ in called], [answer for _, answer in called]
    kept = kept_answers(model, asked, answers, router=router, max_new_tokens=max_new_tokens, memory=memory)
    readings = []
    with bar("lens", len(answers), unit="answer") as shown:
        for place, one in enumerate(answers):
            others = [*answers[place + 1 :], *answers[:place]]
            source = torch.Generator().manual_seed(seed + place)
            together = read_together(model, one, others, source)
            readings.append([*read_blocks(model, one, others, seed + place), together])
            shown.advance()
    return count(readings, kept, seed)


def count(
    readings: Sequence[Sequence[Reading]], kept: Mapping[str, Sequence[float]] | None = None, seed: int = 0
) -> Survey:
    """Means with intervals of the readings of each problem, and of which answers were `kept` when decoded again."""
    seen = {reading.operator for one in readings for reading in one}
    names = [*sorted(seen - {TOGETHER}), *sorted(seen & {TOGETHER})]
    found = {}
    for name in names:
        blocks = [[reading for reading in one if reading.operator == name] for one in readings]
        found[name] = of_operator([one for one in blocks if one], seed)
    decoded, tested = {}, {}
    if kept and any(kept.values()):
        decoded = {name: bootstrap(values, seed) for name, values in kept.items()}
        tested = {question: test_of_shares(values, seed) for question, values in differences(kept).items()}
    adjust([*(one.tested for one in found.values()), tested])
    return Survey(len(readings), found, decoded, tested)


def of_operator(blocks: Blocks, seed: int = 0) -> OperatorSurvey:
    """The same of one operator's blocks, those of each problem together."""

    def each(values: Mapping[str, Value]) -> dict[str, Estimate]:
        found = {name: over_problems(blocks, value, seed) for name, value in values.items()}
        return {name: one for name, one in found.items() if one is not None}

    measures = [one.name for one in fields(Effect)]
    effects = {name: each({measure: of_effect(name, measure) for measure in measures}) for name in REPLACEMENTS}
    return OperatorSurvey(
        num_blocks=sum(map(len, blocks)),
        effects={name: measured for name, measured in effects.items() if measured},
        readable=each({"own": lambda one: one.readable, "other problem": lambda one: one.readable_other}),
        carried=each({name: of_carried(name) for name in ("moved", "noise", "whole")}),
        enough=each({"own": lambda one: one.enough, "other problem": enough_of_another}),
        kept=share_kept(blocks, seed),
        tested={
            statement.question: test_of(means, seed)
            for statement in STATEMENTS
            if (means := means_of(blocks, statement.value))
        },
    )


# ------------------------------------------------------------------------------------------------------------ estimates


def over_problems(blocks: Blocks, value: Value, seed: int = 0) -> Estimate | None:
    """The mean over problems of the mean over a problem's blocks; None where the value is nowhere defined."""
    means = means_of(blocks, value)
    return bootstrap(means, seed) if means else None


def means_of(blocks: Blocks, value: Value) -> list[float]:
    """The mean over the blocks of each problem where the value is defined."""
    return [fmean(values) for of in blocks if (values := _known(of, value))]


def enough_of_another(reading: Reading) -> float | None:
    """How many latents of another problem's block are enough; all of them where that is too few."""
    if "other problem" not in reading.effects or reading.enough is None:
        return None
    return reading.num_latents if reading.enough_other is None else reading.enough_other


def share_kept(blocks: Blocks, seed: int = 0) -> Estimate | None:
    """1 - (what the mean block costs) / (what no block costs), a ratio of means; None unless no block clearly costs."""
    means, without = loss_with("means"), loss_with("no block")
    costs = over_problems(blocks, without, seed)
    pairs = [(_known(of, means), _known(of, without)) for of in blocks]
    values = np.asarray([(fmean(one), fmean(other)) for one, other in pairs if one])
    if costs is None or costs.verdict != "yes" or not len(values):
        return None
    sums, whole = resampled(values, DRAWS, np.random.default_rng(seed)).sum(axis=1), values.sum(axis=0)
    return Estimate(float(1 - whole[0] / whole[1]), *middle95(1 - sums[:, 0] / sums[:, 1]), len(values))


def _known(of: Sequence[Reading], value: Value) -> list[float]:
    return [found for one in of if (found := value(one)) is not None]


def bootstrap(values: Sequence[float], seed: int = 0) -> Estimate:
    """The mean of some values with its 95% percentile bootstrap interval. Raises ValueError without values."""
    if not values:
        raise ValueError("there is nothing to average")
    means = resampled(np.asarray(values), DRAWS, np.random.default_rng(seed)).mean(axis=1)
    return Estimate(fmean(values), *middle95(means), len(values))


def test_of(values: Sequence[float], seed: int = 0) -> Estimate:
    """The mean of the differences of problems, and whether it may be chance."""
    return replace(bootstrap(values, seed), p=sign_flips(values))


def test_of_shares(values: Sequence[float], seed: int = 0) -> Estimate:
    """The same of differences of shares, whose interval is what so many problems resolve where none differs."""
    found = test_of(values, seed)
    low, high = (found.low, found.high) if any(values) else resolution(len(values))
    return replace(found, low=low, high=high)


def adjust(families: Sequence[dict[str, Estimate]]) -> None:
    """Replace the p-values of all tests by Holm's: they are one family."""
    tests = [(tested, question) for tested in families for question in tested]
    adjusted = holm([p for tested, question in tests if (p := tested[question].p) is not None])
    for (tested, question), p in zip(tests, adjusted, strict=True):
        tested[question] = replace(tested[question], p=p)
