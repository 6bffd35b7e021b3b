"""Comparisons at equal cost: the setting at which a method's answers have as many tokens as those of another.

Cost is the mean number of visible tokens and latents per answer. The setting is looked for on development problems
alone, and the evaluation says what it led to.
"""

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from tyler.evaluation.answers import Answer, Record
from tyler.evaluation.folders import EvaluationRun
from tyler.evaluation.options import Matching
from tyler.reasoners.method import MAX_NEW_TOKENS, LengthSetting
from tyler.reasoners.reasoner import Reasoner
from tyler.reasoners.registry import Loaded
from tyler.tasks import Problem, load_problems
from tyler.tasks.decontamination import find_overlap

TOLERANCE = 0.1
"""Costs within this share of the target are equal, as in the paper's comparison."""
SEARCHED = 100
"""A setting is looked for on at most so many development problems."""


@dataclass(frozen=True)
class Trial:
    """One setting that was tried on the development problems; `setting` is empty for the method as it came."""

    setting: str
    value: int | None
    tokens: float


@dataclass(frozen=True)
class Match:
    """What was looked for, everything that was tried, and the trial that came nearest."""

    target: float
    trials: tuple[Trial, ...]

    @property
    def best(self) -> Trial:
        """The nearest by ratio; of equal ones the first."""
        return min(self.trials, key=lambda trial: abs(math.log(max(trial.tokens, 1e-9) / self.target)))

    @property
    def reached(self) -> bool:
        return is_close(self.best.tokens, self.target)


def is_close(tokens: float, target: float) -> bool:
    """Whether a cost is within the tolerance of another."""
    return abs(tokens - target) <= TOLERANCE * target


def cost(reasoner: Reasoner, problems: Sequence[Problem]) -> float:
    """Mean visible tokens and latents of a reasoner's answers."""
    return fmean(answer.num_visible + answer.num_latents for answer in reasoner.solve(problems))


def cost_of(answers: Sequence[Answer]) -> float:
    """The same of answers that are kept."""
    return fmean(answer.visible_tokens + answer.latents for answer in answers)


def search(loaded: Loaded, adjustable: LengthSetting, target: float, problems: Sequence[Problem]) -> list[Trial]:
    """Halve the range of a setting towards the target; returns every value that was tried."""
    trials: list[Trial] = []

    def tokens_at(value: int) -> float:
        tokens = cost(loaded.with_setting(adjustable.setting, value).reasoner, problems)
        trials.append(Trial(adjustable.setting, value, tokens))
        return tokens

    highest = math.ceil(2 * target) if adjustable.highest is None else adjustable.highest
    bisect_left(range(adjustable.lowest, highest + 1), target, key=tokens_at)
    return trials


def match(loaded: Loaded, target: float, problems: Sequence[Problem]) -> Match:
    """Find the setting of a method at which its answers to `problems` cost `target` tokens.

    Where they do already, nothing is changed. Else its length settings are tried one by one until one reaches the
    target; the last is how many tokens an answer may have, which cuts answers off.
    """
    trials = [Trial("", None, cost(loaded.reasoner, problems))]
    for adjustable in (
        *loaded.length_settings,
        LengthSetting(MAX_NEW_TOKENS, lowest=1, highest=loaded.max_new_tokens, only_shortens=True),
    ):
        if any(is_close(trial.tokens, target) for trial in trials):
            break
        if not adjustable.only_shortens or trials[0].tokens >= target:
            trials += search(loaded, adjustable, target, problems)
    return Match(target, tuple(trials))


def with_setting(loaded: Loaded, matched: Match) -> Loaded:
    """The method under the setting that was found."""
    best = matched.best
    return loaded if best.value is None else loaded.with_setting(best.setting, best.value)


def development_problems(matching: Matching, evaluated: Sequence[Problem], data: Path | None) -> list[Problem]:
    """The problems on which a setting is looked for. Raises ValueError when one of them is evaluated."""
    every = load_problems(evaluated[0].task, matching.match_split, path=matching.match_data or data)
    chosen = every[:: max(1, len(every) // SEARCHED)][:SEARCHED]
    if shared := find_overlap(chosen, evaluated):
        raise ValueError(
            f"{len(shared)} of the {len(chosen)} problems of {matching.match_split!r} are evaluated too, first "
            f"{shared[0].training_id}; a setting is chosen on other problems (--match-split, --match-data)"
        )
    return chosen


def find(matching: Matching, loaded: Loaded, evaluated: Sequence[Problem], data: Path | None = None) -> Match | None:
    """The setting that `--match` asks for, None where nothing is to be matched; `data` is what is evaluated.

    Raises ValueError for a folder without answers of the task, or whose answers are all empty.
    """
    if matching.match is None:
        return None
    task = evaluated[0].task
    before = EvaluationRun(matching.match)
    answers = [answer for answer in before.answers if answer.task == task]
    if not answers:
        raise ValueError(f"{matching.match} has no answers of {task!r} to match; evaluate the model there first")
    if before.status != "finished":
        raise ValueError(
            f"{matching.match} holds {before.step} of {before.total} answers: let its evaluation finish first (the "
            "same command resumes it), since its cost is to be matched"
        )
    if not (target := cost_of(answers)):
        raise ValueError(f"the answers of {task!r} in {matching.match} have no tokens; there is no cost to match")
    return match(loaded, target, development_problems(matching, evaluated, data))


def summary(matched: Match) -> dict[str, Any]:
    """What an evaluation's settings say about it."""
    return {"target": matched.target, **asdict(matched.best), "tried": len(matched.trials)}


def verdict(matched: Match, records: Sequence[Record]) -> str:
    """What came of it on the problems that were evaluated, in a sentence or two."""
    best, tokens = matched.best, cost_of(records)
    setting = f"{best.setting} = {best.value}" if best.setting else "nothing changed"
    close = "within" if is_close(tokens, matched.target) else "NOT within"
    text = (
        f"Tokens per answer, visible and latent: {tokens:.1f} here, {matched.target:.1f} to match, ratio "
        f"{tokens / matched.target:.2f}, {close} {TOLERANCE:.0%} ({setting}; {best.tokens:.1f} on development "
        "problems)."
    )
    if matched.reached:
        return text
    missing = "fewer" if best.tokens < matched.target else "more"
    return f"{text} No setting comes closer: the method's answers have {missing} tokens by themselves."
