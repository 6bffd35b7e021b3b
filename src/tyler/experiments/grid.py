"""A grid of cells: those that have no record yet are run. A killed grid resumes; several processes may share one.

A model is trained once under the hash of its training, and shared by all cells that decode it.
"""

import fcntl
import json
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from tyler.config.schema import Config
from tyler.engine.routing import AtBoundaries, router_named
from tyler.evaluation.store import AnswerStore, name_of
from tyler.experiments import records
from tyler.experiments.cells import LATENCY, ROLLED_OUT, UNTRAINED, Cell, Questions, Sources, Training
from tyler.experiments.measures import MEASURES
from tyler.lens.interventions import NAMED, intervene
from tyler.reasoners import registry
from tyler.reasoners.reasoner import Reasoner
from tyler.reasoners.table import TRAININGS
from tyler.reasoners.tyler import TylerReasoner
from tyler.runs.atomic_files import atomic_write
from tyler.runs.environment import environment
from tyler.tasks import Problem
from tyler.tasks.problem import GradeOptions
from tyler.training import merging

SLOTS = 32
"""Answers decoded at once, unless their times are measured; changes speed and memory, not the answers."""
PATIENCE = 1.0
"""Seconds until it is looked again whether another process has finished."""
NUM_OBSERVED = 100
"""Development problems on whose answers an intervention sees the model's own latents."""

Pending = dict[str, tuple[Cell, dict[str, Any]]]
"""Cells with their identities, by name."""


@dataclass(frozen=True)
class Grid:
    """Where models are trained, where records go, and where problems are."""

    models: Path
    records: Path
    sources: Sources
    options: GradeOptions = field(default_factory=GradeOptions)
    memory: int | None = None
    """Bytes of context and caches that decoding may hold, in rollouts too; None for half of what is free."""

    def run(self, cells: Sequence[Cell], known: Collection[str] = ()) -> None:
        """Run every cell that has no record, in this order; what times its answers comes last.

        `known` are cells that have a record elsewhere. Where several processes run the same grid, each takes trainings
        and cells that no other works on; what times its answers waits until the others have nothing left to do.
        """
        identities = [(cell.unseeded, cell.unseeded.identity(self.sources)) for cell in cells]
        named: Pending = {name_of(identity): (cell, identity) for cell, identity in identities}
        for folder in (self.records, self.locks):
            folder.mkdir(parents=True, exist_ok=True)
        for timed, lock in ((False, fcntl.LOCK_SH), (True, fcntl.LOCK_EX)):
            with locked(self.locks / "grid", lock):
                done = {*known, *records.names(self.records)}
                chosen = {name: pair for name, pair in named.items() if (pair[0].measure == LATENCY) is timed}
                self._share({name: pair for name, pair in chosen.items() if name not in done})
                if timed:
                    records.pack(self.records)

    def _share(self, pending: Pending) -> None:
        """Do what no other process works on, until every cell has its record."""
        while pending:
            before = len(pending)
            for name, (cell, identity) in list(pending.items()):
                if records.is_finished(self.records / name) or self._finish(cell, name, identity, len(pending)):
                    del pending[name]
            if len(pending) == before:
                time.sleep(PATIENCE)

    def _finish(self, cell: Cell, name: str, identity: dict[str, Any], left: int) -> bool:
        """Train what a cell needs and answer it; False where another process works on one of these."""
        description = f"{cell.row}, {cell.questions.task} {cell.questions.split}, seed {cell.seed}"
        for training in cell.training.stages if cell.training.method != UNTRAINED else ():
            needed = name_of(training.identity(cell.preset, cell.seed, self.sources))
            if not self._done(needed).exists():
                with locked(self.locks / needed, AT_ONCE) as free:
                    if not free:
                        return False
                    print(f"{left} left: {training.method} for {description}", flush=True)
                    self.trained(training, cell.preset, cell.seed)
        with locked(self.locks / name, AT_ONCE) as free:
            if free and not records.is_finished(self.records / name):
                print(f"{left} left: {description}", flush=True)
                about = self.measure(cell, self.records / name, identity)
                records.finish(self.records / name, {"identity": identity, **about})
        return free

    @property
    def locks(self) -> Path:
        """Empty files: one for each training and cell, that its process holds while it works on it, and one that every
        process of this grid holds, alone while it times answers."""
        return self.records.parent / "locks"

    # --- answering ----------------------------------------------------------------------------------------------------

    def measure(self, cell: Cell, folder: Path, identity: Mapping[str, Any]) -> dict[str, Any]:
        """Train what the cell needs, answer every problem into a folder, and say what the answers are of."""
        torch.manual_seed(cell.seed)  # untrained operators are drawn
        location, training_seconds = self.trained(cell.training, cell.preset, cell.seed)
        reasoner, weights = self.reasoner(cell, location)
        problems = self.sources.problems(cell.questions)
        started, resumed = time.process_time(), folder.exists()
        with AnswerStore(folder, identity, options=self.options) as store:
            measured = MEASURES[cell.measure](reasoner, problems, self.options, store)
        if isinstance(reasoner, TylerReasoner):
            reasoner.model.shared_engine.close()  # vLLM's engine outlives its object
        here = {key: value for key, value in environment().items() if key != "command"}  # it names a machine's folders
        return {
            "row": cell.row,
            "seed": cell.seed,
            "task": cell.questions.task,
            "split": cell.questions.split,
            "decoding": asdict(cell.decoding),
            "weights": weights,
            "training_seconds": round(training_seconds, 1),
            "decoding_seconds": None if resumed else round(time.process_time() - started, 1),
            **measured,
            "environment": here,
        }

    def reasoner(self, cell: Cell, location: str) -> tuple[Reasoner, str]:
        """The model under the cell's decoding, and the hash of its weights."""
        decoding, config = cell.decoding, cell.training.config(cell.preset, cell.seed)
        limits: dict[str, Any] = {
            "max_new_tokens": cell.questions.max_new_tokens,
            "slots": 1 if cell.measure == LATENCY else SLOTS,
            "memory": self.memory,
        }
        loading: dict[str, Any] = {"dtype": config.backbone.dtype, "engine": self.sources.engine_of(decoding)}
        if cell.training.method == UNTRAINED:  # what is trained has noted these
            loading |= {"revision": config.backbone.revision, "prompt": config.prompt}
        if decoding.method != registry.OWN:
            loaded = registry.load(location, decoding.method, decoding.settings, name=cell.row, **limits, **loading)
            return loaded.reasoner, loaded.weights
        model = registry.typed_model(location, **loading)
        weights = model.fingerprint()
        if decoding.intervention:
            seen = [problem.prompt for problem in self.observed(cell)] if decoding.intervention in NAMED else []
            model = intervene(model, decoding.intervention, seen, cell.questions.max_new_tokens, self.memory)
        router = router_named(decoding.router) if decoding.router else None  # None: what its last stage trained for
        if decoding.only:
            router = AtBoundaries(only=decoding.only)
        return TylerReasoner(cell.row, model, router=router, budget=decoding.budget, **limits), weights

    def observed(self, cell: Cell) -> list[Problem]:
        """Development problems, for interventions that need the model's own latents."""
        data = cell.training.config(cell.preset, cell.seed).data
        assert data.development is not None, "a study's preset has development problems"
        task = data.development.task or data.task
        return self.sources.problems(Questions(task, data.development.split, NUM_OBSERVED, 0))

    # --- training -----------------------------------------------------------------------------------------------------

    def trained(self, training: Training, preset: str, seed: int) -> tuple[str, float]:
        """Where the model of a training is, and the processor seconds of all its stages; of an untrained one the
        backbone's id. It is made, or its run resumed, where it is not finished."""
        if training.method == UNTRAINED:
            return training.config(preset, seed).backbone.id, 0.0
        start, before = self.trained(training.start, preset, seed) if training.start is not None else ("", 0.0)
        name = name_of(training.identity(preset, seed, self.sources))
        if not self._done(name).exists():
            seconds = _timed(training, self._config(training, preset, seed), start, self.models / name)
            about = {"method": training.method, "overrides": training.overrides, "preset": preset, "seed": seed}
            atomic_write(self._done(name), json.dumps({**about, "seconds": seconds}))
        return str(self.models / name), before + json.loads(self._done(name).read_text())["seconds"]

    def _done(self, name: str) -> Path:
        """The file beside a finished model: how it was made, and the processor seconds that it took."""
        return self.models / f"{name}.done.json"

    def _config(self, training: Training, preset: str, seed: int) -> Config:
        """The settings of a training: its problems where they are, and a merged model in the backbone's place.

        It stands on the last of several merged models.
        """
        more = self.sources.placed(training.config(preset, seed))
        if training.method in ROLLED_OUT:
            more += self.sources.engine.overrides()
        if self.memory is not None:
            more.append(f"decoding.memory={self.memory}")
        earlier = reversed(training.start.stages if training.start else [])
        if (merged := next((stage for stage in earlier if stage.method == "merge"), None)) is not None:
            more.append(f"backbone.id={self.models / name_of(merged.identity(preset, seed, self.sources))}")
        return training.config(preset, seed, more)


def _timed(training: Training, config: Config, start: str, folder: Path) -> float:
    """Make a model or resume its run; the processor seconds of all attempts together, but for those killed outright."""
    spent = folder.with_suffix(".spent.json")
    earlier, began = json.loads(spent.read_text()) if spent.exists() else 0.0, time.process_time()
    folder.parent.mkdir(parents=True, exist_ok=True)
    try:
        _make(training, config, start, folder)
    finally:
        total = earlier + time.process_time() - began
        atomic_write(spent, json.dumps(total))
    return total


def _make(training: Training, config: Config, start: str, folder: Path) -> None:
    if training.method == "merge":
        if not folder.exists():  # it appears complete or not at all
            merging.run(start, folder)
        return
    from_backbone = training.start is None or training.start.method == "merge"
    run, more = TRAININGS[training.method].load(), {} if from_backbone else {"start": start}
    run(config, output=folder, resume=(folder / "config.yaml").exists(), **more)


AT_ONCE = fcntl.LOCK_EX | fcntl.LOCK_NB
"""The lock that one process has, and that no other waits for."""


@contextmanager
def locked(file: Path, lock: int) -> Iterator[bool]:
    """Hold a file while inside; False where another process does. The lock ends with its process, however that ends."""
    with file.open("w") as opened:
        try:
            fcntl.flock(opened, lock)
        except BlockingIOError:
            yield False
        else:
            yield True
