"""Ways to change what is in a checkpoint or a model folder, and to seal it again as if it had been saved so."""

import json
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

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
    digests = {name: digest_of(path.parent / name) for name in content["digests"]}
    path.write_text(json.dumps({**content, "digests": digests}))
