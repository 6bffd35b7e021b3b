"""The operator lens over a set of problems: what the blocks of each operator do, tested against controls.

Means are over problems, blocks of one problem first averaged, and intervals resample problems: a problem with many
blocks counts once, and differences between replacements are paired.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

import numpy as np
import torch

from tyler.engine.routing import Never, Router
from tyler.engine.trajectory import Trajectory
from tyler.evaluation.statistics import Paired, holm, middle95, resampled
from tyler.lens.block import TOGETHER, Reading, read_blocks, read_together
from tyler.lens.interventions import NAMED, blocks_of
from tyler.model import Tyler
from tyler.runs.progress import bar
from tyler.tasks.answers.boxed import boxed_answer

DRAWS = 2000
DECODED = "decoded again"
"""The name under which answers are counted that were decoded again with all latents replaced: what they lose is 1 where
something else stands in their box, else 0."""
INTERVENTIONS = {"zeros": "zeros", "means": "means", "noise": "noise", "other problem": "shuffled"}
"""The interventions by the names of the lens's replacements; "no block" is the model that may not call."""
FEWEST = 6
"""Problems that a verdict takes: if all of five lie on one side, a fair coin does that once in 16 times."""
Blocks = Sequence[Sequence[Mapping[str, float]]]
"""What was measured of one operator's blocks, by name, the blocks of each problem together."""


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


MOVED = "moved towards another's answer"
STATEMENTS = {
    "Does the answer depend on it?": ("loss with no block", ""),
    "Are zeros in its place worse than no block?": ("loss with zeros", "loss with no block"),
    "Does its mean do more than no block?": ("loss with no block", "loss with means"),
    "Does it do more than its mean?": ("loss with means", ""),
    "Does it depend on its problem?": ("loss with other problem", "loss with means"),
    "Does it depend on its type?": ("loss with other operator", ""),
    "Does it do what an untrained operator does not?": ("loss with untrained", ""),
    "Can what follows be read from it?": ("readable latents", "readable latents of other problem"),
    "Does it carry its answer into another problem?": (f"{MOVED} by its block", f"{MOVED} by noise"),
}
"""What is tested of every operator: yes where the first measure is above the second, or zero. Which they are was chosen
before any was measured."""


@dataclass(frozen=True)
class OperatorSurvey:
    """What the blocks of one operator do.

    `measured` has every measure by its name (`measures`), `tested` the differences that `STATEMENTS` asks about.
    `kept` is the share of what leaving the block out costs that its operator's mean keeps, where that costs anything.
    """

    num_blocks: int
    measured: dict[str, Estimate]
    kept: Estimate | None
    tested: dict[str, Estimate]


@dataclass(frozen=True)
class Survey:
    """What a set of answers shows, by operator; then `block.TOGETHER`, all blocks of an answer at once, and `DECODED`,
    which is there where an answer has a box."""

    num_problems: int
    operators: dict[str, OperatorSurvey]


def survey(
    model: Tyler,
    problems: Sequence[str],
    *,
    answers: Sequence[Trajectory] | None = None,
    router: Router | None = None,
    max_new_tokens: int = 256,
    seed: int = 0,
    memory: int | None = None,
) -> Survey:
    """Put every block of the answers to some problems under the lens, and count.

    `answers` are the model's own, as of `stored.answers_in`; without them the problems are answered here, within
    `memory` bytes of context and caches.
    Raises ValueError where fewer than two answers invoke an operator: a block needs another problem's as its control.
    """
    decoding: Any = {"router": router, "max_new_tokens": max_new_tokens, "memory": memory}
    if answers is None:
        answers = model.solve(list(problems), **decoding)
    called = [(problem, answer) for problem, answer in zip(problems, answers, strict=True) if answer.invocations]
    if len(called) < 2:
        raise ValueError(f"{len(called)} of {len(problems)} answers invoked an operator; at least 2 are needed")
    questions, answers = [problem for problem, _ in called], [answer for _, answer in called]
    kept = kept_answers(model, questions, answers, **decoding)
    readings = []
    with bar("lens", len(answers), unit="answer") as progress:
        for index, answer in enumerate(answers):
            others = [*answers[index + 1 :], *answers[:index]]
            together = read_together(model, answer, others, torch.Generator().manual_seed(seed + index))
            readings.append([*read_blocks(model, answer, others, seed + index), together])
            progress.advance()
    return count(readings, kept)


def kept_answers(
    model: Tyler, problems: Sequence[str], answers: Sequence[Trajectory], **decoding: Any
) -> dict[str, list[float]]:
    """Of each replacement, for every answer with a box: 1 where the same stands in the box of the new one, else 0.

    These are decoded, by `model.solve` with `decoding`: what a replacement makes of an answer is in no store. `answers`
    are the model's own to the problems, decoded likewise. Means and other problems' latents are those of the other half
    of the answers, so that no problem is answered with its own; of an operator that the other half does not invoke,
    they are of all.
    """
    boxes = [boxed_answer(answer.text) for answer in answers]
    boxed = [index for index, box in enumerate(boxes) if box is not None]

    def kept(changed: Tyler, indices: Sequence[int], **other: Router) -> list[float]:
        solved = changed.solve([problems[index] for index in indices], **decoding | other)
        return [float(boxed_answer(new.text) == boxes[index]) for index, new in zip(indices, solved, strict=True)]

    shares: dict[str, list[float]] = {}
    for name, intervention in INTERVENTIONS.items():
        kept_by_index: dict[int, float] = {}
        for half in (0, 1):
            blocks = blocks_of(answers) | blocks_of(answers[1 - half :: 2])
            changed = model.with_heads(NAMED[intervention](model, blocks))
            own = [index for index in boxed if index % 2 == half]
            kept_by_index |= zip(own, kept(changed, own), strict=True)
        shares[name] = [kept_by_index[index] for index in boxed]
    return shares | {"no block": kept(model, boxed, router=Never())}


def count(readings: Sequence[Sequence[Reading]], kept: Mapping[str, Sequence[float]] | None = None) -> Survey:
    """Means with intervals of the readings of each problem, and of which answers were `kept` when decoded again."""
    names = {reading.operator for problem in readings for reading in problem}
    operators = {}
    for name in sorted(names, key=lambda name: (name == TOGETHER, name)):
        blocks = [[measures(reading) for reading in problem if reading.operator == name] for problem in readings]
        operators[name] = of_operator([problem for problem in blocks if problem])
    if kept and any(kept.values()):
        shares = zip(*kept.values(), strict=True)
        lost = [{f"loss with {name}": 1 - share for name, share in zip(kept, own, strict=True)} for own in shares]
        operators[DECODED] = of_operator([[answer] for answer in lost])
    adjust([operator.tested for operator in operators.values()])
    return Survey(len(readings), operators)


def measures(reading: Reading) -> dict[str, float]:
    """What was measured of a block, by names such as "loss with zeros"; what is carried is a donor's mean.

    Where no part of another problem's block is enough, all its latents count.
    """
    values: dict[str, float | None] = {
        f"{measure.replace('_', ' ')} with {name}": value
        for name, effect in reading.effects.items()
        for measure, value in vars(effect).items()
    }
    values |= {"readable latents": reading.readable, "readable latents of other problem": reading.readable_other}
    values["latents that are enough"] = reading.enough
    if "other problem" in reading.effects and reading.enough is not None:
        other = reading.enough_other
        values["latents that are enough of other problem"] = reading.num_latents if other is None else other
    if (carried := reading.carried) is not None:
        moved = {"by its block": carried.moved, "by noise": carried.noise, "in all": carried.whole}
        values |= {f"{MOVED} {how}": value / carried.donors for how, value in moved.items()}
    return {name: float(value) for name, value in values.items() if value is not None}


def of_operator(blocks: Blocks) -> OperatorSurvey:
    """The same of one operator's blocks, those of each problem together; what was measured of none is left out."""
    names = dict.fromkeys(name for problem in blocks for block in problem for name in block)
    measured = {name: bootstrap(means_of(blocks, name)) for name in names}
    paired = {question: means_of(blocks, *pair) for question, pair in STATEMENTS.items()}
    return OperatorSurvey(
        num_blocks=sum(map(len, blocks)),
        measured=measured,
        kept=share_kept(blocks, measured.get("loss with no block")),
        tested={question: tested_mean(means) for question, means in paired.items() if means},
    )


def means_of(blocks: Blocks, first: str, second: str = "") -> list[float]:
    """The mean over the blocks of each problem of a measure, less that of a second one if one is named."""
    needed = {first, second or first}
    values = [
        [block[first] - (block[second] if second else 0.0) for block in problem if needed <= block.keys()]
        for problem in blocks
    ]
    return [fmean(problem) for problem in values if problem]


def share_kept(blocks: Blocks, costs: Estimate | None) -> Estimate | None:
    """1 - (what the mean block costs) / (what no block `costs`), a ratio of means; None unless that clearly does."""
    pairs = [
        (fmean(means), fmean(block["loss with no block"] for block in problem))
        for problem in blocks
        if (means := [block["loss with means"] for block in problem if "loss with means" in block])
    ]
    if costs is None or costs.verdict != "yes" or not pairs:
        return None
    values = np.asarray(pairs)
    sums, whole = resampled(values, DRAWS, np.random.default_rng(0)).sum(axis=1), values.sum(axis=0)
    return Estimate(float(1 - whole[0] / whole[1]), *middle95(1 - sums[:, 0] / sums[:, 1]), len(values))


def bootstrap(values: Sequence[float]) -> Estimate:
    """The mean of some values with its 95% percentile bootstrap interval."""
    means = resampled(np.asarray(values), DRAWS, np.random.default_rng(0)).mean(axis=1)
    return Estimate(fmean(values), *middle95(means), len(values))


def tested_mean(values: Sequence[float]) -> Estimate:
    """The mean of the differences of problems, and whether it may be chance."""
    pair = Paired((0.0,) * len(values), tuple(values))
    return Estimate(pair.difference, *pair.interval(DRAWS), pair.count, pair.p_value())


def adjust(families: Sequence[dict[str, Estimate]]) -> None:
    """Replace the p-values of all tests by Holm's: they are one family."""
    tests = [(tested, question) for tested in families for question in tested]
    adjusted = holm([p for tested, question in tests if (p := tested[question].p) is not None])
    for (tested, question), p in zip(tests, adjusted, strict=True):
        tested[question] = replace(tested[question], p=p)
