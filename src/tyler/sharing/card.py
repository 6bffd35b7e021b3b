"""The model card of a published checkpoint: what it is, its use, how it was made, what was measured, its limits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from huggingface_hub import EvalResult, ModelCardData
from jinja2 import Environment, PackageLoader, StrictUndefined

from tyler.modeling.checkpoint import Manifest
from tyler.modeling.manifest import NAMES
from tyler.sharing.records import Result, Training

WHAT = {
    "stage1": "trained operators at every detected boundary (Stage 1)",
    "stage2": "a policy that decides when to invoke which operator (Stage 2)",
    "sft": "plain fine-tuning, without operators",
    "grpo": "GRPO without operators",
    "backbone": "untrained operators",
}


def model_card(
    manifest: Manifest, repo: str, licence: str, training: Training | None, results: Sequence[Result]
) -> str:
    """The README of a repository on the Hub, from records alone. `licence` is the Hub's name of one."""
    template = Environment(
        loader=PackageLoader("tyler", "assets"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    ).get_template("card.md")
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
        eval_results=[indexed(result) for result in results],
        **based,
    )


def indexed(result: Result) -> EvalResult:
    """One evaluation as the Hub's index of results has it."""
    title = result.report.name
    return EvalResult(
        task_type="text-generation",
        dataset_type=title.lower().replace(" ", "-"),
        dataset_name=title,
        metric_type="accuracy",
        metric_name="Pass@1, %",
        metric_value=round(100 * result.report.accuracy, 2),
    )
