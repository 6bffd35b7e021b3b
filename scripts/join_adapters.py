"""Write the sum of LoRA adapters as one of a given rank: the best of that rank, by singular values.

python scripts/join_adapters.py ADAPTER [ADAPTER ...] --rank 4 --output FOLDER [--dtype float8_e4m3fn]

An adapter is a peft folder. Printed is the share of the sum's squares that each rank up to the given one keeps, and
how far rounding to the dtype is from what was kept.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

TENSORS, CONFIG = "adapter_model.safetensors", "adapter_config.json"


def factors(folders: Sequence[Path]) -> dict[str, tuple[Tensor, Tensor]]:
    """Of every adapted map, A (rank, inputs) and B (outputs, rank) of the sum, exactly: ranks add up."""
    downs, ups = defaultdict[str, list[Tensor]](list), defaultdict[str, list[Tensor]](list)
    for folder in folders:
        config = json.loads((folder / CONFIG).read_text())
        for name, tensor in load_file(folder / TENSORS).items():
            stem, _, side = name.removesuffix(".weight").rpartition(".")
            scale = config["lora_alpha"] / config["r"] if side == "lora_B" else 1.0
            (ups if side == "lora_B" else downs)[stem].append(tensor.double() * scale)
    return {stem: (torch.cat(downs[stem]), torch.cat(ups[stem], dim=1)) for stem in downs}


def reduced(down: Tensor, up: Tensor, rank: int) -> tuple[Tensor, Tensor, Tensor]:
    """The best A and B of `rank`, both with the roots of the singular values; and all singular values."""
    left, up_inner = torch.linalg.qr(up)
    right, down_inner = torch.linalg.qr(down.T)
    u, values, vh = torch.linalg.svd(up_inner @ down_inner.T)
    roots = values[:rank].sqrt()
    return roots[:, None] * (right @ vh.T[:, :rank]).T, left @ u[:, :rank] * roots, values


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("adapters", type=Path, nargs="+", help="peft folders, of the same maps")
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--dtype", choices=("float16", "float8_e4m3fn"), default="float16", help="what is written")
    parser.add_argument("--output", type=Path, required=True, help="the folder that is written")
    arguments = parser.parse_args()
    kept, tensors = torch.zeros(arguments.rank, dtype=torch.float64), dict[str, Tensor]()
    dtype: torch.dtype = getattr(torch, arguments.dtype)
    total = off = 0.0
    for stem, (down, up) in factors(arguments.adapters).items():
        down, up, values = reduced(down, up, arguments.rank)
        kept += values[: arguments.rank].square().cumsum(0)
        total += float(values.square().sum())
        rounded = {f"{stem}.lora_A.weight": down.to(dtype), f"{stem}.lora_B.weight": up.to(dtype)}
        written_down, written_up = (tensor.double() for tensor in rounded.values())
        off += float((up @ down - written_up @ written_down).square().sum())
        tensors |= rounded
    config = json.loads((arguments.adapters[0] / CONFIG).read_text())
    config |= {"r": arguments.rank, "lora_alpha": arguments.rank}
    arguments.output.mkdir(parents=True)
    (arguments.output / CONFIG).write_text(json.dumps(config, indent=2) + "\n")
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, arguments.output / TENSORS)
    for rank, squares in enumerate(kept, start=1):
        print(f"rank {rank}: {float(squares) / total:.1%} of the squares")
    print(f"{arguments.dtype}: off by {(off / float(kept[-1])) ** 0.5:.2%} of what is kept")


if __name__ == "__main__":
    main()
