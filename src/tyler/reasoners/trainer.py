"""What a training says of itself: where it runs, and what decides it. Without torch, for `tyler train --help`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

TRACES = ("operators", "stage1.max_length", "stage1.insertions.max")
"""What decides which traces `training.traces.load_traces` keeps."""


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
    """What decides what is learned, besides `backbone` and `data`: sections, or settings (`stage1.max_length`)."""
    needs_start: bool = False
    """Whether it must start from a trained weaver."""

    def load(self) -> Callable[..., Any]:
        """`run(config, output=, resume=)`, with `start=` where it starts from something trained."""
        module, function = self.run.split(":")
        found: Callable[..., Any] = getattr(import_module(f"tyler.reasoners.{module}"), function)
        return found
