"""The model card of a published checkpoint, from what its run and its evaluations wrote down.

Nothing is taken over as it stands: settings are numbers, switches and words of the schema, data is named by task and
split, results are counts. So no path, no command line, no problem and no answer gets from records into a card.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCardData
from jinja2 import StrictUndefined, Template
from safetensors.torch import load_file

from tyler.config.files import flatten, load_run_config
from tyler.config.schema import Config
from tyler.evaluation.command import sampling_in_words, short_name
from tyler.evaluation.folders import EvaluationRun
from tyler.evaluation.reports import Report, by_task, rows
from tyler.evaluation.store import ANSWERS, SETTINGS, line_files, read_records
from tyler.modeling.checkpoint import TENSORS, Manifest
from tyler.modeling.fingerprint import fingerprint_with
from tyler.modeling.manifest import NAMES
from tyler.runs.catalogue import TrainingRun
from tyler.runs.checkpoints import CHECKPOINTS, checkpoint_step, read_best
from tyler.runs.run import CONFIG, ORIGIN
from tyler.tasks import find_task

WHAT = {
    "stage1": "trained operators at every detected boundary (Stage 1)",
    "stage2": "a policy that decides when to invoke which operator (Stage 2)",
    "sft": "plain fine-tuning, without operators",
    "grpo": "GRPO without operators",
    "backbone": "untrained operators",
}
SECTIONS = {"stage1": ("stage1",), "stage2": ("stage2", "grpo"), "sft": ("sft",), "grpo": ("stage2", "grpo")}
"""By stage: the sections of a config that its loop reads."""
HASH = re.compile(r"[0-9a-f]{8,64}")
ROUTER_CLASS = re.compile(r",? ?learned=(?:True|False)|\(learned=(?:True|False)\)")
"""Of a router's settings, what its class says already."""


def model_card(
    manifest: Manifest, repo: str, licence: str, training: Mapping[str, Any] | None, results: Sequence[Result]
) -> str:
    """The README of a repository on the Hub. `licence` is the Hub's name of one."""
    source = (files("tyler") / "assets" / "card.md").read_text(encoding="utf-8")
    template = Template(
        source, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )
    return template.render(
        front_matter=front_matter(manifest, repo, licence, results).to_yaml(),
        name=repo.rpartition("/")[2],
        repo=repo,
        what=WHAT[manifest.stage],
        manifest=manifest,
        training=training,
        results=results,
    )


def front_matter(manifest: Manifest, repo: str, licence: str, results: Sequence[Result]) -> ModelCardData:
    """What the Hub indexes."""
    backbone = manifest.backbone.id
    based: dict[str, Any] = {} if backbone in NAMES else {"base_model": backbone, "base_model_relation": "adapter"}
    return ModelCardData(
        license=licence,
        library_name="tyler-reasoning",
        pipeline_tag="text-generation",
        tags=["latent-reasoning", "tyler", "peft", "lora"],
        model_name=repo.rpartition("/")[2],
        eval_results=[result.indexed for result in results],
        **based,
    )


def training_of(checkpoint: Path, manifest: Manifest) -> dict[str, Any] | None:
    """How a checkpoint came about, as its run says, for the card; None for a checkpoint that stands alone."""
    checkpoint = checkpoint.resolve()
    run = TrainingRun(checkpoint.parent.parent)
    if checkpoint.parent.name != CHECKPOINTS or not (run.path / CONFIG).is_file():
        return None
    config, origin = load_run_config(run.path / CONFIG), run.path / ORIGIN
    environment = run.starts[-1] if run.starts else {}
    return {
        "step": checkpoint_step(checkpoint),
        "settings": published(config, manifest.stage),
        "data": list(data_of(config, json.loads(origin.read_text(encoding="utf-8")) if origin.is_file() else {})),
        "best": read_best(checkpoint),
        "packages": {name: number for name, number in environment.get("packages", {}).items() if number},
        "device": environment.get("device"),
    }


def published(config: Config, stage: str) -> dict[str, str]:
    """The settings of a stage by dotted name: numbers, switches and words, as the schema has no text there but that of
    rewards, which are left out."""
    sections = ("lora", *SECTIONS.get(stage, ()))
    leaves = flatten({section: getattr(config, section).model_dump(exclude={"rewards"}) for section in sections})
    shown = {key: ", ".join(value) if isinstance(value, tuple) else value for key, value in leaves.items()}
    return {key: str(value) for key, value in shown.items() if value is not None}


def data_of(config: Config, origin: Mapping[str, Any]) -> Iterator[str]:
    """What was learned from, in sentences. A file of one's own is called that, without its name."""
    data = config.data
    own = data.task == "jsonl"
    count = "all problems" if data.count is None else f"{data.count} problems, drawn with seed {data.seed}"
    title = "Problems of the author's own" if own else f"{find_task(data.task).title}, split `{data.split}`"
    yield f"{title}: {count}."
    if hashes := [f"{key} `{value}`" for key, value in sorted(origin.items()) if HASH.fullmatch(str(value))]:
        yield f"Hashes of what the run learned from: {', '.join(hashes)}."
    if config.development_set is not None:
        yield "The best step was chosen on development problems, on which no results are reported."
    if data.held_out == ():
        yield "Training problems were not compared with any evaluation set."
    else:
        kept_out = "stop such a run" if data.on_overlap == "refuse" else "are left out"
        yield f"Problems of the evaluation set among the training problems {kept_out}."


@dataclass(frozen=True)
class Result:
    """One task's outcome in an evaluation of exactly these weights."""

    report: Report
    settings: Mapping[str, Any]
    """Of the evaluation."""

    @property
    def cells(self) -> tuple[str, ...]:
        """Its row in a table of the results."""
        _, numbers = rows([self.report], ("method", "correct", "accuracy", "95% CI", "visible", "latents", "calls"))
        method = self.settings["method_settings"]
        router, budget = ROUTER_CLASS.sub("", str(method.get("router"))), method.get("budget")
        return (*numbers, f"`{router}`", "none" if budget is None else str(budget))

    @property
    def how(self) -> str:
        """Which problems these were, by their hash, and how they were answered."""
        problems, most = self.settings["problems"][self.report.records[0].task], self.settings["max_new_tokens"]
        return f"{problems}; {sampling_in_words(self.settings)}, up to {most} actions"

    @property
    def indexed(self) -> EvalResult:
        """Its entry in the Hub's index of results."""
        title = self.report.name
        return EvalResult(
            task_type="text-generation",
            dataset_type=title.lower().replace(" ", "-"),
            dataset_name=title,
            metric_type="accuracy",
            metric_name="Pass@1, %",
            metric_value=round(100 * self.report.accuracy, 2),
        )


def results_in(folders: Iterable[Path], fingerprint: str) -> tuple[list[Result], list[Path]]:
    """The results in evaluation folders, by task, and the folders that are left out: of other weights, or unfinished.

    `fingerprint` is that of the weights. Raises FileNotFoundError for a folder that holds no evaluation.
    """
    results, others = list[Result](), list[Path]()
    for folder in folders:
        if not (folder / ANSWERS).is_file() and not line_files(folder):
            raise FileNotFoundError(f"{folder} holds no evaluation (no {ANSWERS}); give a folder of `tyler eval`")
        run = EvaluationRun(folder)
        if run.settings.get("weights") == fingerprint and run.status == "finished":
            results += [Result(report, run.settings) for report in by_task(read_records(folder))]
        else:
            others.append(folder)
    return results, others


def evaluations_of(model: Path) -> list[Path]:
    """The evaluations that stand where `tyler eval` puts them for this model, from here or from beside its run."""
    by_name, model = Path("runs", f"{short_name(str(model))}-eval"), Path(os.path.abspath(model))
    run = model.parent.parent if model.parent.name == CHECKPOINTS else model
    folders = by_name, run.with_name(f"{run.name}-eval")
    return sorted({path.parent.resolve() for folder in folders for path in folder.glob(f"*/{SETTINGS}")})


def saved_fingerprint(folder: Path, manifest: Manifest) -> str:
    """`Tyler.fingerprint` of a saved model, from its files alone: the backbone's hash, and every trained tensor."""
    tensors = {**load_file(folder / TENSORS)}
    for adapter in manifest.adapters:
        for key, tensor in load_file(folder / adapter / "adapter_model.safetensors").items():
            tensors[f"{adapter}.{key.removesuffix('.weight')}.default.weight"] = tensor
    return fingerprint_with(manifest.backbone.fingerprint, tensors)
