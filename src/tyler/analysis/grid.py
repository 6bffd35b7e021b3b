"""A grid of cells: those that have no record yet are run, one after the other. A killed grid resumes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tyler.analysis import records
from tyler.analysis.cells import Cell, Sources, name_of
from tyler.analysis.interventions import intervene
from tyler.analysis.training import trained
from tyler.engine.routing import AtBoundaries, Router, router_named
from tyler.evaluation.pass_at_1 import evaluate
from tyler.model import Tyler
from tyler.reasoners import registry
from tyler.reasoners.reasoner import Reasoner
from tyler.reasoners.tyler import TylerReasoner
from tyler.tasks import Problem

SLOTS = 32
NUM_OBSERVED = 100
"""Development problems on whose answers an intervention sees the model's own latents."""


@dataclass(frozen=True)
class Grid:
    """Where models are trained, where records go, and where problems are."""

    models: Path
    records: Path
    sources: Sources

    def run(self, cells: Sequence[Cell]) -> None:
        """Run every cell that has no record, in this order."""
        self.records.mkdir(parents=True, exist_ok=True)
        known = {path.stem for path in self.records.glob("*.json")}
        for number, cell in enumerate(cells, start=1):
            identity = cell.unseeded.identity(self.sources)
            if (name := name_of(identity)) in known:
                continue
            print(f"[{number}/{len(cells)}] {cell.row}, {cell.questions.task} {cell.questions.split}", flush=True)
            records.write(self.records / f"{name}.json", {"identity": identity, **self.measure(cell.unseeded)})
            known.add(name)

    def measure(self, cell: Cell) -> dict[str, Any]:
        """Train what the cell needs, answer every problem, and say what came of each."""
        location, training_seconds = trained(cell.training, cell.preset, cell.seed, self.sources, self.models)
        problems = self.sources.problems(cell.questions)
        reasoner, weights = self.reasoner(cell, location)
        started = time.process_time()
        report = evaluate(reasoner, problems, show=True)
        return {
            "row": cell.row,
            "seed": cell.seed,
            "task": cell.questions.task,
            "split": cell.questions.split,
            "decoding": asdict(cell.decoding),
            "weights": weights,
            "training_seconds": round(training_seconds, 1),
            "decoding_seconds": round(time.process_time() - started, 1),
            **records.compact(report.records),
            "environment": records.surroundings(),
        }

    def reasoner(self, cell: Cell, location: str) -> tuple[Reasoner, str]:
        """The model under the cell's decoding, and the hash of its weights."""
        decoding, longest = cell.decoding, cell.questions.max_new_tokens
        if decoding.method != registry.OWN:
            loaded = registry.load(
                location, decoding.method, decoding.settings, name=cell.row, max_new_tokens=longest, slots=SLOTS
            )
            return loaded.reasoner, loaded.weights
        model = Tyler.from_pretrained(location)
        weights = model.fingerprint()
        if decoding.intervention:
            seen = [problem.prompt for problem in self.observed(cell)]
            model = intervene(model, decoding.intervention, seen, longest)
        router = routed(decoding.router, decoding.only)
        return TylerReasoner(cell.row, model, router, decoding.budget, max_new_tokens=longest, slots=SLOTS), weights

    def observed(self, cell: Cell) -> list[Problem]:
        """Development problems, for interventions that need the model's own latents."""
        config = cell.training.config(cell.preset, cell.seed)
        assert config.data.development is not None, "a study's preset has development problems"
        data = config.data
        from tyler.analysis.cells import Questions

        return self.sources.problems(Questions(data.task, config.data.development.split, NUM_OBSERVED, 0))


def routed(router: str, only: tuple[str, ...]) -> Router | None:
    """The router of a decoding; None for what the model's last stage trained for."""
    if only:
        return AtBoundaries(only=only)
    return router_named(router) if router else None
