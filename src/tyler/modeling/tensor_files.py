"""The tensors of a checkpoint: exactly those that are expected, in their shapes, finite, in a float dtype."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from tyler.modeling.manifest import CheckpointError

DTYPES = ("F64", "F32", "F16", "BF16", "F8_E4M3")
"""What is read, as safetensors writes it; all of it becomes float32."""
SHOWN = 6


def tensor_names(path: Path) -> set[str]:
    """The names of a safetensors file's tensors; none of a missing or damaged one, which `read_tensors` refuses."""
    try:
        with safe_open(path, framework="pt") as file:
            return set(file.keys())
    except (OSError, SafetensorError):
        return set()


def read_tensors(path: Path, expected: Mapping[str, Sequence[int]]) -> dict[str, Tensor]:
    """Every tensor of a safetensors file, in float32 on the CPU; `expected` has their shapes by name.

    Raises CheckpointError naming every tensor that is missing, extra, misshapen, of another dtype or not finite, and
    for a file that is missing or damaged.
    """
    if not path.is_file():
        raise CheckpointError(f"{path} is missing: the checkpoint is not complete")
    try:
        with safe_open(path, framework="pt") as file:
            slices = {key: file.get_slice(key) for key in file.keys()}  # noqa: SIM118
            faults = [f"missing {key}" for key in sorted(expected.keys() - slices.keys())]
            faults += [f"extra {key}" for key in sorted(slices.keys() - expected.keys())]
            for key in sorted(expected.keys() & slices.keys()):
                shape, dtype = list(slices[key].get_shape()), slices[key].get_dtype()
                if shape != list(expected[key]):
                    faults.append(f"misshapen {key}: {shape}, expected {list(expected[key])}")
                elif dtype not in DTYPES:
                    faults.append(f"{key} is in {dtype}, expected {' or '.join(DTYPES)}")
            refuse(path, "does not fit this model", faults)
            tensors = {key: file.get_tensor(key).float() for key in slices}
    except SafetensorError as error:
        raise CheckpointError(f"{path} is damaged: {error}; copy the checkpoint again") from error
    refuse(path, "holds numbers that are not finite", [key for key in slices if not tensors[key].isfinite().all()])
    return tensors


def check_half(tensors: Mapping[str, Tensor]) -> None:
    """Raise ValueError, naming the tensors, where numbers are too large for float16."""
    if large := [key for key, tensor in tensors.items() if not tensor.half().isfinite().all()]:
        raise ValueError(f"{', '.join(large)}: numbers beyond float16, up to 65,504; save in float32")


def round_file(path: Path, dtype: torch.dtype = torch.float16) -> None:
    """Rewrite a safetensors file with its matrices in `dtype` and its vectors in float16, each number rounded."""
    with safe_open(path, framework="pt") as file:
        metadata, tensors = file.metadata(), {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    rounded = {key: tensor.to(dtype if tensor.ndim > 1 else torch.float16) for key, tensor in tensors.items()}
    save_file(rounded, path, metadata)


def refuse(path: Path, fault: str, names: Sequence[str]) -> None:
    """Raise CheckpointError where there is a fault, naming the first."""
    if names:
        more = [f"and {len(names) - SHOWN} more"] if len(names) > SHOWN else []
        raise CheckpointError(f"{path} {fault}: {'; '.join([*names[:SHOWN], *more])}")
