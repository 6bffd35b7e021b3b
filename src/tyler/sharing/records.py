"""What a run and its evaluations wrote down, as far as others may read it.

Nothing is taken over as it stands: settings are numbers, switches and words of the schema, data is named by task and
split, results are counts. So no path, no command line, no problem and no answer gets from here into a card.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import load_file

from tyler.config.files import load_run_config
from tyler.config.schema import Config
from tyler.evaluation.command import sampling_in_words
from tyler.evaluation.folders import EvaluationRun
from tyler.evaluation.reports import Report, rows
from tyler.evaluation.store import ANSWERS, SETTINGS, line_files, read_records
from tyler.modeling.checkpoint import TENSORS, Manifest
from tyler.modeling.fingerprint import fingerprint_with
from tyler.runs.checkpoints import CHECKPOINTS, Best, checkpoint_step, read_best
from tyler.runs.run import CONFIG, ENVIRONMENT, ORIGIN
from tyler.tasks import find_task

SECTIONS = {"stage1": ("stage1",), "stage2": ("stage2", "grpo"), "sft": ("sft",), "grpo": ("stage2", "grpo")}
"""By stage: the sections of a config that its loop reads."""


@dataclass(frozen=True)
class Training:
    """How a checkpoint came about: settings by name, and its data in a sentence each."""

    step: int
    settings: Mapping[str, str]
    data: Sequence[str]
    best: Best | None
    packages: Mapping[str, str]
    device: str | None


@dataclass(frozen=True)
class Result:
    """One task's outcome in an evaluation of exactly these weights."""

    report: Report
    problems: str
    method: Mapping[str, Any]
    max_new_tokens: int
    sampling: str
    """How answers were drawn, in words."""

    @property
    def cells(self) -> tuple[str, ...]:
        """Its row in a table of the results; of the router what its class does not say already."""
        _, numbers = rows([self.report], ("method", "correct", "accuracy", "95% CI", "visible", "latents", "calls"))
        router = re.sub(r",? ?learned=(?:True|False)|\(learned=(?:True|False)\)", "", str(self.method.get("router")))
        budget = self.method.get("budget")
        return (*numbers, f"`{router}`", "none" if budget is None else str(budget))


def training_of(checkpoint: Path, manifest: Manifest) -> Training | None:
    """What the run of a checkpoint says of itself; None for a checkpoint that stands alone."""
    run = checkpoint.resolve().parent.parent
    if checkpoint.resolve().parent.name != CHECKPOINTS or not (run / CONFIG).is_file():
        return None
    config = load_run_config(run / CONFIG)
    started = read_json(run / ENVIRONMENT)
    environment = started[-1] if isinstance(started, list) and started else {}
    return Training(
        step=checkpoint_step(checkpoint.resolve()),
        settings=published(config, manifest.stage),
        data=list(data_of(config, read_json(run / ORIGIN))),
        best=read_best(checkpoint),
        packages={name: number for name, number in environment.get("packages", {}).items() if number},
        device=environment.get("device"),
    )


def published(config: Config, stage: str) -> dict[str, str]:
    """The settings of a stage by dotted name: numbers, switches and words, as the schema has no text there but that of
    rewards, which are left out."""
    sections = ("lora", *SECTIONS.get(stage, ()))
    leaves = flat({section: getattr(config, section).model_dump(exclude={"rewards"}) for section in sections})
    shown = {key: ", ".join(value) if isinstance(value, tuple) else value for key, value in leaves}
    return {key: str(value) for key, value in shown.items() if value is not None}


def flat(value: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """The leaves of nested mappings by dotted name."""
    for key, inner in value.items():
        if isinstance(inner, Mapping):
            yield from flat(inner, f"{before}{key}.")
        else:
            yield f"{before}{key}", inner


def data_of(config: Config, origin: Any) -> Iterator[str]:
    """What was learned from, in sentences. A file of one's own is called that, without its name."""
    data = config.data
    own = data.task == "jsonl"
    count = "all problems" if data.count is None else f"{data.count} problems, drawn with seed {data.seed}"
    title = "Problems of the author's own" if own else f"{find_task(data.task).title}, split `{data.split}`"
    yield f"{title}: {count}."
    if isinstance(origin, dict) and (hashes := [f"{k} `{v}`" for k, v in sorted(origin.items()) if is_hash(v)]):
        yield f"Hashes of what the run learned from: {', '.join(hashes)}."
    if config.development_set is not None:
        yield "The best step was chosen on development problems, on which no results are reported."
    if data.held_out == ():
        yield "Training problems were not compared with any evaluation set."
    else:
        kept_out = {"refuse": "stop such a run", "drop": "are left out"}.get(data.on_overlap, "are left out")
        yield f"Problems of the evaluation set among the training problems {kept_out}."


def is_hash(value: object) -> bool:
    """Whether a value says nothing but a hash."""
    return isinstance(value, str) and 8 <= len(value) <= 64 and all(letter in "0123456789abcdef" for letter in value)


def read_json(path: Path) -> Any:
    """The JSON of a file; None if it does not exist."""
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None


# ---------------------------------------------------------------------------------------------------------- results


def results_in(folders: Iterable[Path], fingerprint: str) -> tuple[list[Result], list[Path]]:
    """The results in evaluation folders, by task, and the folders that are left out: of other weights, or unfinished.

    `fingerprint` is that of the weights. Raises FileNotFoundError for a folder that holds no evaluation.
    """
    results: list[Result] = []
    others: list[Path] = []
    for folder in folders:
        if not (folder / ANSWERS).is_file() and not line_files(folder):
            raise FileNotFoundError(f"{folder} holds no evaluation (no {ANSWERS}); give a folder of `tyler eval`")
        run = EvaluationRun(folder)
        settings, total = run.settings, run.total
        if settings.get("weights") != fingerprint or (total is not None and run.step < total):
            others.append(folder)
            continue
        records = read_records(folder)
        for task, problems in settings["problems"].items():
            report = Report(find_task(task).title, tuple(record for record in records if record.task == task))
            if report.records:
                most, drawn = settings["max_new_tokens"], sampling_in_words(settings)
                results.append(Result(report, problems, settings["method_settings"], most, drawn))
    return results, others


def evaluations_of(model: Path) -> list[Path]:
    """The evaluations that stand where `tyler eval` puts them for this model: in RUN-eval beside the run."""
    model = Path(os.path.abspath(model))  # "." has no name of its own
    run = model.parent.parent if model.parent.name == CHECKPOINTS else model
    return sorted(path.parent for path in run.with_name(f"{run.name}-eval").glob(f"*/{SETTINGS}"))


def saved_fingerprint(folder: Path, manifest: Manifest) -> str:
    """`Tyler.fingerprint` of a saved model, from its files alone: the backbone's hash, and every trained tensor."""
    tensors = {**load_file(folder / TENSORS)}
    for adapter in manifest.adapters:
        for key, tensor in load_file(folder / adapter / "adapter_model.safetensors").items():
            tensors[f"{adapter}.{key.removesuffix('.weight')}.default.weight"] = tensor
    return fingerprint_with(manifest.backbone.fingerprint, tensors)
