"""Ways to change what is in a checkpoint or a model folder, and to seal it again as if it had been saved so."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from tyler.modeling import fingerprint, manifest
from tyler.modeling.backbone import Backbone
from tyler.modeling.digests import digest_of


def change(path: Path, edit: Callable[[dict[str, Tensor]], object]) -> None:
    """Edit the tensors of a safetensors file, and keep its metadata."""
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata()
    tensors = load_file(path)
    edit(tensors)
    save_file(tensors, path, metadata=metadata)


@torch.no_grad()
def nudge(tensor: Tensor) -> None:
    """Change the last element by the least that its dtype can say."""
    last = tensor.view(-1)[-1:]
    integers = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
    last.view(integers).bitwise_xor_(1)


def reseal(path: Path) -> None:
    """Give a manifest the digests of what is there now."""
    content = json.loads(path.read_text())
    names = [name for name in content["digests"] if name != path.name]
    digests = {name: digest_of(path.parent / name) for name in names}
    own = manifest.seal_of({**content, "digests": digests})
    path.write_text(json.dumps({**content, "digests": {**digests, path.name: own}}))


def make_old(path: Path, **backbones: Backbone) -> None:
    """Let a manifest be as the first version wrote it; `backbones` are those that it names, by key."""
    content = json.loads(path.read_text())
    for key in ("digests", "placeholders"):
        content.pop(key, None)
    for key, backbone in backbones.items():
        kept = {name: content[key][name] for name in ("id", "revision")}
        content[key] = {**kept, "fingerprint": fingerprint.old_fingerprint(backbone.model)}
    path.write_text(json.dumps({**content, "format": 1}, indent=2) + "\n")
