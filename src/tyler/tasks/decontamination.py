"""No training problem may be among those that results are reported on.

Problems are compared by their normalised text.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Literal

from tyler.tasks.grading import find_task
from tyler.tasks.loading import load_problems
from tyler.tasks.mixing import in_proportion
from tyler.tasks.problem import Problem, fingerprint
from tyler.tasks.task import Generated

logger = logging.getLogger(__name__)

OnOverlap = Literal["refuse", "drop"]
"""What becomes of training problems that are held out: the run is refused, or continues without them."""

_SHOWN = 5


@dataclass(frozen=True)
class Selection:
    """Which problems: what `load_problems` takes."""

    task: str
    split: str | None = None
    path: str | Path | None = None
    count: int | None = None
    seed: int = 0
    revision: str | None = None
    optional: bool = False
    """Of a held-out set: where it cannot be read, a warning stands for the check."""
    beside: tuple[str, ...] = ()
    """Files and folders that may hold the split, where no path is given."""
    set_aside: int | None = None
    """Not the problems themselves but so many of them, at most a tenth, to develop with and not to train on."""
    also: tuple[Selection, ...] = ()
    """Sets that are mixed in."""
    weight: float | None = None
    """Its share of a mixture, against the weights of the others; None for as much as it has problems."""

    @property
    def name(self) -> str:
        """The task and, where it has one, the split."""
        name = " ".join([self.task, self.split or (splits_of(self.task) or ("",))[0]]).strip()
        return name if self.set_aside is None else f"{name}, set aside"

    @property
    def location(self) -> str:
        """The name, and the file where one is given: two sets of one task may be of two files."""
        return self.name if self.path is None else f"{self.name}, {self.path}"

    def load(self) -> list[Problem]:
        """The problems, no id twice. Raises ValueError as `load_problems` does, and where two sets share an id."""
        if self.also:
            return [problem for part in self.parts() for problem in part]
        if self.set_aside is not None:
            return _tenth(replace(self, set_aside=None).load(), self.set_aside)
        for folder in self.beside if self.path is None else ():
            with suppress(ValueError):
                return replace(self, path=folder, revision=None).load()
        return load_problems(
            self.task, self.split, path=self.path, count=self.count, seed=self.seed, revision=self.revision
        )

    @property
    def sets(self) -> tuple[Selection, ...]:
        """The sets of a mixture, or itself."""
        return replace(self, also=()), *self.also

    def parts(self) -> list[list[Problem]]:
        """The problems of each of `sets`. Raises ValueError as `load` does."""
        parts, seen = [chosen.load() for chosen in self.sets], set[str]()
        for chosen, part in zip(self.sets, parts, strict=True):
            if shared := seen.intersection(ids := {problem.id for problem in part}):
                raise ValueError(
                    f"{chosen.location}: the id {min(shared)!r} is in another set of the mixture too; rename one"
                )
            seen |= ids
        return parts

    def weighted(self, parts: Sequence[Sequence[Problem]]) -> list[Problem]:
        """The problems of `parts`, of each set as often as the weights say. Raises ValueError as `in_proportion`."""
        weights = [chosen.weight for chosen in self.sets if chosen.weight is not None]
        if len(parts) == 1 or not weights:
            return [problem for part in parts for problem in part]
        return in_proportion(
            dict(zip((chosen.location for chosen in self.sets), parts, strict=True)), weights, self.seed
        )


def splits_of(task: str) -> tuple[str, ...]:
    """The splits that a task has by itself; none for one that reads any file."""
    known = find_task(task)
    return known.splits if isinstance(known, Generated) else tuple(known.sources)


def _tenth(problems: Sequence[Problem], count: int) -> list[Problem]:
    """`count` of the problems, at most a tenth: those whose id has the smallest hash, which no order changes."""
    ranked = sorted(problems, key=lambda problem: hashlib.sha256(f"development {problem.id}".encode()).digest())
    chosen = {problem.id for problem in ranked[: min(count, len(problems) // 10)]}
    return [problem for problem in problems if problem.id in chosen]


def _fingerprint(problem: Problem) -> bytes:
    return fingerprint(problem.question or problem.prompt)


def _questions(problems: Sequence[Problem]) -> dict[bytes, str]:
    return {_fingerprint(problem): f"{problem.task} {problem.id}" for problem in problems}


def find_overlap(training: Sequence[Problem], evaluation: Sequence[Problem]) -> list[str]:
    """The training problems that are also among `evaluation`, as "train-9 = gsm8k test-1"."""
    return _overlaps(training, _questions(evaluation))


def _overlaps(training: Sequence[Problem], questions: Mapping[bytes, str]) -> list[str]:
    """The ids alone, because some benchmarks may not be shown, in the order of training."""
    pairs = ((problem.id, questions.get(_fingerprint(problem))) for problem in training)
    return [f"{id} = {held_out}" for id, held_out in pairs if held_out is not None]


# --- of a run -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class HeldOut:
    """A set that no training problem may be in: tasks and ids by fingerprint; or why it could not be read."""

    name: str
    questions: Mapping[bytes, str]
    refusal: str = ""
    set_aside: bool = False
    """Whether they are training problems to develop with: they are left out without a warning."""

    @property
    def note(self) -> int | str:
        """What a run notes: how many problems, or why it was not compared; never content."""
        return self.refusal or len(self.questions)


def load_training(training: Selection, held_out: Sequence[Selection], on_overlap: OnOverlap) -> list[Problem]:
    """The training problems, none of which is held out, of each set as often as its weight says.

    Raises ValueError where one is held out and `on_overlap` is "refuse".
    """
    parts = training.parts()
    problems = [problem for part in parts for problem in part]
    sets = read_held_out(held_out)
    _announce(sets)
    own = without_any(problems, [held for held in sets if held.set_aside])
    others = [held for held in sets if not held.set_aside]
    for held in others if on_overlap == "refuse" else ():
        _refuse(problems, _overlaps(problems, held.questions))
    kept = without_any(own, others)
    if len(kept) < len(own):
        logger.info("left out %d of %d training problems: held out", len(own) - len(kept), len(problems))
    if not kept:
        raise ValueError(f"all {len(problems)} training problems are held out for evaluation; train on other problems")
    ids = {problem.id for problem in kept}
    return training.weighted([[problem for problem in part if problem.id in ids] for part in parts])


def without_any(problems: Sequence[Problem], sets: Sequence[HeldOut]) -> list[Problem]:
    """The problems that are in none of the sets."""
    known = frozenset().union(*(held.questions for held in sets))
    return [problem for problem in problems if _fingerprint(problem) not in known]


def load_development(selection: Selection, held_out: Sequence[Selection]) -> list[Problem]:
    """The development problems; of those set aside from training, the ones that no other set holds out."""
    problems = selection.load()
    if selection.set_aside is None:
        return problems
    return without_any(problems, [held for held in read_held_out(held_out) if not held.set_aside])


def _announce(sets: Sequence[HeldOut]) -> None:
    compared = [held for held in sets if not held.refusal and not held.set_aside]
    if compared:
        names = ", ".join(f"{held.name} ({len(held.questions):,})" for held in compared)
        logger.info("training problems are compared with %s", names)
    for held in sets:
        if held.refusal:
            logger.warning("training problems are not compared with %s: %s", held.name, held.refusal)
        if held.set_aside:
            message = "%d training problems are set aside as development problems (%s names a file instead)"
            logger.info(message, len(held.questions), "data.development.path")


def read_held_out(selections: Sequence[Selection]) -> tuple[HeldOut, ...]:
    """The sets, as far as they can be read; each is read once as long as its file stays the same.

    Raises ValueError for one that cannot be read and is not optional.
    """
    return _read_all(tuple((selection, _changed_at(selection)) for selection in selections))


@lru_cache(maxsize=8)
def _read_all(selections: tuple[tuple[Selection, int | None], ...]) -> tuple[HeldOut, ...]:
    with ThreadPoolExecutor(max(1, len(selections))) as pool:  # the Hub is given up on after half a minute each
        return tuple(pool.map(lambda pair: _read(pair[0]), selections))


def _changed_at(selection: Selection) -> int | None:
    path = None if selection.path is None else Path(selection.path)
    return path.stat().st_mtime_ns if path is not None and path.exists() else None


def _read(selection: Selection) -> HeldOut:
    try:
        problems = selection.load()
        return HeldOut(selection.name, _questions(problems), set_aside=selection.set_aside is not None)
    except ValueError as error:
        if not selection.optional:
            raise
        return HeldOut(selection.name, {}, str(error))


def _refuse(training: Sequence[Problem], overlaps: Sequence[str]) -> None:
    if overlaps:
        more = f" and {len(overlaps) - _SHOWN} more" if len(overlaps) > _SHOWN else ""
        raise ValueError(
            f"{len(overlaps)} of {len(training)} training problems are held out for evaluation: "
            f"{', '.join(overlaps[:_SHOWN])}{more}; train on other problems, or set data.on_overlap=drop to train "
            "without these"
        )
