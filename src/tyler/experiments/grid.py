"""A grid of cells: those that have no record yet are run. A killed grid resumes; several processes may share one."""

from __future__ import annotations

import fcntl
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from tyler.engine.routing import AtBoundaries, Router, router_named
from tyler.evaluation.store import AnswerStore
from tyler.experiments import records
from tyler.experiments.cells import ALONE, UNTRAINED, Cell, Questions, Sources, Training, name_of
from tyler.experiments.measures import MEASURES
from tyler.experiments.training import is_trained, trained
from tyler.lens.interventions import NAMED, intervene
from tyler.reasoners import registry
from tyler.reasoners.reasoner import Reasoner
from tyler.reasoners.tyler import TylerReasoner
from tyler.tasks import Problem
from tyler.tasks.task import GradeOptions

SLOTS = 32
PATIENCE = 1.0
"""Seconds until it is looked again whether another process has finished."""
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

    def run(self, cells: Sequence[Cell], known: Collection[str] = ()) -> None:
        """Run every cell that has no record, in this order; what times its answers comes last.

        `known` are cells that have a record elsewhere. Where several processes run the same grid, each takes trainings
        and cells that no other is at; what times its answers waits until the others have nothing left to do.
        """
        self.records.mkdir(parents=True, exist_ok=True)
        unseeded = [cell.unseeded for cell in cells]
        named = {name_of(identity): (cell, identity) for cell in unseeded for identity in [cell.identity(self.sources)]}
        for timed, how in ((False, fcntl.LOCK_SH), (True, fcntl.LOCK_EX)):
            with self._locked(how):
                done = {*known, *records.names(self.records)}
                chosen = {name: found for name, found in named.items() if (found[0].measure in ALONE) is timed}
                self._share({name: found for name, found in chosen.items() if name not in done})
                if timed:
                    records.pack(self.records)

    def _share(self, pending: dict[str, tuple[Cell, dict[str, Any]]]) -> None:
        """Do what no other process is at, until every cell has its record."""
        while pending:
            before = len(pending)
            for name, (cell, identity) in list(pending.items()):
                if records.is_finished(self.records / name) or self._made(cell, name, identity, len(pending)):
                    del pending[name]
            if len(pending) == before:
                time.sleep(PATIENCE)

    def _made(self, cell: Cell, name: str, identity: dict[str, Any], left: int) -> bool:
        """Train what a cell needs and answer it; False where another process is at one of these."""
        told = f"{cell.row}, {cell.questions.task} {cell.questions.split}, seed {cell.seed}"
        for training in cell.training.stages if cell.training.method != UNTRAINED else ():
            needed = name_of(training.identity(cell.preset, cell.seed, self.sources))
            if not is_trained(self.models, needed):
                with claimed(self.locks / needed) as free:
                    if not free:
                        return False
                    print(f"{left} left: {training.method} for {told}", flush=True)
                    self._let_go()
                    self._trained(training, cell)
        with claimed(self.locks / name) as free:
            if free and not records.is_finished(self.records / name):
                print(f"{left} left: {told}", flush=True)
                about = self.measure(cell, self.records / name, identity)
                records.finish(self.records / name, {"identity": identity, **about})
        return free

    @property
    def locks(self) -> Path:
        """Empty files, one for each training and cell, that its process holds while it is at it."""
        return self.records.parent / "locks"

    @contextmanager
    def _locked(self, how: int) -> Iterator[None]:
        """Among the processes of this grid, or alone."""
        self.locks.mkdir(parents=True, exist_ok=True)
        with (self.locks / "grid").open("w") as file:
            fcntl.flock(file, how)
            yield

    def measure(self, cell: Cell, folder: Path, identity: Mapping[str, Any]) -> dict[str, Any]:
        """Train what the cell needs, answer every problem into a folder, and say what the answers are of."""
        torch.manual_seed(cell.seed)  # untrained operators are drawn
        reasoner, weights, training_seconds = self.ready(cell)
        problems = self.sources.problems(cell.questions)
        started = time.process_time()
        with AnswerStore(folder, identity, options=self.options) as store:
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
            self._let_go()
        location, seconds = self._trained(cell.training, cell)
        if key not in self.latest:
            self.latest[key] = self.reasoner(cell, location)
        return *self.latest[key], seconds

    def _let_go(self) -> None:
        """Free the memory of what answered last."""
        for answered, _ in self.latest.values():
            close(answered)
        self.latest.clear()

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
            cell.row,
            model,
            router=router,
            budget=decoding.budget,
            max_new_tokens=longest,
            slots=slots,
            memory=self.memory,
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


@contextmanager
def claimed(file: Path) -> Iterator[bool]:
    """Hold a file while inside, where no other process does; the lock ends with its process, however that ends."""
    with file.open("w") as opened:
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
