"""Write a trained Tyler as package data: its best checkpoint with matrices in eight bits (float8_e4m3fn).

What is measured of the model is measured of the folder that is written: rounding changes answers.

python scripts/ship_operators.py RUN src/tyler/assets/smollm2-tyler --card card.md
"""

import shutil
import tempfile
from pathlib import Path

import torch
import tyro
from tyro.conf import Positional

from tyler.model import Tyler
from tyler.modeling.checkpoint import Manifest
from tyler.modeling.tensor_files import round_file
from tyler.runs.checkpoints import best_checkpoint, latest_checkpoint

LARGEST = 10_000_000
"""Bytes: what a package may carry for one model."""


def ship(run: Positional[Path], folder: Positional[Path], *, card: Path) -> int:
    """Write the checkpoint into `folder`, whole or not at all; returns its bytes. ValueError if they are too many.

    Args:
        run: A run of a stage, or a checkpoint.
        folder: Where it is written; what was there is replaced.
        card: Its README.md: what it can and cannot do.
    """
    chosen = best_checkpoint(run) or latest_checkpoint(run) or run
    model = Tyler.from_pretrained(str(chosen), dtype="float32", device="cpu")
    with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
        prepared = Path(temporary) / folder.name
        model.save_pretrained(prepared)
        manifest = Manifest.read(prepared)
        for file in prepared.rglob("*.safetensors"):
            round_file(file, torch.float8_e4m3fn)
        manifest.write(prepared)  # with the digests of what is now there
        for readme in prepared.rglob("README.md"):
            readme.unlink()  # peft's is a form to be filled in
        shutil.copy(card, prepared / "README.md")
        size = sum(file.stat().st_size for file in prepared.rglob("*") if file.is_file())
        if size > LARGEST:
            raise ValueError(f"{chosen} is {size:,} bytes; at most {LARGEST:,} are shipped")
        Tyler.from_pretrained(str(prepared), dtype="float32", device="cpu")  # it loads, or nothing is written
        shutil.rmtree(folder, ignore_errors=True)
        prepared.rename(folder)
    print(f"{folder}: {size:,} bytes")
    return size


if __name__ == "__main__":
    tyro.cli(ship, description=__doc__)
