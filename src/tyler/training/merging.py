"""`tyler merge`: a fine-tuned policy as an ordinary model folder, for any engine and as a backbone to train on."""

import os
import shutil
from pathlib import Path

import torch

from tyler.model import Tyler
from tyler.modeling.backbone import dtype_name, no_progress_bar
from tyler.modeling.lora import lost_to_rounding, merged
from tyler.runs.atomic_files import sync, sync_tree

LARGEST_LOSS = 0.01
"""Of an adapter, that a merged folder may lose to rounding."""


def merge(model: Tyler, folder: Path, dtype: torch.dtype = torch.float32, *, force: bool = False) -> float:
    """Write theta + (alpha / rank) B A in `dtype` with its tokenizer to `folder`, complete or not at all.

    Returns the share of the adapter that rounding loses. Raises ValueError where it is above LARGEST_LOSS and `force`
    is not given, and for a model whose adapter is nothing without its operators; FileExistsError for a folder that is
    there already.
    """
    if model.policy.lora is None or model.operators:
        raise ValueError(
            f"a {model.stage} model cannot be merged: only a policy without operators (of `tyler train sft` or `grpo`) "
            "is a plain language model"
        )
    if folder.exists():
        raise FileExistsError(f"{folder} exists; give a folder that does not")
    lost = lost_to_rounding(model.policy.lora, dtype)
    if lost > LARGEST_LOSS and not force:
        raise ValueError(
            f"in {dtype_name(dtype)} {survival(lost)} of the adapter survives rounding; merge into float32, or use the "
            "checkpoint as it is, which loses nothing in any dtype; --force writes it nevertheless"
        )
    plain = merged(model.policy.lora, model.backbone.model, dtype)
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    with no_progress_bar():
        plain.save_pretrained(partial)
    model.backbone.tokenizer.save_pretrained(partial)
    sync_tree(partial)
    os.replace(partial, folder)
    sync(folder.parent)
    return lost


def survival(lost: float) -> str:
    """What is left of an adapter, in percent; nothing where rounding moves the weights further than it does."""
    return f"{max(0.0, 1 - lost):.1%}"


def run(
    location: str, folder: Path, backbone: str | None = None, dtype: torch.dtype = torch.float32, *, force: bool = False
) -> None:
    """Merge the checkpoint at `location` into `folder`, and say what it is good for.

    `backbone` is where its backbone is found, if elsewhere now.
    """
    lost = merge(Tyler.from_pretrained(location, backbone=backbone, dtype=torch.float32), folder, dtype, force=force)
    print(f"{folder} is an ordinary model now: load it in transformers, or set backbone.id to it")
    if dtype != torch.float32:
        print(f"In {dtype_name(dtype)} {survival(lost)} of the adapter survived rounding")
