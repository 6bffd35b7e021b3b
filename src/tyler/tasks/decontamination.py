"""No training problem may be among those that results are reported on: problems compared by their normalised text."""

from __future__ import annotations

import hashlib
import logging
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tyler.tasks.loading import load_problems
from tyler.tasks.problem import Problem

logger = logging.getLogger(__name__)

OnOverlap = Literal["refuse", "drop"]
"""What becomes of training problems that are held out: the run is refused, or continues without them."""

_DRESS = re.compile(r"\\(?:[,;:!() \[\]]|(?:left|right|displaystyle|q?quad)(?![A-Za-z])|[dt](?=frac))|[~\s]+")
_PUNCTUATION = re.compile(r"[;:!?\"'`$\\{}‘’“”]|(?<!\d)[.,]|[.,](?!\d)|,(?=\d{3}(?!\d))")
_SHOWN = 5


@dataclass(frozen=True)
class Overlap:
    """One training problem that is also a held-out one; ids only, because some benchmarks may not be shown."""

    training_id: str
    held_out_id: str
    held_out_task: str


@dataclass(frozen=True)
class Selection:
    """Which problems: what `load_problems` takes."""

    task: str
    split: str | None = None
    path: str | Path | None = None
    count: int | None = None
    seed: int = 0
    optional: bool = False
    """Of a held-out set: where it cannot be read, a warning stands for the check."""

    def load(self) -> list[Problem]:
        return load_problems(self.task, self.split, path=self.path, count=self.count, seed=self.seed)


def fingerprint(text: str) -> bytes:
    """A hash of a problem's text that case, spaces (LaTeX's too), math delimiters and punctuation do not change.

    Operators, parentheses and decimal points stay, so that `2 + 3` is not `2 - 3`, nor `1.5` the same as `15`.
    """
    text = _PUNCTUATION.sub("", _DRESS.sub("", unicodedata.normalize("NFKC", text)))
    return hashlib.sha256(text.casefold().encode("utf-8", "surrogatepass")).digest()


def find_overlap(training: Sequence[Problem], evaluation: Sequence[Problem]) -> list[Overlap]:
    """The training problems that are also among `evaluation`, in the order of training."""
    held_out = {_question(problem): problem for problem in evaluation}
    if not held_out:
        return []
    found = ((problem, held_out.get(_question(problem))) for problem in training)
    return [Overlap(problem.id, twin.id, twin.task) for problem, twin in found if twin is not None]


def _question(problem: Problem) -> bytes:
    return fingerprint(problem.question or problem.prompt)


def refuse_overlap(training: Sequence[Problem], evaluation: Sequence[Problem]) -> None:
    """Raises ValueError, with ids and what to do, where a training problem is also among `evaluation`."""
    overlaps = find_overlap(training, evaluation)
    if not overlaps:
        return
    pairs = [f"{overlap.training_id} = {overlap.held_out_task} {overlap.held_out_id}" for overlap in overlaps[:_SHOWN]]
    more = f" and {len(overlaps) - _SHOWN} more" if len(overlaps) > _SHOWN else ""
    raise ValueError(
        f"{len(overlaps)} of {len(training)} training problems are held out for evaluation: {', '.join(pairs)}{more}; "
        "train on other problems, or set data.on_overlap=drop to train without these"
    )


def load_training(training: Selection, held_out: Sequence[Selection], on_overlap: OnOverlap) -> list[Problem]:
    """The training problems, none of which is held out. Raises ValueError where one is and `on_overlap` is "refuse"."""
    problems = training.load()
    kept = problems
    for selection in held_out:
        evaluation = _load_held_out(selection)
        if on_overlap == "refuse":
            refuse_overlap(problems, evaluation)
        dropped = {overlap.training_id for overlap in find_overlap(kept, evaluation)}
        kept = [problem for problem in kept if problem.id not in dropped]
    if len(kept) < len(problems):
        logger.info("left out %d of %d training problems: held out", len(problems) - len(kept), len(problems))
    if not kept:
        raise ValueError(f"all {len(problems)} training problems are held out for evaluation; train on other problems")
    return kept


def _load_held_out(selection: Selection) -> list[Problem]:
    try:
        return selection.load()
    except ValueError as error:
        if not selection.optional:
            raise
        name = " ".join(filter(None, (selection.task, selection.split)))
        logger.warning("training problems are not compared with %s: %s", name, error)
        return []
