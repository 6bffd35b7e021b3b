"""No training problem may be among those that results are reported on.

Problems are compared by their normalised text; those that are nearly one are named in a warning,
and left out where overlaps are to be dropped.
"""

import logging
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Literal, NamedTuple, Self

from tyler.tasks.grading import find_task
from tyler.tasks.loading import load_problems, sample
from tyler.tasks.problem import Problem, fingerprint
from tyler.tasks.task import Generated

LENGTH = 3
"""Words in a row that are compared (a shingle)."""
SIMILARITY = 0.7
"""Two texts with the same numbers are nearly one from this Jaccard similarity of their shingles."""

_WORD = re.compile(r"[0-9]+(?:[.,/][0-9]+)*|[^\W\d_]+|[-+*/=<>^]")

ProblemRef = tuple[str, str]
"""The id and the task of a held-out problem."""


class NearIndex:
    """Texts to be found again, by name, in the time that one text takes to read."""

    def __init__(self, texts: Iterable[tuple[ProblemRef, str]] = ()) -> None:
        self._texts = {name: _parts(text) for name, text in texts}
        self._holders: defaultdict[str, list[ProblemRef]] = defaultdict(list)
        for name, (_, shingles) in self._texts.items():
            for shingle in shingles:
                self._holders[shingle].append(name)

    def nearest(self, text: str) -> ProblemRef | None:
        """The name of the text that this one nearly is (a word or two differ, and no number does), or None."""
        numbers, shingles = _parts(text)
        shared = Counter(name for shingle in shingles for name in self._holders.get(shingle, ()))
        for name, count in shared.most_common(3):
            other_numbers, others = self._texts[name]
            if count >= SIMILARITY * (len(shingles) + len(others) - count) and numbers == other_numbers:
                return name
        return None


def _parts(text: str) -> tuple[list[str], frozenset[str]]:
    """The numbers of a text in order of size, and its shingles."""
    words = _WORD.findall(text.casefold())
    shingles = (" ".join(words[at : at + LENGTH]) for at in range(max(1, len(words) - LENGTH + 1)))
    return sorted(word for word in words if word[0].isdigit()), frozenset(shingles)


logger = logging.getLogger(__name__)

OnOverlap = Literal["refuse", "drop"]
"""What becomes of training problems that are held out: the run is refused, or continues without them."""

_SHOWN = 5


class Overlap(NamedTuple):
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
    revision: str | None = None
    optional: bool = False
    """Of a held-out set: where it cannot be read, a warning stands for the check."""
    beside: tuple[str, ...] = ()
    """Files and folders that may hold the split, where no path is given."""
    set_aside: int | None = None
    """Not the problems themselves but so many of them, at most a tenth, to develop with and not to train on."""
    also: tuple[Self, ...] = ()
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
            problems = replace(self, set_aside=None).load()
            return sample(problems, min(self.set_aside, len(problems) // 10), "development")
        for folder in self.beside if self.path is None else ():
            with suppress(ValueError):
                return replace(self, path=folder, revision=None).load()
        return load_problems(
            self.task, self.split, path=self.path, count=self.count, seed=self.seed, revision=self.revision
        )

    @property
    def sets(self) -> tuple[Self, ...]:
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
        """As many examples as `parts` have problems, each set with its weight's share of them.

        A set that is too small for its share is repeated: every problem comes so often, and some, drawn with `seed`,
        once more. Of one that is too large some are drawn. Raises ValueError for a set that would have no example.
        """
        weights = [chosen.weight for chosen in self.sets if chosen.weight is not None]
        if len(parts) == 1 or not weights:
            return [problem for part in parts for problem in part]
        total, mixed = sum(map(len, parts)), list[Problem]()
        ends = accumulate((total * weight / sum(weights) for weight in weights), initial=0.0)
        for chosen, problems, (start, end) in zip(self.sets, parts, pairwise(map(round, ends)), strict=True):
            count = end - start
            if not problems or not count:
                raise ValueError(
                    f"the mixture gives {chosen.location} {count} of {total} examples, and it has {len(problems)} "
                    f"problems; change its weight of {chosen.weight:g}, or leave it out"
                )
            times, rest = divmod(count, len(problems))
            mixed += [*problems] * times + sample(problems, rest, f"mixture {self.seed}")
            logger.info("%s: %d of %d examples, from %d problems", chosen.location, count, total, len(problems))
        return mixed


def splits_of(task: str) -> tuple[str, ...]:
    """The splits that a task has by itself; none for one that reads any file."""
    return tuple(find_task(task).sources)


def _text(problem: Problem) -> str:
    return problem.question or problem.prompt


def _questions(problems: Sequence[Problem]) -> dict[bytes, ProblemRef]:
    return {fingerprint(_text(problem)): (problem.id, problem.task) for problem in problems}


def find_overlap(training: Sequence[Problem], evaluation: Sequence[Problem]) -> list[Overlap]:
    """The training problems that are also among `evaluation`, in the order of training."""
    return _overlaps(training, HeldOut("", _questions(evaluation)).same)


def _overlaps(training: Sequence[Problem], find: Callable[[str], ProblemRef | None]) -> list[Overlap]:
    return [Overlap(problem.id, *held_out) for problem in training if (held_out := find(_text(problem)))]


@dataclass(frozen=True)
class HeldOut:
    """A set that no training problem may be in: ids and tasks by fingerprint; or why it could not be read."""

    name: str
    questions: Mapping[bytes, ProblemRef]
    refusal: str = ""
    near: NearIndex = field(default_factory=NearIndex, compare=False)
    set_aside: bool = False
    """Whether they are training problems to develop with: they are left out without a warning."""

    @property
    def note(self) -> int | str:
        """What a run notes: how many problems, or why it was not compared; never content."""
        return self.refusal or len(self.questions)

    def same(self, text: str) -> ProblemRef | None:
        """The held-out problem that asks what this text does."""
        return self.questions.get(fingerprint(text))


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
        if overlaps := _overlaps(problems, held.same):
            raise ValueError(
                f"{len(overlaps)} of {len(problems)} training problems are held out for evaluation: "
                f"{_named_pairs(overlaps, '=')}; train on other problems, or set data.on_overlap=drop to train without "
                "these"
            )
    kept = without_any(own, others)
    if near := [overlap for held in others for overlap in _overlaps(kept, held.near.nearest)]:
        drops = on_overlap == "drop"
        what = "left out" if drops else "kept; data.on_overlap=drop leaves them out"
        _warn_once(f"training problems that are nearly held-out ones: {len(near)} ({what}): {_named_pairs(near, '~')}")
        left_out = {overlap.training_id for overlap in near} if drops else set()
        kept = [problem for problem in kept if problem.id not in left_out]
    if len(kept) < len(own):
        logger.info("left out %d of %d training problems: held out", len(own) - len(kept), len(problems))
    if not kept:
        raise ValueError(f"all {len(problems)} training problems are held out for evaluation; train on other problems")
    ids = {problem.id for problem in kept}
    return training.weighted([[problem for problem in part if problem.id in ids] for part in parts])


def without_any(problems: Sequence[Problem], sets: Sequence[HeldOut]) -> list[Problem]:
    """The problems that are in none of the sets."""
    known = frozenset().union(*(held.questions for held in sets))
    return [problem for problem in problems if fingerprint(_text(problem)) not in known]


@cache
def _warn_once(message: str) -> None:
    """Warn of what every stage of a training finds again."""
    logger.warning(message)


def _named_pairs(overlaps: Sequence[Overlap], sign: str) -> str:
    named = [f"{pair.training_id} {sign} {pair.held_out_task} {pair.held_out_id}" for pair in overlaps[:_SHOWN]]
    return ", ".join(named) + (f" and {len(overlaps) - _SHOWN} more" if len(overlaps) > _SHOWN else "")


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
            message = "%d training problems are set aside as development problems (data.development.path names a file)"
            logger.info(message, len(held.questions))


def read_held_out(selections: Sequence[Selection]) -> tuple[HeldOut, ...]:
    """The sets, as far as they can be read; each is read once as long as its file stays the same.

    Raises ValueError for one that cannot be read and is not optional.
    """
    with ThreadPoolExecutor(max(1, len(selections))) as pool:  # the Hub is given up on after half a minute each
        return tuple(pool.map(_read, selections, map(_changed_at, selections)))


def _changed_at(selection: Selection) -> int | None:
    path = None if selection.path is None else Path(selection.path)
    return path.stat().st_mtime_ns if path is not None and path.exists() else None


@lru_cache(maxsize=32)
def _read(selection: Selection, changed_at: int | None) -> HeldOut:
    try:
        problems = selection.load()
        drawn = isinstance(find_task(selection.task), Generated)  # its splits are nearly alike by design
        near = NearIndex(((each.id, each.task), _text(each)) for each in ([] if drawn else problems))
        return HeldOut(selection.name, _questions(problems), near=near, set_aside=selection.set_aside is not None)
    except ValueError as error:
        if not selection.optional:
            raise
        return HeldOut(selection.name, {}, str(error))
