"""The methods that an evaluation can name and the trainings of `tyler train`: one table of each. Without torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from tyler.runs.metrics import Metrics

# ---------------------------------------------------------------------------------------------------------- methods


@dataclass(frozen=True)
class LengthSetting:
    """A whole-number setting of a method, with which the tokens of an answer grow.

    `lowest` and `highest` bound it; a `highest` of None is twice the tokens that answers are to have. One that
    `only_shortens` answers is tried only where they are too long.
    """

    setting: str
    lowest: int = 0
    highest: int | None = None
    only_shortens: bool = False


MAX_NEW_TOKENS = "max_new_tokens"
"""A length setting that every method has; it makes answers shorter by cutting them off."""


@dataclass(frozen=True)
class CheckpointFormat:
    """The checkpoints of a method that has its own: what recognises one, and the class that loads it."""

    recognises: Callable[[str], bool]
    model: Any


@dataclass(frozen=True)
class Method:
    """One method, as its module says it in METHOD."""

    settings: type
    """A frozen dataclass of what an evaluation can change."""
    reasoner: Callable[[Any, Any], Any]
    """`reasoner(model, settings)` is a dataclass and a `Servable`."""
    length_settings: tuple[LengthSetting, ...] = ()
    """What the length of its answers depends on."""
    checkpoint: CheckpointFormat | None = None
    """None for a method of a plain backbone, which is not trained."""


METHODS = {
    "cot": "cot",
    "memgen": "memgen.model",
    "soft-thinking": "soft_thinking",
    "softcot": "softcot.model",
    "swireasoning": "swireasoning",
}
"""The module of this package that defines each method's METHOD; it loads when the method is named."""

OWN = "tyler"
"""The model itself, as its last stage left it: Tyler after a stage, SFT, GRPO, or the plain backbone."""


def find_method(name: str) -> Method:
    """What a method says of itself. Raises ValueError for an unknown name."""
    if name not in METHODS:
        raise ValueError(f"unknown --method {name!r}; choose from {', '.join((OWN, *METHODS))}")
    method: Method = import_module(f"tyler.reasoners.{METHODS[name]}").METHOD
    return method


# -------------------------------------------------------------------------------------------------------- trainings


@dataclass(frozen=True)
class Training:
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


MEASURED = (
    *("training.stage1", "training.stage2", "reasoners.sft"),
    *("reasoners.softcot.sft", "reasoners.memgen.sft", "reasoners.memgen.grpo"),
)
"""The modules that say what a training logs, in METRICS."""


def every_metrics() -> dict[str, Metrics]:
    """What each kind of training logs, by the prefix of its keys. Loads all of them, and torch."""
    found = [import_module(f"tyler.{name}").METRICS for name in MEASURED]
    return {metrics.prefix: metrics for metrics in found}


TRACES = ("operators", "stage1.max_length", "stage1.insertions.max")
"""What decides which traces `training.traces.load_traces` keeps."""
MEMGEN = ("memgen", "rewards")

TRAININGS = {
    "sft": Training("fine-tuning on the traces of Stage 1", "sft:run", "sft", ("lora", "sft", *TRACES)),
    "grpo": Training(
        "Stage 2 on the plain backbone", "grpo:run", "stage2", ("lora", "stage2", "grpo", "rewards", "decoding")
    ),
    "memgen": Training(
        "MemGen's weaver on the traces of Stage 1", "memgen.sft:run", "memgen.weaver", ("memgen", *TRACES)
    ),
    "memgen-weaver-grpo": Training(
        "GRPO of a trained weaver", "memgen.grpo:run_weaver", "memgen.weaver_grpo", MEMGEN, needs_start=True
    ),
    "memgen-trigger": Training(
        "GRPO of the trigger of a trained weaver", "memgen.grpo:run_trigger", "memgen.trigger", MEMGEN, needs_start=True
    ),
    "softcot": Training(
        "soft thoughts of an assistant in the prompt", "softcot.sft:run", "softcot", ("softcot", "stage1.max_length")
    ),
}

# --------------------------------------------------------------------------------------------- checks of settings


def check_at_least(bound: float, **settings: float) -> None:
    """Raise ValueError for a setting below `bound`."""
    for name, value in settings.items():
        if not value >= bound:
            raise ValueError(f"{name}={value}; it must be {bound} or more")


def check_share(**settings: float) -> None:
    """Raise ValueError for a setting that is not above 0 and at most 1."""
    for name, value in settings.items():
        if not 0 < value <= 1:
            raise ValueError(f"{name}={value}; it must be above 0 and at most 1")
