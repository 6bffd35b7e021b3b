"""Backbones with adapters merged into their weights, from a config or as a checkpoint names them."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from tyler.modeling.architectures import shipped
from tyler.modeling.backbone import DTYPES, Backbone, resolve_device, resolve_dtype
from tyler.modeling.lora import merge_folder
from tyler.modeling.manifest import BackboneRecord, CheckpointError
from tyler.modeling.merged_adapters import ADAPTER_FILES, folder_names


def load_backbone(
    id: str,
    adapters: Sequence[str | Path] = (),
    *,
    revision: str | None = None,
    dtype: str | torch.dtype = "auto",
    device: str | torch.device | None = None,
    path: str | None = None,
) -> Backbone:
    """`Backbone.load`, and some LoRA folders merged into its weights in their order: in float32, before any cast.

    The name of a Tyler that ships means the skill inside it. Raises CheckpointError, naming it, for a folder that holds
    no LoRA of this backbone.
    """
    if not adapters:
        return Backbone.load(id, revision=revision, dtype=dtype, device=device, path=path)
    wanted = resolve_dtype(dtype, resolve_device(device))
    backbone = Backbone.load(id, revision=revision, dtype=torch.float32, device=device, path=path)
    folders = [_adapter_folder(adapter) for adapter in adapters]
    for folder in folders:
        if not folder.is_dir():
            raise CheckpointError(
                f"{folder} is missing: backbone {id!r} is used with an adapter merged into it, and this is its folder"
            )
        merge_folder(backbone.model, folder)
    files = tuple({name: (folder / name).read_bytes() for name in ADAPTER_FILES} for folder in folders)
    merged = replace(backbone, adapters=files)
    return merged if wanted == torch.float32 else merged.rounded_to(wanted)


def _adapter_folder(adapter: str | Path) -> Path:
    model = shipped(str(adapter))
    return Path(adapter) if model is None else model / folder_names(1)[0]


def load_recorded(
    record: BackboneRecord,
    folder: Path,
    *,
    instead: str | Path | None,
    dtype: str | torch.dtype,
    device: str | torch.device | None,
) -> Backbone:
    """The backbone of the checkpoint in `folder`, from where it was, or from the id or path given `instead`.

    Raises CheckpointError for other weights, and FileNotFoundError, which says what to give, if it is not found.
    """
    wanted = resolve_dtype(dtype, resolve_device(device))
    compared = torch.promote_types(wanted, DTYPES[record.dtype])  # holds both, and is rounded to what is wanted
    adapters = [folder / name for name in record.merged_adapters]
    id, path = (record.id, record.locate(folder)) if instead is None else (str(instead), None)
    revision = record.revision if id == record.id else None
    try:
        backbone = load_backbone(id, adapters, revision=revision, dtype=compared, device=device, path=path)
    except FileNotFoundError as error:
        if instead is not None:
            raise
        raise FileNotFoundError(
            f"{error}\n{folder} was trained on it. If it is elsewhere now, give its path: --backbone PATH, "
            "or backbone= in Python"
        ) from error
    record.check(backbone, folder)
    return backbone if compared == wanted else backbone.rounded_to(wanted)
