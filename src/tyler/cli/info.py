"""`tyler info`: what a model is, from the files beside its weights; the weights are not loaded."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from huggingface_hub import hf_hub_download
from huggingface_hub.constants import CONFIG_NAME
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tyler.config.sections import LoraConfig
from tyler.modeling import checkpoint
from tyler.modeling.architectures import settings_of, shipped
from tyler.modeling.hub import HUB_ID, checkpoint_on_hub, with_revision
from tyler.modeling.locations import check_location
from tyler.modeling.manifest import read_object
from tyler.reasoners.registry import kind_of
from tyler.reasoners.table import find_method
from tyler.runs.checkpoints import checkpoint_step, latest_checkpoint, read_best
from tyler.training.planned import Shape, count_parameters


def run(model: str, *, as_json: bool) -> None:
    """Print the facts as a table or as JSON. Raises ValueError or OSError for a model that is not there."""
    facts = facts_of(model)
    if as_json:
        print(json.dumps({"model": model, **facts}, ensure_ascii=False))
        return
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for name, value in facts.items():
        table.add_row(name.replace("_", " "), Text(", ".join(value) if isinstance(value, list) else str(value)))
    Console().print(table)


def facts_of(model: str) -> dict[str, Any]:
    """What a checkpoint or a plain backbone is. Raises what `Tyler.from_pretrained` raises for a missing one."""
    name, revision = with_revision(model, None)
    folder = shipped(name) or latest_checkpoint(name) or Path(name)
    if not folder.is_dir():
        folder = checkpoint_on_hub(name, revision, checkpoint.MANIFEST) or folder
    kind = kind_of(str(folder))
    own = None if kind is None else find_method(kind).checkpoint
    manifest = folder / (checkpoint.MANIFEST if own is None else own.manifest)
    if manifest.is_file():
        return checkpoint_facts(folder, kind or "Tyler", read_object(manifest))
    return {"method": "none: a plain backbone", **backbone_facts(name, revision)}


def checkpoint_facts(folder: Path, method: str, manifest: Mapping[str, Any]) -> dict[str, Any]:
    """What the manifest of a checkpoint says, and the run that it belongs to."""
    backbone = manifest.get("backbone") or {}
    facts: dict[str, Any] = {"method": method}
    if "stage" in manifest:
        facts["stage"] = manifest["stage"]
    if operators := manifest.get("operators"):
        facts["operators"] = [f"{each['name']} ×{each['num_latents']} at {each['boundary']}" for each in operators]
    trained = sum(file.stat().st_size for file in folder.rglob("*.safetensors"))
    facts |= {"trained_files": f"{trained / 1e6:.1f} MB", "folder": str(folder)}
    if folder.parent.name == "checkpoints":
        best = read_best(folder)
        facts["step"] = checkpoint_step(folder)
        facts |= {} if best is None else {"best_step": f"{best.step}, {best.metric} {best.value:.4g}"}
    facts["backbone_fingerprint"] = f"{backbone.get('fingerprint')}, {backbone.get('dtype')}"
    if versions := manifest.get("versions"):
        facts["saved_with"] = [f"{package} {version}" for package, version in versions.items()]
    try:
        return facts | backbone_facts(str(backbone.get("folder") or backbone.get("id")), backbone.get("revision"))
    except (ValueError, OSError) as error:  # a checkpoint is what it is, wherever its backbone is now
        return facts | {"backbone": f"{backbone.get('id')}, not found here: {error}"}


def backbone_facts(id: str, revision: str | None = None) -> dict[str, Any]:
    """The shape of a backbone, from its config alone. Raises what `settings_of` and the Hub raise."""
    try:
        settings = settings_of(id)
    except ValueError:
        check_location(id)
        if Path(id).exists() or not HUB_ID.fullmatch(id):
            raise
        settings = settings_of(str(Path(hf_hub_download(id, CONFIG_NAME, revision=revision)).parent))
    shape = Shape.read(settings)
    return {
        "backbone": id,
        "architecture": f"{settings['model_type']}, {shape.layers} layers of width {shape.dim}",
        "parameters": f"{count_parameters(shape, LoraConfig(), ()).backbone:,}",
        "vocabulary": f"{shape.vocab:,}",
        "positions": f"{settings['max_position_embeddings']:,}" if "max_position_embeddings" in settings else "unknown",
    }
