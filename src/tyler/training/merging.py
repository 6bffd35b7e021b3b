"""`tyler merge`: a fine-tuned policy as an ordinary model folder, for any engine and as a backbone to train on."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import torch

from tyler.model import Tyler
from tyler.modeling.backbone import no_progress_bar
from tyler.modeling.lora import fold, folded_view
from tyler.runs.atomic_files import sync, sync_tree


def merge(model: Tyler, folder: Path) -> None:
    """Write theta + (alpha / rank) B A with its tokenizer to `folder`, complete or not at all.

    Raises ValueError for a model whose adapter is nothing without its operators, and FileExistsError for a folder that
    is there already.
    """
    if model.policy.lora is None or model.operators:
        raise ValueError(
            f"a {model.stage} model cannot be merged: only a policy without operators (of `tyler train sft` or `grpo`) "
            "is a plain language model"
        )
    if folder.exists():
        raise FileExistsError(f"{folder} exists; give a folder that does not")
    merged = folded_view(model.policy.lora, model.backbone.model)
    fold(model.policy.lora, merged, torch.float64)
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    with no_progress_bar():
        merged.save_pretrained(partial)
    model.backbone.tokenizer.save_pretrained(partial)
    sync_tree(partial)
    os.replace(partial, folder)
    sync(folder.parent)


def run(location: str, folder: Path, backbone: str | None = None) -> None:
    """Merge the checkpoint at `location` into `folder`, and say what it is good for.

    `backbone` is where its backbone is found, if elsewhere now.
    """
    merge(Tyler.from_pretrained(location, backbone=backbone), folder)
    print(f"{folder} is an ordinary model now: load it in transformers, or set backbone.id to it")
