"""The trainings of `tyler train` and of experiments: where each runs, and which settings decide it. Without torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any


@dataclass(frozen=True)
class Trainer:
    """One training; its name is a METHOD of `tyler train`."""

    about: str
    """What it is, for the help."""
    run: str
    """Where its function is, as `module:function` in this package."""
    loop: str
    """The section of the config with its steps and batches."""
    reads: tuple[str, ...]
    """The sections that decide what is learned, besides `backbone` and `data`."""
    needs_start: bool = False
    """Whether it must start from a trained weaver."""

    def load(self) -> Callable[..., Any]:
        """`run(config, output=, resume=)`, with `start=` where it starts from something trained."""
        module, function = self.run.split(":")
        found: Callable[..., Any] = getattr(import_module(f"tyler.reasoners.{module}"), function)
        return found


TRAINERS = {
    "sft": Trainer("fine-tuning on the traces of Stage 1", "sft:run", "sft", ("lora", "sft")),
    "grpo": Trainer("Stage 2 on the plain backbone", "grpo:run", "stage2", ("lora", "stage2", "grpo", "decoding")),
    "softcot": Trainer("soft thoughts of an assistant in the prompt", "softcot.sft:run", "softcot", ("softcot",)),
    "memgen": Trainer("MemGen's weaver on the traces of Stage 1", "memgen.sft:run", "memgen.weaver", ("memgen",)),
    "memgen-weaver-grpo": Trainer(
        "GRPO of a trained weaver", "memgen.grpo:run_weaver", "memgen.weaver_grpo", ("memgen",), needs_start=True
    ),
    "memgen-trigger": Trainer(
        "GRPO of the trigger of a trained weaver", "memgen.grpo:run_trigger", "memgen.trigger", ("memgen",), True
    ),
}
