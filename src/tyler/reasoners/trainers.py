"""The trainings of `tyler train` and of experiments, by name. A package beside this has its own in `trainer.py`."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from tyler import reasoners
from tyler.reasoners.trainer import TRACES, Trainer

PLAIN = {
    "sft": Trainer("fine-tuning on the traces of Stage 1", "sft:run", "sft", ("lora", "sft", *TRACES)),
    "grpo": Trainer(
        "Stage 2 on the plain backbone", "grpo:run", "stage2", ("lora", "stage2", "grpo", "rewards", "decoding")
    ),
}
"""Of the backbone without operators."""


def _of_packages() -> dict[str, Trainer]:
    """TRAINERS of every package of `tyler.reasoners` that has a `trainer.py`."""
    found: dict[str, Trainer] = {}
    for folder in map(Path, reasoners.__path__):
        for source in sorted(folder.glob("*/trainer.py")):
            found |= import_module(f"{reasoners.__name__}.{source.parent.name}.trainer").TRAINERS
    return found


TRAINERS = PLAIN | _of_packages()
