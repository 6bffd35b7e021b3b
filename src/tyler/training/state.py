"""What the next step depends on besides the model: exact weights, optimizer, random generators."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tyler.runs.checkpoints import reading
from tyler.training.optimizer import Optimization


def save_state(folder: Path, parameters: Sequence[Tensor], optimization: Optimization, *, steps_done: int) -> None:
    """Write everything the next step depends on besides the checkpoint: exact weights, optimizer, random generators."""
    tensors = {f"parameter.{index}": tensor.detach().cpu().clone() for index, tensor in enumerate(parameters)}
    for index, state in optimization.optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{index}.{name}": value.detach().cpu().clone() for name, value in state.items()}
    tensors["random.cpu"] = torch.get_rng_state()
    if torch.cuda.is_available():
        tensors["random.cuda"] = torch.cuda.get_rng_state()
    if torch.backends.mps.is_available():
        tensors["random.mps"] = torch.mps.get_rng_state()
    save_file(tensors, folder / "state.safetensors")
    kept = {"steps_done": steps_done, "skipped": optimization.skipped, "in_a_row": optimization.in_a_row}
    (folder / "state.json").write_text(json.dumps(kept | {"scaler": optimization.scaler.state_dict()}))


def state_bytes(parameters: Sequence[Tensor]) -> int:
    """The size of what `save_state` writes: the exact weights and AdamW's two moments of each."""
    return 3 * sum(tensor.nbytes for tensor in parameters)


def load_state(folder: Path, parameters: Sequence[Tensor], optimization: Optimization) -> int:
    """Put back what `save_state` wrote; returns the number of steps done.

    Raises RunError for a damaged checkpoint, ValueError for one that does not fit.
    """
    with reading(folder):
        tensors = load_file(folder / "state.safetensors")
        saved = [
            tensors[f"parameter.{place}"] for place in range(sum(name.startswith("parameter.") for name in tensors))
        ]
        generator, kept = tensors["random.cpu"], json.loads((folder / "state.json").read_text())
        done, skipped, in_a_row = (int(kept.get(name, 0)) for name in ("steps_done", "skipped", "in_a_row"))
    if len(saved) != len(parameters):
        raise ValueError(
            f"{folder} holds {len(saved)} trained tensors, this run trains {len(parameters)}: the config has changed"
        )
    for place, (tensor, parameter) in enumerate(zip(saved, parameters, strict=True)):
        if tensor.shape != parameter.shape:  # copying would stretch it
            raise ValueError(
                f"trained tensor {place} in {folder} is {list(tensor.shape)}, this run's is {list(parameter.shape)}: "
                "the config or the backbone has changed"
            )
    with torch.no_grad():
        for parameter, tensor in zip(parameters, saved, strict=True):
            parameter.copy_(tensor)
    state: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        if name.startswith("optimizer."):
            _, index, key = name.split(".")
            state.setdefault(int(index), {})[key] = tensor
    groups = optimization.optimizer.state_dict()["param_groups"]
    optimization.optimizer.load_state_dict({"state": state, "param_groups": groups})
    optimization.skipped, optimization.in_a_row = skipped, in_a_row
    if optimization.scaler.is_enabled():
        optimization.scaler.load_state_dict(kept["scaler"])
    torch.set_rng_state(generator)
    if "random.cuda" in tensors and torch.cuda.is_available():
        torch.cuda.set_rng_state(tensors["random.cuda"])
    if "random.mps" in tensors and torch.backends.mps.is_available():
        torch.mps.set_rng_state(tensors["random.mps"])
    return done
