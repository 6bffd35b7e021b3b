"""The model card of a published checkpoint: what it is, its use, how it was made, what was measured, its limits."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import yaml

from tyler.evaluation.reports import interval, percent
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

LIMITS = (
    "An interval is a 95% interval over the problems of one evaluation. It does not cover another training "
    "seed, another prompt or other problems.",
    "An answer without a finished box counts as wrong.",
    "Latents are not text: they do not show why an answer came about. Where answers must be auditable, log "
    "`trajectory.invocations`.",
    "The adapters and operators belong to exactly the backbone above; with other weights loading is refused.",
    "The safety of the backbone has not been measured again. Whatever it gets wrong, this model may get wrong too.",
)


def model_card(
    manifest: Manifest, repo: str, licence: str, training: Training | None, results: Sequence[Result]
) -> str:
    """The README of a repository on the Hub, from records alone. `licence` is the Hub's name of one."""
    parts = [
        front_matter(manifest, repo, licence, results),
        f"# {repo.rpartition('/')[2]}\n\nTyler on `{manifest.backbone.id}`: {WHAT[manifest.stage]}.",
        operators(manifest),
        f"## Use\n{usage(manifest, repo)}",
        "## Training\n" + "\n".join(how_trained(training)),
        "## Results\n" + "\n".join(measured(results)),
        "## Limits\n\n" + "\n".join(f"- {limit}" for limit in LIMITS),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def front_matter(manifest: Manifest, repo: str, licence: str, results: Sequence[Result]) -> str:
    """What the Hub indexes: its keys are the Hub's."""
    backbone = manifest.backbone.id
    facts: dict[str, Any] = {"license": licence, "library_name": "tyler-reasoning", "pipeline_tag": "text-generation"}
    if backbone not in NAMES:
        facts |= {"base_model": backbone, "base_model_relation": "adapter"}
    facts["tags"] = ["latent-reasoning", "tyler", "peft", "lora"]
    if results:
        indexed = [model_index_entry(result) for result in results]
        facts["model-index"] = [{"name": repo.rpartition("/")[2], "results": indexed}]
    return f"---\n{yaml.safe_dump(facts, sort_keys=False, allow_unicode=True)}---"


def model_index_entry(result: Result) -> dict[str, Any]:
    """One evaluation as the Hub's index of results has it."""
    accuracy = round(100 * result.report.accuracy, 2)
    return {
        "task": {"type": "text-generation"},
        "dataset": {"type": result.report.name.lower().replace(" ", "-"), "name": result.report.name},
        "metrics": [{"type": "accuracy", "name": "Pass@1, %", "value": accuracy}],
    }


def operators(manifest: Manifest) -> str:
    """The operators as a table."""
    if not manifest.operators:
        return ""
    says = (
        "Typed latent reasoning: at every step the model emits a token or invokes a typed latent operator, whose "
        "latents join the context without being text.\n"
    )
    rows = [f"| {operator.name} | {operator.num_latents} | {operator.boundary} |" for operator in manifest.operators]
    return "\n".join([says, "| operator | latents | boundary rule |", "|---|---|---|", *rows])


def usage(manifest: Manifest, repo: str) -> str:
    """Code that loads it, with tyler and with peft alone."""
    adapters = " and ".join(f"`{adapter}/`" for adapter in manifest.adapters)
    return f"""
```sh
pip install path/to/tyler   # the package tyler-reasoning, from its repository
tyler solve {repo} "YOUR QUESTION"
```

```python
from tyler import Tyler

model = Tyler.from_pretrained("{repo}")
trajectory = model.solve("YOUR QUESTION")
print(trajectory.text, trajectory.invocations)
```

{adapters} are ordinary peft adapters of the backbone: \
`PeftModel.from_pretrained(backbone, "{repo}", subfolder="{manifest.adapters[-1]}")`. Latents need tyler. \
`tyler.json` holds the SHA-256 of every file that is loaded."""


def how_trained(training: Training | None) -> Iterator[str]:
    """Data, settings and environment of the run."""
    if training is None:
        yield "\nThis checkpoint came without the records of its run."
        return
    yield f"\n{' '.join(training.data)}"
    best = "" if training.best is None else f" The best so far on the development problems was {training.best}."
    yield f"\nThese are the weights after step {training.step}.{best}"
    yield "\n<details><summary>All settings</summary>\n\n| setting | value |\n|---|---|"
    yield from (f"| {key} | {value} |" for key, value in training.settings.items())
    yield "\n</details>"
    packages = ", ".join(f"{name} {version}" for name, version in training.packages.items())
    yield f"\nMade with {packages}" + (f" on {training.device}." if training.device else ".")


def router_name(router: object) -> str:
    """A router of an evaluation's settings, without what its class says already."""
    return re.sub(r",? ?learned=(?:True|False)|\(learned=(?:True|False)\)", "", str(router))


def measured(results: Sequence[Result]) -> Iterator[str]:
    """A table of what evaluations of these weights found."""
    if not results:
        yield "\nNo evaluation of exactly these weights was published with them."
        return
    yield "\nPass@1 of exactly these weights, by `tyler eval`:\n"
    yield "| task | correct | accuracy | 95% interval | tokens | latents | calls | router | budget |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for result in results:
        report, method = result.report, result.method
        cells = (
            report.name,
            f"{report.num_correct}/{len(report.records)}",
            percent(report.accuracy),
            interval(report),
            f"{report.mean(lambda record: record.visible_tokens):.1f}",
            f"{report.mean(lambda record: record.latents):.1f}",
            f"{report.mean(lambda record: len(record.calls)):.2f}",
            f"`{router_name(method.get('router'))}`",
            "none" if method.get("budget") is None else str(method["budget"]),
        )
        yield f"| {' | '.join(cells)} |"
    yield "\nTokens, latents and calls are means per answer. The problems, by hash, and how they were answered:\n"
    yield from (
        f"- {result.report.name}: {result.problems}; {result.sampling}, up to {result.max_new_tokens} actions"
        for result in results
    )
