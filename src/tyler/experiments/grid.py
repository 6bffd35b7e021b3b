"""A grid of cells: those that have no record yet are run, one after the other. A killed grid resumes."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from tyler.engine.routing import AtBoundaries, Router, router_named
from tyler.evaluation.store import AnswerStore
from tyler.experiments import jobs, records
from tyler.experiments.cells import ALONE, UNTRAINED, Cell, Questions, Sources, Training, name_of
from tyler.experiments.measures import MEASURES
from tyler.experiments.training import trained
from tyler.lens.interventions import NAMED, intervene
from tyler.reasoners import registry
from tyler.reasoners.reasoner import Reasoner
from tyler.reasoners.tyler import TylerReasoner
from tyler.runs.progress import clock_time
from tyler.tasks import Problem
from tyler.tasks.task import GradeOptions

SLOTS = 32
NUM_OBSERVED = 100
"""Development problems on whose answers an intervention sees the model's own latents."""


@dataclass(frozen=True)
class Grid:
    """Where models are trained, where records go, and where problems are."""

    models: Path
    records: Path
    sources: Sources
    options: GradeOptions = field(default_factory=GradeOptions)
    slots: int = SLOTS
    """Answers decoded at once, unless their times are measured; changes speed and memory, not the answers."""
    memory: int | None = None
    """Bytes of context and caches that decoding may hold, in rollouts too; None for half of what is free."""
    latest: dict[Any, tuple[Reasoner, str]] = field(default_factory=dict, repr=False, compare=False)
    """The reasoner that answered last, with the hash of its weights: the next cell often asks it about another task."""

    def run(
        self,
        cells: Sequence[Cell],
        known: Collection[str] = (),
        cost: Callable[[Cell], float] | None = None,
        processes: int = 1,
    ) -> None:
        """Run every cell that has no record, in this order.

        `known` are cells that have a record elsewhere, `cost` estimates a cell's work: how much of what is left has
        been done is counted in them, and the time left follows from the pace. Several processes share the cores; what
        times its answers has them alone, at the end.
        """
        self.records.mkdir(parents=True, exist_ok=True)
        done = {*known, *records.names(self.records)}
        identities = {name_of(identity): (cell, identity) for cell, identity in self._identified(cells)}
        pending = {name: found for name, found in identities.items() if name not in done}
        pace = Pace({name: 1.0 if cost is None else cost(cell) for name, (cell, _) in pending.items()})
        told = Told(len(identities), len(identities) - len(pending), pace)
        if processes > 1:
            bare = replace(self, latest={})  # a loaded model stays in its process
            jobs.run(bare, pending, processes, told.begun, told.finished)
            records.pack(self.records)
            return
        for name, (cell, identity) in pending.items():
            job = jobs.Job(name, frozenset(), cell, None, name, identity)
            told.begun(job)
            self.record(cell, name, identity)
            told.finished(job)
        records.pack(self.records)

    def record(self, cell: Cell, name: str, identity: dict[str, Any]) -> None:
        """Measure a cell and write its record."""
        about = self.measure(cell, self.records / name, identity)
        records.finish(self.records / name, {"identity": identity, **about})

    def train(self, training: Training, cell: Cell) -> None:
        """Make the model of a training that a cell needs, or resume its run."""
        self._trained(training, cell)

    def _identified(self, cells: Sequence[Cell]) -> list[tuple[Cell, dict[str, Any]]]:
        return [(cell.unseeded, cell.unseeded.identity(self.sources)) for cell in cells]

    def measure(self, cell: Cell, folder: Path, identity: Mapping[str, Any]) -> dict[str, Any]:
        """Train what the cell needs, answer every problem into a folder, and say what the answers are of."""
        torch.manual_seed(cell.seed)  # untrained operators are drawn
        reasoner, weights, training_seconds = self.ready(cell)
        problems = self.sources.problems(cell.questions)
        started = time.process_time()
        with AnswerStore(folder, identity, mode=self.options.mode) as store:
            measured = MEASURES[cell.measure](reasoner, problems, self.options, store)
        return {
            "row": cell.row,
            "seed": cell.seed,
            "task": cell.questions.task,
            "split": cell.questions.split,
            "decoding": asdict(cell.decoding),
            "weights": weights,
            "training_seconds": round(training_seconds, 1),
            "decoding_seconds": round(time.process_time() - started, 1),
            **measured,
            "environment": records.surroundings(),
        }

    def ready(self, cell: Cell) -> tuple[Reasoner, str, float]:
        """The reasoner of a cell with the hash of its weights, and the processor seconds of its training.

        It is loaded anew unless it answered last; what answered last is let go of before anything is trained.
        """
        longest, alone = cell.questions.max_new_tokens, cell.measure in ALONE
        key = (cell.training, cell.preset, cell.seed, cell.row, cell.decoding, longest, alone)
        if key not in self.latest:
            for answered, _ in self.latest.values():
                close(answered)
            self.latest.clear()
        location, seconds = self._trained(cell.training, cell)
        if key not in self.latest:
            self.latest[key] = self.reasoner(cell, location)
        return *self.latest[key], seconds

    def _trained(self, training: Training, cell: Cell) -> tuple[str, float]:
        """Where a training's model is, made if need be, and its processor seconds."""
        return trained(training, cell.preset, cell.seed, self.sources, self.models, self.memory)

    def reasoner(self, cell: Cell, location: str) -> tuple[Reasoner, str]:
        """The model under the cell's decoding, and the hash of its weights."""
        decoding, longest = cell.decoding, cell.questions.max_new_tokens
        slots = 1 if cell.measure in ALONE else self.slots
        config = cell.training.config(cell.preset, cell.seed)
        place: dict[str, Any] = {"dtype": config.backbone.dtype, "engine": self.sources.engine_of(decoding)}
        if cell.training.method == UNTRAINED:  # what is trained has noted these
            place |= {"revision": config.backbone.revision, "prompt": config.prompt}
        if decoding.method != registry.OWN:
            loaded = registry.load(
                location,
                decoding.method,
                decoding.settings,
                name=cell.row,
                max_new_tokens=longest,
                slots=slots,
                memory=self.memory,
                **place,
            )
            return loaded.reasoner, loaded.weights
        model = registry.typed_model(location, **place)
        weights = model.fingerprint()
        if decoding.intervention:
            seen = [problem.prompt for problem in self.observed(cell)] if decoding.intervention in NAMED else []
            model = intervene(model, decoding.intervention, seen, longest, self.memory)
        router = routed(decoding.router, decoding.only)
        own = TylerReasoner(
            cell.row, model, router, decoding.budget, max_new_tokens=longest, slots=slots, memory=self.memory
        )
        return own, weights

    def observed(self, cell: Cell) -> list[Problem]:
        """Development problems, for interventions that need the model's own latents."""
        data = cell.training.config(cell.preset, cell.seed).data
        assert data.development is not None, "a study's preset has development problems"
        task = data.development.task or data.task
        return self.sources.problems(Questions(task, data.development.split, NUM_OBSERVED, 0))


def close(reasoner: Reasoner) -> None:
    """End the engine of a reasoner that answers no more: vLLM's outlives its object."""
    if isinstance(reasoner, TylerReasoner):
        reasoner.model.shared_engine.close()


def routed(router: str, only: tuple[str, ...]) -> Router | None:
    """The router of a decoding; None for what the model's last stage trained for."""
    if only:
        return AtBoundaries(only=only)
    return router_named(router) if router else None


@dataclass
class Told:
    """What is printed: a line when a cell begins, with its number, and when a training begins beside others."""

    total: int
    number: int
    pace: Pace

    def begun(self, job: jobs.Job) -> None:
        """A job begins."""
        seed = f"seed {job.cell.seed}"
        if job.training is not None:
            print(f"[{self.number}/{self.total}] training {job.training.method} for {job.cell.row}, {seed}", flush=True)
            return
        self.number += 1
        asked = job.cell.questions
        what = f"{job.cell.row}, {asked.task} {asked.split}, {seed}"
        print(f"[{self.number}/{self.total}] {what}{self.pace.left()}", flush=True)

    def finished(self, job: jobs.Job) -> None:
        """A job is done; a cell's estimate holds its trainings."""
        if job.training is None:
            self.pace.finished(job.name)


class Pace:
    """How long the rest takes, from how long the estimates of what is done took in truth."""

    def __init__(self, costs: dict[str, float]) -> None:
        self._costs, self._started, self._spent = dict(costs), time.monotonic(), 0.0

    def finished(self, name: str) -> None:
        """One more is done."""
        self._spent += self._costs.pop(name)

    def left(self) -> str:
        """The end of a line; empty before anything is done."""
        if not self._spent:
            return ""
        each = (time.monotonic() - self._started) / self._spent
        return f"; about {clock_time(each * sum(self._costs.values()))} left"
